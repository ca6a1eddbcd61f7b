"""Candidates of tasks, and the facts of a recording's pages that they are made of. Pure.

A candidate has a goal, an evaluator, and what an oracle does. Each family (`reading`, `forms`, `scripted`) is
a generator of candidates. A candidate is a claim that `proof` tests in the browser; the families only make
sure that the question has one answer in the whole recording:

- a subject names one page, or all its pages give the same value for the attribute;
- a description fits one page.

Goals use the site's own words, in quotation marks.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, TypeVar

from stillweb import clock
from stillweb.benchmarks.pages import PRICE, SiteFact, SitePage, fold
from stillweb.benchmarks.site import SiteMap
from stillweb.env.tasks.evaluators import AnswerEvaluator, TaskEvaluator

NOT_FOUND = "N/A"
NOT_SAID = f"Answer “{NOT_FOUND}” if the site does not say."
WRONG_ANSWERS = 20
"""Most wrong answers of a candidate."""
_VALUE = 60  # characters of an answer
_ACRONYM = re.compile(r"^[A-Z]{2,}|^[A-Z]\d|^[a-z]*[A-Z].*[A-Z]")
_WORDY = re.compile(r"[^\W_]")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_ATTRIBUTE = re.compile(r"[^\W\d_][^\W_]*(?:[ '-][^\W_]+)*(?: \([^()]+\))?")
_COUNTERS = ("link", "rowid", "row", "row id", "number", "index")  # columns that only count rows
_BUTTONS = ("action", "actions", "operations", "options")  # columns of buttons
_HEADING = re.compile(r"(?:\d+(?:\.\d+)*\.? )?[^\W\d_a-z]")
_STATE = re.compile(
    r"\b(?:returning|showing|found) [\d,]+|\((?:hide|show|edit)\)|[\[\]]|!$|^no .* (?:found|yet|available)$",
    re.IGNORECASE,
)
_WORDS_OF_VALUE = 8
_COUNTED = re.compile(r"\s\(\d{1,3}\)$")  # an option of a filter, with the number of its entries
_MARKUP = re.compile(r"''|%%|``|\[\[|\{\{")  # of a wiki or template, which its page shows as it is
_FOOTNOTE = re.compile(r"(?:[(\[]\w{1,2}[)\]]\s*)+")
_NOTHING = ("n/a", "none", "unknown", "undefined", "null", "nan", "yes", "no", "true", "false")
_TIME_LIKE = re.compile(r"\b\d{1,2}:\d{2}(:\d{2})?\b|\bago\b", re.IGNORECASE)

Act = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskCandidate:
    """A possible task.

    Attributes:
        slots: what the template was filled with; equal slots are the same instance.
        visits: pages that the oracle opens in order; it acts on the last one.
        acts: actions after the visits, with role and name instead of a bid; the answer is not among them.
        answer: that the oracle gives at the end.
        wrong: answers that must score 0.
        shows: texts that the oracle must have seen on its way.
        neighbours: other actions instead of `acts` that must score 0.
        lands: further pages that the acts lead to.
    """

    family: str
    template: str
    slots: tuple[str, ...]
    goal: str
    evaluation: TaskEvaluator
    visits: tuple[str, ...]
    acts: tuple[Act, ...] = ()
    answer: str = ""
    wrong: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    neighbours: tuple[tuple[Act, ...], ...] = ()
    lands: tuple[str, ...] = ()


@dataclass
class SiteFacts:
    """Facts of a site by question, and which of them have one answer."""

    site: SiteMap
    seed: int
    pages: Sequence[SitePage] = field(init=False)

    def __post_init__(self) -> None:
        self.pages = list(self.site.pages.values())

    def shuffled(self, items: Sequence[Any], *salt: str) -> list[Any]:
        """Return items in an order that the seed determines."""
        return clock.seeded("tasks", self.seed, *salt).sample(list(items), len(items))

    @cached_property
    def subjects(self) -> Mapping[str, tuple[str, ...]]:
        """Pages by folded subject."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for page in self.pages:
            found[fold(page.subject)].append(page.url)
        return {subject: tuple(urls) for subject, urls in found.items()}

    @cached_property
    def questions(self) -> Mapping[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
        """For each question (shape, subject, attribute, context) its values, with the pages of each."""
        found: defaultdict[tuple[str, ...], defaultdict[str, list[str]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for page in self.pages:
            for fact in page.facts:
                found[question_of(fact)][fact.value].append(page.url)
        return {key: {value: tuple(urls) for value, urls in values.items()} for key, values in found.items()}

    @cached_property
    def columns(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """All values of an attribute, by shape and folded attribute."""
        found: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for page in self.pages:
            for fact in page.facts:
                found[fact.shape, fold(fact.attribute)][fact.value] = None
        return {key: tuple(values) for key, values in found.items()}

    def is_guessed(self, fact: SiteFact) -> bool:
        """Return whether most subjects have a fact's value: answered without reading, such as "0 reviews"."""
        values = self._values[fact.shape, fold(fact.attribute), fold(fact.context)]
        return 2 * list(values.values()).count(fold(fact.value)) > len(values)

    @cached_property
    def _values(self) -> Mapping[tuple[str, str, str], Mapping[str, str]]:
        """Folded value of each subject, by shape, attribute and table."""
        found: defaultdict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
        for fact in (fact for page in self.pages for fact in page.facts):
            key = (fact.shape, fold(fact.attribute), fold(fact.context))
            found[key][fold(fact.subject)] = fold(fact.value)
        return found

    @cached_property
    def prices(self) -> Mapping[str, str]:
        """Price of each listed item that has one price and one URL everywhere, by its name."""
        prices: defaultdict[str, set[str]] = defaultdict(set)
        urls: defaultdict[str, set[str]] = defaultdict(set)
        for page in self.pages:
            for item in page.items:
                prices[item.name].add(item.price)
                urls[item.name].add(item.url)
        return {
            name: next(iter(found))
            for name, found in prices.items()
            if len(found) == 1 and len(urls[name]) == 1 and is_name(name) and self._is_item(name, *urls[name])
        }

    def _is_item(self, name: str, url: str) -> bool:
        """Return whether a link's name can be an item's: the linked page, if recorded, is about it."""
        target = self.site.landing(url)
        return not target or fold(self.site.pages[target].subject) == fold(name)

    def is_clear(self, fact: SiteFact) -> bool:
        """Return whether the recording has one answer to the question of a fact."""
        if len(self.questions[question_of(fact)]) != 1:
            return False
        if fact.shape == "pair":
            return fact.attribute[0].isupper() and fold(fact.attribute) in self._properties
        if fact.shape == "cell":
            plain = len(fact.subject.split()) <= _WORDS_OF_VALUE and not re.search(r"[\\\"]", fact.subject)
            if not self.is_on_every_page(fact.context):
                return False
            if (fold(fact.context), fold(fact.subject)) in self._repeated:
                return False  # such as a priority, which names the row only where the table is filtered
            return is_name(fact.context) and bool(_LETTERS.search(fact.subject)) and plain
        return self.prices.get(fact.subject) == fact.value

    def is_on_every_page(self, context: str) -> bool:
        """Return whether all pages that the name of a table fits have a table of that name."""
        return fold(context) not in self._without_table

    @cached_property
    def _without_table(self) -> frozenset[str]:
        return frozenset(
            fold(page.subject)
            for page in self.pages
            if not any(fold(table.name) == fold(page.subject) for table in page.tables)
        )

    @cached_property
    def _repeated(self) -> frozenset[tuple[str, str]]:
        """Name of a table and text, for the texts that several rows of a table of that name have."""
        found: set[tuple[str, str]] = set()
        for table in (table for page in self.pages for table in page.tables):
            counts = Counter(text for row in table.rows for text in set(map(fold, row)))
            found.update((fold(table.name), text) for text, count in counts.items() if count > 1)
        return frozenset(found)

    @cached_property
    def _properties(self) -> frozenset[str]:
        """Attributes that several subjects have as a pair, mostly with short values; others are terms."""
        subjects: defaultdict[str, set[str]] = defaultdict(set)
        short: defaultdict[str, list[bool]] = defaultdict(list)
        for fact in (fact for page in self.pages for fact in page.facts if fact.shape == "pair"):
            subjects[fold(fact.attribute)].add(fold(fact.subject))
            short[fold(fact.attribute)].append(len(fact.value) <= _VALUE)
        return frozenset(
            attribute
            for attribute, found in subjects.items()
            if len(found) > 1 and 2 * sum(short[attribute]) > len(short[attribute])
        )

    @cached_property
    def tables(self) -> Mapping[str, set[frozenset[tuple[str, ...]]]]:
        """Different contents of the tables of a name, by the name folded."""
        found: defaultdict[str, set[frozenset[tuple[str, ...]]]] = defaultdict(set)
        for page in self.pages:
            for table in page.tables:
                found[fold(table.name)].add(frozenset(table.rows))
        return found

    def is_only(self, page: SitePage) -> bool:
        """Return whether only a page, possibly under several URLs, has its subject as subject or title."""
        return self._named[fold(page.subject)] <= set(self.site.alike(page.url))

    @cached_property
    def _named(self) -> Mapping[str, set[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for page in self.pages:
            found[fold(page.subject)].add(page.url)
            found[fold(page.title)].add(page.url)
        return found

    @cached_property
    def headings(self) -> Counter[str]:
        """Number of different pages that have a heading, by the heading folded."""
        found: dict[str, set[str]] = defaultdict(set)
        for page in self.pages:
            for _, text in page.headings:
                found[fold(text)].add(page.content)
        return Counter({text: len(pages) for text, pages in found.items()})

    def others(self, fact: SiteFact) -> tuple[str, ...]:
        """Return other values of a fact's attribute, values of other attributes, and "not found"."""
        column = [v for v in self.columns[fact.shape, fold(fact.attribute)] if fold(v) != fold(fact.value)]
        return tuple(dict.fromkeys([*column[:WRONG_ANSWERS], fact.subject, fact.attribute, NOT_FOUND]))


def in_turn(*sources: Iterator[T]) -> Iterator[T]:
    """Yield the first item of each iterator, then the second of each."""
    for turn in zip_longest(*sources):
        yield from (each for each in turn if each is not None)


def question_of(fact: SiteFact) -> tuple[str, ...]:
    """Return what identifies the question that a fact answers."""
    return (fact.shape, *map(fold, (fact.subject, fact.attribute, fact.context)))


def is_name(text: str) -> bool:
    whole = not text.endswith(("...", "…")) and not _MARKUP.search(text)
    return (
        whole and 3 <= len(text) <= 90 and bool(_WORDY.search(text)) and "“" not in text and "”" not in text
    )


def is_heading(text: str) -> bool:
    """Return whether a heading describes its section: words, possibly after a number such as "8.7."."""
    return is_name(text) and bool(_HEADING.match(text)) and len(text) >= 6 and not is_state(text)


def is_state(text: str) -> bool:
    """Return whether a heading says what the page does or did, such as "No tab selected!"."""
    return bool(_STATE.search(text))


def is_title(text: str) -> bool:
    """Return whether a title describes its page: words, and no record's name such as "cars: 33"."""
    return is_name(text) and bool(_LETTERS.search(text)) and not re.search(r"[:#] ?\d+$", text)


def is_value(text: str) -> bool:
    """Return whether a text is a good answer: short, and no time of day, which a session may change."""
    return (
        0 < len(text) <= _VALUE
        and len(text.split()) <= _WORDS_OF_VALUE
        and not re.search(r"\w\w\. ?$|(?:\.\.\.|…)$", text)
        and not _FOOTNOTE.fullmatch(text)
        and not _COUNTED.search(text)
        and bool(re.search(r"[^\W_]", text))
        and not _TIME_LIKE.search(text)
        and "“" not in text
        and fold(text) not in _NOTHING
    )


def is_attribute(text: str) -> bool:
    return (
        fold(text) not in (*_COUNTERS, *_BUTTONS)
        and 2 < len(text) <= 40
        and len(text.split()) <= 5
        and bool(_ATTRIBUTE.fullmatch(text))
    )


def noun_of(attribute: str) -> str:
    """Return an attribute as it stands within a sentence: in small letters, except acronyms."""
    return " ".join(word if _ACRONYM.match(word) else word.lower() for word in attribute.split())


def answer_evaluator(value: str) -> AnswerEvaluator:
    """Return the evaluator of an answer; the currency sign of a price may be left out."""
    if match := PRICE.fullmatch(value.strip()):
        number = match["number"] or match["after"]
        sign = match["before"] or "€"
        plain = re.escape(number.replace(",", "")) if match["number"] else re.escape(number)
        spellings = "|".join(dict.fromkeys((re.escape(number), plain)))
        return AnswerEvaluator(regex=rf"(?:{re.escape(sign)}\s?)?(?:{spellings})(?:\s?{re.escape(sign)})?")
    if re.fullmatch(r"-?\d+\.0+", value):
        return AnswerEvaluator(regex=rf"{value.partition('.')[0]}(?:\.0+)?")
    return AnswerEvaluator(exact=value)

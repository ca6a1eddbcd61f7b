"""Words that visitors are likely to type, and the requests that send them. Pure.

Agents type what the site shows. A word is as likely as that a visitor is on a page with it, and types it of
all words there. Words go into the text fields of GET forms, and into requests of scripts that were seen to
send a word (search, type-ahead).
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit

from stillweb.record.harvest.misses import PlainRequest
from stillweb.record.htmlforms import HtmlForm, typed_requests

_TEXTS = ("text", "search")  # types of fields that take a word
_RANKED_AGAIN = 1.3  # growth of all weights after which the words are ranked again
_BEGINNINGS = 5  # characters of the longest beginning of a word that is sent
_SHOWN = 0.5  # weight of titles, headings, cells and options, relative to all words of a page
_BUTTON = 0.25  # likelihood of each further button of a form, relative to the first, which Enter presses
_FEW, _MANY = 20, 0.2  # pages with a form whose words are taken; share of all pages from which on it has none
_FORMS = 300  # forms that have words of their own: the first ones found, which are the likeliest
_ELSEWHERE = 0.2  # likelihood that a visitor types a word of another page into such a form


@dataclass(slots=True)
class SiteWords:
    """Words of a site, with their weights."""

    weights: dict[str, float] = field(default_factory=dict)
    _total: float = 0.0
    _ranked_at: float = 0.0
    _ranked: list[tuple[str, float]] = field(default_factory=list)

    def add(self, words: Iterable[str], weight: float, shown: Iterable[str] = ()) -> None:
        """Add the words of a page that visitors reach with a likelihood.

        `shown` are those of titles, headings, table cells and options, which name what a site is about.
        """
        weights = self.weights
        for texts, share in ((list(words), weight), (list(shown), weight * _SHOWN)):
            each = share / max(1, len(texts))
            for text in texts:
                weights[text] = weights.get(text, 0.0) + each
            self._total += share if texts else 0.0

    def raise_to(self, counts: Mapping[str, int]) -> None:
        """Let words have at least the likelihoods that walks have seen.

        Walks and documents show the same words, so that their likelihoods do not add up.
        """
        whole = max(1.0, sum(self.weights.values()))
        total = sum(counts.values())
        for word, count in counts.items():
            known, share = self.weights.get(word, 0.0), whole * count / total
            self.weights[word] = max(known, share)
            self._total += max(0.0, share - known)

    def likeliest(self, number: int) -> list[tuple[str, float]]:
        """Return at least the likeliest words with their likelihoods, which add up to at most 1."""
        if self._total > _RANKED_AGAIN * self._ranked_at or len(self._ranked) < min(
            number, len(self.weights)
        ):
            total = sum(self.weights.values())
            largest = heapq.nlargest(number, self.weights.items(), key=lambda each: (each[1], each[0]))
            self._ranked = [(word, weight / total) for word, weight in largest]
            self._ranked_at = self._total
        return self._ranked


def with_beginnings(words: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return likely words and their beginnings, which a field with suggestions sends while a visitor types.

    A beginning is as likely as all words that have it. The result is as long as `words`.
    """
    weights = dict(words)
    for word, weight in words:
        for end in range(1, min(_BEGINNINGS, len(word) - 1) + 1):
            weights[word[:end]] = weights.get(word[:end], 0.0) + weight
    return heapq.nlargest(len(words), weights.items(), key=lambda each: (each[1], each[0]))


@lru_cache(maxsize=4096)
def typed_form(form: HtmlForm) -> HtmlForm:
    """Return a GET form without what does not count once a word is typed, so that equal forms are one.

    A form without an action names its page's query there, and a search page repeats the last word.
    """
    only = sum(each.type in _TEXTS for each in form.fields) == 1
    fields = tuple(
        replace(each, value="" if only and each.type in _TEXTS else each.value, names=(), longest=0)
        for each in form.fields
    )
    return replace(form, action=form.action.partition("?")[0], fields=fields, unaddressed=False)


@dataclass(frozen=True, slots=True)
class WordRequest:
    """A request with a word, and its weight; `plain` is None for a document, `place` for any other."""

    url: str
    description: str
    page: str
    weight: float
    plain: PlainRequest | None = None
    place: WordField | None = None


@dataclass(frozen=True, slots=True)
class WordField:
    """A text field of a GET form, and a page that has the form."""

    form: HtmlForm
    at: int
    page: str = field(compare=False)
    by_key = False

    @property
    def source(self) -> Hashable:
        """Key of its weight."""
        return self.form

    @property
    def identity(self) -> tuple[str, str]:
        """Host and path that it is sent to, and the parameter that holds the word."""
        parts = urlsplit(self.form.action)
        return (f"{parts.hostname}{parts.path}", self.form.fields[self.at].name)

    def requests(self, word: str, weight: float) -> list[WordRequest]:
        """Return the form's requests, one for each button."""
        return [
            WordRequest(
                lead.url, lead.description, self.page, weight * (_BUTTON if number else 1.0), place=self
            )
            for number, lead in enumerate(typed_requests(self.form, self.at, word))
        ]


@dataclass(frozen=True, slots=True)
class WordTemplate:
    """A script's request with a word at one position of its form data."""

    request: PlainRequest
    at: int

    @property
    def source(self) -> Hashable:
        """Key of its weight."""
        return self

    @property
    def identity(self) -> tuple[str, str]:
        """Host and path that it is sent to, and the parameter that holds the word."""
        parts = urlsplit(self.request.place)
        return (f"{parts.hostname}{parts.path}", self.request.pairs[self.at][0])

    def requests(self, word: str, weight: float) -> list[WordRequest]:
        """Return the request with another word."""
        pairs = self.request.pairs
        before, after = self.request.around
        pairs[self.at] = (pairs[self.at][0], f"{before}{word}{after}")
        plain = self.request.with_pairs(pairs)
        return [WordRequest(plain.key, "", plain.referer, weight, plain)]

    @property
    def by_key(self) -> bool:
        """True if beginnings of words are sent, too."""
        return self.request.by_key


@dataclass(slots=True)
class FormWords:
    """Words of the pages that have a form, such as one that names its page in a hidden field.

    A visitor who types into such a form is on one of these pages, and types what it shows.

    Attributes:
        pages: number of pages with the form; `weights` has the words of the first ones.
    """

    pages: int = 0
    weights: dict[str, float] = field(default_factory=dict)
    _ranked: list[tuple[str, float]] = field(default_factory=list)

    def add(self, words: Collection[str], weight: float) -> None:
        """Add the words of a page that visitors reach with a likelihood."""
        self.pages += 1
        if self.pages > _FEW or not words:
            return
        each = weight / len(words)
        for word in map(sys.intern, words):
            self.weights[word] = self.weights.get(word, 0.0) + each
        self._ranked = []

    def state(self) -> tuple[int, dict[str, float]]:
        """Return the arguments of an equal object, as JSON."""
        return self.pages, {word: float(f"{weight:.3g}") for word, weight in self.weights.items()}

    def ranked(self, site: Mapping[str, float]) -> list[tuple[str, float]]:
        """Return the words with their likelihoods; equal ones in the order of the whole site."""
        if self.weights and not self._ranked:
            total = sum(self.weights.values())
            order = sorted(
                self.weights.items(), key=lambda each: (-each[1], -site.get(each[0], 0.0), each[0])
            )
            self._ranked = [(word, (1 - _ELSEWHERE) * weight / total) for word, weight in order]
        return self._ranked


@dataclass(slots=True)
class WordRequests:
    """Places that take a word, and the words that each was given.

    Attributes:
        own: words of the pages with a form, of the first forms.
        pages: number of pages that were added.
        closed: (host and path, parameter) of those that need no further word.
        buttons: how often each button of a form was missed, by its number.
    """

    places: dict[WordField | WordTemplate, set[str]] = field(default_factory=dict)
    own: dict[HtmlForm, FormWords] = field(default_factory=dict)
    pages: int = 0
    closed: set[tuple[str, str]] = field(default_factory=set)
    buttons: dict[HtmlForm, Counter[int]] = field(default_factory=dict)

    def add_form(self, form: HtmlForm, page: str) -> None:
        """Add the text fields of a form that is not known yet."""
        for at, each in enumerate(form.fields):
            if each.name and each.type in _TEXTS:
                self.places.setdefault(WordField(form, at, page), set())

    def add_words(self, form: HtmlForm, page: str, words: Collection[str], weight: float) -> None:
        """Let the words of a page be likely in a form that few pages have.

        The answers of the form itself do not count: they repeat it.
        """
        own = self.own.get(form) if len(self.own) >= _FORMS else self.own.setdefault(form, FormWords())
        if own is not None and not _answers(form, page):
            own.add(words, weight)

    def _texts(
        self, place: WordField | WordTemplate, words: list[tuple[str, float]], site: Mapping[str, float]
    ) -> Iterator[tuple[list[tuple[str, float]], float]]:
        """Yield the words for a place, and the likelihood that they are typed there."""
        own = self.own.get(place.form) if isinstance(place, WordField) else None
        is_own = own is not None and 0 < own.pages <= _MANY * self.pages
        if own is not None and is_own:
            yield own.ranked(site), 1.0
        yield words, _ELSEWHERE if is_own else 1.0

    def add_template(self, template: WordTemplate) -> None:
        """Add a script's request."""
        self.places.setdefault(template, set())

    def fields(self) -> list[WordField]:
        """Return the text fields of forms."""
        return [place for place in self.places if isinstance(place, WordField)]

    def forms(self) -> dict[HtmlForm, str]:
        """Return the forms, each with a page that has it."""
        return {place.form: place.page for place in self.fields()}

    def sent_by(self, url: str, count: int) -> WordField | None:
        """Return the field that a request's text was typed into, and count its button; None without one."""
        parts = urlsplit(url)
        typed = dict(parse_qsl(parts.query, keep_blank_values=True))
        at = f"{parts.hostname}{parts.path}"
        for place in self.places:
            host_path, name = place.identity
            if isinstance(place, WordField) and host_path == at and typed.get(name):
                sent = [each.url for each in place.requests(typed[name], 1.0)]
                if url in sent:
                    self.buttons.setdefault(place.form, Counter())[sent.index(url)] += count
                    return place
        return None

    def take(
        self,
        weight_of: Callable[[Hashable], float],
        words: list[tuple[str, float]],
        least: float,
        most: int,
        recorded: Collection[str] = (),
        site: Mapping[str, float] = MappingProxyType({}),
    ) -> list[WordRequest]:
        """Return the likeliest requests that were not returned before.

        Args:
            weight_of: likelihood that a visitor types into a place, by its `source`.
            words: likeliest words first.
            least: weight that a request must have.
            most: maximum number of words over all places.
            recorded: URLs that need no request.
            site: weights of all words.
        """
        by_key = with_beginnings(words) if any(place.by_key for place in self.places) else words
        lists = [
            (place, given, texts, share)
            for place, given in self.places.items()
            if place.identity not in self.closed
            for texts, share in self._texts(place, by_key if place.by_key else words, site)
        ]
        heap: list[tuple[float, int, int]] = []

        def push(number: int, rank: int) -> None:
            place, given, texts, share = lists[number]
            while rank < len(texts) and texts[rank][0] in given:
                rank += 1
            if rank < len(texts):
                heapq.heappush(heap, (-weight_of(place.source) * share * texts[rank][1], number, rank))

        for number in range(len(lists)):
            push(number, 0)
        found: list[WordRequest] = []
        while heap and most > 0 and -heap[0][0] >= least:
            weight, number, rank = heapq.heappop(heap)
            place, given, texts, _ = lists[number]
            text = texts[rank][0]
            if text in given:  # from the other list of the place
                push(number, rank + 1)
                continue
            given.add(text)
            sent = [each for each in self._requests(place, text, -weight) if each.url not in recorded]
            found += sent
            most -= bool(sent)
            push(number, rank + 1)
        return found

    def _requests(self, place: WordField | WordTemplate, text: str, weight: float) -> list[WordRequest]:
        """Return the requests of a word; buttons that were missed seldom, if others were, are unlikely."""
        sent = place.requests(text, weight)
        counts = self.buttons.get(place.form) if isinstance(place, WordField) else None
        if not counts:
            return sent
        likeliest = max(counts.values()) + 1
        return [replace(each, weight=weight * (counts[at] + 1) / likeliest) for at, each in enumerate(sent)]


def _answers(form: HtmlForm, url: str) -> bool:
    """Return whether a URL is that of a form with a text."""
    target, _, query = url.partition("?")
    if target != form.action.partition("?")[0]:
        return False
    named = {each.name for each in form.fields if each.type in _TEXTS}
    return any(name in named and value for name, value in parse_qsl(query))

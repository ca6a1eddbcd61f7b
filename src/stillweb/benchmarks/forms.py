"""Candidates of tasks that fill and send a form, scored by the request that the form sends. Pure.

The result page of a form with new values is in no recording. The evaluator `request` judges what was sent,
so that any form of a recorded page makes a task. Forms with passwords or files, and those with a required
field that the page gives no name, are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from urllib.parse import urlencode

from stillweb import clock
from stillweb.benchmarks.candidates import (
    NOT_FOUND,
    WRONG_ANSWERS,
    Act,
    SiteFacts,
    TaskCandidate,
    answer_evaluator,
)
from stillweb.benchmarks.pages import PRICE, SiteControl, SiteForm, SitePage, fold
from stillweb.env.tasks.evaluators import AllEvaluator, AnswerEvaluator
from stillweb.env.tasks.requests import RequestEvaluator

_SEARCH = re.compile(r"\b(search|query|find|q)\b", re.IGNORECASE)
_UNSUITED = ("password", "file", "date", "datetime-local", "time", "color", "range")
_SECRET = re.compile(r"passw|captcha|token|card.?number|cvv", re.IGNORECASE)
_FILLED = ("text", "email", "tel", "url", "number", "textarea", "search")
_RARE = 0.1  # share of the pages that mention a word to search for, at most; three pages always may
_MOST_FIELDS = 4
_PEOPLE = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Mary Jackson", "Emmy Noether", "Niels Bohr")
_TEXTS = (
    "Please call me in the afternoon",
    "I have a question about my last order",
    "Delivery before noon would be best",
    "Is this also available in another size?",
    "Thank you for the quick reply",
    "Please confirm that you have received this",
)
_CORRESPONDENCE = re.compile(r"contact|message|order|support|question|enquir|inquir|ticket", re.IGNORECASE)
_NOTES = (
    "First draft, to be reviewed",
    "Checked and updated today",
    "Needs a second look",
    "Moved here from the old list",
    "Corrected two spelling mistakes",
    "Agreed at the meeting on Monday",
)
_REVIEWS = (
    "Arrived quickly and works well",
    "Good quality, but the colour is paler than expected",
    "I use it daily",
)
_REVIEW_TITLES = ("Very happy with it", "Good value", "Better than expected", "Would buy it again")
_TEXT_TITLES = ("Question", "Request", "Order")
_NOTE_TITLES = ("Summary", "Checklist", "Open points")
_REVIEW = re.compile(r"review|rating|feedback", re.IGNORECASE)
_CITIES = ("Lisbon", "Toronto", "Helsinki", "Nairobi", "Melbourne", "Cracow")
_ADD = re.compile(r"add to (?:my |your |the )?(\w+)", re.IGNORECASE)
_OF_EVERY_SITE = frozenset(
    (
        *("search", "login", "register", "password", "reset", "recent", "changes", "media", "manager"),
        *("index", "sitemap", "account", "basket", "page", "pages", "welcome", "matching", "products"),
    )
)
_LABELLED = re.compile(rf"([A-Z][a-z]+ (?:[a-z]+ )?[a-z]+): ?({PRICE.pattern})")
_WORD = re.compile(r"[^\W\d_]{5,14}")


@dataclass(frozen=True, slots=True)
class _Filling:
    """A control, and what is put into it: the text for the reader and the value that is sent."""

    control: SiteControl
    text: str
    sent: str

    @property
    def act(self) -> Act:
        verb = "select" if self.control.kind == "select" else "fill"
        return {"action": verb, "role": self.control.role, "name": self.control.label, "value": self.text}


def send_forms(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to fill and send a form by POST."""
    for page, form in _forms_of(facts, "send", "POST"):
        button = form.button
        fields = _fillable(form)
        if button is None or not fields or not _is_single(facts, page, form) or not _is_plain(form):
            continue
        rng = clock.seeded("tasks", facts.seed, page.url, form.action)
        for _ in range(3):
            person = rng.choice(_PEOPLE)
            titles, texts = _texts_for(page, form)
            drawn = cycle(rng.sample(texts, len(texts)))
            fillings = [_drawn(each, rng, person, drawn, titles) for each in fields]
            other = _other(fields[-1], rng, drawn, titles, fillings[-1])
            yield _sent(page, form, fillings, other)


def _sent(page: SitePage, form: SiteForm, fillings: Sequence[_Filling], other: _Filling) -> TaskCandidate:
    button = form.button
    assert button is not None
    press: Act = {"action": "click", "role": "button", "name": button.label}
    wanted = _listed([f"“{each.text}” under “{each.control.title}”" for each in fillings])
    acts = (*(each.act for each in fillings), press)
    return TaskCandidate(
        "form",
        "form/send",
        (page.url, form.action, *(each.text for each in fillings)),
        f"On the page “{page.subject}”, fill in the form with the button “{button.label}” and send it. "
        f"Enter {wanted}.",
        _request(form, {each.control.name: each.sent for each in fillings}),
        (page.url,),
        acts,
        wrong=(),
        neighbours=((*(each.act for each in fillings[:-1]), other.act, press),),
    )


def press_buttons(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to send a form that needs no text, such as "Add to basket" of one product."""
    for page, form in _forms_of(facts, "press", "POST"):
        button = form.button
        sent = {each.name: each.value for each in form.controls if each.name and each.kind == "hidden"}
        sent = {name: value for name, value in sent.items() if not re.search("csrf|token|next", name, re.I)}
        others = [each for each in _fillable(form) if each.kind != "number"]
        if button is None or others or not _is_single(facts, page, form) or not _is_plain(form):
            continue
        match = _ADD.match(button.label)
        numbers = [each for each in _fillable(form) if each.kind == "number"]
        if match is None:
            continue
        rng = clock.seeded("tasks", facts.seed, page.url, form.action)
        press: Act = {"action": "click", "role": "button", "name": button.label}
        if not numbers:
            goal, template = f"Add “{page.subject}” to the {match[1].lower()}.", "form/add"
            acts: tuple[Act, ...] = (press,)
            neighbours: tuple[tuple[Act, ...], ...] = ()
        else:
            count = rng.randint(2, 5)
            sent[numbers[0].name] = str(count)
            goal = f"Add “{page.subject}” to the {match[1].lower()}, {count} times. Use “{numbers[0].title}”."
            acts = (_Filling(numbers[0], str(count), str(count)).act, press)
            neighbours, template = ((press,),), "form/add-several"
        yield TaskCandidate(
            "form",
            template,
            (page.url, form.action, *sent.values()),
            goal,
            _request(form, sent),
            (page.url,),
            acts,
            neighbours=neighbours,
        )


def change_and_verify(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to send a form that was recorded, and to read an amount that it changes."""
    for write in facts.shuffled(facts.site.writes, "writes"):
        page = facts.site.pages.get(write.page)
        before = facts.site.pages.get(write.target)
        forms = [each for each in page.forms if each.action == write.url and each.item] if page else []
        if page is None or before is None or len(forms) != 1:
            continue
        form, button = forms[0], forms[0].button
        match = _ADD.match(button.label) if button else None
        after = [each for each in write.after if each.text.count(form.item) > before.text.count(form.item)]
        if button is None or match is None or len({each.content for each in after}) != 1:
            continue
        old, new = _amounts(before.text), _amounts(after[0].text)
        for label in sorted(new.keys() & old.keys()):
            if len(new[label]) != 1 or new[label] & old[label]:
                continue
            value = next(iter(new[label]))
            press: Act = {"action": "click", "role": "button", "name": button.label}
            sent = AllEvaluator(parts=(_request(form, {}), answer_evaluator(value)))
            others = sorted({price for each in old.values() for price in each} - {value})
            yield TaskCandidate(
                "change",
                "change/add",
                (page.url, form.item, label),
                f"On the page “{page.subject}”, add “{form.item}” to the {match[1].lower()}. "
                f"What is the {label.lower()} then? Answer with the amount.",
                sent,
                (page.url,),
                ({**press, "nth": form.number} if form.number else press,),
                answer=value,
                wrong=(*others[:WRONG_ANSWERS], form.item, NOT_FOUND),
                shows=(value,),
                lands=(write.target,),
            )


def _amounts(text: str) -> dict[str, set[str]]:
    """Return the prices that a text gives after each label, such as "Basket total: £3.50"."""
    found: dict[str, set[str]] = {}
    for match in _LABELLED.finditer(text):
        found.setdefault(match[1], set()).add(match[2])
    return found


def search_words(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to search the site for a word."""
    words = sorted({word for page in facts.pages for word in _WORD.findall(page.subject)})
    words = [
        word for word in words if word.lower() not in _OF_EVERY_SITE and not word.endswith(("ing", "ly"))
    ]
    most = max(3, _RARE * len(facts.pages))
    rare = [word for word in words if sum(word in page.text for page in facts.pages) <= most]
    words = rare if len(rare) > 1 else words
    words = facts.shuffled(words, "words")
    actions = Counter(form.action for page in facts.pages for form in page.forms)
    for number, (page, form) in enumerate(_forms_of(facts, "search", "GET")):
        texts = [each for each in _fillable(form) if each.kind in ("text", "search")]
        if (
            len(texts) != 1
            or len(words) < 2
            or actions[form.action] < 3
            or not _SEARCH.search(f"{texts[0].name} {texts[0].label}")
        ):
            continue
        word, other = words[number % len(words)], words[(number + 1) % len(words)]
        acts, neighbour = _searching(texts[0], word), _searching(texts[0], other)
        yield TaskCandidate(
            "form",
            "form/search",
            (form.action, word),
            (f"Search the site for “{word}”.", f"Use the site's search to look for “{word}”.")[number % 2],
            _request(form, {texts[0].name: {"ignore_case": word}}),
            (page.url,),
            acts,
            neighbours=(neighbour,),
        )


def _searching(control: SiteControl, word: str) -> tuple[Act, ...]:
    named = {"role": control.role, "name": control.label}
    return {"action": "fill", **named, "value": word}, {"action": "press", **named, "key": "Enter"}


def choose_options(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield requests to choose an option of a form that filters or sorts the page."""
    for page, form in _forms_of(facts, "choose", "GET"):
        lists = [each for each in form.controls if each.kind == "select" and each.label and each.name]
        if len(lists) != 1 or _count(page, lists[0].label) > 1 or "?" in page.url or len(page.subject) < 3:
            continue
        if not _is_only_action(facts, page, lists[0]):
            continue
        options = [(value, label) for value, label in lists[0].options if value != lists[0].value and label]
        if len(options) < 2:
            continue
        chosen, other = (
            _Filling(lists[0], label, value) for value, label in facts.shuffled(options, page.url)[:2]
        )
        press: tuple[Act, ...] = ()
        goal = f"On the page “{page.subject}”, set “{lists[0].title}” to “{chosen.text}”"
        if form.button is not None:
            press = ({"action": "click", "role": "button", "name": form.button.label},)
            goal += f" and press “{form.button.label}”"
        yield from _first_listed(facts, page, form, chosen, (chosen.act, *press), goal)
        yield TaskCandidate(
            "filter",
            "filter/option",
            (form.action, lists[0].name, chosen.sent),
            f"{goal}.",
            _request(form, {lists[0].name: chosen.sent}),
            (page.url,),
            (chosen.act, *press),
            neighbours=((other.act, *press),),
        )


def _is_only_action(facts: SiteFacts, page: SitePage, control: SiteControl) -> bool:
    """Return whether all forms with a field, on pages of the same subject, are sent to one URL."""
    alike = [facts.site.pages[url] for url in facts.subjects[fold(page.subject)]]
    forms = (form for other in alike for form in other.forms)
    names = ((form.action, {each.name for each in form.controls}) for form in forms)
    return len({action.partition("?")[0] for action, found in names if control.name in found}) <= 1


def _first_listed(
    facts: SiteFacts, page: SitePage, form: SiteForm, chosen: _Filling, acts: tuple[Act, ...], goal: str
) -> Iterator[TaskCandidate]:
    """Yield the question for the item that a chosen option puts first, if it is another one than before."""
    result = facts.site.landing(_target(form, chosen.control, chosen.sent))
    first = facts.site.pages[result].items if result else ()
    if len(first) > 2 and page.items and first[0].name != page.items[0].name:
        others = dict.fromkeys(each.name for each in (*first[1:10], *page.items[:5]))
        yield TaskCandidate(
            "sort",
            "sort/option",
            (page.subject, chosen.control.name, chosen.sent),
            f"{goal}. Which item is then listed first? Answer with its name.",
            AnswerEvaluator(exact=first[0].name),
            (page.url,),
            acts,
            answer=first[0].name,
            wrong=tuple(name for name in others if name != first[0].name),
            shows=(first[0].name,),
            lands=(result,),
        )


def _is_single(facts: SiteFacts, page: SitePage, form: SiteForm) -> bool:
    """Return whether subject and button name one form of the site, on a page with one such button."""
    button = form.button
    if button is None or _count(page, button.label) != 1 or not 3 <= len(page.subject) <= 90:
        return False
    pages = (facts.site.pages[url] for url in facts.subjects[fold(page.subject)])
    alike = (each for other in pages for each in other.forms if each.button)
    return len({each.action for each in alike if each.button and each.button.label == button.label}) == 1


def _target(form: SiteForm, chosen: SiteControl, value: str) -> str:
    """Return the URL that a GET form requests with another option of a list (HTML §4.10.21.4)."""
    pairs = [
        (each.name, value if each is chosen else each.value)
        for each in form.controls
        if each.name and each.kind not in ("submit", "image", "button", "reset", "file")
        if each.kind not in ("checkbox", "radio") or each.checked
    ]
    return f"{form.action.partition('?')[0]}?{urlencode(pairs)}"


def _forms_of(facts: SiteFacts, salt: str, method: str) -> Iterator[tuple[SitePage, SiteForm]]:
    for page in facts.shuffled(facts.pages, "forms", salt):
        for form in page.forms:
            if form.method == method:
                yield page, form


def _count(page: SitePage, label: str) -> int:
    """Return the number of controls of a page with a label."""
    return sum(fold(each.label) == fold(label) for form in page.forms for each in form.controls)


def _is_plain(form: SiteForm) -> bool:
    """Return whether every field can be filled or left as it is."""
    for each in form.controls:
        if each.kind in _UNSUITED or (_SECRET.search(f"{each.name} {each.label}") and each.kind != "hidden"):
            return False
        if each.required and not each.label and not each.value and each.kind != "hidden":
            return False
    return True


def _fillable(form: SiteForm) -> list[SiteControl]:
    """Return the fields to fill: required ones and the first others, each with a label of its own."""
    fields = [
        each
        for each in form.controls
        if each.kind in (*_FILLED, "select") and each.name and re.search(r"[^\W_]", each.label)
    ]  # a label of icons often belongs to a copy of the form for small screens
    fields = [each for each in fields if each.kind != "select" or len(each.options) > 2]
    labels = [fold(each.label) for each in fields]
    fields = [each for each in fields if labels.count(fold(each.label)) == 1 and len(each.label) <= 50]
    must = [each for each in fields if each.required]
    return (must + [each for each in fields if not each.required])[: max(_MOST_FIELDS, len(must))]


def _texts_for(page: SitePage, form: SiteForm) -> tuple[Sequence[str], Sequence[str]]:
    """Return titles and texts that suit a form, by the words of its button, its URL and its page."""
    words = f"{form.button.label if form.button else ''} {form.action}"
    if _REVIEW.search(words):
        return _REVIEW_TITLES, _REVIEWS
    correspondence = _CORRESPONDENCE.search(f"{words} {page.subject}")
    return (_TEXT_TITLES, _TEXTS) if correspondence else (_NOTE_TITLES, _NOTES)


def _other(
    control: SiteControl, rng: Any, texts: Iterator[str], titles: Sequence[str], unlike: _Filling
) -> _Filling:
    """Return a control with another value."""
    for _ in range(20):
        filling = _drawn(control, rng, rng.choice(_PEOPLE), texts, titles)
        if filling.sent != unlike.sent:
            break
    return filling


def _drawn(
    control: SiteControl, rng: Any, person: str, texts: Iterator[str], titles: Sequence[str]
) -> _Filling:
    """Return a control with a value that suits its label; names and addresses are those of one person."""
    named = f"{control.name} {control.label}".lower()
    if control.kind == "select":
        choices = [o for o in control.options if o[1] and o[0] != control.value]
        # The invented reviews are good ones; of the marks the last half fits them.
        suited = choices[len(choices) // 2 :] if re.search(r"score|rating|stars", named) else choices
        value, label = rng.choice(suited)
        return _Filling(control, label, value)
    if control.kind == "number":
        text = str(rng.randint(2, 9))
    elif control.kind == "email" or "mail" in named:
        text = person.split()[1].lower() + "@mail.example"
    elif control.kind == "url" or re.search(r"\burl\b|website|homepage", named):
        text = f"https://{person.split()[1].lower()}.example/"
    elif control.kind == "tel" or "phone" in named:
        text = f"+1 555 01{rng.randint(10, 99)}"
    elif re.search(r"\b(?:id|number|no\.|code|zip|postcode)\b", named):
        text = str(rng.randint(10_000, 99_999))
    elif re.search(r"city|town", named):
        text = rng.choice(_CITIES)
    elif re.search(r"name|user|author", named):
        text = person
    elif re.search(r"title|subject|headline", named):
        text = rng.choice(titles)
    else:
        text = next(texts)
    return _Filling(control, text, text)


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _request(form: SiteForm, values: Mapping[str, Any]) -> RequestEvaluator:
    where = "query" if form.method == "GET" else "body"
    pattern = {"method": form.method, "url": form.action.partition("?")[0], where: values}
    return RequestEvaluator.model_validate(
        {"type": "request", "requests": [pattern], "only": form.method != "GET"}
    )

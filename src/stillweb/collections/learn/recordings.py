"""Recordings of one form with several values: the input of its proof (`proof`). Pure.

Beside the values that are typed, a write has values that the page's script makes up or computes. Recordings
of the same typed values differ in a made-up value, such as the identifier of a new element. No response
before the write holds it. A computed one is a whole number that other typed values change, such as a position
that depends on the width of a label. Replay runs the same script, so that a session's request holds both
kinds; answers may repeat them. They are therefore values like typed ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from stillweb.http.codec import decoded_body
from stillweb.http.cookies import cookies_sent
from stillweb.matching.derived.branch import leaf_text, leaves_of, read_key
from stillweb.matching.derived.domain import MADE, Kind
from stillweb.matching.parts import Parts
from stillweb.matching.values import shape_of
from stillweb.model import Exchange
from stillweb.urls import from_timestamp

WRITE, SHOWN, AGAIN, REDIRECT, AFTER = "write", "shown", "again", "redirect", "after"
"""Labels of a form's own request, of the page that its redirects lead to, its reload, redirects, and of what
its page requests afterwards without being loaded again."""

_WHOLE = re.compile(r"0|[1-9][0-9]{0,5}")
_BY_CHANCE = 2  # characters of a typed number that another value may hold
_SHORTEST = 6  # characters; fewer occur by chance


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One exchange of a branch; steps of equal labels correspond in all recordings of a form."""

    label: str
    exchange: Exchange

    @property
    def key(self) -> bytes:
        """Request key: several reads by POST have one URL."""
        return read_key(self.exchange.request)


@dataclass(frozen=True, slots=True)
class RecordedBranch:
    """One recording of a form: the values sent, and what the site answered from then on.

    Attributes:
        opened: exchanges before the write, if a script sent it.
    """

    values: tuple[str, ...]
    steps: tuple[RecordedStep, ...]
    opened: tuple[Exchange, ...] = ()

    @property
    def written(self) -> float:
        """When the form was sent, in seconds since 1970."""
        return from_timestamp(self.steps[0].exchange.timestamp).timestamp()


@dataclass(frozen=True, slots=True)
class FormRecordings:
    """The recordings of one form.

    Attributes:
        name: identifies the form in a collection.
        fields: names and kinds of its free fields.
        searches: whether it is sent by GET.
        branches: the first; the same values again, recorded last; then others.
        untouched: two recordings of the same pages without the write, by label.
        after: names of the forms that each recording sent before this one.
        own: number of the first field of this form; those before, and their values, belong to `after`.
        opened: GET requests of the first recording before the form was sent.
        wandered: the pages behind the form once more, after all of them were visited.
        opening: request keys of the POST requests with which the form's page reads when it is opened.
    """

    name: str
    page: str
    fields: tuple[tuple[str, Kind], ...]
    searches: bool
    branches: tuple[RecordedBranch, ...]
    untouched: tuple[tuple[RecordedStep, ...], tuple[RecordedStep, ...]] = ((), ())
    after: tuple[str, ...] = ()
    own: int = 0
    opened: tuple[Exchange, ...] = ()
    wandered: tuple[RecordedStep, ...] = ()
    opening: frozenset[bytes] = frozenset()

    @property
    def cookies(self) -> frozenset[str]:
        """Names of the cookies that every recording sent with the form."""
        sent = (cookies_sent(branch.steps[0].exchange.request) for branch in self.branches)
        return frozenset.intersection(*map(frozenset, sent)) - {""}


def with_made_values(recordings: FormRecordings, check: Callable[[], None] = lambda: None) -> FormRecordings:
    """Return the recordings with the values that scripts made up as further fields."""
    branches = recordings.branches
    if len(branches) < 2 or not branches[0].opened:
        return recordings
    leaves = [_leaf_texts(branch.steps[0].exchange) for branch in branches]
    names = [name for name, _ in leaves[0]]
    if names != [name for name, _ in leaves[1]]:
        return recordings
    made: dict[tuple[str, ...], str] = {}
    for number, name in enumerate(names):
        check()
        texts = tuple(each[number][1] if len(each) > number else "" for each in leaves)
        typed = any(map(_is_typed, texts, (branch.values for branch in branches)))
        received = any(map(holds_text, (branch.opened for branch in branches[:2]), texts))
        made_up = texts[0] != texts[1] and _looks_made(texts[:2]) and not received
        if not typed and (made_up or _is_computed(texts)):
            made.setdefault(texts, name)
    return replace(
        recordings,
        fields=(*recordings.fields, *((name, MADE) for name in made.values())),
        branches=tuple(
            replace(branch, values=(*branch.values, *(texts[number] for texts in made)))
            for number, branch in enumerate(branches)
        ),
    )


def holds_text(exchanges: tuple[Exchange, ...], text: str) -> str:
    """Return the URL of the first exchange whose response body holds a text, "" if none does."""
    for exchange in exchanges:
        body = decoded_body(exchange.response) or b""
        if text.encode("utf-8", "surrogatepass") in body:
            return exchange.request.url
    return ""


def _looks_made(texts: tuple[str, ...]) -> bool:
    return min(map(len, texts)) >= _SHORTEST and shape_of(list(texts)) != "any"


def _is_computed(texts: tuple[str, ...]) -> bool:
    """Return True for whole numbers that the typed values change, such as the width of a text."""
    numbers = [text for text in texts if text]
    return texts[0] == texts[1] and len(set(numbers)) > 1 and all(map(_WHOLE.fullmatch, numbers))


def _is_typed(text: str, values: tuple[str, ...]) -> bool:
    return any(value == text or (len(value) > _BY_CHANCE and value in text) for value in values)


def _leaf_texts(exchange: Exchange) -> list[tuple[str, str]]:
    parts = Parts.of(exchange.request)
    return [(f"{leaf.where} {leaf.name}", leaf_text(parts, leaf)) for leaf in leaves_of(parts)]

"""Guards of `learn`: reasons why a location whose value varied is not volatile.

A value that a response gave to the page needs no rule, because replay repeats the response byte for byte. It
may also be an opaque cursor (`?before=`), and a rule would then return another page of the list. Only CSRF
tokens of forms come from a response *and* are volatile: the session's history selects the recorded form.

A value that the page made from clock and randomness needs a rule. But a value that may name a thing must have
had equal responses, and may not select among the responses of one recording.

`Observed` is a request in the form that `learn` compares. Memory holds it and the head of its response, some
kilobytes each; a comparison reads bodies again. Requests that cannot be read, and those of other schemes than
http, are ignored: `collections check` reports them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError
from stillweb.http.codec import decoded_body
from stillweb.matching.keys import request_key
from stillweb.matching.pagetimes import RECORDED, instant_of
from stillweb.matching.parts import Leaf, Parts, Where, is_csrf
from stillweb.matching.values import DAY, ValueKind, fits, kind_of, masked
from stillweb.model import Capture, Exchange, Headers, Request, header
from stillweb.urls import from_timestamp


@dataclass(frozen=True)
class Observed:
    """One recorded request.

    Attributes:
        near: possible times of its page, in seconds since 1970.
        within: maximum distance from those at which a value counts as the time of the visit.
    """

    collection: Collection = field(repr=False)
    capture: Capture
    request: Request
    status: int
    mime: str
    response_headers: Headers
    near: tuple[float, ...]
    within: float

    @cached_property
    def key(self) -> bytes:
        content_type = header(self.request.headers, "content-type")
        return request_key(self.request.method, self.request.url, content_type, self.request.raw_body)

    @cached_property
    def parts(self) -> Parts:
        return Parts.of(self.request)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(self.parts.leaves())

    @cached_property
    def kinds(self) -> tuple[ValueKind | None, ...]:
        """For each leaf, why it may be volatile."""
        return tuple(kind_of(leaf.text, self.near, self.within) for leaf in self.leaves)

    def holds_present(self, leaf: Leaf) -> bool:
        """Return True if a value is the time of the visit, not one that the page computed from it."""
        time = instant_of(leaf.text)
        return time is not None and any(time.is_within(round(at) * 10**6, RECORDED) for at in self.near)

    @cached_property
    def likeness(self) -> bytes:
        """Equal for requests that differ in possibly volatile values only and got similar responses."""
        taken = {leaf: "" for leaf, kind in zip(self.leaves, self.kinds, strict=True) if kind}
        return self.parts.without(taken) + f" {self.status} {self.mime}".encode()

    @property
    def body(self) -> bytes:
        """The body of the response, decoded if possible. Read each time: all may not fit in memory."""
        with suppress(CollectionError):
            response = self.collection.read_capture(self.capture).response
            plain = decoded_body(response)
            return response.raw_body if plain is None else plain
        return b""

    @cached_property
    def answer(self) -> bytes:
        """Digest of the response without runs that may differ between two responses to one request."""
        location = header(self.response_headers, "location").encode("latin-1", "replace")
        return sha256(masked(location + b"\n" + self.body)).digest()

    def path_glob(self, differing: Iterable[Leaf]) -> str:
        stars = {leaf.at for leaf in differing if leaf.where is Where.PATH}
        segments = self.parts.path.split("/")
        return "/".join("*" if number in stars else text for number, text in enumerate(segments))


def observe(collection: Collection, within: float = DAY) -> list[Observed]:
    """Return the http(s) requests of a collection in recorded order."""
    collection.require_archive()
    recorded_at = collection.manifest().recorded_at
    found = []
    captures = (c for c in collection.captures() if c.url.lower().startswith(("http://", "https://")))
    for capture in sorted(captures, key=Capture.in_time):
        with suppress(CollectionError, UnicodeEncodeError):
            exchange = collection.read_capture(capture)
            near = tuple(map(_seconds, filter(None, (capture.timestamp, recorded_at))))
            found.append(_observed(collection, capture, exchange, near, within))
    return found


def _observed(
    collection: Collection, capture: Capture, exchange: Exchange, near: tuple[float, ...], within: float
) -> Observed:
    response = exchange.response
    return Observed(
        collection, capture, exchange.request, response.status, response.mime, response.headers, near, within
    )


def _seconds(timestamp: str) -> float:
    try:
        return from_timestamp(timestamp).timestamp()
    except ValueError:
        return 0.0


GIVEN = "a response contained that value, so replay repeats it"
_ENOUGH_NUMBERS = 3  # pairs, for numbers of eight digits and more, which name many things
_CORE = re.compile(r"[A-Za-z0-9]+")
# An escape before a run is not part of it: %2F, \u003d, &#61;
_RUN = re.compile(rb"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|&#[0-9]+;)?([A-Za-z0-9]{4,})")


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """One location in requests to a path."""

    where: Where
    name: str
    host: str
    path: str
    method: str


@dataclass(frozen=True, slots=True)
class PlaceSighting:
    """Two requests that differ in one location; one request twice if its value is evidence alone."""

    one: Observed
    other: Observed
    texts: tuple[str, str]
    kinds: tuple[ValueKind, ValueKind]


Sights = dict[RequestPlace, list[PlaceSighting]]


def by_likeness(seen: Iterable[Observed]) -> dict[bytes, list[Observed]]:
    """Group requests that differ in possibly volatile values only."""
    groups: dict[bytes, list[Observed]] = defaultdict(list)
    for each in seen:
        groups[each.likeness].append(each)
    return groups


def objection(
    place: RequestPlace,
    sights: list[PlaceSighting],
    given: frozenset[str],
    alike: Mapping[bytes, list[Observed]],
) -> str:
    """Return why the values of a location may be intended; "" if they are volatile.

    Args:
        place: subject of the rule.
        sights: pairs in which it differs.
        given: values that responses gave to their pages.
        alike: the requests of one recording by likeness.
    """
    texts = [text for sight in sights for text in sight.texts]
    random = any(kind is ValueKind.RANDOM for sight in sights for kind in sight.kinds)
    was_given = bool(given.intersection(texts))
    if was_given and not is_csrf(place.where, place.name, place.method):
        return GIVEN
    if not was_given and not random:
        return ""
    if all(text.isdigit() for text in texts) and len(sights) < _ENOUGH_NUMBERS:
        return f"numbers that may name a thing, and only {len(sights)} of them"
    for sight in sights:
        if sight.one.answer != sight.other.answer:
            return "may name a thing: the responses differ"
        if any(twin.answer != sight.one.answer for twin in alike.get(sight.one.likeness, ())):
            return "may name a thing: it selects among the responses of one recording"
        if not was_given and _said_back(sight):
            return "may name a thing: the response repeats it"
    return ""


def _said_back(sight: PlaceSighting) -> bool:
    for seen, text in ((sight.one, sight.texts[0]), (sight.other, sight.texts[1])):
        made_by_page = fits("uuid", text)  # users do not type UUIDs
        if not made_by_page and text.encode("utf-8", "surrogateescape") in seen.body:
            return True
    return False


def given_values(seen: Iterable[Observed], sights: Sights, side: int) -> frozenset[str]:
    """Return the values seen in one recording that a response gave to the page, in its body or a field.

    Their longest runs of letters and digits are compared, so that escapes do not hide a value.

    Args:
        seen: the recording's requests.
        sights: pairs in which values differ.
        side: 0 for the first recording, 1 for the second.
    """
    texts = {sight.texts[side] for found in sights.values() for sight in found}
    wanted: dict[bytes, set[str]] = defaultdict(set)
    for text in texts:
        core = max(_CORE.findall(text), key=len, default=text)
        wanted[core.encode("utf-8", "surrogateescape")].add(text)
    given: set[str] = set()
    for each in seen if wanted else ():
        heads = "\n".join(value for _, value in each.response_headers).encode("latin-1", "replace")
        runs = wanted.keys() & set(_RUN.findall(heads + b"\n" + each.body))
        found = {text for run in runs for text in wanted[run]}
        # A response that repeats a value of its own request gave the page nothing new.
        given.update(found.difference(leaf.text for leaf in each.leaves) if found else ())
    return frozenset(given)

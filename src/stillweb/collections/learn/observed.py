"""Requests of a recording in the form that `learn` compares: split into parts, with their responses.

Memory holds a request and the head of its response, some kilobytes each; a comparison reads bodies again.
Requests that cannot be read, and those of other schemes than http, are ignored: `collections check` reports
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError
from stillweb.http.codec import decode
from stillweb.matching.keys import request_key
from stillweb.matching.parts import Leaf, Parts, Where
from stillweb.matching.values import DAY, ValueKind, kind_of, masked
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
            plain = decode(response.raw_body, header(response.headers, "content-encoding"))
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
    for capture in sorted(captures, key=lambda c: (c.timestamp, c.source, c.offset)):
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

"""The types on the arrows of the street: site → record → collection → replay → env.

    record   makes an `Exchange`
    collections  stores it and indexes it as a `Capture`
    replay   answers a `Request` with a `Match`

All are frozen values without behaviour beyond reading themselves. `raw_body` is the body as
stored (content encoding kept, transfer encoding removed); a decoded body is called `body`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

Headers = tuple[tuple[str, str], ...]
"""Header fields in wire order; names keep their case, values are latin-1 text (RFC 9110 §5.5)."""


def header(headers: Headers, name: str, default: str = "") -> str:
    """Return the first value of a header field, its name in any case."""
    wanted, size = name.lower(), len(name)
    for key, value in headers:
        if len(key) == size and key.lower() == wanted:  # lengths first: it is asked for ten fields
            return value
    return default


MUTATIONS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods that may change what a site answers next: sealing counts epochs by them, replay moves by them."""

BUSY = frozenset((429, 502, 503, 504))
"""Statuses by which a site says of itself that it has not answered: it may, if it is asked again."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request: absolute URL, body without transfer encoding."""

    method: str
    url: str
    headers: Headers = ()
    raw_body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response: body without transfer encoding, with content encoding."""

    status: int
    reason: str = ""
    headers: Headers = ()
    raw_body: bytes = b""

    @property
    def mime(self) -> str:
        """The media type without parameters, in lower case; "" if it has none."""
        return header(self.headers, "content-type").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response, knowing nothing of how it was captured or stored.

    Attributes:
        timestamp: 14 digits UTC, when the request was sent.
        remote_ip: address of the server, "" if unknown.
        protocol: as negotiated with the site: "http/1.1" or "h2".
    """

    request: Request
    response: Response
    timestamp: str
    remote_ip: str = ""
    protocol: str = "http/1.1"


@dataclass(frozen=True, slots=True)
class Capture:
    """One archived response of a URL at a timestamp: a CDXJ line and where its record lies.

    Attributes:
        urlkey: SURT key.
        timestamp: 14 digits UTC.
        url: as recorded.
        method: of the request, "GET" where no request was archived.
        key: the request key (`stillweb.matching.keys.request_key`), hex.
        status: 0 where the record holds none.
        digest: of the payload as the index spells it (`sha-256:...` or `sha1:BASE32`).
        source: WARC file name, relative to the collection's `archive/`.
        offset, length: of the record in that file as stored, in bytes.
        request_offset, request_length: of the request's record in the same file; -1, 0 if there is none.
    """

    urlkey: str
    timestamp: str
    url: str
    method: str
    key: str
    status: int
    mime: str
    digest: str
    source: str
    offset: int
    length: int
    request_offset: int = -1
    request_length: int = 0


class Tier(StrEnum):
    """How a request was matched."""

    EXACT = "exact"
    NORMALISED = "normalised"
    SEQUENCE = "sequence"
    FUZZY = "fuzzy"
    PYWB = "pywb"  # a miss that a pywb behind the server answered, by its own looser rules
    SYNTHETIC = "synthetic"  # a CORS preflight or the like, answered without a capture
    NOISE = "noise"
    MISS = "miss"
    FAULT = "fault"  # recorded, but the pack is damaged there: ours, and no miss


GUESSES = frozenset({Tier.FUZZY, Tier.PYWB})
"""Tiers whose answers may be another request's: never part of the strict share."""


@dataclass(frozen=True, slots=True)
class Match:
    """What replay answers, and why.

    Attributes:
        tier: how it was found.
        entry: row of the answer in the pack's index; -1 for misses, noise and synthetic answers.
        reason: one clause for the ledger; the page never sees it.
        stable: every session in any state gets this very match for an equal request.
    """

    tier: Tier
    entry: int = -1
    reason: str = ""
    stable: bool = False


VISITED_AGAIN = "visitedAgain"
"""Member of a page's line: why there may be captures of it of a visit that was given up."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as `pages/pages.jsonl` lists it (WACZ 1.1.1 §5.2.1), with the path of its baseline.

    Attributes:
        url: as asked for.
        timestamp: 14 digits UTC.
        title: "" if unknown.
        id: identifier within the collection.
        seed: whether the recording was told of it, not led to it.
        depth: links away from a seed.
        status: HTTP status of the page's document, 0 if unknown.
        baseline: folder under `baseline/`, "" if the page has none.
        extra: further members of its line that are texts.
    """

    url: str
    timestamp: str
    title: str = ""
    id: str = ""
    seed: bool = True
    depth: int = 0
    status: int = 0
    baseline: str = ""
    extra: dict[str, str] = field(default_factory=dict, hash=False)

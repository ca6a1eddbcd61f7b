"""Types that the packages exchange along the pipeline: site → record → collection → replay → env.

`record` produces an `Exchange`, `collections` stores it and indexes it as a `Capture`, `replay` answers a
`Request` with a `Match`. All are frozen values. `raw_body` is a body as stored: content encoding kept,
transfer encoding removed. A decoded body is called `body`.
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
        if len(key) == size and key.lower() == wanted:  # lengths first: ten fields are read per request
            return value
    return default


def destination(headers: Headers) -> str:
    """Return the destination of a browser's request (Fetch §3.2.7), "" if it is unknown.

    Browsers send `Sec-Fetch-Dest` to https only. On http, documents are known by `Upgrade-Insecure-Requests`
    (frames included), style sheets and images by `Accept`.
    """
    if sent := header(headers, "sec-fetch-dest"):
        return sent
    if header(headers, "upgrade-insecure-requests") == "1":
        return "document"
    accept = header(headers, "accept")
    return next((found for start, found in _ACCEPTED.items() if accept.startswith(start)), "")


_ACCEPTED = {"text/css": "style", "image/": "image"}

MUTATIONS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods that may change later responses: sealing counts epochs by them, replay advances epochs by them."""

BUSY = frozenset((429, 502, 503, 504))
"""Statuses of a temporary failure: the same request may succeed later."""

BODILESS = frozenset((204, 304))
"""Statuses of final responses that end with their head (RFC 9112 §6.3)."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    headers: Headers = ()
    raw_body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
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
    """A request and its response, independent of capture method and storage.

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


HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = (*HTML_TYPES, "application/json", "application/xml", "text/xml", "text/plain")
"""Media types of documents that may show what a visitor typed."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One archived response to a URL at a timestamp: a CDXJ line with the location of its record.

    Attributes:
        urlkey: SURT key.
        timestamp: 14 digits UTC.
        url: as recorded.
        method: of the request, "GET" if no request was archived.
        key: the request key (`stillweb.matching.keys.request_key`), hex.
        status: 0 if the record has none.
        digest: of the payload as the index spells it (`sha-256:...` or `sha1:BASE32`).
        source: WARC file name, relative to the collection's `archive/`.
        offset, length: of the record in that file as stored, in bytes.
        request_offset, request_length: of the request's record in the same file; -1, 0 if none exists.
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

    def in_time(self) -> tuple[str, str, int]:
        """Return the sort key of the order of recording; the index sorts captures of one second by digest."""
        return self.timestamp, self.source, self.offset


class Tier(StrEnum):
    EXACT = "exact"
    NORMALISED = "normalised"
    SEQUENCE = "sequence"
    BRANCH = "branch"  # recorded, after the same writes as this session's (`stillweb.matching.derived`)
    DERIVED = "derived"  # not recorded: a template that recordings proved, with the values of the request
    GUESS = "guess"  # a write of a recorded shape with other values, and what depends on it (`on_write`)
    FUZZY = "fuzzy"
    PYWB = "pywb"  # a miss that a pywb backend answered by its own looser rules
    SYNTHETIC = "synthetic"  # a CORS preflight or similar, answered without a capture
    NOISE = "noise"
    MISS = "miss"
    FAULT = "fault"  # recorded, but the pack is damaged at that entry: our fault, not a miss


GUESSES = frozenset({Tier.GUESS, Tier.FUZZY, Tier.PYWB})
"""Tiers that may serve the response to another request. They never count in the strict share."""


@dataclass(frozen=True, slots=True)
class Match:
    """Result of matching a request.

    Attributes:
        tier: how the entry was found.
        entry: row in the pack's index; -1 for misses, noise and synthetic responses.
        reason: one clause for the ledger; pages never see it.
        stable: True if every session in any state gets this match for an equal request.
    """

    tier: Tier
    entry: int = -1
    reason: str = ""
    stable: bool = False


VISITED_AGAIN = "visitedAgain"
"""Page member that says why captures of an abandoned visit to the page may exist."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as `pages/pages.jsonl` lists it (WACZ 1.1.1 §5.2.1), with the path of its baseline.

    Attributes:
        url: as requested.
        timestamp: 14 digits UTC.
        title: "" if unknown.
        id: identifier within the collection.
        seed: True for a start URL of the recording, False for a page reached by a link.
        depth: number of links from a seed.
        status: HTTP status of the page's document, 0 if unknown.
        baseline: folder under `baseline/`, "" if the page has none.
        extra: other members of its line with text values.
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

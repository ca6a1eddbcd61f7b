"""Which captures of a request key may answer a request, and which of them it takes most gladly.

A key is method, URL and body; a server may look at more. What it looked at is in the answer's `Vary`, and the
pack keeps a digest of what the recorded request had there (docs/decisions/0017-vary-and-authorization.md):

- a field that the *page* sets (`HX-Request`, `RSC`, `Authorization`) bears meaning: another value, no answer,
  and for some of them (`collections.meaning`) even where `Vary` is silent;
- a field that the *browser* sets by itself (`User-Agent`, `Origin`, `Sec-*`) is only a preference, since
  browsers, profiles and crawlers differ in them;
- `Cookie` is the weakest of them: it tells a session's state, and epochs know that better. An answer that was
  recorded with another is given, and the ledger says so.

Where `Vary` is silent on a field that the page set, a server says that the answer does not depend on it
(RFC 9111 §4.1), and many say so wrongly: it does not refuse, but of several captures those that agree with
the request in most of what pages set go before all others.

Further, an answer that would lead a browser in a circle gives way, and so does one of a media type that the
request takes less gladly than another's: one URL may be a page and, to a script, JSON. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin

from stillweb.collections.accept import rank
from stillweb.collections.alike import timeless
from stillweb.collections.entries import Entry
from stillweb.collections.fitting import Asked
from stillweb.collections.keys import request_key
from stillweb.model import BUSY, MUTATIONS, Request, header
from stillweb.replay.ranges import asked_span, recorded_span
from stillweb.urls import wire_url

__all__ = ["Candidate", "Rows", "same_answer", "usable"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPING_METHOD = frozenset({307, 308})  # RFC 9110 §15.4.8, §15.4.9
_LOCATION = re.compile(rb"\r\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)
_MAX_HOPS = 8
# A range that the site could not give says nothing of others; replay cuts them from a body that is there.
_UNSATISFIED, _SATISFIED = 416, (200, 206)


class Rows(Protocol):
    """What is asked of a pack here."""

    def lookup(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key, in recorded order."""

    def entry(self, row: int) -> Entry:
        """Return the answer in a row."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A capture that may answer, and whether it was recorded with the very cookies that are sent."""

    row: int
    entry: Entry
    same_cookies: bool = True


def usable(
    request: Request, rows: Sequence[int], index: Rows, counts: Callable[[str], bool]
) -> tuple[list[Candidate], str]:
    """Return the captures in some rows that may answer a request, in recorded order.

    Args:
        request: as asked.
        rows: of one key.
        index: whose rows they are.
        counts: whether a request field of a name is looked at; not, if a rule calls it volatile.

    Returns:
        The captures, and why the first was refused if none is left.
    """
    found = [Candidate(row, index.entry(row)) for row in rows]
    asked = Asked(request, counts)
    satisfied = any(candidate.entry.status in _SATISFIED for candidate in found)
    kept = [
        candidate
        for candidate in found
        if not _refuses(request, asked, candidate.entry)
        and not (satisfied and candidate.entry.status == _UNSATISFIED)
    ]
    if len(kept) > 1:
        kept = _without_circles(kept, request, index)
        kept = _fewest(kept, asked.strangeness([candidate.entry for candidate in kept]))
        kept = _as_accepted(kept, request)
        kept = _fewest(kept, _differences(asked, kept))
    kept = [c if asked.same_cookies(c.entry) else Candidate(c.row, c.entry, False) for c in kept]
    kept.sort(key=lambda candidate: candidate.entry.order)
    if kept:
        return kept, ""
    return kept, next(filter(None, (_refuses(request, asked, candidate.entry) for candidate in found)), "")


def same_answer(candidates: Iterable[Candidate]) -> bool:
    """Return whether all captures say the same; the time at which they say it does not count."""
    first, *others = (candidate.entry for candidate in candidates)
    if any((e.status, e.body_sha256) != (first.status, first.body_sha256) for e in others):
        return False
    head = timeless(first) if others else b""
    return all(timeless(entry) == head for entry in others)


def _refuses(request: Request, asked: Asked, entry: Entry) -> str:
    """Return why a capture cannot answer; "" if it can."""
    return _unfit(request, entry) or asked.other_meaning(entry)


def _fewest(candidates: list[Candidate], counted: Sequence[int]) -> list[Candidate]:
    fewest = min(counted)
    return [candidate for number, candidate in zip(counted, candidates, strict=True) if number == fewest]


def _differences(asked: Asked, candidates: list[Candidate]) -> list[int]:
    """Return in how many of the browser's fields each differs.

    A site that was too busy says no `Vary`: of what it was too busy for, it is no nearer than what it gave.
    """
    counted = [asked.differences(candidate.entry) for candidate in candidates]
    busy = [candidate.entry.status in BUSY for candidate in candidates]
    least = min((number for number, was in zip(counted, busy, strict=True) if not was), default=0)
    return [max(number, least) if was else number for number, was in zip(counted, busy, strict=True)]


def _unfit(request: Request, entry: Entry) -> str:
    """Return why a capture answers no request such as this; "" if it may."""
    if entry.status < 200:
        return "recorded without a final answer"
    if entry.status == 206 and not _part_suffices(request, entry):
        return "recorded in part only, and not the part asked for"
    if entry.status == 304 and not _conditional(request):
        return "recorded as not modified only"
    if entry.status == _UNSATISFIED and not header(request.headers, "range"):
        return "recorded as a range that cannot be given only"
    target = _target(entry, request.method)
    if target is not None and target == wire_url(request.url):
        return "recorded as a redirect to itself only"
    return ""


def _conditional(request: Request) -> bool:
    return any(header(request.headers, name) for name in ("if-none-match", "if-modified-since"))


def _part_suffices(request: Request, entry: Entry) -> bool:
    recorded = recorded_span(bytes(entry.head))
    if recorded is None:
        return False
    asked = asked_span(header(request.headers, "range"), recorded.total)
    return recorded.whole if asked is None else asked.empty or recorded.holds(asked)


def _target(entry: Entry, method: str) -> str | None:
    """Return where an answer sends a browser with the same method; None if nowhere."""
    if entry.status not in _REDIRECTS:
        return None
    if method not in ("GET", "HEAD") and entry.status not in _KEEPING_METHOD:
        return None
    found = _LOCATION.search(bytes(entry.head))
    if found is None:
        return None
    try:
        return wire_url(urljoin(entry.url, found[1].decode("latin-1").strip()))
    except ValueError:  # urljoin refuses broken IPv6 literals; browsers do not follow them
        return None


def _without_circles(candidates: list[Candidate], request: Request, index: Rows) -> list[Candidate]:
    """Drop redirects that come back to the asked URL, where another answer remains.

    A site that sets a cookie by a round trip is recorded so: redirect, redirect, page.
    """
    asked = wire_url(request.url)
    straight = [c for c in candidates if not _comes_back(c.entry, asked, request.method, index)]
    return straight or candidates


def _comes_back(entry: Entry, asked: str, method: str, index: Rows) -> bool:
    for _ in range(_MAX_HOPS):
        target = _target(entry, method)
        if target is None:
            return False
        if target == asked:
            return True
        hops = [index.entry(row) for row in index.lookup(request_key("GET", target))]
        if not hops or any(hop.status not in _REDIRECTS for hop in hops):
            return False
        entry = hops[0]
    return True


def _as_accepted(candidates: list[Candidate], request: Request) -> list[Candidate]:
    """Drop full answers that a read's `Accept` ranks behind others (RFC 9110 §12.5.1)."""
    accept = header(request.headers, "accept")
    full = [c for c in candidates if 200 <= c.entry.status < 300]
    mimes = {c.entry.mime for c in full}
    if not accept or request.method in MUTATIONS or len(mimes) < 2:
        return candidates
    ranks = {mime: rank(accept, mime) for mime in mimes}
    best = max(ranks.values())
    behind = {c.row for c in full if ranks[c.entry.mime] != best}
    return [c for c in candidates if c.row not in behind]

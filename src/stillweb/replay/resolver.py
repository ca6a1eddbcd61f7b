"""Choose the one recorded answer of a request, or say why there is none.

`resolve` is pure and total: equal arguments give an equal `Match`, no I/O but the pack's mmap,
and a miss is a value. It is strict: a wrong 200 is worse than a miss, so nothing is guessed.

Order: CORS preflights are synthetic; then the exact key (a HEAD takes the GET's answer); then the
same under the other scheme, since browsers upgrade http by themselves; then noise; then a miss.

Among several captures of one key the session's history decides, not a counter: a read takes what
was recorded last in step with the mutations that this session repeated (its *epoch*), so that a
reload without a POST shows the same page. A mutation repeated takes its next recording. An
answer that would lead a browser in a circle is no candidate, nor is one of a media type that the
request takes less gladly than another's: one URL may be a page and, to a script, JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urljoin

from stillweb.collections.keys import request_key
from stillweb.collections.pack import Entry
from stillweb.model import Match, Request, Tier, header
from stillweb.replay.noise import NoiseTable
from stillweb.replay.ranges import asked_span, recorded_span
from stillweb.urls import wire_url

__all__ = ["MUTATIONS", "Index", "Policy", "SessionState", "advance", "is_beacon", "is_preflight", "resolve"]

MUTATIONS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPING_METHOD = frozenset({307, 308})  # RFC 9110 §15.4.8, §15.4.9
_LOCATION = re.compile(rb"\r\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)
_OTHER_SCHEME = {"http": "https", "https": "http"}
_QUALITY = re.compile(r"[01](?:\.[0-9]{0,3})?")
_MAX_HOPS = 8


class Index(Protocol):
    """What is asked of a pack."""

    def lookup(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key, in recorded order."""

    def entry(self, row: int) -> Entry:
        """Return the answer in a row."""

    def methods_of(self, url: str) -> Collection[str]:
        """Return the methods that a URL was recorded with."""

    def explain(self, method: str, url: str) -> str:
        """Return why a request looked up in vain is not there."""


@dataclass(slots=True)
class SessionState:
    """What a session has done so far, as far as answers depend on it.

    Attributes:
        epoch: one more than the epoch of the last mutation matched, beacons aside; 0 before the first.
        uses: how often each mutation was matched, by key.
    """

    epoch: int = 0
    uses: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be answered without a recording."""

    noise: NoiseTable = field(default_factory=NoiseTable)


@dataclass(frozen=True, slots=True)
class _Candidate:
    row: int
    entry: Entry


def resolve(request: Request, index: Index, state: SessionState, policy: Policy) -> Match:
    """Return the answer of `request` in a session's state; changes nothing."""
    if is_preflight(request):
        return _preflight(request, index)
    refused = ""
    for url, note in _spellings(request.url):
        candidates, why = _candidates(request, url, index)
        if candidates:
            return _choose(candidates, state, note)
        refused = refused or why
    if why := policy.noise.why(request.url):
        return Match(Tier.NOISE, reason=why)
    return Match(Tier.MISS, reason=refused or index.explain(request.method, request.url))


def advance(state: SessionState, entry: Entry, *, moves: bool = True) -> None:
    """Note in a session's state that an entry was served; `moves` is false for a beacon's."""
    if entry.method in MUTATIONS:
        state.uses[entry.key] = state.uses.get(entry.key, 0) + 1
        if moves:
            state.epoch = entry.epoch + 1


def is_beacon(request: Request, policy: Policy) -> bool:
    """Return whether a request only tells a counter something: no page can read its answer.

    Such as `sendBeacon` and `ping` (Fetch §3.2.2: mode "no-cors"); forms navigate, and scripts that go on
    with an answer ask in another mode.
    """
    return header(request.headers, "sec-fetch-mode") == "no-cors" or bool(policy.noise.why(request.url))


def is_preflight(request: Request) -> bool:
    """Return whether a request is a CORS preflight (Fetch §4.8)."""
    return (
        request.method == "OPTIONS"
        and bool(header(request.headers, "origin"))
        and bool(header(request.headers, "access-control-request-method"))
    )


def _preflight(request: Request, index: Index) -> Match:
    """Let the page go on to the real request, even to a miss: it must see that one's status."""
    method = header(request.headers, "access-control-request-method").strip()
    recorded = any(method in index.methods_of(url) for url, _ in _spellings(request.url))
    reason = f"preflight for {method}"
    return Match(Tier.SYNTHETIC, reason=reason if recorded else f"{reason}, which is not recorded")


def _spellings(url: str) -> Iterator[tuple[str, str]]:
    """Yield the URL and its alias under the other scheme, each with what the ledger says of it."""
    yield url, ""
    scheme, separator, rest = wire_url(url).partition("://")
    if separator and (other := _OTHER_SCHEME.get(scheme)):
        yield f"{other}://{rest}", f"recorded over {other}"


def _candidates(request: Request, url: str, index: Index) -> tuple[list[_Candidate], str]:
    """Return the captures of a request under a URL, and why there were others, if they are none."""
    content_type = header(request.headers, "content-type")
    # A recorded HEAD is asked first, then the GET, whose head is the same (RFC 9110 §9.3.2).
    for method in ("HEAD", "GET") if request.method == "HEAD" else (request.method,):
        rows = index.lookup(request_key(method, url, content_type, request.raw_body))
        found = [_Candidate(row, index.entry(row)) for row in rows]
        if not found:
            continue
        usable = [candidate for candidate in found if not _unusable(request, candidate.entry)]
        if len(usable) > 1:
            usable = _as_accepted(_without_circles(usable, request, index), request)
        return usable, "" if usable else _unusable(request, found[0].entry)
    return [], ""


def _unusable(request: Request, entry: Entry) -> str:
    """Return why a capture cannot answer this request; "" if it can."""
    if entry.status < 200:
        return "recorded without a final answer"
    if entry.status == 206 and not _part_suffices(request, entry):
        return "recorded in part only, and not the part asked for"
    if entry.status == 304 and not _conditional(request):
        return "recorded as not modified only"
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


def _without_circles(candidates: list[_Candidate], request: Request, index: Index) -> list[_Candidate]:
    """Drop redirects that come back to the asked URL, where another answer remains.

    A site that sets a cookie by a round trip is recorded so: redirect, redirect, page.
    """
    asked = wire_url(request.url)
    straight = [c for c in candidates if not _comes_back(c.entry, asked, request.method, index)]
    return straight or candidates


def _as_accepted(candidates: list[_Candidate], request: Request) -> list[_Candidate]:
    """Drop full answers that a read's `Accept` ranks behind others (RFC 9110 §12.5.1)."""
    accept = header(request.headers, "accept")
    full = [c for c in candidates if 200 <= c.entry.status < 300]
    if not accept or request.method in MUTATIONS or len({c.entry.mime for c in full}) < 2:
        return candidates
    ranks = {c.row: _rank(accept, c.entry.mime) for c in full}
    best = max(ranks.values())
    return [c for c in candidates if ranks.get(c.row, best) == best]


def _rank(accept: str, mime: str) -> tuple[float, int]:
    """Return the weight of a media type, and how closely it is named: itself, its kind, any."""
    wanted = {mime: 2, f"{mime.partition('/')[0]}/*": 1, "*/*": 0}
    closest, weight = -1, 0.0
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        if wanted.get(name, -1) > closest:
            closest, weight = wanted[name], _weight(parameters)
    return weight, closest


def _weight(parameters: list[str]) -> float:
    quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    return float(quality) if _QUALITY.fullmatch(quality) else 0.0


def _comes_back(entry: Entry, asked: str, method: str, index: Index) -> bool:
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


def _choose(candidates: list[_Candidate], state: SessionState, note: str) -> Match:
    ordered = sorted(candidates, key=lambda candidate: candidate.entry.order)
    first = ordered[0].entry
    if first.method in MUTATIONS:
        chosen, why = _nth(ordered, state.uses.get(first.key, 0))
    else:
        chosen, why = _by_epoch(ordered, state.epoch)
    return Match(Tier.EXACT, chosen.row, "; ".join(filter(None, (note, why))))


def _nth(ordered: list[_Candidate], used: int) -> tuple[_Candidate, str]:
    count = len(ordered)
    if used >= count:
        again = "its only recording" if count == 1 else f"the last of {count} recordings"
        return ordered[-1], f"past the end: {again} again"
    return ordered[used], "" if count == 1 else f"recording {used + 1} of {count}"


def _by_epoch(ordered: list[_Candidate], epoch: int) -> tuple[_Candidate, str]:
    if len(ordered) == 1:
        return ordered[0], ""
    reached = [c.entry.epoch for c in ordered if c.entry.epoch <= epoch]
    wanted = max(reached) if reached else min(c.entry.epoch for c in ordered)
    place, chosen = next((i, c) for i, c in enumerate(ordered) if c.entry.epoch == wanted)
    return chosen, f"epoch {epoch}: recording {place + 1} of {len(ordered)}, of epoch {wanted}"

"""Choice of the one recorded response to a request, or the reason for a miss.

`resolve` is pure and total: equal arguments give an equal `Match`, the pack's mmap is the only I/O, and a
miss is a value. It is strict: a wrong 200 is worse than a miss, so it guesses nothing unless the policy
allows it. docs/explanation/matching.md documents the tiers.

Order: CORS preflights are synthetic; then the exact key (a HEAD takes the GET's response); then the other
scheme, since browsers upgrade http; then the request without its volatile parts; then the request by the
distances of its times from the page's present (`pagetimes`), if that is known; then noise; then the refusal
of a method that the URL does not allow (405); then, only if enabled, a write of the same fields (`on_write`)
and the most similar request (`fuzzy`); then a miss. `captures` decides which captures of a key may answer.

Among several captures the session's history decides (docs/decisions/0006-epochs-not-counters.md). A read
takes the latest capture in step with the mutations that this session repeated (its *epoch*). A reload without
a POST therefore shows the same page. Versions of a resource follow the visit that recorded the session's page
(docs/decisions/0028-versions-follow-their-visit.md). Counters apply only to requests that repeat by nature:
mutations, declared polls, and captures of one request that differ only in volatile parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Literal, Protocol

from stillweb.matching.captures import Candidate, Entry, of_visit, same_answer, usable
from stillweb.matching.engineio import PolledConnections, closing, is_transport, sid_of
from stillweb.matching.fuzzy import closest
from stillweb.matching.keys import body_key, key_with_body
from stillweb.matching.noise import NoiseTable
from stillweb.matching.pagetimes import Instant
from stillweb.matching.parts import shape_key
from stillweb.matching.rules import Rules
from stillweb.model import BUSY, GUESSES, MUTATIONS, Match, Request, Tier, destination, header
from stillweb.options import Option
from stillweb.urls import other_scheme

OnWrite = Literal["miss", "accept"]


class Index(Protocol):
    """The part of a pack that the resolver uses."""

    def lookup(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key or alias, in recorded order."""

    def distinct(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key or alias, without those that repeat an earlier response."""

    def entry(self, row: int) -> Entry:
        """Return the answer in a row."""

    def rows_of(self, url: str) -> Sequence[int]:
        """Return the rows of a URL under any scheme and method."""

    def methods_of(self, url: str) -> Collection[str]:
        """Return the methods with which a URL was recorded."""

    def urls_like(self, url: str) -> Collection[str]:
        """Return recorded URLs of the same host and path, with any query."""

    def explain(self, method: str, url: str) -> str:
        """Return why a request has no row."""


@dataclass(slots=True)
class SessionState:
    """The part of a session's history on which responses depend.

    Attributes:
        epoch: one more than the epoch of the last matched mutation, without beacons; 0 before the first.
        uses: how often each capture was served, by its position in recorded order, without stable matches.
        guessed: whether a write was accepted whose answer is a guess; what depends on writes is then one too.
        shown: last capture that each read received, by its key, without stable matches.
        connections: of socket.io, by long polling.
        page_time: of the page's clock when it was last reported, in ms since 1970; None if it never was.
    """

    epoch: int = 0
    uses: dict[int, int] = field(default_factory=dict)
    guessed: bool = False
    shown: dict[bytes, int] = field(default_factory=dict)
    connections: PolledConnections = field(default_factory=PolledConnections)
    page_time: int | None = None


@dataclass(frozen=True, slots=True)
class UnrecordedAnswers:
    """Answers of a session to requests that no recording holds, besides misses.

    Attributes:
        derived: see `stillweb.matching.derived`.
    """

    derived: Annotated[
        bool, Option("Answer forms with values that were not recorded, where recordings prove the answers.")
    ] = False
    on_write: Annotated[
        OnWrite,
        Option(
            "Answer to a write that was not recorded: a miss, or the recorded answer to the same form with "
            "other values. The latter is a guess. Not for training without a `request` evaluator."
        ),
    ] = "miss"

    def __or__(self, other: UnrecordedAnswers) -> UnrecordedAnswers:
        """Return what either allows."""
        accept = "accept" in (self.on_write, other.on_write)
        return UnrecordedAnswers(self.derived or other.derived, "accept" if accept else "miss")

    def __bool__(self) -> bool:
        """Return False if such requests are misses only."""
        return self != UnrecordedAnswers()


@dataclass(frozen=True, slots=True)
class Policy:
    """Tiers that may serve besides exact matches.

    Attributes:
        noise: requests answered without a recording.
        rules: the volatile parts of a collection's requests.
        fuzzy: None for never.
        redact: replaces recorded secrets by their placeholders; None if the collection has none.
    """

    noise: NoiseTable = field(default_factory=NoiseTable)
    rules: Rules = field(default_factory=Rules)
    guessed: Annotated[bool, Option("Also use rules that were guessed from a single recording.")] = False
    fuzzy: Annotated[
        float | None,
        Option(
            "On a miss, serve the best match with a similarity of at least FLOOR (0 to 1). Not for training.",
            metavar="FLOOR",
            min=0,
            max=1,
        ),
    ] = None
    pace: Annotated[
        str,
        Option(
            "Timing of WebSocket frames and event streams: immediately, or with the recorded pauses.",
            choices=("none", "recorded"),
        ),
    ] = "none"
    unrecorded: UnrecordedAnswers = field(default_factory=UnrecordedAnswers)
    redact: Callable[[Request], Request] | None = None

    def under(self, rules: str, redact: Callable[[Request], Request] | None = None) -> Policy:
        """Return this policy with the rules of a pack's manifest."""
        return replace(self, rules=_parsed(rules), redact=redact)


@lru_cache(maxsize=64)
def _parsed(rules: str) -> Rules:
    return Rules.parse(rules)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A key to look up, and the tier and note of a match.

    Attributes:
        now: time of the request that must be the page's present; None for any.
    """

    key: bytes
    tier: Tier
    note: str
    guessed: bool = False
    now: Instant | None = None

    def refusal(self, state: SessionState, policy: Policy) -> str:
        """Return why rows of this key must not answer, "" if they may."""
        if self.guessed and not policy.guessed:
            return f"only a guess would find it: {self.note}"
        if self.now is None:
            return ""
        if state.page_time is None:
            return f"holds the page's time, which was not reported: {self.note}"
        return "" if self.now.is_present(state.page_time) else f"another time: {self.note}"


def resolve(request: Request, index: Index, state: SessionState, policy: Policy) -> Match:
    """Return the match of a request in a session's state. The state is not changed."""
    if is_preflight(request):
        return _preflight(request, index)
    match = _resolve(request, index, state, policy)
    if state.guessed and match.tier is Tier.SEQUENCE:
        return replace(match, tier=Tier.GUESS, reason=f"{match.reason}; after an accepted write")
    if match.tier is Tier.MISS and policy.redact is not None:
        # The request may carry a recorded password, which the archive holds as a placeholder.
        redacted = policy.redact(request)
        found = match if redacted == request else _resolve(redacted, index, state, policy)
        if found.tier is not Tier.MISS:
            return replace(found, reason="; ".join(filter(None, ("secret as recorded", found.reason))))
    return match


def _resolve(request: Request, index: Index, state: SessionState, policy: Policy) -> Match:
    if is_transport(request.url):
        return _of_connection(request, index, state, policy)

    def counts(name: str) -> bool:
        return not policy.rules.ignores(request, name)

    refused = ""
    for lookup in _lookups(request, policy.rules):
        rows = index.distinct(lookup.key)
        if not rows:
            continue
        if why := lookup.refusal(state, policy):
            refused = refused or why
            continue
        candidates, why = usable(request, rows, index, counts)
        if candidates and (candidates[0].entry.method in MUTATIONS or not same_answer(candidates)):
            # The position in the sequence counts identical captures too.
            every = index.lookup(lookup.key)
            if len(every) > len(rows):
                candidates, why = usable(request, every, index, counts)
        if candidates:
            counted = lookup.tier is Tier.NORMALISED or policy.rules.polls(request.url)
            if counted or candidates[0].entry.method in MUTATIONS:
                match = _choose(candidates, state, lookup, counted=counted)
                # A cached response would be given to sessions whose pages have another time.
                return replace(match, stable=match.stable and lookup.now is None)
            return _by_visit(request, candidates, index, state, lookup)
        refused = refused or why
    return _unrecorded(request, index, state, policy, refused)


def _of_connection(request: Request, index: Index, state: SessionState, policy: Policy) -> Match:
    """Return the match of a poll or handshake of Engine.IO: the answers of one recorded connection."""
    connections, refused = state.connections, ""
    renamed = connections.continued(request)
    for lookup in _lookups(renamed, policy.rules):
        rows = [] if lookup.refusal(state, policy) else index.lookup(lookup.key)
        candidates, why = usable(renamed, rows, index, lambda name: not policy.rules.ignores(request, name))
        refused = refused or why
        if not candidates:
            continue
        if not sid_of(request.url):  # all of them say the same of another connection
            used = sum(state.uses.get(each.entry.order, 0) for each in candidates)
            return _matched(candidates[used % len(candidates)], lookup, f"connection {used + 1}")
        if request.method in MUTATIONS:
            own = connections.same(renamed.url, candidates)
            return _choose(own, state, lookup, counted=True)
        found = connections.next_poll(request.url, candidates, index.entry)
        if not isinstance(found, str):
            return _matched(found, lookup, "the next answer of its connection", distinguished=True)
        refused = refused or found
    return _unrecorded(request, index, state, policy, refused)


def advance(state: SessionState, request: Request, match: Match, entry: Entry, *, moves: bool = True) -> None:
    """Record in a session's state that a match's entry was served; `moves` is False for a beacon."""
    # A HEAD served with the head of a GET's response does not take its position: the GET is still to come.
    if match.stable or (request.method == "HEAD" and entry.method != "HEAD"):
        return
    state.uses[entry.order] = state.uses.get(entry.order, 0) + 1
    moves = not state.connections.note(request, entry) and moves
    state.guessed = state.guessed or (match.tier is Tier.GUESS and entry.method in MUTATIONS)
    if entry.method == "GET":
        state.shown[entry.key] = entry.order
    if moves and entry.method in MUTATIONS:
        state.epoch = entry.epoch + 1


def is_beacon(request: Request, policy: Policy) -> bool:
    """Return True if a mutation only reports to a server and no page can read its response.

    Such as `sendBeacon` and `ping` (Fetch §3.2.2: mode "no-cors"). Forms navigate, and scripts that use a
    response send another mode. Reads never change the epoch and are not examined.
    """
    if request.method not in MUTATIONS:
        return False
    return header(request.headers, "sec-fetch-mode") == "no-cors" or bool(policy.noise.why(request.url))


def is_preflight(request: Request) -> bool:
    """Return whether a request is a CORS preflight (Fetch §4.8)."""
    return (
        request.method == "OPTIONS"
        and bool(header(request.headers, "origin"))
        and bool(header(request.headers, "access-control-request-method"))
    )


def _preflight(request: Request, index: Index) -> Match:
    """Let the page proceed to the real request, even to a miss: it must see that request's status."""
    method = header(request.headers, "access-control-request-method").strip()
    recorded = any(method in index.methods_of(url) for url, _ in _spellings(request.url))
    reason = f"preflight for {method}"
    return Match(
        Tier.SYNTHETIC, reason=reason if recorded else f"{reason}, which is not recorded", stable=True
    )


def _unrecorded(request: Request, index: Index, state: SessionState, policy: Policy, refused: str) -> Match:
    """Return the match of a request whose keys have no rows."""
    if why := policy.noise.why(request.url) or _unread(request) or closing(request):
        return Match(Tier.NOISE, reason=why, stable=True)
    if (refusal := _not_allowed(request, index, policy)) is not None:
        return refusal
    reason = refused or index.explain(request.method, request.url)
    if policy.unrecorded.on_write == "accept" and request.method in MUTATIONS:
        accepted = _accepted(request, index, state, policy)
        if accepted is not None:
            return accepted
    if policy.fuzzy is None:
        return Match(Tier.MISS, reason=reason, stable=True)
    like = closest(request, index, lambda name: not policy.rules.ignores(request, name))
    if like is None:
        return Match(Tier.MISS, reason=reason, stable=True)
    if like.score < policy.fuzzy:
        short = f"closest of all scores {like.score:.2f}, under {policy.fuzzy:g}: {like.url}"
        return Match(Tier.MISS, reason=f"{reason}; {short}", stable=True)
    lookup = _Lookup(b"", Tier.FUZZY, f"scores {like.score:.2f} with {like.url}{like.why}")
    return _choose(like.candidates, state, lookup, counted=policy.rules.polls(request.url))


def _not_allowed(request: Request, index: Index, policy: Policy) -> Match | None:
    """Return the recorded refusal of the request's method; None without one.

    A 405 states that the URL does not support the method (RFC 9110 §15.5.6), so no other body is accepted and
    nothing changes. All recordings of URL and method must agree. Their heads may differ: HTTP/2 has no reason
    phrase, and its names are in lower case (RFC 9113 §8.2.1, §8.3.2).
    """
    if request.method not in MUTATIONS or request.method not in index.methods_of(request.url):
        return None
    rows = []
    for row in index.rows_of(request.url):
        entry = index.entry(row)
        if entry.method == request.method:
            if entry.status != HTTPStatus.METHOD_NOT_ALLOWED:
                return None  # the usual case, after one entry: a URL may have thousands of recorded writes
            rows.append(row)
    candidates, _ = usable(request, rows, index, lambda name: not policy.rules.ignores(request, name))
    if len({(each.entry.mime, each.entry.body_sha256) for each in candidates}) != 1:
        return None
    note = f"{request.method} is not allowed here, whatever its body"
    return _matched(candidates[0], _Lookup(b"", Tier.NORMALISED, note), stable=True)


def _accepted(request: Request, index: Index, state: SessionState, policy: Policy) -> Match | None:
    """Return the recorded answer to a write of this shape; None if no such write was recorded."""
    rows = index.lookup(shape_key(request))
    candidates, _ = usable(request, rows, index, lambda name: not policy.rules.ignores(request, name))
    if not candidates:
        return None
    lookup = _Lookup(b"", Tier.GUESS, "accepted: recorded with other values")
    return _choose(candidates, state, lookup, counted=False)


def _unread(request: Request) -> str:
    """Return why no page can read the answer to a request; "" if one can."""
    # Each report contains the nonce and referrer of its page, and no page can wait for it.
    if header(request.headers, "sec-fetch-dest") == "report":
        return "report of the browser"
    # Its response is opaque (Fetch §4.4), and its body differs each time: the log of an application's use.
    if request.method in MUTATIONS and header(request.headers, "sec-fetch-mode") == "no-cors":
        return 'no page can read the answer: mode "no-cors", such as sendBeacon'
    return ""


def _lookups(request: Request, rules: Rules) -> Iterator[_Lookup]:
    """Yield the keys of a request: exact keys, then those without volatile parts, guesses last."""
    body = body_key(header(request.headers, "content-type"), request.raw_body)
    # A recorded HEAD comes first, then the GET, whose head is the same (RFC 9110 §9.3.2).
    methods = ("HEAD", "GET") if request.method == "HEAD" else (request.method,)
    for url, note in _spellings(request.url):
        for method in methods:
            yield _Lookup(key_with_body(method, url, body), Tier.EXACT, note)
    aliases = [
        (alias, note)
        for url, note in _spellings(request.url)
        for method in methods
        for alias in rules.aliases(replace(request, method=method, url=url))
    ]
    for alias, note in aliases:
        if not alias.guessed:
            why = f"volatile: {', '.join(alias.names)}"
            yield _Lookup(alias.key, Tier.NORMALISED, _joined(note, why))
    for url, note in _spellings(request.url) if rules.clock else ():
        for method in methods:
            if (found := rules.clock_alias(replace(request, method=method, url=url))) is not None:
                why = f"time of the page: {', '.join(found.names)}"
                yield _Lookup(found.key, Tier.NORMALISED, _joined(note, why), now=found.now)
    for alias, note in aliases:
        if alias.guessed:
            why = f"guessed volatile: {', '.join(alias.names)}"
            yield _Lookup(alias.key, Tier.NORMALISED, _joined(note, why), guessed=True)


def _joined(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def _spellings(url: str) -> Iterator[tuple[str, str]]:
    """Yield the URL and its alias under the other scheme, each with a note for the ledger."""
    yield url, ""
    if other := other_scheme(url):
        yield other, f"recorded over {other.partition(':')[0]}"


_CODE = frozenset({"script", "style", "worker", "sharedworker", "serviceworker"})
"""Request destinations whose response belongs to its page and not to the state of the site."""


def _choose(candidates: list[Candidate], state: SessionState, lookup: _Lookup, *, counted: bool) -> Match:
    """Return the capture that a session's history selects, of several in recorded order."""
    alike = same_answer(candidates)
    if candidates[0].entry.method in MUTATIONS:
        chosen, why = _nth(candidates, state)
        return _matched(chosen, lookup, why, distinguished=not alike)
    if alike:
        return _matched(candidates[0], lookup, stable=True)
    if counted:
        epoch = _reached({candidate.entry.epoch for candidate in candidates}, state.epoch)
        chosen, why = _nth([c for c in candidates if c.entry.epoch == epoch], state)
        why = "; ".join(filter(None, (f"epoch {state.epoch}: of epoch {epoch}", why)))
        return _matched(chosen, lookup, why, distinguished=True)
    return _by_epoch(candidates, state, lookup)


def _by_visit(
    request: Request, candidates: list[Candidate], index: Index, state: SessionState, lookup: _Lookup
) -> Match:
    """Return the capture of the visit that the session's page comes from, if history does not forbid it."""
    if same_answer(candidates):
        return _matched(candidates[0], lookup, stable=True)
    versions = {(each.entry.status, each.entry.body_sha256) for each in candidates}
    visited = of_visit(request, candidates, index, state.shown) if len(versions) > 1 else []
    visited = [each for each in visited if each.entry.status not in BUSY]
    if not visited:
        return _by_epoch(candidates, state, lookup)
    if state.epoch and destination(request.headers) not in _CODE:
        # The session has changed the site: what it changed goes before what the recorded visit saw.
        reached = _reached({each.entry.epoch for each in candidates}, state.epoch)
        visited = [each for each in visited if each.entry.epoch == reached]
        if not visited:
            return replace(_by_epoch(candidates, state, lookup), stable=False)
    firsts = _firsts(visited)
    chosen = firsts[_reached(firsts, state.epoch)]
    why = f"visit: recording {candidates.index(chosen) + 1} of {len(candidates)}, of this page"
    return _matched(chosen, lookup, why, distinguished=True)


def _by_epoch(candidates: list[Candidate], state: SessionState, lookup: _Lookup) -> Match:
    firsts = _firsts(candidates)
    if same_answer(firsts.values()):
        return _matched(next(iter(firsts.values())), lookup, stable=True)
    wanted = _reached(firsts, state.epoch)
    chosen = firsts[wanted]
    place = candidates.index(chosen) + 1
    why = f"epoch {state.epoch}: recording {place} of {len(candidates)}, of epoch {wanted}"
    return _matched(chosen, lookup, why, distinguished=True)


def _firsts(candidates: list[Candidate]) -> dict[int, Candidate]:
    """Return the capture that goes first, by epoch."""
    firsts: dict[int, Candidate] = {}
    for candidate in candidates:
        first = firsts.setdefault(candidate.entry.epoch, candidate)
        if _goes_before(candidate, first):
            firsts[candidate.entry.epoch] = candidate
    return firsts


def _goes_before(later: Candidate, first: Candidate) -> bool:
    """Return True if a later capture goes before the first of its epoch.

    A response of an overloaded site does not count; then, a capture recorded with the cookies of the request
    goes before others.
    """
    busy, was_busy = later.entry.status in BUSY, first.entry.status in BUSY
    if busy != was_busy:
        return was_busy
    return later.same_cookies and not first.same_cookies


def _reached(epochs: Collection[int], epoch: int) -> int:
    """Return the greatest recorded epoch that a session has reached, else the smallest."""
    return max((each for each in epochs if each <= epoch), default=min(epochs))


def _nth(ordered: list[Candidate], state: SessionState) -> tuple[Candidate, str]:
    """Return the next capture in the sequence, by the number of times that any of them was served."""
    count = len(ordered)
    used = sum(state.uses.get(candidate.entry.order, 0) for candidate in ordered)
    if used >= count:
        again = "its only recording" if count == 1 else f"the last of {count} recordings"
        return ordered[-1], f"past the end: {again} again"
    return ordered[used], "" if count == 1 else f"recording {used + 1} of {count}"


def _matched(
    chosen: Candidate, lookup: _Lookup, why: str = "", *, distinguished: bool = False, stable: bool = False
) -> Match:
    cookies = "" if chosen.same_cookies else "other Cookie than recorded (Vary: Cookie)"
    # A guess stays one, however its captures were distinguished.
    tier = Tier.SEQUENCE if distinguished and lookup.tier not in GUESSES else lookup.tier
    return Match(tier, chosen.row, "; ".join(filter(None, (lookup.note, why, cookies))), stable)

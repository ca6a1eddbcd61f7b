"""A session: one episode's view of a pack, with its cursor, its ledger and its requests in flight.

A session answers requests and records the responses; it knows no sockets. The server calls `begin` when a
request is complete and `finish` when its response has gone out. So an environment that waits can rely on
`in_flight`. After `reset` the next episode gets the first responses again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.collections.branches import branches_of
from stillweb.collections.manifest import read_manifest
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import EVENT_STREAM
from stillweb.errors import MalformedPack, UsageError
from stillweb.http.control import Ledger as Ledger
from stillweb.http.control import LedgerEntry as LedgerEntry
from stillweb.http.control import MissOutcome, SessionInfo
from stillweb.matching.captures import Entry, is_navigation
from stillweb.matching.counters import with_numbers
from stillweb.matching.derived.derive import DerivedAnswers
from stillweb.matching.placeholders import key_file
from stillweb.matching.redaction import SecretFields, secret_fields_of
from stillweb.matching.resolver import Policy, SessionState, UnrecordedAnswers, advance, is_beacon, resolve
from stillweb.model import GUESSES, MUTATIONS, Match, Request, Tier, destination, header
from stillweb.replay.ledger.file import LedgerLine
from stillweb.replay.ledger.session import SessionLedger, may_be_repeated, numbered
from stillweb.replay.server import answer as answers
from stillweb.replay.server import eventstream
from stillweb.replay.server.answer import PreparedResponse, ScriptedResponse
from stillweb.replay.server.bodytime import BodyTime
from stillweb.replay.server.cache import CachedResponse, Key, cache_of
from stillweb.replay.server.metrics import ResponseCounters
from stillweb.replay.server.pageclock import PageClock

logger = logging.getLogger(__name__)

_CHANGED = frozenset({"tier", "status", "bytes"})  # of a miss, by its outcome

MISS_MARK = b"Stillweb-Miss"
"""Field that names a held miss to the program in front, which removes the field."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A resolved request whose response is going out; `resets` is that of the session at its beginning."""

    request: Request
    match: Match
    answer: PreparedResponse
    seq: int
    began: float
    resets: int


class Session:
    """One episode's cursor in one pack.

    Attributes:
        holds_misses: whether a program in front of the server reports the outcome of each miss
            (docs/decisions/0013-on-miss-in-front.md). The response then carries `MISS_MARK`, and the miss
            stays in flight and off the ledger until `conclude`.
        resets: how often the session was reset.
        left: when its last connection ended, or when it was opened (`clock.monotonic`).
        page_clock: of its page; frames and events may wait for it, or for a mutation.
        cancels_navigations: whether a navigation that misses gets 204, so that the browser stays on its page.
        body_time: what its large request bodies may take of the event loop.
    """

    holds_misses = False
    cancels_navigations = False

    def __init__(
        self,
        session_id: str,
        collection: str,
        pack: Pack,
        policy: Policy,
        sink: Callable[[LedgerLine], None] | None = None,
        counters: ResponseCounters | None = None,
    ) -> None:
        self.id = session_id
        self.collection = collection
        self.pack = pack
        self.policy = policy_for(policy, pack)
        self.counters = counters or ResponseCounters()
        self._sink = sink
        self.page_clock = PageClock()
        self.body_time = BodyTime()
        self.resets = 0
        self.left = clock.monotonic()
        self._clear()

    def _clear(self) -> None:
        self.state = SessionState()
        branches = branches_of(self.pack.manifest, self.pack.path) if self.policy.unrecorded.derived else None
        self._derived = DerivedAnswers(branches, self.pack) if branches else None
        self.in_flight = 0
        self._requests = 0
        self.entries = SessionLedger()
        self.cache = cache_of(self.pack, self.policy)
        self._held: dict[str, ServedRequest] = {}

    def reset(self, pack: Pack | None = None) -> None:
        """Start again, with a newer pack if given; responses that are going out no longer count."""
        self.resets += 1
        if pack is not None:
            self.pack = pack
            self.policy = policy_for(self.policy, pack)
        self._clear()

    def answer_unrecorded(self, allowed: UnrecordedAnswers) -> None:
        """Allow further answers than the server's policy does.

        Raises:
            UsageError: if the session has answered a request: earlier writes would not count.
        """
        if self._requests:
            raise UsageError(
                f"session {self.id} has answered requests already",
                hint="choose its answers before its first request, or reset it",
            )
        self.policy = replace(self.policy, unrecorded=self.policy.unrecorded | allowed)
        self._clear()
        self.page_clock.ms = None

    def begin(self, request: Request) -> ServedRequest:
        began = clock.perf()
        self._requests += 1
        self.in_flight += 1
        match, answer = self._answer(request)
        if self.holds_misses and match.tier == Tier.MISS and answer.status == 404:
            answer = replace(answer, head=answer.head + self._mark_field(self._requests))
        return ServedRequest(request, match, answer, self._requests, began, self.resets)

    def begin_as(self, request: Request, match: Match, answer: PreparedResponse) -> ServedRequest:
        """Count a request as in flight that was matched elsewhere (`websocket`)."""
        self._requests += 1
        self.in_flight += 1
        return ServedRequest(request, match, answer, self._requests, clock.perf(), self.resets)

    def _answer(self, request: Request) -> tuple[Match, PreparedResponse]:
        try:
            match = resolve(request, self.pack, self.state, self.policy)
            if self._derived is not None:
                derived = self._derive(self._derived, request, match)
                if isinstance(derived, tuple):
                    return derived
                match = derived
            if match.entry < 0:
                return match, _made(request, match, cancel=self.cancels_navigations)
            entry = self.pack.entry(match.entry)
            if match.tier is Tier.NORMALISED and (names := self.policy.rules.counters(request)):
                numbered_entry = with_numbers(entry, request.url, names)
                if numbered_entry is None:
                    match = Match(Tier.MISS, reason=f"the recorded answer does not repeat {', '.join(names)}")
                    return match, _made(request, match, cancel=self.cancels_navigations)
                entry = numbered_entry
            advance(self.state, request, match, entry, moves=not is_beacon(request, self.policy))
            if entry.mime == EVENT_STREAM:
                return self._stream(request, match, entry)
        except MalformedPack as error:
            return self.damaged(request, error)
        return match, answers.recorded(request, entry)

    def _stream(self, request: Request, match: Match, entry: Entry) -> tuple[Match, PreparedResponse]:
        match, answer = eventstream.answer(request, match, entry, self.pack, self.state, self.policy)
        if isinstance(answer, ScriptedResponse) and isinstance(answer.script, eventstream.StreamScript):
            answer.script.clock = self.page_clock
        return match, answer

    def _derive(
        self, derived: DerivedAnswers, request: Request, match: Match
    ) -> tuple[Match, PreparedResponse] | Match:
        """Return the derived answer to a request, or its ordinary match."""
        found = derived.answer(request, match, self.state.epoch)
        if found is None:
            if match.entry >= 0 and not is_beacon(request, self.policy):
                derived.note_write(request, match)
                derived.note_visit(request, self.pack.entry(match.entry))
            # A cached response would be given to sessions whose own write changed the page.
            return replace(match, stable=False) if derived.depends_on_writes(request) else match
        match, entry = found
        if entry is None:
            return match, _made(request, match, cancel=self.cancels_navigations)
        derived.note_visit(request, entry)
        return match, answers.recorded(request, entry)

    def lookup(self, urls: Iterable[str]) -> list[bool]:
        """Return for each URL whether a navigation to it would be answered; changes nothing."""
        return [self._is_recorded(Request("GET", url, _NAVIGATION)) for url in urls]

    def _is_recorded(self, request: Request) -> bool:
        try:
            return resolve(request, self.pack, self.state, self.policy).entry >= 0
        except MalformedPack:
            return False

    def damaged(self, request: Request, error: MalformedPack) -> tuple[Match, PreparedResponse]:
        """Log damage once per place, and return a response that cannot be mistaken for the site's."""
        if self.counters.damage(str(error)):
            logger.error("pack is damaged", extra={"collection": self.collection, "error": str(error)})
        return Match(Tier.FAULT, reason=f"pack is damaged: {error}"), answers.empty(request, 500)

    def finish(self, served: ServedRequest, sent: int | None = None) -> None:
        """Record that a response has gone out; only `sent` bytes of its body if the client disconnected."""
        if served.resets != self.resets:
            return
        if self.holds_misses and self._is_marked(served):
            self._held[self._mark(served.seq).decode()] = served
            return
        self._note(_entry(served, sent), served.request)
        if served.request.method in MUTATIONS:
            self.page_clock.wake()

    def cache_response(self, key: Key, served: ServedRequest, sent: bytes) -> None:
        """Cache a complete response if every session would give it for these bytes."""
        match = served.match
        # Misses and guesses are recorded each time with their request.
        if match.stable and match.entry >= 0 and match.tier not in GUESSES and self.cache.accepts(len(sent)):
            entry = _entry(served, None)
            if may_be_repeated(entry):
                self.cache.add(key, CachedResponse(sent, entry))

    def repeat(self, cached: CachedResponse, began: float) -> None:
        """Record that a cached response has gone out: `begin` and `finish` in one step."""
        entry = cached.entry
        self._requests += 1
        ms = (clock.perf() - began) * 1000
        self.entries.add_repeated(entry, self._requests, ms)
        self._report(entry, ms, self._requests)

    def _mark(self, seq: int) -> bytes:
        return b"%d-%d" % (self.resets, seq)

    def _is_marked(self, served: ServedRequest) -> bool:
        # The whole field at its place counts: a page may have the name reflected, or a site may have sent it.
        return served.match.tier == Tier.MISS and served.answer.head.endswith(self._mark_field(served.seq))

    def _mark_field(self, seq: int) -> bytes:
        return b"%b: %b\r\n" % (MISS_MARK, self._mark(seq))

    def conclude(self, outcome: MissOutcome) -> bool:
        """Put the held miss that the outcome's `mark` names on the ledger; return False if there is none.

        `tier`, `status` and `bytes` replace those of the miss; `note` extends its reason.
        """
        served = self._held.pop(outcome.get("mark", ""), None)
        if served is None:
            return False
        entry = _entry(served, None)
        changed: dict[str, Any] = {name: value for name, value in outcome.items() if name in _CHANGED}
        reason = f"strict: {entry.reason}; {outcome['note']}" if outcome.get("note") else entry.reason
        self._note(replace(entry, **changed, reason=reason), served.request)
        return True

    def _note(self, entry: LedgerEntry, request: Request) -> None:
        if entry.tier == Tier.MISS or entry.tier in GUESSES or request.method in MUTATIONS:
            entry = replace(entry, asked=self.entries.describe_request(request, self.policy.redact))
        self.in_flight -= 1
        self.entries.add(entry)
        self._report(entry, entry.ms)

    def _report(self, entry: LedgerEntry, ms: float, repeated_as: int = 0) -> None:
        """Count and log an entry, or its repetition under another number."""
        self.counters.add(entry.tier, entry.bytes, ms)
        if self._sink is not None:
            noted = numbered(entry, repeated_as, ms) if repeated_as else entry
            self._sink(LedgerLine(self.id, self.collection, self.pack.environment_id, noted))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s %s %s %s", self.id, entry.status, entry.tier, entry.method, entry.url)

    def ledger(self, after: int = 0) -> Ledger:
        """Return the responses beyond request number `after`."""
        return self.entries.reader()(after)

    def describe(self) -> SessionInfo:
        return {
            "id": self.id,
            "collection": self.collection,
            "environment_id": self.pack.environment_id,
            "epoch": self.state.epoch,
            "resets": self.resets,
            "in_flight": self.in_flight,
            "requests": self._requests,
            "counts": dict(self.entries.counts),
        }


def _made(request: Request, match: Match, *, cancel: bool) -> PreparedResponse:
    """Return the response of a match that has no recording."""
    if match.tier == Tier.SYNTHETIC:
        return answers.preflight(request)
    cancelled = cancel and is_navigation(request)
    return answers.empty(request, 204 if match.tier == Tier.NOISE or cancelled else 404)


_NAVIGATION = (
    ("Upgrade-Insecure-Requests", "1"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("Sec-Fetch-Mode", "navigate"),
    ("Sec-Fetch-Dest", "document"),
)


def _entry(served: ServedRequest, sent: int | None) -> LedgerEntry:
    size = len(served.answer.body)
    gone = "" if sent is None else f"client went away after {sent} of {size} bytes"
    return LedgerEntry(
        seq=served.seq,
        method=served.request.method,
        url=served.request.url,
        status=served.answer.status,
        tier=str(served.match.tier),
        reason="; ".join(filter(None, (served.match.reason, gone))),
        bytes=size if sent is None else sent,
        ms=round((clock.perf() - served.began) * 1000, 3),
        resource=destination(served.request.headers),
        referer=header(served.request.headers, "referer"),
    )


def policy_for(policy: Policy, pack: Pack) -> Policy:
    """Return the policy of sessions of a pack.

    Raises:
        CollectionError: if the key beside the collection, or its manifest, cannot be read.
    """
    collection = Path(pack.path).absolute().parent
    return policy.under(pack.manifest.get("rules", ""), _secret_fields(collection))


def _secret_fields(collection: Path) -> SecretFields | None:
    manifest = collection / "manifest.json"
    try:
        times = [path.stat().st_mtime_ns for path in (key_file(collection.parent, collection.name), manifest)]
    except FileNotFoundError:
        return None
    return _read_secret_fields(collection, *times)


@lru_cache(maxsize=64)
def _read_secret_fields(collection: Path, _key: int, _manifest: int) -> SecretFields | None:
    redactions = read_manifest(collection / "manifest.json").redactions
    return secret_fields_of(collection.parent, collection.name, redactions)

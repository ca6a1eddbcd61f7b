"""A session: one episode's view of a pack, with its cursor, its ledger and what is in flight.

It answers requests and remembers what it answered; it knows no sockets. The server calls `begin`
when a request is complete and `finish` when its answer has gone out, so that `in_flight` is what
a waiting environment may trust. `reset` makes it new: the next episode sees the first answers
again.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.collections.manifest import read_manifest
from stillweb.collections.pack.reader import Pack
from stillweb.errors import MalformedPack
from stillweb.matching.redaction import SecretFields, key_file, secret_fields_of
from stillweb.matching.resolver import Policy, SessionState, advance, is_beacon, resolve
from stillweb.model import GUESSES, MUTATIONS, Match, Request, Tier, header
from stillweb.replay.server import answer as answers
from stillweb.replay.server import eventstream
from stillweb.replay.server.answer import PreparedResponse
from stillweb.replay.server.cache import CachedResponse, Key, cache_of
from stillweb.replay.server.metrics import ResponseCounters

__all__ = [
    "BODIES",
    "BODY",
    "FIELDS",
    "LEDGER_BYTES",
    "LEDGER_SIZE",
    "MISS_MARK",
    "Ledger",
    "LedgerEntry",
    "ServedRequest",
    "Session",
    "asked_of",
    "policy_for",
]

BODY = 64 * 1024
"""Bytes of one missed request's body that are kept."""

BODIES = 1024 * 1024
"""Bytes of missed requests' bodies that a session keeps in all."""

FIELDS = frozenset(
    (
        *("accept", "accept-language", "content-type", "origin", "range", "x-requested-with"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site"),
        # By these, frameworks ask for a part of a page under the page's own URL.
        *("hx-request", "hx-target", "hx-trigger", "hx-current-url", "turbo-frame", "x-pjax"),
        *("x-inertia", "x-inertia-version", "x-inertia-partial-data", "x-inertia-partial-component"),
        *("rsc", "next-action", "next-router-state-tree", "next-router-prefetch", "next-url", "soapaction"),
        *("x-pjax-container", "x-apollo-operation-name", "apollo-require-preflight"),
    )
)  # fmt: skip
"""Request fields that are kept, in lower case."""


def asked_of(request: Request, room: int) -> dict[str, Any]:
    """Return what is kept of a missed request, as JSON has it.

    Args:
        request: that was missed.
        room: bytes of bodies that may still be kept.

    Returns:
        `fields`: list of [name, value], in the order sent; where there is a body, `size` and `digest`
        (`sha256:` and hex), and the `body` itself in base64 if there is room.
    """
    kept: dict[str, Any] = {
        "fields": [[name.lower(), value] for name, value in request.headers if name.lower() in FIELDS]
    }
    if body := request.raw_body:
        kept |= {"size": len(body), "digest": f"sha256:{sha256(body).hexdigest()}"}
        if len(body) <= min(BODY, room):
            kept["body"] = b64encode(body).decode("ascii")
    return kept


def policy_for(policy: Policy, pack: Pack) -> Policy:
    """Return a policy for sessions of a pack.

    Raises:
        CollectionError: if the key beside the collection, or its manifest, cannot be read.
    """
    collection = Path(pack.path).absolute().parent
    return policy.under(pack.manifest.get("rules", ""), _disguise(collection))


def _disguise(collection: Path) -> SecretFields | None:
    manifest = collection / "manifest.json"
    try:
        times = [path.stat().st_mtime_ns for path in (key_file(collection.parent, collection.name), manifest)]
    except FileNotFoundError:
        return None
    return _read(collection, *times)


@lru_cache(maxsize=64)
def _read(collection: Path, _key: int, _manifest: int) -> SecretFields | None:
    redactions = read_manifest(collection / "manifest.json").redactions
    return secret_fields_of(collection.parent, collection.name, redactions)


logger = logging.getLogger(__name__)

LEDGER_SIZE = 100_000
"""Entries that a ledger keeps; a session that goes on for days loses its oldest."""

LEDGER_BYTES = 32 * 1024 * 1024
"""Bytes of entries that a ledger keeps, lines of repeated answers aside: a miss has fields and a body."""

_LINE = 512  # bytes of an entry without its texts, about
_FIELD = 256  # of a request field
_REPEATED = 160  # of what is noted of a repeated answer
_LONGEST = 4096  # bytes of a line that may be repeated: these are not weighed

MISS_MARK = b"Stillweb-Miss"
"""Field of a miss that is held: it names the miss to the program in front, which takes the field off."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What was asked, what was answered, and why.

    Attributes:
        seq: number of the request in its session, from 1.
        status: as sent.
        bytes: of the body as sent.
        ms: from the complete request to the last byte handed to the network.
        resource: what the browser wanted it for (`Sec-Fetch-Dest`), "" if it did not say.
        referer: as sent by the client.
        asked: fields and body of a miss, a guess or a write (`asked_of`).
    """

    seq: int
    method: str
    url: str
    status: int
    tier: str
    reason: str
    bytes: int
    ms: float
    resource: str = ""
    referer: str = ""
    asked: dict[str, Any] | None = field(default=None, hash=False)

    @property
    def weight(self) -> int:
        """What it takes in memory, in bytes, about."""
        texts = _LINE + len(self.url) + len(self.reason) + len(self.resource) + len(self.referer)
        if self.asked is None:
            return texts
        fields = sum(_FIELD + len(value) for _, value in self.asked["fields"])
        return texts + _LINE + fields + len(self.asked.get("body", ""))


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a session answered, in the order of requests.

    Attributes:
        counts: answers by tier, over all that were ever given.
        dropped: entries no longer kept.
        closed: whether the session is over.
    """

    entries: tuple[LedgerEntry, ...]
    counts: Mapping[str, int]
    dropped: int = 0
    closed: bool = False

    def of(self, tier: Tier | str) -> tuple[LedgerEntry, ...]:
        """Return the entries of a tier."""
        return tuple(entry for entry in self.entries if entry.tier == tier)

    @property
    def misses(self) -> tuple[LedgerEntry, ...]:
        """What was asked for and is not recorded; noise is not among it."""
        return self.of(Tier.MISS)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "entries": [asdict(entry) for entry in self.entries],
            "counts": dict(self.counts),
            "dropped": self.dropped,
            "closed": self.closed,
        }

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> Ledger:
        """Read what `to_dict` made."""
        entries = tuple(LedgerEntry(**entry) for entry in loaded["entries"])
        closed = bool(loaded.get("closed", False))
        return cls(entries, dict(loaded["counts"]), int(loaded.get("dropped", 0)), closed)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that was resolved and whose answer is going out."""

    request: Request
    match: Match
    answer: PreparedResponse
    seq: int
    began: float
    life: int


class Session:
    """One episode's cursor in one pack.

    Attributes:
        holds_misses: whether a program in front of the server says what becomes of each miss
            (docs/decisions/0013-on-miss-in-front.md): the answer then carries `MISS_MARK`, and the miss
            stays in flight and off the ledger until `conclude`.
    """

    holds_misses = False

    def __init__(
        self,
        session_id: str,
        collection: str,
        pack: Pack,
        policy: Policy,
        sink: Callable[[Session, LedgerEntry], None] | None = None,
        tally: ResponseCounters | None = None,
    ) -> None:
        self.id = session_id
        self.collection = collection
        self.pack = pack
        self.policy = policy_for(policy, pack)
        self.tally = tally or ResponseCounters()  # of all sessions of the collection
        self._sink = sink
        self._life = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self.state = SessionState()
        self.in_flight = 0
        self._requests = 0
        self._finished = 0
        self._counts: Counter[str] = Counter()
        # A repeated answer is noted by its kept line, number and ms: a line of its own would cost as much
        # time as all the rest of it, and is rarely read.
        self._entries: deque[_Noted] = deque(maxlen=LEDGER_SIZE)
        self._weighed: deque[tuple[int, int]] = deque()  # number on the ledger, and weight, of other lines
        self._weight = 0
        self.cache = cache_of(self.pack, self.policy)
        self._room = BODIES
        self._held: dict[str, ServedRequest] = {}

    def reset(self, pack: Pack | None = None) -> None:
        """Forget everything, and go on with a newer pack if given; what is going out no longer counts."""
        self._life += 1
        if pack is not None:
            self.pack = pack
            self.policy = policy_for(self.policy, pack)
        self._begin_life()

    def begin(self, request: Request) -> ServedRequest:
        """Resolve a request and note it as in flight."""
        began = clock.perf()
        self._requests += 1
        self.in_flight += 1
        match, answer = self._answer(request)
        if self.holds_misses and match.tier == Tier.MISS and answer.status == 404:
            answer = replace(answer, head=answer.head + self._mark_field(self._requests))
        return ServedRequest(request, match, answer, self._requests, began, self._life)

    @property
    def life(self) -> int:
        """How often it was reset."""
        return self._life

    def begin_as(self, request: Request, match: Match, answer: PreparedResponse) -> ServedRequest:
        """Note a request as in flight that was matched elsewhere (`websocket`)."""
        self._requests += 1
        self.in_flight += 1
        return ServedRequest(request, match, answer, self._requests, clock.perf(), self._life)

    def _answer(self, request: Request) -> tuple[Match, PreparedResponse]:
        try:
            match = resolve(request, self.pack, self.state, self.policy)
            if match.entry < 0:
                return match, _made(request, match)
            entry = self.pack.entry(match.entry)
            advance(self.state, request, match, entry, moves=not is_beacon(request, self.policy))
            if entry.mime == eventstream.EVENT_STREAM:
                return eventstream.answer(request, match, entry, self.pack, self.state, self.policy)
        except MalformedPack as error:
            return self.damaged(request, error)
        return match, answers.recorded(request, entry)

    def damaged(self, request: Request, error: MalformedPack) -> tuple[Match, PreparedResponse]:
        """Tell once of what the disk did, and return an answer that is not to be taken for the site's."""
        if self.tally.damage(str(error)):
            logger.error("pack is damaged", extra={"collection": self.collection, "error": str(error)})
        return Match(Tier.FAULT, reason=f"pack is damaged: {error}"), answers.empty(request, 500)

    def finish(self, served: ServedRequest, sent: int | None = None) -> None:
        """Note that an answer has gone out; `sent` bytes of its body if the client went away."""
        if served.life != self._life:
            return
        if self.holds_misses and self._is_marked(served):
            self._held[self._mark(served.seq).decode()] = served
            return
        self._note(_entry(served, sent), served.request)

    def keep(self, key: Key, served: ServedRequest, sent: bytes) -> None:
        """Keep an answer that went out whole, if every session would give it for these bytes."""
        match = served.match
        # Misses and guesses are noted each time with what was asked for.
        if match.stable and match.entry >= 0 and match.tier not in GUESSES and self.cache.takes(len(sent)):
            line = _entry(served, None)
            if line.weight <= _LONGEST:
                self.cache.keep(key, CachedResponse(sent, line))

    def repeat(self, kept: CachedResponse, began: float) -> None:
        """Note that an answer from the memo has gone out: what `begin` and `finish` do, at once."""
        line = kept.line
        self._requests += 1
        self._finished += 1
        ms = (clock.perf() - began) * 1000
        self._counts[line.tier] += 1
        self._entries.append((line, self._requests, ms))
        self.tally.add(line.tier, line.bytes, ms)
        if self._sink is not None:
            self._sink(self, _numbered(line, self._requests, ms))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s %s %s %s", self.id, line.status, line.tier, line.method, line.url)

    def _mark(self, seq: int) -> bytes:
        return b"%d-%d" % (self._life, seq)

    def _is_marked(self, served: ServedRequest) -> bool:
        # By the field itself, at its place: a page may have its name reflected, a site may have sent it.
        return served.match.tier == Tier.MISS and served.answer.head.endswith(self._mark_field(served.seq))

    def _mark_field(self, seq: int) -> bytes:
        return b"%b: %b\r\n" % (MISS_MARK, self._mark(seq))

    def conclude(self, mark: str, outcome: Mapping[str, Any]) -> bool:
        """Put a held miss on the ledger; return whether there was one of that mark.

        Args:
            mark: as its answer carried it.
            outcome: what differs from the miss as it was (`tier`, `status`, `bytes`); `note`, for the reason.
        """
        served = self._held.pop(mark, None)
        if served is None:
            return False
        entry = _entry(served, None)
        changed = {name: outcome[name] for name in ("tier", "status", "bytes") if name in outcome}
        reason = f"strict: {entry.reason}; {outcome['note']}" if outcome.get("note") else entry.reason
        self._note(replace(entry, **changed, reason=reason), served.request)
        return True

    def _note(self, entry: LedgerEntry, request: Request) -> None:
        if entry.tier == Tier.MISS or entry.tier in GUESSES or request.method in MUTATIONS:
            asked = asked_of(request, self._room)
            if "body" in asked:
                self._room -= len(request.raw_body)
                asked |= self._redacted(request)
            entry = replace(entry, asked=asked)
        self.in_flight -= 1
        self._finished += 1
        self._counts[entry.tier] += 1
        self._entries.append(entry)
        self._weigh(entry)
        self.tally.add(entry.tier, entry.bytes, entry.ms)
        if self._sink is not None:
            self._sink(self, entry)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s %s %s %s", self.id, entry.status, entry.tier, entry.method, entry.url)

    def _redacted(self, request: Request) -> dict[str, str]:
        """Return the body with placeholders, if it holds recorded secrets."""
        redacted = self.policy.redact(request) if self.policy.redact else request
        if redacted.raw_body == request.raw_body:
            return {}
        return {"redacted": b64encode(redacted.raw_body).decode("ascii")}

    def _weigh(self, entry: LedgerEntry) -> None:
        """Weigh the newest entry, and drop the oldest while all weigh too much."""
        self._weighed.append((self._finished, entry.weight))
        self._weight += entry.weight
        dropped = self._unweigh()
        while self._weight > LEDGER_BYTES and len(self._weighed) > 1:
            number, weight = self._weighed.popleft()
            self._weight -= weight
            for _ in range(number - dropped):  # the repeated ones before it, too
                self._entries.popleft()
            dropped = number

    def _unweigh(self) -> int:
        """Weigh no more what has gone for being too many; return how many have gone in all."""
        dropped = self._finished - len(self._entries)
        while self._weighed and self._weighed[0][0] <= dropped:
            self._weight -= self._weighed.popleft()[1]
        return dropped

    def ledger(self, after: int = 0) -> Ledger:
        """Return what was answered, beyond request number `after`."""
        return self.reader()(after)

    def reader(self) -> Callable[[int], Ledger]:
        """Return what reads the ledger as it stands, also when the session is gone, and keeps only that."""
        return partial(_ledger, self._entries, dict(self._counts), self._finished - len(self._entries))

    @property
    def weight(self) -> int:
        """What the ledger takes in memory, in bytes, about."""
        self._unweigh()
        return self._weight + _REPEATED * len(self._entries)

    def to_dict(self) -> dict[str, Any]:
        """Return how it stands, as JSON shows it."""
        return {
            "id": self.id,
            "collection": self.collection,
            "environment_id": self.pack.environment_id,
            "epoch": self.state.epoch,
            "resets": self._life,
            "in_flight": self.in_flight,
            "requests": self._requests,
            "counts": dict(self._counts),
        }


def _made(request: Request, match: Match) -> PreparedResponse:
    """Return the answer of a match that has no recording."""
    if match.tier == Tier.SYNTHETIC:
        return answers.preflight(request)
    return answers.empty(request, 204 if match.tier == Tier.NOISE else 404)


_Noted = LedgerEntry | tuple[LedgerEntry, int, float]


def _ledger(entries: Iterable[_Noted], counts: Mapping[str, int], dropped: int, after: int) -> Ledger:
    kept = sorted(_lines(entries, after), key=lambda entry: entry.seq)
    return Ledger(tuple(kept), counts, dropped)


def _lines(noted: Iterable[_Noted], after: int) -> Iterator[LedgerEntry]:
    for each in noted:
        if isinstance(each, LedgerEntry):
            if each.seq > after:
                yield each
        elif each[1] > after:
            yield _numbered(*each)


def _numbered(line: LedgerEntry, seq: int, ms: float) -> LedgerEntry:
    return replace(line, seq=seq, ms=round(ms, 3))


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
        resource=header(served.request.headers, "sec-fetch-dest"),
        referer=header(served.request.headers, "referer"),
    )

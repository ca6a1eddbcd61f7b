"""The ledger of a session while its server runs: entries in memory, bounded in number and bytes.

The oldest entries are dropped, their counts stay. `ClosedSessions` holds the ledgers of the sessions that
were closed most recently.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from stillweb.http.control import Ledger, LedgerEntry, SessionInfo
from stillweb.model import Request

LEDGER_SIZE = 100_000
"""Entries that a ledger holds; a session that runs for days loses its oldest."""

LEDGER_BYTES = 32 * 1024 * 1024
"""Bytes of entries that a ledger holds, without those of repeated responses: a miss has fields and a body."""

BODY = 64 * 1024
"""Largest body of a request that a ledger holds, in bytes."""

BODIES = 1024 * 1024
"""Bytes of requests' bodies that the ledger of a session holds in total."""

CLOSED_BYTES = 16 * 1024 * 1024
"""Memory for closed sessions, in bytes, approximately. The session closed last is held whatever its size."""

FIELDS = frozenset(
    (
        *("accept", "accept-language", "content-type", "origin", "range", "x-requested-with"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "upgrade-insecure-requests"),
        # Frameworks use these to request a part of a page under the page's own URL.
        *("hx-request", "hx-target", "hx-trigger", "hx-current-url", "turbo-frame", "x-pjax"),
        *("x-inertia", "x-inertia-version", "x-inertia-partial-data", "x-inertia-partial-component"),
        *("rsc", "next-action", "next-router-state-tree", "next-router-prefetch", "next-url", "soapaction"),
        *("x-pjax-container", "x-apollo-operation-name", "apollo-require-preflight"),
    )
)  # fmt: skip
"""Fields of a request that a ledger holds, in lower case."""

_REPEATED = 160  # bytes of a repeated response
_LONGEST_REPEATED = 4096  # bytes of an entry that may be repeated: repeated ones are not weighed
_SESSION = 2048  # bytes of a session with an empty ledger, approximately

# A repeated response is its cached entry, number and ms: an entry of its own would take as much time as the
# rest of the response, and is rarely read.
_Noted = LedgerEntry | tuple[LedgerEntry, int, float]


def may_be_repeated(entry: LedgerEntry) -> bool:
    """Return whether `SessionLedger.add_repeated` takes an entry."""
    return entry.weight <= _LONGEST_REPEATED


class SessionLedger:
    """The entries of a session.

    Attributes:
        counts: responses by tier, including those whose entries were dropped.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._finished = 0
        self._entries: deque[_Noted] = deque(maxlen=LEDGER_SIZE)
        self._weighed: deque[tuple[int, int]] = deque()  # number and weight of entries that are not repeated
        self._weight = 0
        self._body_budget = BODIES

    def describe_request(
        self, request: Request, redact: Callable[[Request], Request] | None = None
    ) -> dict[str, Any]:
        """Return `LedgerEntry.asked` of a request, and count its body.

        Args:
            redact: replaces recorded secrets by their placeholders.

        Returns:
            `fields`: list of [name, value], in the order sent. With a body also `size` and `digest`
            (`sha256:` and hex), and the `body` in base64 while the session's bodies are not too large. If the
            body holds recorded secrets, `redacted` is the same with placeholders.
        """
        described: dict[str, Any] = {
            "fields": [[name.lower(), value] for name, value in request.headers if name.lower() in FIELDS]
        }
        body = request.raw_body
        if not body:
            return described
        described |= {"size": len(body), "digest": f"sha256:{sha256(body).hexdigest()}"}
        if len(body) <= min(BODY, self._body_budget):
            self._body_budget -= len(body)
            described["body"] = b64encode(body).decode("ascii")
            redacted = redact(request).raw_body if redact else body
            if redacted != body:
                described["redacted"] = b64encode(redacted).decode("ascii")
        return described

    def add(self, entry: LedgerEntry) -> None:
        """Add an entry; drop the oldest ones while the total is too large."""
        self._finished += 1
        self.counts[entry.tier] += 1
        self._entries.append(entry)
        self._weighed.append((self._finished, entry.weight))
        self._weight += entry.weight
        dropped = self._unweigh()
        while self._weight > LEDGER_BYTES and len(self._weighed) > 1:
            number, weight = self._weighed.popleft()
            self._weight -= weight
            for _ in range(number - dropped):  # including the repeated ones before it
                self._entries.popleft()
            dropped = number

    def add_repeated(self, entry: LedgerEntry, seq: int, ms: float) -> None:
        """Add an entry that a cached response repeats under another number and duration."""
        self._finished += 1
        self.counts[entry.tier] += 1
        self._entries.append((entry, seq, ms))

    def _unweigh(self) -> int:
        """Forget the weight of entries that the deque dropped; return how many were dropped in total."""
        dropped = self._finished - len(self._entries)
        while self._weighed and self._weighed[0][0] <= dropped:
            self._weight -= self._weighed.popleft()[1]
        return dropped

    @property
    def weight(self) -> int:
        """Memory that the ledger takes, in bytes, approximately."""
        self._unweigh()
        return self._weight + _REPEATED * len(self._entries)

    def reader(self) -> Callable[[int], Ledger]:
        """Return a function that reads the entries beyond a request number.

        It holds no more than the entries, also when the session is gone.
        """
        return partial(_read, self._entries, dict(self.counts), self._finished - len(self._entries))


def numbered(entry: LedgerEntry, seq: int, ms: float) -> LedgerEntry:
    """Return a repeated entry with its own number and duration."""
    return replace(entry, seq=seq, ms=round(ms, 3))


def _read(noted: Iterable[_Noted], counts: Mapping[str, int], dropped: int, after: int) -> Ledger:
    return Ledger(tuple(sorted(_entries(noted, after), key=lambda entry: entry.seq)), counts, dropped)


def _entries(noted: Iterable[_Noted], after: int) -> Iterator[LedgerEntry]:
    for each in noted:
        if isinstance(each, LedgerEntry):
            if each.seq > after:
                yield each
        elif each[1] > after:
            yield numbered(*each)


class ClosedSessions:
    """States and ledgers of the sessions closed most recently."""

    def __init__(self, limit: int = CLOSED_BYTES) -> None:
        self._limit = limit
        self._sessions: dict[str, tuple[SessionInfo, Callable[[int], Ledger], int]] = {}
        self._weight = 0

    def add(self, state: SessionInfo, ledger: SessionLedger) -> None:
        """Hold the last state and the ledger of a session."""
        weight = ledger.weight + _SESSION
        self._sessions[state["id"]] = ({**state, "closed": True}, ledger.reader(), weight)
        self._weight += weight
        while self._weight > self._limit and len(self._sessions) > 1:
            _, _, freed = self._sessions.pop(next(iter(self._sessions)))
            self._weight -= freed

    def sessions(self) -> list[SessionInfo]:
        """Return the sessions, the one closed first first."""
        return [state for state, _, _ in self._sessions.values()]

    def ledger(self, session_id: str, after: int = 0) -> Ledger | None:
        """Return the ledger of a session beyond request number `after`; None if it is unknown."""
        if session_id not in self._sessions:
            return None
        return replace(self._sessions[session_id][1](after), closed=True)

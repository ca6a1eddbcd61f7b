"""The table of leases: which client holds which session, and until when.

No sockets; the caller passes the time.

A lease gives one client one session. It ends on release, after `ttl` seconds without a request, or at the end
of its lifetime, whichever comes first. While a call runs, the lease does not count as silent. An ended lease
keeps its session until the caller reports that the session was cleared (`session_cleared`): the next client
never sees the remains of the previous episode.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from stillweb.errors import UsageError

_REMEMBERED = 1000  # ended leases whose reason is known


class QueueFull(Exception):
    """No session is free, and the client may not wait for one."""


class LeaseEnd(StrEnum):
    RELEASED = "released"
    SILENT = "silent"
    LIFETIME = "lifetime"
    CLOSED = "closed"  # by server shutdown


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """A requested lease.

    Attributes:
        owner: label that the monitor shows.
        ttl: seconds of silence after which the lease ends.
        lifetime: seconds after which the lease ends in any case.
        client: name of the API key that requested it; no other key may use the lease.
    """

    id: str
    owner: str
    ttl: float
    lifetime: float
    client: str = ""


@dataclass(slots=True)
class Lease:
    """A granted lease.

    Attributes:
        since: start time.
        last_heard: time of the last request or of the end of the last call.
        calls: number of calls under way.
    """

    terms: LeaseTerms
    session: int
    since: float
    last_heard: float
    calls: int = 0

    @property
    def id(self) -> str:
        return self.terms.id

    @property
    def until(self) -> float:
        return self.since + self.terms.lifetime

    @property
    def due(self) -> float:
        """Time at which the lease ends if the client sends nothing more."""
        return self.until if self.calls else min(self.until, self.last_heard + self.terms.ttl)

    def expiry(self, now: float) -> LeaseEnd | None:
        if now < self.due:
            return None
        return LeaseEnd.LIFETIME if now >= self.until else LeaseEnd.SILENT


class LeaseTable:
    """The sessions of a server and the queue of clients that wait for one.

    Args:
        sessions: number of sessions, at least 1.
        capacity: clients that may wait for a session.
    """

    def __init__(self, sessions: int, capacity: int) -> None:
        if sessions < 1 or capacity < 0:
            raise UsageError(
                f"{sessions} sessions and {capacity} waiting clients: at least one session is needed"
            )
        self.limit = sessions
        self.capacity = capacity
        self._free = list(range(sessions))[::-1]
        self._waiting: dict[str, LeaseTerms] = {}
        self._running: dict[str, Lease] = {}
        self._clearing: dict[str, Lease] = {}
        self._ended: OrderedDict[str, LeaseEnd] = OrderedDict()

    @property
    def leased(self) -> int:
        """Number of sessions that are leased or not yet cleared."""
        return self.limit - len(self._free)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> list[Lease]:
        return list(self._running.values())

    def get(self, lease_id: str) -> Lease | None:
        """Return a lease that has not ended."""
        return self._running.get(lease_id)

    def why_ended(self, lease_id: str) -> LeaseEnd | None:
        """Return why a lease ended; only the last 1,000 are known."""
        return self._ended.get(lease_id)

    def request(self, terms: LeaseTerms, now: float, *, waits: bool = True) -> Lease | None:
        """Grant a lease, or queue the request and return None: `session_cleared` grants it later.

        Raises:
            QueueFull: if no session is free and the client cannot wait.
        """
        if self._free:  # then no client waits
            return self._grant(terms, self._free.pop(), now)
        if not waits or len(self._waiting) >= self.capacity:
            raise QueueFull
        self._waiting[terms.id] = terms
        return None

    def withdraw(self, lease_id: str) -> None:
        self._waiting.pop(lease_id, None)

    def renew(self, lease_id: str, now: float, *, calls: int = 0) -> None:
        """Renew a lease; `calls` is 1 at the start of a call and -1 at its end."""
        if lease := self._running.get(lease_id):
            lease.last_heard = max(lease.last_heard, now)
            lease.calls += calls

    def end(self, lease_id: str, why: LeaseEnd) -> Lease | None:
        """End a lease; the caller must clear its session next. Return None if it has ended before."""
        lease = self._running.pop(lease_id, None)
        if lease:
            self._clearing[lease_id] = lease
            self._ended[lease_id] = why
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        return lease

    def session_cleared(self, lease_id: str, now: float) -> Lease | None:
        """Free the session of an ended lease; return the lease of the next waiting client."""
        session = self._clearing.pop(lease_id).session
        if not self._waiting:
            self._free.append(session)
            return None
        return self._grant(self._waiting.pop(next(iter(self._waiting))), session, now)

    def overdue(self, now: float) -> list[tuple[Lease, LeaseEnd]]:
        return [(lease, why) for lease in self._running.values() if (why := lease.expiry(now))]

    def next_due(self) -> float | None:
        return min((lease.due for lease in self._running.values()), default=None)

    def _grant(self, terms: LeaseTerms, session: int, now: float) -> Lease:
        lease = self._running[terms.id] = Lease(terms, session, now, now)
        return lease

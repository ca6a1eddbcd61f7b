"""Who has which session, and until when; without sockets and with a clock that is handed in.

A lease is a session for one owner. It ends when it is released, when nothing was heard of its owner for
`ttl` seconds, or at the end of its lifetime, whichever comes first. While a call of it is under way nothing
counts as silence. Its session is taken by the next one only when it was left (`left`): between the two
it belongs to nobody, so that what a dead client began is cleared away before anybody sees it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from stillweb.server.leases.queue import WaitQueue

__all__ = ["Ended", "Lease", "Leases", "Wanted"]

_REMEMBERED = 1000


class Ended(StrEnum):
    """Why a lease is over."""

    RELEASED = "released"
    SILENT = "silent"
    LIFETIME = "lifetime"
    CLOSED = "closed"  # by the server, as it ended


@dataclass(frozen=True, slots=True)
class Wanted:
    """A lease as it is asked for; times in seconds."""

    id: str
    owner: str
    ttl: float
    lifetime: float


@dataclass(slots=True)
class Lease:
    """A session in somebody's hands.

    Attributes:
        session: its number.
        since: when it began.
        heard: when its owner last called, or a call of it ended.
        calls: under way.
    """

    wanted: Wanted
    session: int
    since: float
    heard: float
    calls: int = field(default=0)

    @property
    def id(self) -> str:
        """By which its owner names it."""
        return self.wanted.id

    @property
    def until(self) -> float:
        """When its lifetime is over."""
        return self.since + self.wanted.lifetime

    @property
    def due(self) -> float:
        """When it is over if nothing more is heard."""
        return self.until if self.calls else min(self.until, self.heard + self.wanted.ttl)

    def over(self, now: float) -> Ended | None:
        """Return why it is over, if it is."""
        if now < self.due:
            return None
        return Ended.LIFETIME if now >= self.until else Ended.SILENT


class Leases:
    """N sessions, and the line before them.

    Args:
        sessions: how many.
        room: for those who wait for one.
    """

    def __init__(self, sessions: int, room: int) -> None:
        self.line: WaitQueue[str] = WaitQueue(sessions, room)
        self._free = list(range(sessions))[::-1]
        self._wanted: dict[str, Wanted] = {}
        self._running: dict[str, Lease] = {}
        self._leaving: dict[str, Lease] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()

    @property
    def running(self) -> list[Lease]:
        """The leases that have not ended."""
        return list(self._running.values())

    def get(self, lease_id: str) -> Lease | None:
        """Return a lease that has not ended."""
        return self._running.get(lease_id)

    def why_ended(self, lease_id: str) -> Ended | None:
        """Return why a lease ended, for the last thousand."""
        return self._ended.get(lease_id)

    def ask(self, wanted: Wanted, now: float, *, waits: bool = True) -> Lease | None:
        """Return a lease; None if it has to wait for it, and `left` gives it.

        Raises:
            LineFull: if it need not even wait.
        """
        if not self.line.join(wanted.id, waits=waits):
            self._wanted[wanted.id] = wanted
            return None
        return self._begin(wanted, self._free.pop(), now)

    def withdraw(self, lease_id: str) -> None:
        """Forget one that waits."""
        if self._wanted.pop(lease_id, None):
            self.line.leave(lease_id)

    def heard(self, lease_id: str, now: float, *, calls: int = 0) -> None:
        """Renew a lease; `calls` is 1 where a call of it begins and -1 where it ends."""
        if lease := self._running.get(lease_id):
            lease.heard = max(lease.heard, now)
            lease.calls += calls

    def end(self, lease_id: str, why: Ended) -> Lease | None:
        """End a lease; its session has to be left then. None if it ended before."""
        lease = self._running.pop(lease_id, None)
        if lease:
            self._leaving[lease_id] = lease
            self._ended[lease_id] = why
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        return lease

    def left(self, lease_id: str, now: float) -> Lease | None:
        """Note that the session of an ended lease was left; return the lease of who waited for one."""
        session = self._leaving.pop(lease_id).session
        following = self.line.leave(lease_id)
        if following is None:
            self._free.append(session)
            return None
        return self._begin(self._wanted.pop(following), session, now)

    def overdue(self, now: float) -> list[tuple[Lease, Ended]]:
        """Return the leases that are over, and why."""
        return [(lease, why) for lease in self._running.values() if (why := lease.over(now))]

    def next_due(self) -> float | None:
        """Return when the next lease is over if nothing more is heard."""
        return min((lease.due for lease in self._running.values()), default=None)

    def _begin(self, wanted: Wanted, session: int, now: float) -> Lease:
        lease = self._running[wanted.id] = Lease(wanted, session, now, now)
        return lease

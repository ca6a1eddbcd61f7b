"""Turns: at most so many of one kind of work at once, the others in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from stillweb.errors import UsageError
from stillweb.server.failures import FailureKind, RequestRefused

__all__ = ["QueueFull", "Semaphore", "WaitQueue"]

T = TypeVar("T", bound=Hashable)


class QueueFull(Exception):
    """Raised when neither a place nor room to wait is left."""


class WaitQueue(Generic[T]):
    """At most `limit` are in and `room` wait.

    Args:
        limit: of those in, at least 1.
        room: for those who wait.
    """

    def __init__(self, limit: int, room: int) -> None:
        if limit < 1 or room < 0:
            raise UsageError(f"a line of {limit} with room for {room} lets nobody in")
        self.limit = limit
        self.room = room
        self._inside: set[T] = set()
        self._waiting: dict[T, None] = {}

    @property
    def inside(self) -> int:
        """How many are in."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def join(self, who: T, *, waits: bool = True) -> bool:
        """Return whether it is in; otherwise it waits.

        Args:
            who: nobody who is in or waits.
            waits: whether it would.

        Raises:
            LineFull: if it can do neither.
        """
        if len(self._inside) < self.limit:  # then nobody waits
            self._inside.add(who)
            return True
        if not waits or len(self._waiting) >= self.room:
            raise QueueFull(f"{self.limit} are in and {len(self._waiting)} wait")
        self._waiting[who] = None
        return False

    def leave(self, who: T) -> T | None:
        """Let one go that is in or waits; return who gets in for it."""
        if who in self._waiting:
            del self._waiting[who]
            return None
        self._inside.remove(who)
        if not self._waiting:
            return None
        following = next(iter(self._waiting))
        del self._waiting[following]
        self._inside.add(following)
        return following


class Semaphore:
    """A line that coroutines stand in.

    Args:
        name: of the work, for who is refused.
        limit: at once.
        room: to wait.
    """

    def __init__(self, name: str, limit: int, room: int) -> None:
        self.name = name
        self.line: WaitQueue[asyncio.Future[None]] = WaitQueue(limit, room)
        self.begun = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it.

        Raises:
            Refused: if too many wait already.
        """
        turn = asyncio.get_running_loop().create_future()
        try:
            inside = self.line.join(turn)
        except QueueFull as error:
            raise RequestRefused(FailureKind.BUSY, f"{self.name}: {error}", hint="try again") from error
        try:
            if not inside:
                await turn
            self.begun += 1
            yield
        finally:
            following = self.line.leave(turn)
            if following is not None and not following.done():
                following.set_result(None)

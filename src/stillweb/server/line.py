"""A line before a door, without clock or loop: so many are in, so many wait, the rest is sent away.

Leases and operations both stand in such lines (`leases`, `gate`); who waits gets in in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from stillweb.errors import UsageError

__all__ = ["Line", "LineFull"]

T = TypeVar("T", bound=Hashable)


class LineFull(Exception):
    """Raised when neither a place nor room to wait is left."""


class Line(Generic[T]):
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
            raise LineFull(f"{self.limit} are in and {len(self._waiting)} wait")
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

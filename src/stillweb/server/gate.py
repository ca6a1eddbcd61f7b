"""Turns: at most so many of one kind of work at once, the others in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stillweb.server.line import Line, LineFull
from stillweb.server.refusals import Refusal, Refused

__all__ = ["Gate"]


class Gate:
    """A line that coroutines stand in.

    Args:
        name: of the work, for who is refused.
        limit: at once.
        room: to wait.
    """

    def __init__(self, name: str, limit: int, room: int) -> None:
        self.name = name
        self.line: Line[asyncio.Future[None]] = Line(limit, room)
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
        except LineFull as error:
            raise Refused(Refusal.BUSY, f"{self.name}: {error}", hint="try again") from error
        try:
            if not inside:
                await turn
            self.begun += 1
            yield
        finally:
            following = self.line.leave(turn)
            if following is not None and not following.done():
                following.set_result(None)

"""What has a connection after HTTP: a script that plays on it, and the timer that it needs.

It stands in the connection where the parser of requests stood, so that what the client sends comes here
and is no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stillweb.replay.script import Scripted
from stillweb.replay.wire import Event

__all__ = ["Takeover"]


class Takeover:
    """A script at work, from the head of its answer on.

    Attributes:
        rest, in_request, between: as a `Wire`'s; there are no requests any more.
    """

    in_request = False
    between = False

    def __init__(
        self,
        answer: Scripted,
        write: Callable[[bytes], None],
        close: Callable[[], None],
        is_closing: Callable[[], bool],
    ) -> None:
        self.rest = bytearray()
        self._script = answer.script
        self._write, self._close, self._is_closing = write, close, is_closing
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._go_on(answer.head + b"\r\n" + self._script.due(self._loop.time()))

    def receive_data(self, data: bytes) -> list[Event]:
        """Give the script what came; there are no requests in it."""
        self._go_on(self._script.receive(data, self._loop.time()))
        return []

    def _go_on(self, out: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if out:
            self._write(out)
        if self._script.closed:
            self._close()
        elif (due := self._script.next_due) is not None and not self._is_closing():
            self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._go_on(self._script.due(self._loop.time()))

"""Connections after their last request: a script that sends frames, or a delay before closing.

`Takeover` plays a `Script` (a WebSocket, an event stream) on a connection: what the client sends goes to
the script and is not parsed as requests. `ClosingDelay` becomes the transport's protocol after a refusal.
Closing a socket while bytes are on their way resets the connection, and a reset discards what the client
has not read yet. So the sending side is closed first, and what still arrives is dropped (RFC 9112 §9.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stillweb.http.wire import RequestLimits
from stillweb.replay.server.answer import ScriptedResponse

_READ = 64 * 1024

DROPPED = RequestLimits().body
"""Bytes that are dropped after a refusal: a client may send a whole body before it reads."""


class Takeover:
    """A running script; it writes the head of its response first."""

    def __init__(
        self,
        answer: ScriptedResponse,
        write: Callable[[bytes], None],
        close: Callable[[], None],
        is_closing: Callable[[], bool],
    ) -> None:
        self._script = answer.script
        self._write, self._close, self._is_closing = write, close, is_closing
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._continue(answer.head + b"\r\n" + self._script.due(self._loop.time()))

    def receive(self, data: bytes) -> None:
        self._continue(self._script.receive(data, self._loop.time()))

    def wake(self) -> None:
        if not self._is_closing():
            self._continue(self._script.due(self._loop.time()))

    def _continue(self, out: bytes) -> None:
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
        self._continue(self._script.due(self._loop.time()))


class ClosingDelay(asyncio.Protocol):
    """The protocol of a connection from its refusal until the client closes it.

    Args:
        transport: its sending side is closed, and its protocol becomes this one.
        seconds: that the client has to close its side.
        lost: called when the connection is gone.
    """

    def __init__(
        self, transport: asyncio.Transport, seconds: float, lost: Callable[[Exception | None], None]
    ) -> None:
        self._transport = transport
        self._lost = lost
        self._budget = DROPPED
        # Not `close`: that would wait for a client that does not read.
        self._timer = asyncio.get_running_loop().call_later(seconds, transport.abort)
        transport.write_eof()
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Drop the data; abort if it is too much. The loop closes the connection at its end."""
        self._budget -= len(data)
        if self._budget < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the connection that was refused."""
        self._timer.cancel()
        self._lost(exc)


async def wait_for_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Wait until a refused client closes its side: `ClosingDelay` for streams.

    Raises:
        ConnectionResetError: if it does not close in time, or sends too much.
    """
    writer.write_eof()
    budget = DROPPED
    try:
        async with asyncio.timeout(seconds):
            while data := await reader.read(_READ):
                budget -= len(data)
                if budget < 0:
                    raise ConnectionResetError("the client continues after a refusal")
    except TimeoutError as error:
        raise ConnectionResetError("the client does not close after a refusal") from error

"""What has a connection after HTTP: a script that plays on it, or what waits until a refusal has arrived.

A `Takeover` stands in the connection where the parser of requests stood, so that what the client sends
comes here and is no request. `Parting` takes the connection's place at the transport: who closes while bytes
are on their way resets the connection, and that throws away what the client has not read yet. So
the way out is closed first, and what still comes is dropped (RFC 9112 §9.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stillweb.http.wire import Event, RequestLimits
from stillweb.replay.server.answer import ScriptedResponse

__all__ = ["DROPPED", "ClosingDelay", "Takeover", "part"]


_READ = 64 * 1024

DROPPED = RequestLimits().body
"""Bytes that are dropped behind a refusal: a client may send a whole body before it reads."""


class Takeover:
    """A script at work, from the head of its answer on.

    Attributes:
        rest, in_request, between: as a `Wire`'s; there are no requests any more.
    """

    in_request = False
    between = False

    def __init__(
        self,
        answer: ScriptedResponse,
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


class ClosingDelay(asyncio.Protocol):
    """The rest of a connection on which nothing more is said.

    Args:
        transport: whose way out is closed, and whose protocol this becomes.
        seconds: that the client has to close its own.
        lost: is told when the connection is gone.
    """

    def __init__(
        self, transport: asyncio.Transport, seconds: float, lost: Callable[[Exception | None], None]
    ) -> None:
        self._transport = transport
        self._lost = lost
        self._room = DROPPED
        # Not `close`: that would wait for a client that does not read.
        self._timer = asyncio.get_running_loop().call_later(seconds, transport.abort)
        transport.write_eof()
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Drop what comes, within bounds; at its end the loop closes by itself."""
        self._room -= len(data)
        if self._room < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._timer.cancel()
        self._lost(exc)


async def part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Wait until a client has closed its side behind a refusal: `Parting` for streams.

    Raises:
        ConnectionResetError: if it does not within some seconds, or sends too much.
    """
    writer.write_eof()
    room = DROPPED
    try:
        async with asyncio.timeout(seconds):
            while data := await reader.read(_READ):
                room -= len(data)
                if room < 0:
                    raise ConnectionResetError("the client goes on after a refusal")
    except TimeoutError as error:
        raise ConnectionResetError("the client does not close after a refusal") from error

"""The debugging pipe of a browser, shared by Playwright and `CdpConnection`.

Chromium serves CDP on a pipe to one client, or on a port to every user of the machine. Playwright is the
client of the pipe. So Playwright starts `launcher` instead of the browser: it passes the ends of the pipe
to this process and then becomes the browser. Messages of Playwright are forwarded unchanged, except those of
`BrowserPipe.answer` and `adapt`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from stillweb.errors import InfraError
from stillweb.garbage import uncollected
from stillweb.scratch import scratch_folder

_LAUNCHER = Path(__file__).with_name("launcher")
_END = b"\0"  # of a message
_EVENT = b'{"method":"'
_ATTACHED = b'{"method":"Target.attachedToTarget"'
_SESSION = b',"sessionId":"'
_SESSION_LENGTH = 64  # bytes; an identifier has 32 digits
_NETWORK = b'"Network.enable"'
_KEY = b'"Input.dispatchKeyEvent"'
_SMALL = 4096  # bytes; a message without many objects
_START_SECONDS = 20.0  # real, after Playwright has an answer of the browser


class _PipeEnd(asyncio.BaseProtocol):
    """Pauses the other side of the pipe while this side does not accept more.

    Args:
        lost: called when this side is gone.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self.source: asyncio.ReadTransport | None = None
        self._lost = lost

    def pause_writing(self) -> None:
        if self.source and not self.source.is_closing():
            self.source.pause_reading()

    def resume_writing(self) -> None:
        if self.source and not self.source.is_closing():
            self.source.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


class MessageReader(_PipeEnd, asyncio.Protocol):
    """Calls back with each message that arrives, without its end."""

    def __init__(self, receive: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        super().__init__(lost)
        self._receive = receive
        self._parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        *ends, rest = data.split(_END)
        for end in ends:
            message = b"".join((*self._parts, end))
            self._parts.clear()
            self._receive(message)
        if rest:
            self._parts.append(rest)


class BrowserPipe:
    """The pipe of one browser.

    Attributes:
        take: receives messages of the browser, decoded; returns False if the message is for Playwright.
        is_foreign: whether events of a session are for Playwright alone, so that they need not be decoded.
        answer: returns the reply to a command of Playwright that the browser does not get, None otherwise.
        adapt: returns a key that Playwright presses as the browser gets it.
        lost: called when the browser or Playwright is gone.
    """

    def __init__(self) -> None:
        self.take: Callable[[dict[str, Any]], bool] = lambda _: False
        self.is_foreign: Callable[[str], bool] = lambda _: False
        self.answer: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: None
        self.adapt: Callable[[dict[str, Any]], dict[str, Any]] = lambda command: command
        self.lost: Callable[[], None] = lambda: None
        self._browser: asyncio.Transport
        self._playwright: asyncio.WriteTransport
        self._open: list[asyncio.BaseTransport] = []

    @asynccontextmanager
    async def launcher(self, browser: Path) -> AsyncIterator[tuple[Path, dict[str, str | float | bool]]]:
        """Yield the program to start instead of a browser, and its environment; the block starts it.

        Raises:
            InfraError: if no browser with a pipe started in the block.
        """
        with (
            scratch_folder() as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        ):
            address = str(folder / "pipe")
            try:
                listener.bind(address)
            except OSError as error:  # mostly a path of more than 107 bytes (unix(7))
                raise InfraError(
                    f"no socket at {address}: {error}", hint="set TMPDIR to a shorter path"
                ) from error
            listener.listen(1)
            listener.setblocking(False)
            connecting = asyncio.ensure_future(self._connect(listener))
            own = {
                "STILLWEB_PYTHON": sys.executable,
                "STILLWEB_PIPE": address,
                "STILLWEB_EXECUTABLE": str(browser),
            }
            try:
                yield _LAUNCHER, {**os.environ, **own}
                async with asyncio.timeout(_START_SECONDS):
                    await connecting
            except TimeoutError as error:
                raise InfraError("the browser has no pipe for CDP", hint="stillweb doctor") from error
            finally:
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)

    async def _connect(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        client, _ = await loop.sock_accept(listener)
        client.setblocking(True)
        with client:
            ours, reading, writing = await asyncio.to_thread(_exchange, client)
        browser = MessageReader(self._from_browser, self._end)
        to_playwright = _PipeEnd(self._end)
        from_playwright = MessageReader(self._from_playwright, self._end)
        self._browser, _ = await loop.connect_accepted_socket(lambda: browser, ours)
        self._browser.pause_reading()
        self._open.append(self._browser)
        self._playwright, _ = await loop.connect_write_pipe(
            lambda: to_playwright, os.fdopen(writing, "wb", 0)
        )
        to_playwright.source = self._browser
        self._open.append(self._playwright)
        browser.source, _ = await loop.connect_read_pipe(lambda: from_playwright, os.fdopen(reading, "rb", 0))
        self._open.append(browser.source)
        self._browser.resume_reading()

    def post(self, message: dict[str, Any]) -> None:
        """Send a command of `CdpConnection`."""
        self.send(_encode(message))

    def send(self, message: bytes) -> None:
        self._browser.write(message + _END)

    def _from_browser(self, message: bytes) -> None:
        if self._passes(message) or not self.take(_decode(message)):
            self._playwright.write(message + _END)

    def _passes(self, message: bytes) -> bool:
        """Return True for an event of a session of Playwright's, except new targets."""
        if not message.startswith(_EVENT) or message.startswith(_ATTACHED):
            return False
        _, found, session = message[-_SESSION_LENGTH:].rpartition(_SESSION)  # Chromium writes it last
        return bool(found) and session.endswith(b'"}') and self.is_foreign(session[:-2].decode())

    def _from_playwright(self, message: bytes) -> None:
        if _NETWORK in message and (reply := self.answer(_decode(message))):
            self._playwright.write(_encode(reply) + _END)
        elif _KEY in message:
            self.post(self.adapt(_decode(message)))
        else:
            self.send(message)

    def _end(self) -> None:
        self.lost()
        self.close()

    def close(self) -> None:
        """Close all ends: the browser ends then, and Playwright learns of it."""
        for each in self._open:
            each.close()


def _exchange(launcher: socket.socket) -> tuple[socket.socket, int, int]:
    """Give the launcher its end of a new pipe; return ours, and Playwright's for reading and writing."""
    _, (reading, writing), _, _ = socket.recv_fds(launcher, 1, 2)
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(launcher, [_END], [theirs.fileno()])
    return ours, reading, writing


def _encode(message: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(message)
    except TypeError:  # lone surrogates, which JavaScript has and orjson rejects
        return json.dumps(message).encode()


def _decode(text: bytes) -> Any:
    try:
        if len(text) < _SMALL:
            return orjson.loads(text)
        with uncollected():
            return orjson.loads(text)
    except ValueError:  # lone surrogates, or a number too large for orjson
        return json.loads(text)

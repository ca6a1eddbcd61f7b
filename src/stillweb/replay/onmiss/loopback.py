"""A raw HTTP/1.1 client for servers on this machine's loopback interface, and for nothing else.

Responses are passed on as received: fields in their order, including repeated ones, bodies with their
codings and chunks, piece by piece. HTTP libraries decode, merge and reorder, so none is used here. No other
module of `stillweb.replay` opens a connection to carry traffic, and the hermetic server never imports this
one (an import contract).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stillweb.errors import ReplayUnreachable
from stillweb.model import Headers

_HOST = "127.0.0.1"
_LIMIT = 512 * 1024  # bytes of a head
_PIECE = 64 * 1024
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a response.

    Attributes:
        fields: in wire order.
    """

    status: int
    line: bytes
    fields: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        """Parse a head with its blank line.

        Raises:
            ValueError: if it is not one.
        """
        line, *rest = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
        version, status = line.split(b" ", 2)[:2]
        if not version.startswith(b"HTTP/1.") or not 100 <= int(status) < 600:
            raise ValueError(f"no status line: {line[:80]!r}")
        pairs = (each.partition(b":") for each in rest)
        return cls(int(status), line, tuple((name, value.strip()) for name, _, value in pairs))

    def get(self, name: bytes) -> bytes:
        """Return the first value of a field (name in lower case); b"" without it."""
        return next((value for key, value in self.fields if key.lower() == name), b"")

    def without(self, *names: bytes) -> Head:
        """Return the head without some fields (names in lower case)."""
        return replace(self, fields=tuple(field for field in self.fields if field[0].lower() not in names))

    def render(self, *, close: bool = False) -> bytes:
        """Return the bytes with the blank line; `close` announces the end of the connection."""
        fields = (*self.fields, (b"Connection", b"close")) if close else self.fields
        return b"".join((self.line, b"\r\n", *(b"%b: %b\r\n" % field for field in fields), b"\r\n"))


def render_request(method: str, target: str, headers: Headers, raw_body: bytes = b"") -> bytes:
    """Return the bytes of a request; the length of a body is added to `headers`."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if raw_body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(raw_body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1", "replace") + raw_body


class Loopback:
    """A connection to a port of 127.0.0.1.

    Attributes:
        payload: bytes of the bodies read so far, without their framing.
        reusable: whether another request may follow.
        read_timeout: seconds that a body may pause; None for no limit.
        reader, writer: the streams, for bytes that are no longer HTTP.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self.payload = 0
        self.reusable = True
        self.read_timeout: float | None = None
        self.reader = reader
        self.writer = writer
        self._port = port

    @classmethod
    async def open(cls, port: int) -> Loopback:
        """Connect.

        Raises:
            ReplayUnreachable: if no server listens there.
        """
        with _failing(port):
            reader, writer = await asyncio.open_connection(_HOST, port, limit=_LIMIT)
        return cls(reader, writer, port)

    async def tunnel(self, authority: str, context: ssl.SSLContext) -> None:
        """Let a proxy open a TLS tunnel to a host; later requests go through it.

        Raises:
            ReplayUnreachable: if it refuses.
        """
        with _failing(self._port):
            head = await self._ask(render_request("CONNECT", authority, (("Host", authority),)))
            if head.status != 200:
                raise ValueError(f"it answered {head.status} to CONNECT")
            await self.writer.start_tls(context)

    async def ask(self, request: bytes) -> Head:
        """Send a request and return the head of its response.

        Raises:
            ReplayUnreachable: if no response arrives.
        """
        with _failing(self._port):
            return await self._ask(request)

    async def _ask(self, request: bytes) -> Head:
        self.writer.write(request)
        await self.writer.drain()
        head = Head.parse(await self.reader.readuntil(b"\r\n\r\n"))
        self.reusable = head.get(b"connection").lower() != b"close"
        return head

    async def body(self, head: Head, method: str) -> AsyncIterator[bytes]:
        """Yield the body that follows a head, framing included, as it arrives.

        Raises:
            ReplayUnreachable: if it breaks off.
        """
        if method == "HEAD" or head.status in _NO_BODY:
            return
        with _failing(self._port):
            if b"chunked" in head.get(b"transfer-encoding").lower():
                pieces = self._chunks()
            elif length := head.get(b"content-length"):
                pieces = self._exactly(int(length))
            else:
                pieces = self._rest()
            async for piece in pieces:
                yield piece

    async def _exactly(self, count: int) -> AsyncIterator[bytes]:
        while count:
            piece = await self._read(min(count, _PIECE))
            if not piece:
                raise ValueError(f"it broke off {count} bytes before the end")
            count -= len(piece)
            self.payload += len(piece)
            yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._line()
            yield line
            size = int(line.partition(b";")[0], 16)
            if not size:
                break
            async for piece in self._exactly(size):
                yield piece
            yield await self._line()
        while (line := await self._line()) != b"\r\n":
            yield line  # trailers
        yield line

    async def _rest(self) -> AsyncIterator[bytes]:
        self.reusable = False
        while piece := await self._read(_PIECE):
            self.payload += len(piece)
            yield piece

    async def _read(self, count: int) -> bytes:
        async with asyncio.timeout(self.read_timeout):
            return await self.reader.read(count)

    async def _line(self) -> bytes:
        async with asyncio.timeout(self.read_timeout):
            return await self.reader.readuntil(b"\r\n")

    def close(self) -> None:
        self.writer.transport.abort()


@contextmanager
def _failing(port: int) -> Iterator[None]:
    """Raise ReplayUnreachable for every way in which the peer can fail."""
    try:
        yield
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:  # ssl.SSLError is an OSError
        what = str(error) or type(error).__name__
        raise ReplayUnreachable(f"{_HOST}:{port} failed: {what}") from error

"""A raw HTTP/1.1 client for servers on this machine's loopback, and for nothing else.

What a server answers is passed on as it came: fields in their order, repeated ones too, bodies coded
and chunked as they are, piece by piece. That is why this is no HTTP library: they decode, merge and
reorder. The only place of `stillweb.replay` that opens a connection to carry traffic; the hermetic
server never imports it (an import contract).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stillweb.errors import ReplayUnreachable
from stillweb.model import Headers

__all__ = ["Head", "Loopback", "render_request"]

_HOST = "127.0.0.1"
_LIMIT = 512 * 1024  # bytes of a head
_PIECE = 64 * 1024
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a response.

    Attributes:
        line: the status line.
        fields: in wire order.
    """

    status: int
    line: bytes
    fields: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        """Read a head with its blank line.

        Raises:
            ValueError: if it is none.
        """
        line, *rest = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
        version, status = line.split(b" ", 2)[:2]
        if not version.startswith(b"HTTP/1.") or not 100 <= int(status) < 600:
            raise ValueError(f"no status line: {line[:80]!r}")
        pairs = (each.partition(b":") for each in rest)
        return cls(int(status), line, tuple((name, value.strip()) for name, _, value in pairs))

    def get(self, name: bytes) -> bytes:
        """Return the first value of a field, its name in lower case; b"" if there is none."""
        return next((value for key, value in self.fields if key.lower() == name), b"")

    def without(self, *names: bytes) -> Head:
        """Return the head without some fields, their names in lower case."""
        return replace(self, fields=tuple(field for field in self.fields if field[0].lower() not in names))

    def render(self, *, close: bool = False) -> bytes:
        """Return its bytes with the blank line; `close` says that the connection ends behind it."""
        fields = (*self.fields, (b"Connection", b"close")) if close else self.fields
        return b"".join((self.line, b"\r\n", *(b"%b: %b\r\n" % field for field in fields), b"\r\n"))


def render_request(method: str, target: str, headers: Headers, raw_body: bytes = b"") -> bytes:
    """Return a request's bytes; `headers` states no length, that of a body is added."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if raw_body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(raw_body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1", "replace") + raw_body


class Loopback:
    """A connection to a port of 127.0.0.1.

    Attributes:
        payload: bytes of the bodies read so far, without their framing.
        reusable: whether a further request may follow.
        patience: seconds that a body may pause; None for ever.
        reader, writer: the streams, for what is no longer HTTP.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self.payload = 0
        self.reusable = True
        self.patience: float | None = None
        self.reader = reader
        self.writer = writer
        self._port = port

    @classmethod
    async def open(cls, port: int) -> Loopback:
        """Connect.

        Raises:
            ReplayUnreachable: if nobody listens there.
        """
        with _failing(port):
            reader, writer = await asyncio.open_connection(_HOST, port, limit=_LIMIT)
        return cls(reader, writer, port)

    async def tunnel(self, authority: str, context: ssl.SSLContext) -> None:
        """Have a proxy open a TLS tunnel to a host; what follows goes through it.

        Raises:
            ReplayUnreachable: if it does not.
        """
        with _failing(self._port):
            head = await self._ask(render_request("CONNECT", authority, (("Host", authority),)))
            if head.status != 200:
                raise ValueError(f"it answered {head.status} to CONNECT")
            await self.writer.start_tls(context)

    async def ask(self, request: bytes) -> Head:
        """Send a request and return the head of its response.

        Raises:
            ReplayUnreachable: if there is none.
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
        """Yield what follows a head, framing included, as it comes.

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
        async with asyncio.timeout(self.patience):
            return await self.reader.read(count)

    async def _line(self) -> bytes:
        async with asyncio.timeout(self.patience):
            return await self.reader.readuntil(b"\r\n")

    def close(self) -> None:
        """Close at once."""
        self.writer.transport.abort()


@contextmanager
def _failing(port: int) -> Iterator[None]:
    """Tell every way in which a peer can fail as one."""
    try:
        yield
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:  # ssl.SSLError is an OSError
        what = str(error) or type(error).__name__
        raise ReplayUnreachable(f"{_HOST}:{port} failed: {what}") from error

"""A site that answers in bytes: interim answers, trailers, wrong lengths, broken connections. Plain http."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from raw_server import raw_server

from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import parse_all

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"
RAW = {
    "/plain": WHOLE,
    "/hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * 2 + WHOLE,
    "/processing": b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + WHOLE,
    "/trailers": CHUNKED + b"Trailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\nx-sum: 8\r\n\r\n",
    "/none": b"HTTP/1.1 204 No Content\r\n\r\n",
    "/not-modified": b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n',
    "/more-than-said": OK + b"Content-Length: 2\r\n\r\nhi and more",
    "/length-and-chunks": CHUNKED + b"Content-Length: 900\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "/length-twice": OK + b"Content-Length: 2\r\ncontent-length: 2\r\n\r\nhi",
    "/no-token": OK + b"X-N\xe4me: x\r\nContent-Length: 2\r\n\r\nhi",
    "/none-in-chunks": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    "/less-than-said": OK + b"Content-Length: 20\r\n\r\nhi",
    "/cut": CHUNKED + b"\r\n5\r\nhel",
    "/two-lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
    "/no-http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "/empty": b"",
    "/large-head": OK + b"X-A: " + b"a" * (300 << 10) + b"\r\nContent-Length: 2\r\n\r\nhi",
}
BROKEN = (
    "/less-than-said",
    "/cut",
    "/two-lengths",
    "/no-http",
    "/empty",
    "/large-head",
    "/reset",
    "/reset-within",
)


@dataclass
class OddSite:
    """A running site; `heads` are the requests as they came."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def options(self) -> RecordOptions:
        return RecordOptions(resolve=parse_all([f"*=127.0.0.1:{self.port}"]))


@asynccontextmanager
async def odd_site() -> AsyncIterator[OddSite]:
    site = OddSite()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await _one(site, reader, writer):
            pass

    async with raw_server(answer) as site.port:
        yield site


async def _one(site: OddSite, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; return whether the connection stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    site.heads.append(head)
    path = head.split(b" ", 2)[1].decode()
    body = await _body(head, reader)
    match path:
        case "/digest":
            digest = hashlib.sha256(body).hexdigest().encode()
            writer.write(OK + b"Content-Length: %d\r\n\r\n%s" % (len(digest), digest))
        case "/reset" | "/reset-within":
            if path == "/reset-within":
                writer.write(OK + b"Content-Length: 50\r\n\r\nsome")
                await writer.drain()
            linger = struct.pack("ii", 1, 0)  # closing it is then a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return False
        case "/hang":
            await _until_left(site, reader)
            return False
        case "/endless":
            writer.write(CHUNKED + b"\r\n")
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                    await writer.drain()
            site.left.set()
            return False
        case _:
            writer.write(RAW[path])
    await writer.drain()
    return path not in (*BROKEN, "/more-than-said")


async def _until_left(site: OddSite, reader: asyncio.StreamReader) -> None:
    await reader.read()
    site.left.set()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return body
    if b"content-length: " in lower:
        return await reader.readexactly(int(lower.partition(b"content-length: ")[2].split(b"\r")[0]))
    return b""

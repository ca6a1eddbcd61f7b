"""SOCKS5 proxy through which the crawler's container reaches the hosts of `--resolve`.

The crawler connects in two ways: its browser loads pages, and its own program requests the headers of each
seed, sitemaps, robots.txt and plain downloads. Chromium's `--host-resolver-rules` would reach only the first,
`docker run --add-host` only rules without ports and wildcards. Both use the proxy that `PROXY_SERVER` names,
and leave the resolution of names to it. So the rules, and the check for private addresses, are those of our
own engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stillweb.errors import RecordError
from stillweb.http.socks import SocksServer
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.upstream import UpstreamResolver

_CHUNK = 1 << 16
_HANDSHAKE_TIMEOUT = 10.0  # seconds
_CONNECT_TIMEOUT = 30.0  # seconds


@asynccontextmanager
async def forwarding(options: RecordOptions) -> AsyncIterator[str]:
    """Run a forwarder on loopback; yield its URL, "" if no rule needs one."""
    if not options.resolve:
        yield ""
        return
    forwarder = Forwarder(UpstreamResolver(options.resolve, allow_private=options.allow_private))
    server = await asyncio.start_server(forwarder.serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"socks5://127.0.0.1:{port}"
    finally:
        server.close()
        await forwarder.close()


class Forwarder:
    """Forwards each connection to the address that the rules give its host."""

    def __init__(self, resolver: UpstreamResolver) -> None:
        self._resolver = resolver
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, writer)
        except OSError:
            pass  # either side has gone
        finally:
            self._serving.discard(task)
            writer.close()

    async def close(self) -> None:
        """End all connections."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socks = SocksServer()
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                connect = await _handshake(socks, reader, writer)
        except TimeoutError:
            return
        if not connect:
            return
        head, _, early = connect.partition(b"\r\n\r\n")
        host, _, port = head.split(b" ", 2)[1].decode("ascii").rpartition(":")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                target = await self._resolver.resolve(host.strip("[]"), int(port))
                site_reader, site_writer = await asyncio.open_connection(*target)
        except (OSError, RecordError, TimeoutError):
            writer.write(socks.send(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"))
            await writer.drain()
            return
        try:
            writer.write(socks.send(b"HTTP/1.1 200 OK\r\n\r\n"))
            site_writer.write(early)
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, site_writer))
                both.create_task(_copy(site_reader, writer))
        except* OSError:
            pass  # either side has gone
        finally:
            site_writer.close()


async def _handshake(socks: SocksServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the CONNECT of a handshake and what is behind it; b"" if the handshake failed."""
    connect = b""
    while not connect and not socks.closed and (data := await reader.read(_CHUNK)):
        connect = socks.receive(data)
        writer.write(socks.take())
        await writer.drain()
    return connect


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of data, and pass the end on."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()

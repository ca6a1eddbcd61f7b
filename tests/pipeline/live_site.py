"""A site that talks: WebSockets and an event stream over plain http, and a client for the former."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from raw_server import raw_server
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate

PAGE = b"""<!doctype html><meta charset=utf-8><title>Live</title>
<h1>live</h1><ul id=echo></ul><ul id=ticks></ul><ul id=events></ul><ul id=more></ul>
<script>
const add = (id, text) => { const li = document.createElement("li"); li.textContent = text;
  document.getElementById(id).append(li) };
const echo = new WebSocket("ws://live.test/echo", ["other", "talk"]);
let turn = 0;
echo.onopen = () => { add("echo", "open " + echo.protocol); echo.send(JSON.stringify({b: 1, a: [turn]})) };
echo.onmessage = (m) => { add("echo", m.data); if (++turn < 3) echo.send(JSON.stringify({a: [turn]})) };
const ticks = new WebSocket("ws://live.test/ticks");
ticks.onmessage = (m) => add("ticks", m.data);
ticks.onclose = (c) => add("ticks", "closed " + c.code + " " + c.reason);
const events = new EventSource("/events");
events.onmessage = (m) => add("events", m.lastEventId + " " + m.data);
events.addEventListener("end", () => fetch("/stream").then((r) => r.text()).then((t) => add("more", t)));
</script>"""
STREAM = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class LiveSite:
    """A running site; `opened` counts connections by path."""

    port: int = 0
    opened: dict[str, int] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def resolve(self) -> str:
        return f"*.test:80=127.0.0.1:{self.port}"


@asynccontextmanager
async def live_site(pause: float = 0.01) -> AsyncIterator[LiveSite]:
    """Serve; `pause` seconds lie between two messages of the site's own."""
    site = LiveSite()
    async with raw_server(lambda *streams: _Answering(site, *streams, pause).run()) as site.port:
        yield site


@dataclass
class _Answering:
    site: LiveSite
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pause: float

    async def run(self) -> None:
        head = await self.reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        path = urlsplit(path).path
        self.site.opened[path] = self.site.opened.get(path, 0) + 1
        if b"upgrade: websocket" in head.lower():
            return await self.socket(head, path)
        if path == "/events":
            return await self.events(head)
        if path == "/stream":
            return await self.stream(
                b"HTTP/1.1 200 OK\r\n" + STREAM, [b"data: x\n\n", b"data: y\n\n"], ends=True
            )
        body = PAGE if path == "/" else b""
        status = b"200 OK" if body else b"404 Not Found"
        fields = b"Content-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        self.writer.write(b"HTTP/1.1 " + status + b"\r\n" + fields + body)
        await self.writer.drain()
        return None

    async def events(self, head: bytes) -> None:
        """Three events and an end; after the third two more, and no end."""
        again = b"last-event-id: 3" in head.lower()
        numbers = (4, 5) if again else (1, 2, 3)
        pieces = [b"retry: 20\n\n", *(b"id: %d\ndata: event %d\n\n" % (n, n) for n in numbers)]
        if again:
            pieces.append(b"event: end\ndata: -\n\n")
        await self.stream(b"HTTP/1.1 200 OK\r\n" + STREAM, pieces, ends=not again)

    async def stream(self, head: bytes, pieces: list[bytes], *, ends: bool) -> None:
        self.writer.write(head)
        for piece in pieces:
            self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self.writer.drain()
            await asyncio.sleep(self.pause)
        if ends:
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()
        else:
            await self.reader.read()  # until the client goes
            self.site.gone.set()

    async def socket(self, head: bytes, path: str) -> None:
        server = WSConnection(ConnectionType.SERVER)
        server.receive_data(head)
        request = next(server.events())
        assert isinstance(request, Request)
        if path == "/closed":
            self.writer.write(server.send(RejectConnection(status_code=403)))
            return
        protocol = "talk" if "talk" in request.subprotocols else None
        accept = AcceptConnection(subprotocol=protocol, extensions=[PerMessageDeflate()])
        self.writer.write(server.send(accept))
        if path == "/ticks":
            for number in range(1, 5):
                await asyncio.sleep(self.pause)
                self.writer.write(server.send(TextMessage(data=f"tick {number}")))
            self.writer.write(server.send(CloseConnection(code=3000, reason="enough")))
        while data := await self.reader.read(65536):
            server.receive_data(data)
            for event in server.events():
                if isinstance(event, Message):
                    await asyncio.sleep(self.pause)
                    self.writer.write(server.send(type(event)(data=event.data[::-1])))
                elif isinstance(event, CloseConnection):
                    if path != "/ticks":
                        self.writer.write(server.send(event.response()))
                    return


@dataclass
class Talk:
    """A WebSocket of a client; `status` is that of the handshake's answer."""

    connection: WSConnection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    subprotocol: str | None = None
    extensions: list[str] = field(default_factory=list)
    waiting: list[Event] = field(default_factory=list)

    async def say(self, data: str | bytes) -> None:
        message: Event = TextMessage(data=data) if isinstance(data, str) else BytesMessage(data=data)
        self.writer.write(self.connection.send(message))
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.write(self.connection.send(CloseConnection(code=1000)))
        await self.writer.drain()

    async def event(self) -> Event | None:
        """Return what comes next; None once the connection is gone."""
        while not self.waiting:
            async with asyncio.timeout(10):
                data = await self.reader.read(65536)
            if not data:
                return None
            self.connection.receive_data(data)
            self.waiting += self.connection.events()
        return self.waiting.pop(0)

    async def hear(self) -> str | bytes:
        event = await self.event()
        assert isinstance(event, Message), event
        return event.data

    async def silent(self, seconds: float = 0.05) -> bool:
        """Return whether nothing comes for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.event() is None
        return True


@asynccontextmanager
async def talk(
    proxy: str,
    url: str,
    protocols: tuple[str, ...] = (),
    *,
    deflate: bool = True,
    fields: tuple[tuple[bytes, bytes], ...] = (),
) -> AsyncIterator[Talk]:
    """Open a plain WebSocket through a proxy."""
    place, where = urlsplit(proxy), urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        authority = f"{where.hostname}:{where.port or 80}"
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        connection = WSConnection(ConnectionType.CLIENT)
        target = where.path + (f"?{where.query}" if where.query else "")
        request = Request(
            host=where.hostname or "",
            target=target,
            subprotocols=list(protocols),
            extensions=[PerMessageDeflate()] if deflate else [],
            extra_headers=list(fields),
        )
        writer.write(connection.send(request))
        made = Talk(connection, reader, writer)
        first = await made.event()
        if isinstance(first, AcceptConnection):
            made.status, made.subprotocol = 101, first.subprotocol
            made.extensions = [each.name for each in first.extensions]
        elif isinstance(first, RejectConnection):
            made.status = first.status_code
        yield made
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

"""A forward proxy of a few lines that answers every http URL itself, from a table of pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

START = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)

Answer = tuple[str, bytes]  # content type, body


@dataclass
class Site:
    """Pages by URL without query; a callable page gets the URL. `requests` lists the requested URLs.

    The last byte of what `withheld` names waits for its event; the bodies of `slow` come in six parts, with
    so many seconds between them. `headers` are sent with each page.
    """

    pages: dict[str, str | Answer | Callable[[str], Answer]] = field(default_factory=dict)
    delays: dict[str, float | Callable[[], float]] = field(default_factory=dict)
    withheld: dict[str, asyncio.Event] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""
    headers: str = ""

    async def answer(self, url: str) -> bytes:
        self.requests.append(url)
        parts = urlsplit(url)
        bare = f"{parts.scheme}://{parts.netloc}{parts.path}"
        if delay := self.delays.get(bare):
            await asyncio.sleep(delay() if callable(delay) else delay)
        page = self.pages.get(bare)
        if page is None:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        if callable(page):
            page = page(url)
        kind, body = ("text/html; charset=utf-8", page.encode()) if isinstance(page, str) else page
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head += "Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Headers: *\r\n"
        return f"{head}{self.headers}\r\n".encode() + body

    async def send_part(self, writer: asyncio.StreamWriter, answer: bytes, seconds: float) -> bytes:
        rest = len(answer) // 2
        writer.write(answer[:-rest])
        await writer.drain()
        await asyncio.sleep(seconds)
        return answer[-rest:]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                await reader.readexactly(length)
                method, url, _ = line.decode("latin-1").split(" ", 2)
                if method == "CONNECT":
                    writer.write(b"HTTP/1.1 502 No TLS here\r\nContent-Length: 0\r\n\r\n")
                else:
                    answer = await self.answer(url)
                    if event := self.withheld.get(url):
                        writer.write(answer[:-1])
                        await event.wait()
                        answer = answer[-1:]
                    for _ in range(5 if url in self.slow else 0):
                        answer = await self.send_part(writer, answer, self.slow[url])
                    writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    site.url = f"http://127.0.0.1:{port}"
    try:
        yield site
    finally:
        server.close()

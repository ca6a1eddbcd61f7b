"""The bookshop's server: three hosts on one loopback port, by TLS, with its own CA.

`Bookshop.answer` is the site, without I/O. It keeps carts and subscribers in memory. Its answers differ from
visit to visit (a counter in the stock answers), so an equal replay can only result from the recording.
`open_shop` serves it, and closes the port and every connection on exit.

    bookshop.example       pages (one HTML file for all history routes), redirect, form, iframe
    cdn.bookshop.example   script, style, pictures
    api.bookshop.example   JSON with CORS; a preflight precedes each POST
"""

from __future__ import annotations

import asyncio
import html
import io
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from PIL import Image, ImageDraw

from stillweb.certs import CertAuthority

SHOP, CDN, API = "bookshop.example", "cdn.bookshop.example", "api.bookshop.example"
HOSTS = (SHOP, CDN, API)
_SPA_ROUTES = ("/", "/search", "/cart")
_REASONS = {200: "OK", 204: "No Content", 301: "Moved Permanently", 303: "See Other", 404: "Not Found"}
_MAX_HEAD, _MAX_BODY = 65_536, 65_536


@dataclass(frozen=True, slots=True)
class ShopRequest:
    method: str
    host: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class ShopResponse:
    status: int
    mime: str = "text/plain; charset=utf-8"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Bookshop:
    """The site: `answer` maps a request to a response and updates carts and subscribers."""

    def __init__(self) -> None:
        self.books: list[dict[str, Any]] = json.loads(_file("books.json"))
        self.carts: dict[str, Counter[int]] = {}
        self.subscribers: list[str] = []
        self.requests = 0

    def answer(self, ask: ShopRequest) -> ShopResponse:
        """Return the response to a request; 404 for unknown paths."""
        self.requests += 1
        if ask.host == CDN:
            return self._cdn(ask)
        if ask.host == API:
            return self._api(ask)
        return self._page(ask) if ask.host == SHOP else ShopResponse(404)

    def _page(self, ask: ShopRequest) -> ShopResponse:
        head, _, tail = ask.path[1:].partition("/")
        if ask.path in _SPA_ROUTES or (head == "book" and self._book(tail)):
            return _html("index.html")
        if ask.path == "/old-shop":
            return ShopResponse(301, headers=(("Location", "/"),))
        if ask.path == "/newsletter" and ask.method == "POST":
            email = dict(parse_qsl(ask.body.decode("utf-8", "replace"))).get("email", "")
            self.subscribers.append(email)
            return ShopResponse(
                303, headers=(("Location", f"/newsletter/thanks?number={len(self.subscribers)}"),)
            )
        if ask.path == "/newsletter":
            return _html("newsletter.html")
        if ask.path == "/newsletter/thanks" and self.subscribers:
            return _html("thanks.html", email=self.subscribers[-1])
        if head == "reviews" and (book := self._book(tail)):
            return _html("reviews.html", review=book["review"])
        return ShopResponse(404)

    def _cdn(self, ask: ShopRequest) -> ShopResponse:
        long_lived = (("Cache-Control", "public, max-age=86400"), ("Access-Control-Allow-Origin", "*"))
        if ask.path == "/app.js":
            return ShopResponse(200, "text/javascript; charset=utf-8", _file("app.js"), long_lived)
        if ask.path == "/style.css":
            return ShopResponse(200, "text/css; charset=utf-8", _file("style.css"), long_lived)
        if ask.path == "/logo.png":
            return ShopResponse(200, "image/png", _logo(), long_lived)
        name = ask.path.removeprefix("/cover/").removesuffix(".svg")
        if book := self._book(name):
            return ShopResponse(200, "image/svg+xml", _cover(book), long_lived)
        return ShopResponse(404)

    def _api(self, ask: ShopRequest) -> ShopResponse:
        cors = (
            ("Access-Control-Allow-Origin", ask.headers.get("origin", "*")),
            ("Access-Control-Allow-Methods", "GET, POST"),
            ("Access-Control-Allow-Headers", "content-type"),
            ("Vary", "Origin"),
            ("Cache-Control", "no-store"),
        )
        if ask.method == "OPTIONS":
            return ShopResponse(204, headers=cors)
        value = self._value(ask)
        body = json.dumps(value, ensure_ascii=False).encode()
        return ShopResponse(404 if value is None else 200, "application/json", body, cors)

    def _value(self, ask: ShopRequest) -> Any:
        if ask.path == "/books":
            words = ask.query.get("q", "").lower()
            return [book for book in self.books if words in f"{book['title']} {book['author']}".lower()]
        if ask.path.startswith("/books/"):
            return self._book(ask.path.removeprefix("/books/"))
        if ask.path == "/stock" and (book := self._book(ask.query.get("book", ""))):
            return {"left": book["stock"], "answer": self.requests}  # no two answers are equal
        if ask.path == "/cart":
            cart = self.carts.setdefault(ask.query.get("cart", ""), Counter())
            if ask.method == "POST":
                line = json.loads(ask.body)
                cart[int(line["book"])] += int(line["quantity"])
            return self._cart(cart)
        return None

    def _cart(self, cart: Counter[int]) -> dict[str, Any]:
        books = {book["id"]: book for book in self.books}
        lines = [
            {"title": books[number]["title"], "quantity": count, "cents": count * books[number]["cents"]}
            for number, count in sorted(cart.items())
            if number in books
        ]
        return {"count": cart.total(), "lines": lines, "total": sum(line["cents"] for line in lines)}

    def _book(self, number: str) -> dict[str, Any] | None:
        return next((book for book in self.books if str(book["id"]) == number), None)


@asynccontextmanager
async def open_shop(shop: Bookshop, ca: CertAuthority) -> AsyncIterator[int]:
    """Serve the shop on a free loopback port, and close everything on leaving.

    Yields:
        The port.
    """
    context = ca.server_context(SHOP)
    context.sni_callback = lambda connection, name, _: _present(connection, ca, name)
    open_writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            while await _one_exchange(shop, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError):
            pass  # the client has gone
        finally:
            open_writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=_MAX_HEAD)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in list(open_writers):
            writer.transport.abort()
        await server.wait_closed()


def _present(connection: ssl.SSLObject | ssl.SSLSocket, ca: CertAuthority, name: str | None) -> None:
    """Present the certificate of the requested host."""
    connection.context = ca.server_context(name if name in HOSTS else SHOP)


async def _one_exchange(shop: Bookshop, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read and answer a request; return False if the client has closed the connection or wants to."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return False
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    size = min(int(headers.get("content-length") or 0), _MAX_BODY)
    body = await reader.readexactly(size)
    parts = urlsplit(target)
    host = headers.get("host", "").partition(":")[0].lower()
    answer = shop.answer(ShopRequest(method, host, parts.path, dict(parse_qsl(parts.query)), headers, body))
    writer.write(_wire(answer, with_body=method != "HEAD"))
    await writer.drain()
    return headers.get("connection", "").lower() != "close"


def _wire(answer: ShopResponse, *, with_body: bool) -> bytes:
    fields = [*answer.headers]
    if answer.status != 204:
        fields += [("Content-Type", answer.mime), ("Content-Length", str(len(answer.body)))]
    lines = [f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}", *(f"{n}: {v}" for n, v in fields)]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1") + (answer.body if with_body else b"")


def _file(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


def _html(name: str, **values: str) -> ShopResponse:
    text = _file(name).decode()
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", html.escape(value))
    return ShopResponse(200, "text/html; charset=utf-8", text.encode(), (("Cache-Control", "no-cache"),))


def _cover(book: dict[str, Any]) -> bytes:
    hue, rows = book["hue"], range(3 + book["id"])
    waves = "".join(
        f'<path d="M0 {70 + 14 * i} q15 -{6 + book["id"]} 30 0 t30 0 t30 0 t30 0" fill="none" '
        f'stroke="hsl({hue} 60% {80 - 4 * i}%)" stroke-width="3"/>'
        for i in rows
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 160"><rect width="120" height="160" '
        f'rx="4" fill="hsl({hue} 45% 28%)"/>{waves}<circle cx="{24 + 12 * book["id"]}" cy="38" r="16" '
        f'fill="hsl({hue} 70% 85%)"/></svg>'
    ).encode()


def _logo() -> bytes:
    picture = Image.new("RGBA", (80, 80), (0, 0, 0, 0))
    draw = ImageDraw.Draw(picture)
    draw.rounded_rectangle((0, 0, 79, 79), 16, fill=(138, 47, 59, 255))
    draw.polygon([(12, 24), (40, 32), (40, 64), (12, 56)], fill=(251, 248, 242, 255))
    draw.polygon([(68, 24), (40, 32), (40, 64), (68, 56)], fill=(228, 221, 208, 255))
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()

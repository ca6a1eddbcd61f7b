"""A site of small pages over plain http, each with one thing to lose or to change, and what is planted."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from PIL import Image

from stillweb.model import Exchange, Response

HOST = "http://faulty.test"


def page(title: str, body: str) -> tuple[int, str, bytes]:
    return 200, "text/html; charset=utf-8", f"<!doctype html><title>{title}</title>{body}".encode()


def png(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (60, 40), colour).save(stream, "PNG")
    return stream.getvalue()


SHOWS = """<script>fetch({0}).then((r) => r.text())
  .then((t) => document.querySelector('p').textContent = t)</script>"""
FILLER = "<h2>What else</h2>" + "".join(f"<p>A line of text, number {n}.</p>" for n in range(12))
LATE = """<h1>Late</h1><p>loading</p><script>fetch("/api/late").then((r) => r.json()).then((items) => {
  for (const item of items) {
    document.body.append(Object.assign(document.createElement("button"), {textContent: item}));
  }
})</script>"""
# Still drawn when the page has settled, since a canvas is no change of the tree of elements.
CHART = """<h1>Chart</h1><canvas width=400 height=200></canvas><script>
const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d"), start = performance.now();
const draw = () => {
  const part = Math.min(1, (performance.now() - start) / 1000);
  pen.fillRect(0, 0, 400 * part, 200);
  if (part < 1) requestAnimationFrame(draw);
};
requestAnimationFrame(draw)</script>"""
# The search page of Sphinx: a result every 5 ms, and a request for the summary of each.
LIST = """<h1>Searching</h1><ul></ul><script>
const list = document.querySelector("ul"), results = [...Array(24).keys()];
const show = () => {
  if (!results.length) return void (document.querySelector("h1").textContent = "Found 24");
  const item = document.createElement("li"), n = results.shift();
  fetch("/api/price?" + n).then((r) => r.text()).then((t) => item.append(n + " costs " + t));
  list.append(item);
  setTimeout(show, 5);
};
show()</script>"""
# Redacted where it is written, and a checksum in the baseline of what the page got.
TOKEN = """<h1>Token</h1><form><input type=hidden name=csrf value={0}></form><script>
const token = "{0}"; document.title += token.length;</script>""".format("qX7rT2bN9wLk4vZs8dHf3gJm6pYc1aUe")
ANSWERS = {
    "/token": page("Token", TOKEN),
    "/chart": page("Chart", CHART),
    "/list": page("List", LIST),
    "/styled": page("Styled", "<link rel=stylesheet href=/style.css><h1>Styled</h1>" + FILLER),
    "/style.css": (200, "text/css", b"body { background: #204060; color: white; font-size: 22px }"),
    "/price": page("Price", "<h1>Price</h1><p></p>" + SHOWS.format("'/api/price'")),
    "/api/price": (200, "application/json", b'{"book": "Stillness", "price": 14.95}'),
    "/picture": page("Picture", "<h1>Picture</h1><img src=/logo.png alt=logo>"),
    "/logo.png": (200, "image/png", png("#c03030")),
    "/shifted": page(
        "Shifted", "<link rel=stylesheet href=/layout.css><h1>Shifted</h1><div class=box>box</div>" + FILLER
    ),
    "/layout.css": (200, "text/css", b".box { margin-left: 40px; width: 200px; background: #c0d0c0 }"),
    "/script": page("Script", "<h1>Script</h1><p>well</p><script src=/app.js></script>"),
    "/app.js": (200, "text/javascript", b"document.title = 'Script, run';"),
    "/old": (302, "/new", b""),
    "/new": page("New", "<h1>New</h1>"),
    "/posting": page(
        "Posting", "<h1>Posting</h1><p></p>" + SHOWS.format("'/save', {method: 'POST', body: 'a=1'}")
    ),
    "/save": (200, "text/plain", b"saved as number 1"),
    "/late": page("Late", LATE),
    "/api/late": (200, "application/json", b'["First", "Second", "Third"]'),
}  # fmt: skip
PAGES = (
    *("/styled", "/price", "/picture", "/shifted", "/script", "/old", "/posting", "/late"),
    *("/chart", "/list", "/token"),
)


@asynccontextmanager
async def faulty_site(hold: frozenset[str] = frozenset()) -> AsyncIterator[int]:
    """Serve; yields the port. Paths in `hold` are never answered."""
    writers: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            if path in hold:
                await reader.read()
                return
            status, kind, body = ANSWERS.get(path.partition("?")[0], (404, "text/plain", b"nothing here"))
            field = "Location" if status == 302 else "Content-Type"
            lines = [f"HTTP/1.1 {status} Answer", f"{field}: {kind}", f"Content-Length: {len(body)}"]
            writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the visitor is gone
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        await server.wait_closed()


def with_body(exchange: Exchange, body: bytes) -> Exchange:
    fields = tuple((n, v) for n, v in exchange.response.headers if n.lower() != "content-length")
    return replace(exchange, response=replace(exchange.response, raw_body=body, headers=fields))


NEW = Response(200, "OK", (("Content-Type", "text/html"),), ANSWERS["/new"][2])
PLANTED: dict[str, Callable[[Exchange], Exchange | None]] = {
    "/style.css": lambda e: None,
    "/api/price": lambda e: with_body(e, e.response.raw_body.replace(b"14.95", b"15.95")),
    "/logo.png": lambda e: with_body(e, png("#3030c0")),
    "/layout.css": lambda e: with_body(e, e.response.raw_body.replace(b"40px", b"57px")),
    "/app.js": lambda e: with_body(e, b"document.title = 'Script, run'; nowhereDefined();"),
    "/old": lambda e: replace(e, response=NEW),
    "/save": lambda e: None,
}  # fmt: skip
"""Path of an exchange -> what it is planted as; None: it is left out."""

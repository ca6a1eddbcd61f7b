"""Export of a collection as HAR 1.2 with content, entry by entry in recorded order.

Bodies are decoded, as HAR demands: text in UTF-8 as text, all else in base64. WebSocket messages are in
`_webSocketMessages`, as Chrome writes them. A HAR cannot hold rules, baselines or the manifest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stillweb import __version__
from stillweb.collections.layout import Collection
from stillweb.collections.pack.frames import frame_entry
from stillweb.collections.warc.frames import BINARY, TEXT, is_socket_url, read_frames
from stillweb.collections.warc.records import iso_date
from stillweb.errors import CollectionError
from stillweb.http.codec import decode
from stillweb.model import Capture, Exchange, Headers, Page, header
from stillweb.urls import from_timestamp, wire_url

__all__ = ["write_har"]


def write_har(collection: Collection, target: Path) -> Path:
    """Write a collection to a HAR file, atomically; return its path.

    Captures that cannot be read are left out: `collections check` reports them.
    """
    pages = collection.page_list()
    creator = {"name": "stillweb", "version": __version__}
    head = {"version": "1.2", "creator": creator, "pages": [_page(*each) for each in enumerate(pages, 1)]}
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with part.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
        out.write('{"log": ' + json.dumps(head, ensure_ascii=False)[:-1] + ', "entries": [')
        for number, entry in enumerate(_entries(collection, pages)):
            out.write(("," if number else "") + "\n" + json.dumps(entry, ensure_ascii=False))
        out.write("\n]}}\n")
    part.replace(target)
    return target


def _page(number: int, page: Page) -> dict[str, Any]:
    return {
        "startedDateTime": iso_date(page.timestamp),
        "id": _page_id(number),
        "title": page.title or page.url,
        "pageTimings": {},
    }


def _page_id(number: int) -> str:
    return f"page_{number}"


def _entries(collection: Collection, pages: list[Page]) -> Iterator[dict[str, Any]]:
    # An import takes a page's URL from the first entry that refers to it, so only that entry does.
    waiting = {wire_url(page.url): _page_id(number) for number, page in reversed([*enumerate(pages, 1)])}
    captures = sorted(collection.captures(), key=lambda each: (each.timestamp, each.source, each.offset))
    for capture in captures:
        try:
            entry = _entry(collection, capture, collection.read_capture(capture))
        except CollectionError:
            continue
        if capture.method == "GET" and (page := waiting.pop(wire_url(capture.url), None)):
            entry["pageref"] = page
        yield entry


def _entry(collection: Collection, capture: Capture, exchange: Exchange) -> dict[str, Any]:
    request, response = exchange.request, exchange.response
    version = "HTTP/2" if exchange.protocol == "h2" else "HTTP/1.1"
    common = {"httpVersion": version, "cookies": [], "headersSize": -1}
    request_entry = {
        "method": request.method,
        "url": request.url,
        "headers": _fields(request.headers),
        "queryString": [
            {"name": name, "value": value} for name, value in parse_qsl(urlsplit(request.url).query, True)
        ],
        "bodySize": len(request.raw_body),
        **common,
    }
    if request.raw_body:
        content_type = header(request.headers, "content-type")
        request_entry["postData"] = {"mimeType": content_type, **_text(request.raw_body, content_type)}
    entry = {
        "startedDateTime": iso_date(exchange.timestamp),
        "time": 0,
        "request": request_entry,
        "response": {
            "status": response.status,
            "statusText": response.reason,
            "headers": _fields(response.headers),
            "content": _content(exchange),
            "redirectURL": header(response.headers, "location"),
            "bodySize": len(response.raw_body),
            **common,
        },
        "cache": {},
        "timings": {"send": 0, "wait": 0, "receive": 0},
        "serverIPAddress": exchange.remote_ip,
    }
    if is_socket_url(request.url):
        entry |= {"_resourceType": "websocket", "_webSocketMessages": _messages(collection, capture)}
    return entry


def _fields(headers: Headers) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers]


def _content(exchange: Exchange) -> dict[str, Any]:
    response = exchange.response
    body = decode(response.raw_body, header(response.headers, "content-encoding"))
    body = response.raw_body if body is None else body
    content_type = header(response.headers, "content-type")
    return {"size": len(body), "mimeType": content_type, **_text(body, content_type)}


def _text(body: bytes, content_type: str) -> dict[str, str]:
    """Return a body as `text`; in base64 unless a reader certainly encodes the text to the same bytes."""
    charset = content_type.lower().partition("charset=")[2].strip("\"' ;")
    if charset in ("", "utf-8", "utf8"):
        try:
            return {"text": body.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {"text": base64.b64encode(body).decode("ascii"), "encoding": "base64"}


def _messages(collection: Collection, capture: Capture) -> list[dict[str, Any]]:
    entry = frame_entry(collection, capture)
    start = from_timestamp(capture.timestamp)
    return [
        {
            "type": "send" if frame.sent else "receive",
            "time": (start + timedelta(milliseconds=frame.ms)).timestamp(),
            "opcode": frame.opcode,
            "data": frame.payload.decode("utf-8", "replace")
            if frame.opcode == TEXT
            else base64.b64encode(frame.payload).decode("ascii"),
        }
        for frame in (read_frames(entry.response.raw_body).frames if entry else ())
        if frame.opcode in (TEXT, BINARY)
    ]

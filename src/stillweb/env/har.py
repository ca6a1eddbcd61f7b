"""A HAR 1.2 of an episode: what the browser asked and what it was answered, for other people's evaluators.

Taken from the browser's own events, so that it says what the page saw, all header fields included; how
the replay found each answer is in its ledger. Bodies are in it where asked for. Both are read when an
answer is complete, since a page that is left takes them with it. Times are real ones and vary from run to
run, which is why this is a file of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from playwright.async_api import BrowserContext, Request, Response
from playwright.async_api import Error as PlaywrightError

from stillweb import clock

__all__ = ["HarLog"]

_NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:")
_BODY_SECONDS = 10.0
_TEXTUAL = ("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml")


@dataclass(slots=True)
class _Entry:
    request: Request
    started: datetime
    began: float
    response: Response | None = None
    ended: float = 0.0
    failure: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    answered: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | None = field(default=None, repr=False)


class HarLog:
    """The requests of a context from now on; `finish` before its pages are closed.

    Args:
        context: to listen to.
        bodies: whether to keep the bodies of answers.
    """

    def __init__(self, context: BrowserContext, *, bodies: bool = False) -> None:
        self._context = context
        self._bodies = bodies
        self._entries: dict[Request, _Entry] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._listeners = (
            ("request", self._on_request),
            ("response", self._on_response),
            ("requestfinished", self._on_finished),
            ("requestfailed", self._on_failed),
        )
        for event, heard in self._listeners:
            context.on(event, heard)  # type: ignore[call-overload]

    async def finish(self) -> None:
        """Stop listening, once the bodies that are being read are there."""
        for event, heard in self._listeners:
            self._context.remove_listener(event, heard)
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=_BODY_SECONDS)
            for task in late:
                task.cancel()
        for entry in self._entries.values():
            entry.ended = entry.ended or clock.perf()

    def to_json(self) -> str:
        """Return the HAR."""
        browser = self._context.browser
        log = {
            "version": "1.2",
            "creator": {"name": "stillweb", "version": "1"},
            "browser": {"name": "Chromium", "version": browser.version if browser else ""},
            "pages": [],
            "entries": [_entry(each) for each in self._entries.values()],
        }
        return json.dumps({"log": log}, ensure_ascii=False, indent=1)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(_NO_TRAFFIC):
            self._entries[request] = _Entry(request, clock.now(), clock.perf())

    def _on_response(self, response: Response) -> None:
        if entry := self._entries.get(response.request):
            entry.response = response

    def _on_finished(self, request: Request) -> None:
        if entry := self._entries.get(request):
            self._ended(entry)

    def _on_failed(self, request: Request) -> None:
        if entry := self._entries.get(request):
            entry.failure = request.failure or "failed"
            self._ended(entry)

    def _ended(self, entry: _Entry) -> None:
        entry.ended = clock.perf()
        task = asyncio.ensure_future(_read(entry, bodies=self._bodies))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)


async def _read(entry: _Entry, *, bodies: bool) -> None:
    entry.asked = dict(entry.request.headers)
    try:
        entry.asked = await entry.request.all_headers()
        if entry.response:
            told = await entry.response.headers_array()
            entry.answered = [(field["name"], field["value"]) for field in told]
            if bodies:
                entry.body = await entry.response.body()
    except PlaywrightError:
        return  # a redirect has no body, and a page that was left took everything along


def _entry(entry: _Entry) -> dict[str, Any]:
    took = round(max(entry.ended - entry.began, 0.0) * 1000, 3)
    told: dict[str, Any] = {
        "startedDateTime": entry.started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "time": took,
        "request": _request(entry),
        "response": _response(entry),
        "cache": {},
        "timings": {"send": 0, "wait": took, "receive": 0},
        "_resourceType": entry.request.resource_type,
    }
    if entry.failure:
        told["_failure"] = entry.failure
    return told


def _request(entry: _Entry) -> dict[str, Any]:
    request, headers = entry.request, entry.asked
    body = request.post_data_buffer
    told: dict[str, Any] = {
        "method": request.method,
        "url": request.url,
        "httpVersion": "HTTP/1.1",
        "cookies": [],
        "headers": _fields(headers.items()),
        "queryString": [
            {"name": name, "value": value}
            for name, value in parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
        ],
        "headersSize": -1,
        "bodySize": len(body or b""),
    }
    if body is not None:
        mime = headers.get("content-type", "")
        told["postData"] = {"mimeType": mime, "text": body.decode("utf-8", "replace")}
        if mime.startswith("application/x-www-form-urlencoded"):
            told["postData"]["params"] = [
                {"name": name, "value": value}
                for name, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
            ]
    return told


def _response(entry: _Entry) -> dict[str, Any]:
    response = entry.response
    headers = {name.lower(): value for name, value in entry.answered}
    mime = headers.get("content-type", "x-unknown")
    content: dict[str, Any] = {"size": len(entry.body) if entry.body is not None else -1, "mimeType": mime}
    if entry.body is not None and mime.startswith(_TEXTUAL):
        content["text"] = entry.body.decode("utf-8", "replace")
    elif entry.body is not None:
        content |= {"text": base64.b64encode(entry.body).decode(), "encoding": "base64"}
    return {
        "status": response.status if response else 0,
        "statusText": response.status_text if response else "",
        "httpVersion": "HTTP/1.1",
        "cookies": [
            {"name": name.strip(), "value": value.partition(";")[0]}
            for name, _, value in (
                each.partition("=") for key, each in entry.answered if key.lower() == "set-cookie"
            )
        ],
        "headers": _fields(entry.answered),
        "content": content,
        "redirectURL": headers.get("location", ""),
        "headersSize": -1,
        "bodySize": -1,
    }


def _fields(headers: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers if not name.startswith(":")]

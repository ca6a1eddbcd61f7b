"""Records a context while a page loads: its requests with body digests, and its script errors.

Recording and comparison use the same recorder, so that their lists agree.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Protocol

from playwright.async_api import BrowserContext, ConsoleMessage, Response, WebError
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity, Requested

_NO_BODY = frozenset({0, 204, 205, 304})
_NO_DIGEST = frozenset({"media", "websocket", "eventsource", "ping"})  # too long, or without an end
_BODY_SECONDS = 5.0  # seconds for all pending bodies


class BodyDigestCache(Protocol):
    """Body digests of responses that are known to repeat, so that their bodies are not fetched again."""

    def recall(self, entry: Requested) -> str:
        """Return the digest of the response to a request, "" if unknown."""

    def learn(self, entry: Requested, body: bytes) -> None:
        """Store the body of the response to a request, whose digest the entry has."""


class BodyDigests:
    """Sets `Requested.body` of each successful request; pass it to `Activity`, and close it."""

    def __init__(self, remembered: BodyDigestCache | None = None) -> None:
        self._remembered = remembered
        self._pending: set[asyncio.Task[None]] = set()

    def __call__(self, response: Response, entry: Requested) -> None:
        if entry.status in _NO_BODY or 300 <= entry.status < 400 or entry.resource_type in _NO_DIGEST:
            return
        if self._remembered and (known := self._remembered.recall(entry)):
            entry.body = known
            return
        task = asyncio.create_task(self._note(response, entry))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def noted(self) -> None:
        """Wait until all finished requests have their digests, for five seconds at most."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=_BODY_SECONDS)

    async def close(self) -> None:
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _note(self, response: Response, entry: Requested) -> None:
        try:
            body = await response.body()
        except PlaywrightError:
            return  # the browser has dropped it, or the page has gone
        entry.body = hashlib.sha256(body).hexdigest()
        if self._remembered:
            self._remembered.learn(entry, body)


_REQUEST_FAILED = "Failed to load resource"
_LONGEST = 500  # characters
_MOST = 1000  # lines


class ScriptErrors:
    """Script errors of a context; make it before the first page, close it at the end.

    Attributes:
        lines: each as "console: MESSAGE (URL:LINE)" or "uncaught: MESSAGE", in order of arrival; the first
            1,000.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.lines: list[str] = []
        self._context = context
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)

    def close(self) -> None:
        self._context.remove_listener("console", self._on_console)
        self._context.remove_listener("weberror", self._on_error)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type != "error" or message.text.startswith(_REQUEST_FAILED):
            return
        at = message.location
        self._note("console", message.text, f"{at['url']}:{at['lineNumber'] + 1}" if at["url"] else "")

    def _on_error(self, error: WebError) -> None:
        self._note("uncaught", str(error.error), "")

    def _note(self, kind: str, text: str, place: str) -> None:
        if len(self.lines) >= _MOST:
            return
        line = " ".join(text[: 2 * _LONGEST].split())[:_LONGEST]
        self.lines.append(f"{kind}: {line}" + (f" ({place})" if place else ""))


class PageRecorder:
    """Requests and script errors of a context; make it before the first page, close it at the end.

    Args:
        remembered: digests of responses that need not be fetched again.
        bodies: whether to make digests.

    Attributes:
        load_ms: real milliseconds until the load event, set by the caller.
    """

    def __init__(
        self, context: BrowserContext, remembered: BodyDigestCache | None = None, *, bodies: bool = True
    ) -> None:
        self._bodies = BodyDigests(remembered)
        self._errors = ScriptErrors(context)
        self.activity = Activity(context, self._bodies if bodies else None)
        self.load_ms = 0.0

    @property
    def complaints(self) -> tuple[str, ...]:
        return tuple(self._errors.lines)

    def pending(self) -> tuple[str, ...]:
        """Return the URLs of requests in flight."""
        return tuple(entry.url for entry in self.activity.in_flight if entry.resource_type != "websocket")

    async def requests(self) -> list[Requested]:
        """Return the requests so far, finished ones with body digests."""
        seen = list(self.activity.requests)
        await self._bodies.noted()
        return seen

    async def close(self) -> None:
        self.activity.close()
        self._errors.close()
        await self._bodies.close()


def request_list(requests: list[Requested]) -> list[dict[str, Any]]:
    """Return requests in the format of a baseline's `resources.json`."""
    first = min((request.started for request in requests), default=0.0)
    return [
        {
            "url": request.url,
            "method": request.method,
            "type": request.resource_type,
            "status": request.status,
            "failed": request.failure,
            "body": request.body,
            "start": round(1000 * (request.started - first), 1),
            "duration": round(1000 * max(0.0, request.finished - request.started), 1),
        }
        for request in requests
    ]

"""Who listens to a context while a page loads: its requests with their bodies, and its scripts' complaints.

One for a recording and for who compares its replay, so that both hear the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Protocol

from playwright.async_api import BrowserContext, ConsoleMessage, Response, WebError
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity, Requested

_NO_BODY = frozenset({0, 204, 205, 304})
_UNASKED = frozenset({"media", "websocket", "eventsource", "ping"})  # too long, or without an end
_PATIENCE = 5.0  # seconds for all that are under way


class Remembered(Protocol):
    """What was told of answers that are known to come again as they were: nobody is asked for them twice."""

    def recall(self, entry: Requested) -> str:
        """Return the digest of the answer to a request, "" if it is not known."""

    def learn(self, entry: Requested, body: bytes) -> None:
        """Take note of what the browser gave for a request; its digest is noted there."""


class BodyDigests:
    """Notes `Requested.body` of each request that ends well; give it to `Activity`, and close it."""

    def __init__(self, remembered: Remembered | None = None) -> None:
        self._remembered = remembered
        self._asked: set[asyncio.Task[None]] = set()

    def __call__(self, response: Response, entry: Requested) -> None:
        """Ask for the body of an answer that has come whole."""
        if entry.status in _NO_BODY or 300 <= entry.status < 400 or entry.resource_type in _UNASKED:
            return
        if self._remembered and (known := self._remembered.recall(entry)):
            entry.body = known
            return
        task = asyncio.create_task(self._note(response, entry))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def noted(self) -> None:
        """Wait until the bodies of all requests that have ended are noted, or for five seconds."""
        if self._asked:
            await asyncio.wait(self._asked, timeout=_PATIENCE)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    async def _note(self, response: Response, entry: Requested) -> None:
        try:
            body = await response.body()
        except PlaywrightError:
            return  # let go of by the browser, or gone with its page: then it is not known
        entry.body = hashlib.sha256(body).hexdigest()
        if self._remembered:
            self._remembered.learn(entry, body)


_OF_REQUESTS = "Failed to load resource"
_LONGEST = 500  # characters


class Complaints:
    """The complaints of a context from now on; make it before the first page, close it at the end.

    Attributes:
        lines: each as "console: MESSAGE (URL:LINE)" or "uncaught: MESSAGE", in order of arrival.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.lines: list[str] = []
        self._context = context
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)

    def close(self) -> None:
        """Stop listening."""
        self._context.remove_listener("console", self._on_console)
        self._context.remove_listener("weberror", self._on_error)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type != "error" or message.text.startswith(_OF_REQUESTS):
            return
        at = message.location
        self._note("console", message.text, f"{at['url']}:{at['lineNumber'] + 1}" if at["url"] else "")

    def _on_error(self, error: WebError) -> None:
        self._note("uncaught", str(error.error), "")

    def _note(self, kind: str, text: str, place: str) -> None:
        line = " ".join(text.split())[:_LONGEST]
        self.lines.append(f"{kind}: {line}" + (f" ({place})" if place else ""))


class PageRecorder:
    """Make it before the first page, close it at the end.

    Args:
        context: of the page.
        remembered: answers whose digests need not be asked for.
        bodies: whether digests are made of any.

    Attributes:
        activity: of the context.
        load_ms: real milliseconds until the load event, as noted by who navigated.
    """

    def __init__(
        self, context: BrowserContext, remembered: Remembered | None = None, *, bodies: bool = True
    ) -> None:
        self._bodies = BodyDigests(remembered)
        self._complaints = Complaints(context)
        self.activity = Activity(context, self._bodies if bodies else None)
        self.load_ms = 0.0

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the scripts complained of so far (`Complaints.lines`)."""
        return tuple(self._complaints.lines)

    def pending(self) -> tuple[str, ...]:
        """Return the URLs of what the page still waits for."""
        return tuple(entry.url for entry in self.activity.in_flight if entry.resource_type != "websocket")

    async def requests(self) -> list[Requested]:
        """Return the requests up to now, those that have ended with the digests of their bodies."""
        seen = list(self.activity.requests)
        await self._bodies.noted()
        return seen

    async def close(self) -> None:
        """Stop listening."""
        self.activity.close()
        self._complaints.close()
        await self._bodies.close()


def request_list(requests: list[Requested]) -> list[dict[str, Any]]:
    """Return requests as a baseline's `resources.json` has them."""
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

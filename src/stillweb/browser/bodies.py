"""What the answers of a page said, by digest: the browser is asked for each body as it ends.

So the digest is of what the page got, whatever proxy, coding or cache it came through, and a
recording and its replay by any back-end can be held against each other. Chromium gives texts
decoded, which Playwright writes as UTF-8: equal bytes make equal digests, and that is all they are for.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Protocol

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Response

from stillweb.browser.activity import Requested

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

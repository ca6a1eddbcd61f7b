"""Starts of shared workers below level EXACT.

Chromium reports the request for a shared worker's script on the page that made it, but never its end. So a
session of the browser attaches to each new shared worker and sends a command. The worker's thread executes
the command once its script has loaded. The reply, or the end of the worker, ends the request (`Activity`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from playwright.async_api import Browser, CDPSession
from playwright.async_api import Error as PlaywrightError

_FILTER = [{"type": "shared_worker"}]
_COMMAND = json.dumps({"id": 1, "method": "Runtime.getHeapUsage"})  # no script can notice it

StartCallback = Callable[[str, str], None]

_known: WeakKeyDictionary[Browser, asyncio.Task[SharedWorkers]] = WeakKeyDictionary()


async def shared_workers_of(browser: Browser) -> SharedWorkers:
    """Return the shared workers of a browser, followed from the first call on.

    Raises:
        playwright.async_api.Error: if the browser has ended.
    """
    if browser not in _known:
        _known[browser] = asyncio.ensure_future(_follow(browser))
    return await asyncio.shield(_known[browser])


async def _follow(browser: Browser) -> SharedWorkers:
    workers = SharedWorkers(await browser.new_browser_cdp_session())
    await workers.follow()
    return workers


class SharedWorkers:
    """Calls back with browser context and URL of each shared worker that has started or ended.

    Attributes:
        callbacks: called for each; add and remove them freely.
    """

    def __init__(self, session: CDPSession) -> None:
        self.callbacks: set[StartCallback] = set()
        self._session = session
        self._loading: dict[str, dict[str, Any]] = {}  # TargetInfo by target
        self._attaching: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Report all shared workers from now on."""
        self._session.on("Target.targetCreated", self._on_created)
        self._session.on("Target.receivedMessageFromTarget", self._on_message)
        self._session.on("Target.targetDestroyed", lambda event: self._started(event["targetId"]))
        await self._session.send("Target.setDiscoverTargets", {"discover": True, "filter": _FILTER})

    def _on_created(self, event: dict[str, Any]) -> None:
        target = event["targetInfo"]
        self._loading[target["targetId"]] = target
        task = asyncio.ensure_future(self._attach(target["targetId"]))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, target: str) -> None:
        try:
            # Playwright's sessions have no route for events of flat sessions that it did not open.
            attached = await self._session.send(
                "Target.attachToTarget", {"targetId": target, "flatten": False}
            )
            message = {"sessionId": attached["sessionId"], "message": _COMMAND}
            await self._session.send("Target.sendMessageToTarget", message)
        except PlaywrightError:  # the worker or the browser has ended
            self._started(target)

    def _on_message(self, event: dict[str, Any]) -> None:
        self._started(event["targetId"])
        task = asyncio.ensure_future(self._detach(event["sessionId"]))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _detach(self, session: str) -> None:
        try:
            await self._session.send("Target.detachFromTarget", {"sessionId": session})
        except PlaywrightError:  # detached already, or the browser has ended
            return

    def _started(self, target: str) -> None:
        if info := self._loading.pop(target, None):
            for callback in tuple(self.callbacks):
                callback(info.get("browserContextId", ""), info["url"])

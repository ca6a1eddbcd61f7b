"""Playwright's CDP session without what it does to every answer.

Playwright's public classes look through all that comes in for objects of its own, recursively, and make a
copy; the answers of CDP are plain JSON and hold none. On the accessibility tree of a large page that takes
half of the interpreter's time (bench/sessions.py), so answers and events are taken from the object
that Playwright wraps. Where a version of Playwright has none by that name, the public one is used.

Nor are commands left waiting for a renderer that has crashed. Playwright fails those of its own sessions
then, and lets those of others wait for a renderer that never comes; Chromium tells each session of it that
has enabled the Inspector domain, also one that was made too late to see it happen.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Self

from playwright.async_api import CDPSession, Page
from playwright.async_api import Error as PlaywrightError

__all__ = ["PlainSession"]


class PlainSession:
    """A CDP session of a page, with Playwright's `on` and `send`: answers and events are as they came."""

    def __init__(self, session: CDPSession) -> None:
        self._public = session  # whose life it shares
        self._bare: Any = getattr(session, "_impl_obj", session)
        # The wrapped `send` takes a timeout, too, and has no default for it.
        taken = inspect.signature(self._bare.send).parameters
        self._named: dict[str, Any] = {"timeout": None} if "timeout" in taken else {}
        self._crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bare.on("Inspector.targetCrashed", self._on_crash)

    @classmethod
    async def of(cls, page: Page) -> Self:
        """Return a session of a page; a playwright.async_api.Error if the page is closed or has crashed."""
        session = cls(await page.context.new_cdp_session(page))
        await session.send("Inspector.enable")
        return session

    async def send(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Send a command and return its answer.

        Raises:
            playwright.async_api.Error: if it is refused, or the page is closed or has crashed.
        """
        sending = asyncio.ensure_future(self._bare.send(method=method, params=params, **self._named))
        try:
            await asyncio.wait([sending, self._crash], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise PlaywrightError(f"{method}: the page has crashed")
            return sending.result()
        finally:
            sending.cancel()

    async def detach(self) -> None:
        """End the session."""
        await self._public.detach()

    def _on_crash(self, _: Any) -> None:
        if not self._crash.done():
            self._crash.set_result(None)

    def on(self, event: str, heard: Callable[[Any], None]) -> None:
        """Tell of an event from now on."""
        self._bare.on(event, heard)

    def remove_listener(self, event: str, heard: Callable[[Any], None]) -> None:
        """Tell of an event no longer."""
        self._bare.remove_listener(event, heard)

"""Playwright's CDP session without what it does to every answer.

Playwright's public classes look through all that comes in for objects of its own, recursively, and make a
copy; the answers of CDP are plain JSON and hold none. On the accessibility tree of a large page that takes
half of the interpreter's time (bench/sessions.py), so answers and events are taken from the object
that Playwright wraps. Where a version of Playwright has none by that name, the public one is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from playwright.async_api import CDPSession

__all__ = ["PlainSession"]


class PlainSession:
    """A CDP session whose answers and events are as they came; same `on` and `send` as Playwright's."""

    def __init__(self, session: CDPSession) -> None:
        self._public = session  # whose life it shares
        self._bare: Any = getattr(session, "_impl_obj", session)
        # The wrapped `send` takes a timeout, too, and has no default for it.
        taken = inspect.signature(self._bare.send).parameters
        self._named: dict[str, Any] = {"timeout": None} if "timeout" in taken else {}

    async def send(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Send a command and return its answer; a playwright.async_api.Error if it is refused."""
        return await self._bare.send(method=method, params=params, **self._named)

    def on(self, event: str, heard: Callable[[Any], None]) -> None:
        """Tell of an event from now on."""
        self._bare.on(event, heard)

    def remove_listener(self, event: str, heard: Callable[[Any], None]) -> None:
        """Tell of an event no longer."""
        self._bare.remove_listener(event, heard)

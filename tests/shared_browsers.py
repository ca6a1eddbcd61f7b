"""Browsers that outlive their test: starting and closing one takes longer than most tests do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.connection import CdpError, connection_of
from stillweb.browser.driver import as_playwright_error
from stillweb.browser.launch import MEMORY_VARIABLE, SANDBOX_VARIABLE

_IDLE = 4  # browsers that wait for the next test; each holds about 200 MB
_SECONDS = 5.0

Start = Callable[..., AbstractAsyncContextManager[Browser]]


@dataclass(frozen=True)
class _Started:
    key: tuple[Any, ...]
    browser: Browser
    stack: AsyncExitStack

    @property
    def exact(self) -> bool:
        return bool(self.key[3])


class SharedBrowsers:
    """Starts browsers like `stillweb.browser.launch`, and gives each that is closed to the next equal start.

    A browser belongs to one event loop, so other loops get browsers of their own, as do tests that want a
    window, since it belongs to a display. A browser is closed if the
    test leaves it by an error, and if it or its connection was lost.

    Attributes:
        sharing: False in tests of the start, loss and end of browsers.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Started] = []
        self.sharing = True

    @asynccontextmanager
    async def start(
        self, path: Path, flags: tuple[str, ...], headless: bool, exact: bool
    ) -> AsyncIterator[Browser]:
        arguments = (path, flags, headless, exact)
        if not (self.sharing and headless and asyncio.get_running_loop() is self._loop):
            async with self._start(*arguments) as browser:
                yield browser
            return
        variables = tuple(os.environ.get(name) for name in (MEMORY_VARIABLE, SANDBOX_VARIABLE))
        started = await self._take((*arguments, *variables)) or await self._new((*arguments, *variables))
        try:
            yield started.browser
        except BaseException:
            await started.stack.aclose()
            raise
        await self._give_back(started)

    async def _new(self, key: tuple[Any, ...]) -> _Started:
        stack = AsyncExitStack()
        return _Started(key, await stack.enter_async_context(self._start(*key[:4])), stack)

    async def _take(self, key: tuple[Any, ...]) -> _Started | None:
        for started in self._idle[::-1]:
            if started.key == key:
                self._idle.remove(started)
                if await self._is_sound(started):
                    return started
                await started.stack.aclose()
        return None

    async def _give_back(self, started: _Started) -> None:
        if not await self._is_sound(started):
            await started.stack.aclose()
            return
        self._idle.append(started)
        if len(self._idle) > _IDLE:
            await self._idle.pop(0).stack.aclose()

    async def _is_sound(self, started: _Started) -> bool:
        """Close the contexts that are left; return False if the browser does not respond."""
        browser = started.browser
        try:
            async with asyncio.timeout(_SECONDS):
                with as_playwright_error():
                    for context in browser.contexts:
                        await context.close()
                    session = await browser.new_browser_cdp_session()
                    await session.send("Browser.getVersion")
                    await session.detach()
                    if started.exact:
                        await connection_of(browser).browser_contexts()
        except (TimeoutError, PlaywrightError, CdpError):
            return False
        return browser.is_connected()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().stack.aclose()

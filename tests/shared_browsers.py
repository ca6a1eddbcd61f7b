"""Browsers and drivers that outlive their test: starting and closing one takes longer than most tests do."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Browser, Playwright
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.connection import CdpError, connection_of
from stillweb.browser.driver import as_playwright_error, playwright_driver
from stillweb.browser.launch import MEMORY_VARIABLE, SANDBOX_VARIABLE

_IDLE = 4  # browsers that wait for the next test; each holds about 200 MB
_SECONDS = 5.0

T = TypeVar("T")
Start = Callable[..., AbstractAsyncContextManager[Browser]]

# Whether the browser that this task starts will be shared, and may use the driver of others.
_shares = ContextVar("_shares", default=False)


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

    A browser belongs to one event loop, so other loops get browsers of their own. Tests that want a window
    get their own, too, since a window belongs to a display. A browser is closed if the
    test leaves it by an error, and if it or its connection was lost. Shared browsers share one driver; after
    a loss the next start gets a new one.

    Attributes:
        sharing: False in tests of the start, loss and end of browsers.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._idle: list[_Started] = []
        self._driver: Playwright | None = None
        self._drivers = AsyncExitStack()
        self._starting = asyncio.Lock()
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

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Playwright]:
        if not _shares.get():
            async with playwright_driver() as own:
                yield own
            return
        async with self._starting:
            if self._driver is None:
                self._driver = await self._drivers.enter_async_context(playwright_driver())
        yield self._driver

    async def _new(self, key: tuple[Any, ...]) -> _Started:
        stack = AsyncExitStack()
        token = _shares.set(True)
        try:
            return _Started(key, await stack.enter_async_context(self._start(*key[:4])), stack)
        finally:
            _shares.reset(token)

    async def _take(self, key: tuple[Any, ...]) -> _Started | None:
        for started in self._idle[::-1]:
            if started.key == key:
                self._idle.remove(started)
                if await self._is_sound(started):
                    return started
                await self._end_lost(started)
        return None

    async def _end_lost(self, started: _Started) -> None:
        self._driver = None
        await started.stack.aclose()

    async def _give_back(self, started: _Started) -> None:
        if not await self._is_sound(started):
            await self._end_lost(started)
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
        await self._drivers.aclose()

    def run(self, main: Coroutine[Any, Any, T], **options: Any) -> T:
        """Stand in for `asyncio.run`: use the loop of the shared browsers while no test runs on it.

        Commands that tests invoke, and tests that are no coroutines, thus share browsers, too.
        """
        if not self.sharing or self._loop.is_running() or threading.get_ident() != self._thread:
            return _run(main, **options)
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._loop.run_until_complete(main)
        finally:
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                signal.signal(number, handler)


_run = asyncio.run

"""One browser for each test module: starting one takes longer than most tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import pytest
import pytest_asyncio
from loopback_site import START, Site, serving
from playwright.async_api import Browser, BrowserContext, Page

from stillweb.browser import Activity, Bids, Level, Pinning, Profile, launch, open_context, settle

logger = logging.getLogger(__name__)


@dataclass
class Visit:
    """A pinned context with one page, on the loopback site."""

    site: Site
    context: BrowserContext
    page: Page
    activity: Activity
    bids: Bids

    async def goto(self, url: str = "http://site.test/"):
        await self.page.goto(url, wait_until="commit")
        return await settle(self.page, self.activity)

    async def show(self, html: str):
        """Serve a page and settle on it."""
        self.site.pages["http://site.test/"] = "<!doctype html><meta charset=utf-8>" + html
        return await self.goto()


class Rig:
    """A browser, one for level EXACT on the first request for it, and a site; opens visits."""

    def __init__(self, browser: Browser, site: Site, stack: AsyncExitStack) -> None:
        self.browser = browser
        self.site = site
        self._stack = stack
        self._exact: Browser | None = None
        self._starting = asyncio.Lock()

    async def browser_for(self, level: Level) -> Browser:
        if level is not Level.EXACT:
            return self.browser
        async with self._starting:
            if self._exact is None:
                self._exact = await self._stack.enter_async_context(launch(spki=[], exact=True))
        return self._exact

    @asynccontextmanager
    async def visit(
        self, level: Level = Level.CLOCK, seed: int = 7, start: datetime = START, **profile
    ) -> AsyncIterator[Visit]:
        pinning = Pinning(level, seed, start)
        context = await open_context(
            await self.browser_for(level),
            proxy=self.site.url,
            profile=Profile(**profile),
            pinning=pinning,
        )
        activity = Activity(context)
        try:
            page = await context.new_page()
            page.on("pageerror", lambda error: logger.warning("page error: %s", error))
            yield Visit(self.site, context, page, activity, Bids())
        finally:
            activity.close()
            await context.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def module_rig() -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(serving())
        browser = await stack.enter_async_context(launch(spki=[]))
        yield Rig(browser, site, stack)


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    """The module's browser, with a site that is empty again."""
    module_rig.site.pages.clear()
    module_rig.site.delays.clear()
    module_rig.site.requests.clear()
    module_rig.site.headers = ""
    return module_rig

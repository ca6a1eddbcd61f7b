"""The fixtures for asynchronous tests; `plugin` registers them if pytest-asyncio is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Page

    from stillweb.env.env import Env
    from stillweb.testing.replayed import Choice, Replayed, Servers


@pytest_asyncio.fixture
async def stillweb_async_env(stillweb_servers: Servers, stillweb_choice: Choice) -> AsyncIterator[Env]:
    """Provide an environment on the collection."""
    from stillweb.env.env import Env

    url = stillweb_servers.url(stillweb_choice.collection)
    async with Env(url, stillweb_choice.collection, level=stillweb_choice.level) as env:
        yield env


@pytest_asyncio.fixture
async def stillweb_async_page(stillweb_replay: Replayed, stillweb_choice: Choice) -> AsyncIterator[Page]:
    """Provide a page of Playwright's asynchronous API in the session's proxy, with seeded randomness."""
    from stillweb.browser.launch import launch
    from stillweb.testing.pages import context_options, pin_script

    recorded = int(stillweb_replay.manifest.get("seed", 0))
    seed = recorded if stillweb_choice.seed is None else stillweb_choice.seed
    async with launch(spki=stillweb_replay.spki) as browser:
        context = await browser.new_context(**context_options(stillweb_replay, browser.version))
        await context.add_init_script(pin_script(seed))
        yield await context.new_page()
        await context.close()

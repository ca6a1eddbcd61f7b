"""A renderer that dies takes its page with it, and no caller waits for its answers."""

from __future__ import annotations

import asyncio

import pytest
from families import kill, renderers

from stillweb.browser import Level
from stillweb.browser.cdp.session import PageProbe
from stillweb.errors import InfraError

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LEVELS = [Level.NETWORK, Level.CLOCK, Level.EXACT]


async def kill_renderers(rig, level):
    kill(await renderers(await rig.browser_for(level)))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_command_under_way_ends_with_its_renderer(rig, level):
    async with rig.visit(level) as visit:
        await visit.show("<p>here")
        probe = await PageProbe.of(visit.page)
        waiting = asyncio.ensure_future(probe.evaluate("new Promise(() => {})"))
        assert await probe.evaluate("1 + 1") == 2  # the first is under way
        await kill_renderers(rig, level)
        async with asyncio.timeout(30):
            with pytest.raises(InfraError, match="crash"):
                await waiting
            with pytest.raises(InfraError):
                await probe.evaluate("1 + 1")


@pytest.mark.parametrize("level", LEVELS)
async def test_a_page_that_has_crashed_is_not_attached_to(rig, level):
    async with rig.visit(level) as visit:
        rig.site.pages["http://site.test/"] = "<!doctype html><p>here"
        await visit.page.goto("http://site.test/", wait_until="commit")
        crashed = asyncio.get_running_loop().create_future()
        visit.page.on("crash", lambda page: crashed.set_result(page))
        await kill_renderers(rig, level)
        await crashed
        async with asyncio.timeout(30):
            with pytest.raises(InfraError):
                await PageProbe.of(visit.page)

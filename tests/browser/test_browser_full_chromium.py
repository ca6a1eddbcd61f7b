"""Levels NETWORK and CLOCK keep their promises on full Chromium too; EXACT says that it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from loopback_site import START, serving

from stillweb.browser import Activity, Level, Pinning, Profile, launch, open_context, page_text, settle
from stillweb.errors import ProgramNotFound

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio,
    pytest.mark.skipif(CHROMIUM is None, reason="no full Chromium on PATH (apt-get install chromium)"),
]
PAGE = """<!doctype html><p id=o></p><script>
setTimeout(() => { o.textContent = `${Math.random()} ${Date.now()}`; }, 200);
</script>"""


async def test_network_and_clock_hold_on_full_chromium():
    async with serving() as site, launch(spki=[], executable=Path(CHROMIUM)) as browser:
        site.pages["http://site.test/"] = PAGE

        async def text_at(level):
            pinning = Pinning(level, 7, START)
            context = await open_context(browser, proxy=site.url, profile=Profile(), pinning=pinning)
            activity = Activity(context)
            page = await context.new_page()
            await page.goto("http://site.test/", wait_until="commit")
            settled = await settle(page, activity)
            text = await page_text(page)
            activity.close()
            await context.close()
            assert settled.settled, settled.reason
            return text

        clock = [await text_at(Level.CLOCK) for _ in range(2)]
        network = [await text_at(Level.NETWORK) for _ in range(2)]
        live = [await text_at(Level.LIVE) for _ in range(2)]
    assert clock[0] == clock[1]
    assert clock[0].split()[1] == str(int(START.timestamp() * 1000) + 200)
    assert network[0].split()[0] == network[1].split()[0]
    assert live[0].split()[0] != live[1].split()[0]


async def test_level_exact_refuses_full_chromium():
    with pytest.raises(ProgramNotFound, match="chromium-headless-shell"):
        async with launch(spki=[], executable=Path(CHROMIUM), exact=True):
            pass

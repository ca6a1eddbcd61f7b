"""Level EXACT on pages that race with themselves: every session sees the same, at a revisit, too."""

from __future__ import annotations

import asyncio
import difflib
import hashlib

import pytest
from stress_site import HOME, PAGES, build

from repetitions import times
from stillweb.browser import Level, axtree, page_html, page_text, screenshot, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.input.pointer import Pointer
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SESSIONS = times(2, 3)


async def walk(rig, url):
    """Return for each step text, digest of the other observations, requests, time and flags."""
    steps = []
    async with rig.visit(Level.EXACT) as visit:
        probe = await PageProbe.of(visit.page)
        pointer = await Pointer.of(visit.page)

        async def travel(by):
            history = await probe.send("Page.getNavigationHistory")
            await probe.travel(history["entries"][history["currentIndex"] + by]["id"], 30.0)

        for name, act in (
            ("open", lambda: probe.open(url)),
            ("scroll", lambda: pointer.wheel((400, 300), 0, 600)),
            ("leave", lambda: probe.open(f"{HOME}other")),
            ("back", lambda: travel(-1)),
            ("reload", lambda: visit.page.reload(wait_until="commit")),
            ("again", lambda: probe.open(url)),
        ):
            await act()
            settled = await settle(visit.page, visit.activity)
            tree = (await axtree(visit.page, visit.bids)).text
            seen = (tree + await page_html(visit.page)).encode() + await screenshot(visit.page)
            requests = tuple(f"{request.url} {request.status}" for request in visit.activity.requests)
            visit.activity.clear()
            flags = tuple(state_of(visit.context).exact.take_flags())
            text = await page_text(visit.page)
            steps.append(
                (
                    name,
                    text,
                    hashlib.sha256(seen).hexdigest(),
                    requests,
                    settled.virtual_ms,
                    settled.settled,
                    flags,
                )
            )
    return tuple(steps)


def difference(one, other):
    """Return where two walks part."""
    for (name, *mine), (_, *yours) in zip(one, other, strict=True):
        if mine != yours:
            lines = difflib.unified_diff(
                [*mine[0].splitlines(), *mine[2], *map(str, mine[1:2] + mine[3:])],
                [*yours[0].splitlines(), *yours[2], *map(str, yours[1:2] + yours[3:])],
                lineterm="",
            )
            return "\n".join([name, *lines])
    return ""


@pytest.mark.parametrize("name", PAGES)
async def test_a_walk_is_the_same_in_every_session(rig, name):
    url = build(rig.site, name)
    came = await asyncio.gather(*(walk(rig, url) for _ in range(SESSIONS)))
    for other in came[1:]:
        assert other == came[0], difference(came[0], other)
    assert all(settled for *_, settled, _ in came[0]), [step[1] for step in came[0]]
    assert all(flags == () for *_, flags in came[0]), [step[-1] for step in came[0]]

"""Level EXACT: the console of a step is the same in every run, and complete when the step ends."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import asyncio

import pytest

from stillweb.browser import Level, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = "http://localhost/"
BUSY = "<script>for (let i = 0, at = 0; i < 2e7; i++) at += i;</script>"  # the parser yields after it
PAGE = f"""<!doctype html><script>console.log('first', 1, true, null, undefined, [1, 'a'], {{ a: 1 }}); Promise.reject(new TypeError('rejected')); Promise.reject('plain');</script>{BUSY}
<script>console.warn('second');</script>{BUSY}<script>console.error('third'); setTimeout(() => console.log('timer'), 30); fetch('/missing').then(() => console.log('fetched'));
const w = new Worker('/worker.js'); w.onmessage = ({{ data }}) => console.log(data); fetch('/data').then(() => {{ throw new Error('of a fetch'); }});
setTimeout(() => console.log(URL.createObjectURL(new Blob(['x']))), 40);</script>"""


async def lines_of(rig):
    async with rig.visit(Level.EXACT) as visit:
        await (await PageProbe.of(visit.page)).open(HOME)
        await settle(visit.page, visit.activity)
        entries, further = state_of(visit.context).exact.console.take()
        assert further == 0
        return [f"{entry.type}: {entry.text} ({entry.where.removeprefix(HOME)})" for entry in entries]


async def test_the_console_comes_in_one_order(rig):
    rig.site.pages[HOME] = PAGE
    rig.site.pages[f"{HOME}data"] = ("text/plain", b"data")
    rig.site.pages[f"{HOME}worker.js"] = (
        "text/javascript",
        b"console.log('worker'); postMessage('message');",
    )
    came = await asyncio.gather(*(lines_of(rig) for _ in range(3)))
    assert came[1:] == came[:1] * 2
    lines = came[0]
    assert lines[:6] == [
        "log: first 1 true null undefined [1, a] {a: 1} (:1)",
        "warning: second (:2)",
        "error: third (:2)",
        "exception: rejected ()",
        "exception: plain ()",
        "exception: of a fetch ()",
    ], lines
    assert sorted(lines[6:]) == [
        "error: Failed to load resource: the server responded with a status of 404 (Not Found) (missing:1)",
        "log: blob:http://localhost/ (:4)",
        "log: fetched (:2)",
        "log: message (:3)",
        "log: timer (:2)",
        "log: worker (worker.js:1)",
    ]


async def test_a_console_that_floods_is_cut(rig):
    rig.site.pages[HOME] = "<script>for (let n = 0; n < 1500; n++) console.log(n);</script>"
    async with rig.visit(Level.EXACT) as visit:
        await (await PageProbe.of(visit.page)).open(HOME)
        await settle(visit.page, visit.activity)
        console = state_of(visit.context).exact.console
        entries, further = console.take()
        assert ([entry.text for entry in entries], further) == ([str(n) for n in range(1000)], 500)
        assert console.take() == ([], 0)

"""Level EXACT: popups are pinned before they run, also if Playwright lets them run before our commands arrive."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import asyncio

import pytest

from stillweb.browser import Level, settle
from stillweb.browser.cdp.connection import CdpConnection
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LATE = 0.4  # real seconds that our commands to a popup take
SCRIPT = """L = (what) => { log.textContent += `${what} @${Date.now() % 100000}; `; }; L(Math.random());
    setTimeout(() => L('timer'), 100);"""
POPUP = f"<!doctype html><pre id=log></pre><script>{SCRIPT} fetch('/data').then(() => L('data'));</script>"
OPENERS = {
    "opener": "<button onclick=\"window.open('/pop')\">open</button>",
    "link": "<a href=/pop target=_blank>open</a>",
    "form": "<form action=/pop target=_blank><button>open</button></form>",
    "moved": "<button onclick=\"const w = window.open(); setTimeout(() => { w.location = '/pop'; }, 50);\">open</button>",
    "empty": f"""<button>open</button><script>document.querySelector('button').onclick = () => {{ const {{ document: d }} = window.open();
        d.write(`<pre id=log></pre><script>{SCRIPT.replace("`", "'").replace("${what} @${Date.now() % 100000}; ", "' + what + ' @' + Date.now() % 100000 + '; ")}<` + '/script>'); d.close(); }};</script>""",
}


@pytest.fixture
def late(monkeypatch):
    """Delay what is sent to popups; nothing else."""
    post = CdpConnection.post
    begun = {}

    def posted(connection, session, method, params):
        if not session.target.get("openerId") or session.target["type"] != "page":
            return post(connection, session, method, params)
        loop = asyncio.get_running_loop()
        left = begun.setdefault(session.id, loop.time() + LATE) - loop.time()
        if left <= 0:
            return post(connection, session, method, params)
        result = loop.create_future()

        def send():
            sent = post(connection, session, method, params)
            sent.add_done_callback(lambda _: result.done() or result.set_result(None))

        loop.call_later(left, send)
        return result

    monkeypatch.setattr(CdpConnection, "post", posted)


async def open_popup(rig):
    async with rig.visit(Level.EXACT) as visit:
        await visit.goto("http://localhost/")
        await visit.page.mouse.click(12, 12)
        await settle(visit.page, visit.activity)
        (popup,) = [page for page in visit.context.pages if page is not visit.page]
        await settle(popup, visit.activity)
        return await popup.evaluate("log.textContent"), tuple(state_of(visit.context).exact.flags)


@pytest.mark.parametrize("opener", OPENERS)
async def test_a_popup_that_is_reached_late_is_pinned(rig, request, opener):
    style = "<style>button, a { position: fixed; left: 0; top: 0; }</style>"
    rig.site.pages["http://localhost/"] = f"<!doctype html>{style}{OPENERS[opener]}"
    rig.site.pages["http://localhost/pop"] = POPUP
    rig.site.pages["http://localhost/data"] = ("text/plain", b"data")
    soon = await asyncio.gather(*(open_popup(rig) for _ in range(2)))
    request.getfixturevalue("late")
    came = soon + await asyncio.gather(*(open_popup(rig) for _ in range(2)))
    assert len(set(came)) == 1, came
    text, flags = came[0]
    assert flags == ()
    assert "timer @" in text
    assert text.split("@")[1].startswith("455")  # the clock of its opener


@pytest.mark.parametrize("opener", ["opener", "form"])
async def test_a_page_settles_with_its_popup(rig, opener):
    # A popup that requests something after its opener has settled would move the opener's clock.
    style = "<style>button { position: fixed; left: 0; top: 0; }</style>"
    work = (
        "crypto.subtle.digest('SHA-256', new Uint8Array(9)).then(() => fetch('/data')).then(() => L('late'));"
    )
    rig.site.pages["http://localhost/"] = f"<!doctype html>{style}{OPENERS[opener]}"
    rig.site.pages["http://localhost/pop"] = POPUP.replace("L(Math", f"{work} L(Math", 1)
    rig.site.pages["http://localhost/data"] = ("text/plain", b"data")

    async def virtual(visit):
        await visit.goto("http://localhost/")
        await visit.page.mouse.click(12, 12)
        settled = await settle(visit.page, visit.activity)
        (popup,) = [page for page in visit.context.pages if page is not visit.page]
        return settled.virtual_ms, "late" in await popup.evaluate("log.textContent")

    async with rig.visit(Level.EXACT) as visit:
        assert await virtual(visit) == (500, True)


async def test_several_popups_at_one_time_are_flagged(rig):
    """No request for the document of a page is held, so they run in any order.

    Those of some begin before their page can report them.
    """
    async with rig.visit(Level.EXACT) as visit:
        rig.site.pages["http://site.test/pop"] = "popup"
        rig.site.delays["http://site.test/pop"] = 1.0  # so that they overlap on a busy machine
        script = "button.onclick = () => { for (let n = 0; n < 8; n++) window.open(`/pop?${n}`); }"
        await visit.show(f"<button id=button>open</button><script>{script}</script>")
        await visit.page.evaluate("button.click()")
        await settle(visit.page, visit.activity)
        assert state_of(visit.context).exact.flags == ["documents of several pages came at one time"]

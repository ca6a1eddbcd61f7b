"""When a page counts as settled, and what is said when it does not."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from playwright.async_api import Error as PlaywrightError

from stillweb.browser import Activity, Level, Pinning, Profile, activity, open_context, page_text, settle
from stillweb.browser.activity import is_ours
from stillweb.errors import InfraError, UsageError

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CHAIN = """<p id=o>0</p><script>
  const next = async (n) => {
    o.textContent += " " + await (await fetch("/step?" + n)).text() + "@" + performance.now();
    if (n < 4) setTimeout(next, 200, n + 1);
  };
  setTimeout(next, 200, 1);
</script>"""

ENDLESS = {
    "frames": "<p id=o></p><script>(function f(t) { o.textContent = t; requestAnimationFrame(f); })()</script>",
    "polls": "<script>setInterval(() => fetch('/poll?' + performance.now()), 100)</script>",
}


@pytest.mark.parametrize("level", list(Level))
async def test_a_chain_of_timers_and_fetches_is_followed_to_its_end(rig, level):
    rig.site.pages["http://site.test/step"] = lambda url: ("text/plain", url[-1].encode())
    rig.site.delays["http://site.test/step"] = 0.05
    async with rig.visit(level) as visit:
        settled = await visit.show(CHAIN)
        assert settled.settled, settled.reason
        text = await page_text(visit.page)
    assert [step.split("@")[0] for step in text.split()] == ["0", "1", "2", "3", "4"]
    if level.keeps_clock:
        assert text == "0 1@200 2@400 3@600 4@800"
        assert settled.virtual_ms == 1300
    else:
        assert settled.virtual_ms == 0


@pytest.mark.parametrize("name", ENDLESS)
async def test_an_endless_page_is_given_the_same_time_in_every_run(rig, name):
    rig.site.pages["http://site.test/poll"] = ("text/plain", b"")

    async def run():
        async with rig.visit() as visit:
            settled = await visit.show(ENDLESS[name])
            return settled, await page_text(visit.page)

    settled, text = await run()
    assert not settled.settled
    assert settled.virtual_ms == 3000
    assert "still changing" in settled.reason
    again, text_again = await run()
    assert (again.virtual_ms, text_again) == (settled.virtual_ms, text)


async def test_an_endless_page_at_level_network_ends_at_the_cap(rig):
    async with rig.visit(Level.NETWORK) as visit:
        await visit.show("<p>quiet")
        rig.site.pages["http://site.test/endless"] = ENDLESS["frames"]
        await visit.page.goto("http://site.test/endless")
        settled = await settle(visit.page, visit.activity, cap=1.0)
        assert not settled.settled
        assert 0.9 < settled.waited < 5


async def test_a_request_without_answer_ends_at_the_cap_and_is_named(rig):
    rig.site.pages["http://site.test/never"] = ("text/plain", b"")
    rig.site.delays["http://site.test/never"] = 30
    async with rig.visit() as visit:
        await visit.show("<p>quiet")
        await visit.page.evaluate("void fetch('/never')")
        settled = await settle(visit.page, visit.activity, cap=0.5)
        assert not settled.settled
        assert "http://site.test/never" in settled.reason


async def test_a_navigation_begun_by_a_timer_is_followed(rig):
    rig.site.pages["http://site.test/second"] = "<p>second"
    rig.site.delays["http://site.test/second"] = 0.2
    async with rig.visit() as visit:
        settled = await visit.show("<p>first<script>setTimeout(() => { location = '/second' }, 300)</script>")
        assert settled.settled
        assert await page_text(visit.page) == "second"


async def test_what_scrolling_into_view_loads_is_waited_for(rig):
    rig.site.pages["http://site.test/more"] = ("text/plain", b"more")
    async with rig.visit() as visit:
        await visit.show("""<div style="height:3000px"></div><p id=end>end</p><script>
          new IntersectionObserver(async (entries) => {
            if (entries.some((e) => e.isIntersecting)) end.textContent = await (await fetch("/more")).text();
          }).observe(end);
        </script>""")
        assert await page_text(visit.page) == "end"
        await visit.page.mouse.wheel(0, 5000)
        await settle(visit.page, visit.activity)
        assert await page_text(visit.page) == "more"


async def test_changes_in_shadow_roots_count(rig):
    async with rig.visit() as visit:
        settled = await visit.show("""<div id=host></div><script>
          const root = host.attachShadow({ mode: "open" });
          for (const n of [400, 800, 1200]) setTimeout(() => { root.innerHTML = `<p>${n}</p>`; }, n);
        </script>""")
        assert settled.virtual_ms == 1700
        assert await page_text(visit.page) == "1200"


async def test_activity_reports_what_became_of_each_request(rig):
    rig.site.pages["http://site.test/ok"] = ("text/plain", b"ok")
    async with rig.visit() as visit:
        await visit.show(
            "<script>fetch('/ok'); fetch('/gone').then((r) => r.text()); new Image().src = 'data:image/gif,x';</script>"
        )
        requests = {r.url.removeprefix("http://site.test"): r for r in visit.activity.requests}
        assert {url: r.status for url, r in requests.items()} == {"/": 200, "/ok": 200, "/gone": 404}
        assert requests["/"].resource_type == "document"
        assert [(r.url, r.failure) for r in requests.values() if r.failure or not r.ended] == []
        visit.activity.clear()
        assert visit.activity.requests == []


async def test_the_http_cache_answers_the_second_time(rig):
    lasting = ("text/javascript\r\nCache-Control: max-age=86400", b"window.loaded = true")
    rig.site.pages["http://site.test/lasting.js"] = lasting
    async with rig.visit() as visit:
        await visit.show("<script src=/lasting.js></script>")
        await visit.goto()
        assert rig.site.requests.count("http://site.test/lasting.js") == 1
        assert [r.status for r in visit.activity.requests if r.url.endswith(".js")] == [200, 200]


async def test_an_event_stream_is_not_waited_for(rig):
    rig.site.pages["http://site.test/events"] = ("text/event-stream", b"data: x\n\n")
    rig.site.delays["http://site.test/events"] = 20
    async with rig.visit() as visit:
        settled = await visit.show("<script>new EventSource('/events')</script>")
        assert settled.settled


async def test_loopback_goes_through_the_proxy_and_names_are_not_resolved(rig):
    rig.site.pages["http://localhost/"] = "<p>by proxy"
    rig.site.pages["http://127.0.0.1/"] = "<p>by proxy too"
    async with rig.visit() as visit:
        await visit.goto("http://localhost/")
        assert await page_text(visit.page) == "by proxy"
        await visit.goto("http://127.0.0.1/")
        assert await page_text(visit.page) == "by proxy too"


async def test_the_browser_asks_for_nothing_but_what_the_page_asks_for(rig):
    async with rig.visit() as visit:
        await visit.show("""<link rel=preconnect href=http://other.test><link rel=dns-prefetch href=http://third.test>
          <form><input type=email name=email autocomplete=email><input type=password></form>
          <script type=speculationrules>{"prefetch":[{"source":"list","urls":["/later"]}]}</script>""")
        await visit.page.mouse.wheel(0, 100)
        await settle(visit.page, visit.activity)
        assert [url for url in rig.site.requests if "favicon" not in url] == ["http://site.test/"]


async def test_a_proxy_with_credentials_is_refused(rig):
    from loopback_site import START

    with pytest.raises(UsageError, match="HTTP cache"):
        await open_context(
            rig.browser,
            proxy="http://user:word@127.0.0.1:1",
            profile=Profile(),
            pinning=Pinning(Level.CLOCK, 1, START),
        )


async def test_a_closed_page_is_an_infra_error(rig):
    async with rig.visit() as visit:
        await visit.show("<p>x")
        await visit.page.close()
        with pytest.raises(InfraError):
            await settle(visit.page, visit.activity)


async def test_a_request_that_fails_by_no_fault_of_the_page_is_an_infra_error(rig):
    pinning = Pinning(Level.CLOCK, 1, datetime(2024, 1, 1, tzinfo=UTC))
    context = await open_context(rig.browser, proxy="http://127.0.0.1:1", profile=Profile(), pinning=pinning)
    activity = Activity(context)
    page = await context.new_page()
    with pytest.raises(PlaywrightError, match="ERR_PROXY_CONNECTION_FAILED"):
        await page.goto("http://site.test/")
    with pytest.raises(InfraError, match=r"http://site\.test/.*ERR_PROXY_CONNECTION_FAILED"):
        await settle(page, activity)
    await context.close()


async def test_a_foreign_context_is_refused(rig):
    context = await rig.browser.new_context()
    page = await context.new_page()
    with pytest.raises(UsageError, match="open_context"):
        await settle(page, Activity(context))
    await context.close()


async def test_eight_contexts_at_once_settle_alike(rig):
    rig.site.pages["http://site.test/step"] = lambda url: ("text/plain", url[-1].encode())
    rig.site.delays["http://site.test/step"] = 0.03

    async def run():
        async with rig.visit() as visit:
            settled = await visit.show(CHAIN)
            return settled.virtual_ms, settled.settled, await page_text(visit.page)

    assert len(set(await asyncio.gather(*(run() for _ in range(8))))) == 1


@pytest.mark.parametrize("level", [Level.LIVE, Level.NETWORK, Level.CLOCK])
async def test_the_script_of_a_shared_worker_is_waited_for_until_it_has_come(rig, level):
    script = b"onconnect = ({ ports: [port] }) => port.postMessage('hello');"
    rig.site.pages["http://localhost/s.js"] = ("text/javascript", script)
    rig.site.delays["http://localhost/s.js"] = 0.4
    rig.site.pages["http://localhost/bad.js"] = ("text/javascript", b"no script")
    rig.site.pages["http://localhost/"] = """<p id=o></p><script>
      for (const path of ['s', 'bad', 'missing']) {
        const worker = new SharedWorker(`/${path}.js`);
        worker.onerror = () => { o.append(` no ${path}`); };
        worker.port.onmessage = ({ data }) => { o.append(` ${data}`); };
      }
    </script>"""
    async with rig.visit(level) as visit, rig.visit(level) as other:
        for settled in await asyncio.gather(visit.goto("http://localhost/"), other.goto("http://localhost/")):
            assert settled.settled, settled.reason
            assert settled.waited < 5
            assert settled.virtual_ms == (500 if level.keeps_clock else 0)
        for each in (visit, other):
            assert sorted((await page_text(each.page)).split()) == ["bad", "hello", "missing", "no", "no"]
            assert not each.activity.in_flight


@pytest.mark.parametrize("level", [Level.CLOCK, Level.EXACT])
async def test_what_is_in_flight_is_named_oldest_first_with_who_requested(rig, level):
    rig.site.pages["http://localhost/"] = (
        "<script>fetch('/slow'); fetch('/slow'); new Worker('/w.js');</script><iframe src=/in></iframe>"
    )
    rig.site.pages["http://localhost/in"] = "<script>setTimeout(() => fetch('/later'), 0)</script>"
    rig.site.pages["http://localhost/w.js"] = ("text/javascript", b"setTimeout(() => fetch('/worked'), 100)")
    ends = [
        rig.site.delays.setdefault(f"http://localhost/{path}", 9.0) for path in ("slow", "later", "worked")
    ]
    assert ends
    async with rig.visit(level) as visit:
        await visit.page.goto("http://localhost/", wait_until="commit")
        settled = await settle(visit.page, visit.activity, cap=2.0 if level is Level.CLOCK else 0.3)
    assert not settled.settled
    head, *requests = settled.reason.split(": ", 1)[0], *settled.reason.split(": ", 1)[1].split("; ")
    number = len(requests) + 1  # the first one is named once
    assert head == f"{number} requests in flight after {'2' if level is Level.CLOCK else '1.8'} s"
    assert requests[0] == "GET http://localhost/slow (fetch by frame http://localhost/) (2 times)"


@pytest.mark.parametrize("level", [Level.NETWORK, Level.CLOCK])
async def test_long_polls_do_not_keep_a_page_from_settling(rig, level, monkeypatch):
    """Each step took 10 s, and the page's clock did not move."""
    monkeypatch.setattr(activity, "_POLLS", 20)
    html = """<p id=p>0</p><script>const poll = () => { const x = new XMLHttpRequest(); x.onload = poll;
      x.open("GET", `/poll?${Math.random()}`); x.send(); }; poll(); setTimeout(() => p.append("ticked"), 300);</script>"""
    async with rig.visit(level) as visit:
        rig.site.pages["http://site.test/poll"] = "{}"
        settled = await visit.show(html)
        assert settled.settled, settled.reason
        assert await visit.page.evaluate("p.textContent") == "0ticked"


@pytest.mark.parametrize(
    ("failure", "url", "ours"),
    [
        ("net::ERR_TUNNEL_CONNECTION_FAILED", "https://site.test/", True),  # the proxy's refusal
        ("net::ERR_TUNNEL_CONNECTION_FAILED", "https://-a_b-.test/", False),  # no certificate for such a name
        ("net::ERR_CERT_AUTHORITY_INVALID", "https://site.test/", True),
        ("net::ERR_ABORTED", "http://site.test/", False),
        ("Cannot navigate to invalid URL", "nonsense", False),
    ],
)
async def test_failures_of_browser_and_proxy_are_no_fault_of_the_page(failure, url, ours):
    assert is_ours(failure, url) is ours

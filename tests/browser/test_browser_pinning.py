"""A page reads the same values in two contexts of equal pinning, with the exceptions stated here."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import asyncio
import json
from itertools import islice

import pytest
from loopback_site import START

from stillweb.browser import Level, page_text, settle

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

DRAWS = """<p id=o></p><script>
  o.textContent = JSON.stringify([Math.random(), Math.random(), [...crypto.getRandomValues(new Uint8Array(8))],
    isSecureContext ? crypto.randomUUID() : "", Math.floor(Math.random() * 10)]);
</script>"""

TIMES = """<pre id=o></pre><script>
  const log = [];
  const say = (text) => { log.push(text); o.textContent = log.join("\\n"); };
  say(new Date().toISOString());
  say(String(Date.now()) + " " + performance.now() + " " + performance.timeOrigin);
  say(Date());
  say(new Intl.DateTimeFormat("en", { dateStyle: "full", timeStyle: "long" }).format());
  say(String(Temporal.Now.instant()) + " " + String(Temporal.Now.plainDateISO()));
  say([new Date() instanceof Date, new (class extends Date {})().getTime(), new Date(5).getTime(),
    Date.UTC(2000, 0), Date.length, Date.name, document.lastModified].join(" "));
  say(Math.round(new Event("x").timeStamp) + " " + document.timeline.currentTime);
</script>"""


async def text_of(rig, html, level=Level.CLOCK, seed=7):
    async with rig.visit(level, seed) as visit:
        settled = await visit.show(html)
        assert settled.settled
        return await page_text(visit.page)


# Identifiers that the browser draws without JavaScript; the entry before keeps its key in another document.
IDENTIFIERS = """<canvas id=c></canvas><p id=o></p><script>
  const stream = c.captureStream(), [track] = stream.getTracks();
  const said = [navigation.currentEntry.key, navigation.currentEntry.id, new MediaStream().id, stream.id, track.id];
  const first = said[0];
  history.pushState(1, "", "#two");
  said.push(navigation.currentEntry.key, navigation.currentEntry.id);
  said.push(new Set(said).size, stream.getTrackById(track.id) === track, CSS.supports("width", "random(1px, 9px)"));
  navigation.onnavigate = ({ destination }) => said.push(destination.key === first);
  navigation.traverseTo(first).finished.then(() => {
    o.textContent = JSON.stringify([...said, navigation.currentEntry.key === first]);
  });
</script>"""

# The page's clock is in 2024, the browser's is later.
COOKIES = """<p id=o></p><script>
  const day = 86400000, at = (ms) => new Date(Date.now() + ms).toUTCString();
  document.cookie = `kept=1; path=/; expires=${at(day)}`;
  document.cookie = "brief=1; Max-Age=1";
  document.cookie = `both=1; expires=${at(-day)}; max-age=60`;
  document.cookie = `gone=1; expires=${at(day)}`;
  document.cookie = `gone=; expires=${at(-day)}`;
  document.cookie = "left=1"; document.cookie = "left=1; max-age=0; expires=never";
  document.cookie = "odd=1; expires=never; max-age=x";
  const ticks = setInterval(() => {
    o.textContent += "|";
    if (o.textContent.length > 5) clearInterval(ticks), o.textContent = document.cookie;
  }, 250);
</script>"""


@pytest.mark.parametrize("level", [Level.NETWORK, Level.CLOCK])
async def test_equal_seeds_draw_equally_and_others_do_not(rig, level):
    first, second = await asyncio.gather(text_of(rig, DRAWS, level), text_of(rig, DRAWS, level))
    assert first == second
    assert await text_of(rig, DRAWS, level, seed=8) != first


async def test_identifiers_of_the_browser_are_seeded(rig):
    first, second = await asyncio.gather(text_of(rig, IDENTIFIERS), text_of(rig, IDENTIFIERS))
    assert first == second
    assert await text_of(rig, IDENTIFIERS, seed=8) != first
    *drawn, different, has_track, has_random, leads_there, is_there = json.loads(first)
    assert (len(drawn), different) == (7, 7)
    assert (has_track, has_random, leads_there, is_there) == (True, False, True, True)


async def test_cookies_of_scripts_last_by_the_clock_of_the_page(rig):
    assert await text_of(rig, COOKIES) == "kept=1; brief=1; both=1; odd=1"


def fnv1a(text):
    """FNV-1a of 128 bits (RFC 9923)."""
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in text.encode():
        value = (value ^ byte) * 0x0000000001000000000000000000013B % 2**128
    return value


def xoshiro128ss(state):
    """xoshiro128** (Blackman and Vigna, 2018)."""
    word = 2**32

    def rotated(value, by):
        return (value << by | value >> 32 - by) % word

    a, b, c, d = state
    while True:
        yield rotated(b * 5 % word, 7) * 9 % word
        shifted = (b << 9) % word
        c, d = c ^ a, d ^ b
        b, a = b ^ c, a ^ d
        c, d = c ^ shifted, rotated(d, 11)


async def test_the_reference_agrees_with_what_is_published():
    assert f"{fnv1a('foobar'):x}" == "343e1662793c64bf6f0d3597ba446f18"
    assert list(islice(xoshiro128ss((1, 2, 3, 4)), 4)) == [11520, 0, 5927040, 70819200]


async def test_draws_are_those_of_the_published_generator(rig):
    async with rig.visit(seed=7) as visit:
        await visit.show("<p>\u2190</p>")
        drawn = await visit.page.evaluate(
            "[Math.random(), Math.random(), ...crypto.getRandomValues(new Uint8Array(3))]"
        )
        start = int(START.timestamp() * 1000)

    def stream(name):
        value = fnv1a(f"7\n{name}\n\nhttp://site.test/\n{start}")
        return islice(xoshiro128ss([value >> bit & 0xFFFFFFFF for bit in (96, 64, 32, 0)]), 64, None)

    math, crypto = stream("math"), stream("crypto")
    expected = [((next(math) >> 5) * 2**26 + (next(math) >> 6)) / 2**53 for _ in range(2)]
    assert drawn == expected + [next(crypto) >> 24 for _ in range(3)]


async def test_live_draws_are_not_touched(rig):
    assert await text_of(rig, DRAWS, Level.LIVE) != await text_of(rig, DRAWS, Level.LIVE)


async def test_frames_draw_differently_from_each_other_but_equally_between_runs(rig):
    rig.site.pages["http://site.test/frame"] = "<script>document.write(Math.random())</script>"
    html = "<iframe src=/frame></iframe><iframe src=/frame></iframe>"
    first = await text_of(rig, html)
    left, right = first.split()
    assert left != right
    assert await text_of(rig, html) == first


async def test_a_reload_draws_anew_since_the_clock_has_moved(rig):
    async def draws():
        async with rig.visit() as visit:
            await visit.show(DRAWS)
            first = await page_text(visit.page)
            await visit.goto()
            return first, await page_text(visit.page)

    first, second = await draws()
    assert first != second
    assert (first, second) == await draws()


async def test_uuids_of_a_secure_page_are_seeded_and_well_formed(rig):
    async def uuid():
        async with rig.visit() as visit:
            await visit.page.goto("about:blank")
            rig.site.pages["http://localhost/"] = "<body>"
            await visit.page.goto("http://localhost/")
            return await visit.page.evaluate("crypto.randomUUID()")

    first = await uuid()
    assert first == await uuid()
    assert first[14] == "4"
    assert first[19] in "89ab"


async def test_the_clock_starts_where_it_is_pinned(rig):
    first = await text_of(rig, TIMES)
    assert first == await text_of(rig, TIMES)
    lines = first.splitlines()
    assert lines[0] == "2024-01-02T03:04:05.000Z"
    assert lines[1] == "1704164645000 0 1704164645000"
    assert lines[2] == "Tue Jan 02 2024 03:04:05 GMT+0000 (Coordinated Universal Time)"
    assert lines[3] == "Tuesday, January 2, 2024 at 3:04:05 AM UTC"
    assert lines[4] == "2024-01-02T03:04:05Z 2024-01-02"
    assert lines[5] == "true 1704164645000 5 946684800000 7 Date 01/02/2024 03:04:05"
    assert lines[6] == "0 0"


async def test_timers_run_in_order_of_time_and_then_of_making(rig):
    html = """<p id=o></p><script>
      const say = (text) => { o.textContent += text + " "; };
      setTimeout(say, 30, "c30"); setTimeout(say, 10, "a10"); setTimeout(() => say("b10"), 10);
      const every = setInterval(() => { say("i" + performance.now()); }, 20);
      setTimeout(() => { clearInterval(every); say("stop"); }, 70);
      requestAnimationFrame((t) => say("f" + t));
      const dropped = setTimeout(say, 15, "never"); clearTimeout(dropped);
      cancelAnimationFrame(requestAnimationFrame(() => say("never")));
      setTimeout(() => { Promise.resolve().then(() => say("micro")); say("task"); }, 40);
      requestIdleCallback((d) => say("idle" + Math.round(d.timeRemaining())));
      setTimeout("say('string')", 90);
    </script>"""
    text = await text_of(rig, html)
    assert text == "idle50 a10 b10 f16 i20 c30 task micro i40 i60 stop string"
    assert text == await text_of(rig, html)


async def test_busy_loops_on_a_paused_clock_end(rig):
    html = """<p id=o></p><script>
      const start = Date.now(); while (Date.now() - start < 50);
      const from = performance.now(); while (performance.now() < from + 50);
      requestIdleCallback((deadline) => { while (deadline.timeRemaining() > 0); o.textContent = "over"; });
    </script>"""
    assert await text_of(rig, html) == "over"


async def test_time_continues_over_navigations_and_into_frames(rig):
    rig.site.pages["http://site.test/frame"] = "<script>document.write(new Date().toISOString())</script>"
    async with rig.visit() as visit:
        first = await visit.show("<p>one")
        assert first.virtual_ms == 500
        await visit.show("""<p id=o></p><script>
          o.textContent = new Date().toISOString();
          setTimeout(() => document.body.append(
            Object.assign(document.createElement("iframe"), { src: "/frame" })), 100);
        </script>""")
        assert (await page_text(visit.page)).split() == [
            "2024-01-02T03:04:05.500Z",
            "2024-01-02T03:04:05.600Z",
        ]


async def test_the_page_finds_no_trace(rig):
    html = """<p id=o></p><script>
      const clean = Object.assign(document.createElement("iframe"));
      o.textContent = JSON.stringify([
        Object.getOwnPropertyNames(window).filter((n) => /^(still|eye$|pin$|clock|door)/i.test(n)),
        document.adoptedStyleSheets.length, document.styleSheets.length,
        [setTimeout, Date, Math.random, requestAnimationFrame].every((f) => /\\[native code\\]/.test(f)),
        setTimeout.name, setTimeout.length, navigator.webdriver === undefined,
      ]);
      document.adoptedStyleSheets = [new CSSStyleSheet()];
      document.adoptedStyleSheets.push(new CSSStyleSheet());
      o.textContent += document.adoptedStyleSheets.length;
    </script>"""
    assert (await text_of(rig, html)).startswith('[[],0,0,true,"setTimeout",1,')
    assert (await text_of(rig, html)).endswith("]2")


async def test_animations_and_transitions_end_at_once_and_say_so(rig):
    html = """<style>@keyframes k { from { opacity: 0 } } #a { animation: k 5s infinite } #b { transition: left 5s; position: relative; left: 0 }</style>
      <p id=a>a</p><p id=b>b</p><p id=o></p><script>
      a.addEventListener("animationend", () => o.append("animationend "));
      b.addEventListener("transitionend", () => o.append("transitionend " + getComputedStyle(b).left + " "));
      setTimeout(() => { b.style.left = "99px"; }, 100);
      b.animate([{ opacity: 0 }, { opacity: 1 }], 9000).finished.then(() => o.append("finished "));
    </script>"""
    text = await text_of(rig, html)
    assert sorted(text.split("\n")[-1].split()) == ["99px", "animationend", "finished", "transitionend"]


async def test_a_popup_keeps_its_window_for_the_next_document_and_is_styled_all_the_same(rig):
    rig.site.pages[
        "http://site.test/popup"
    ] = """<p id=a style="transition: left 9s; position: relative; left: 0">x</p>
      <script>document.adoptedStyleSheets = [new CSSStyleSheet()];
      const own = document.adoptedStyleSheets.length;
      setTimeout(() => { a.style.left = "9px"; }, 50);
      setTimeout(() => { document.body.append(own + " " + getComputedStyle(a).left); }, 300);</script>"""
    async with rig.visit() as visit:
        await visit.show("<script>open('/popup')</script>")
        popup = visit.context.pages[1]
        await settle(popup, visit.activity)
        assert (await page_text(popup)).split() == ["x", "1", "9px"]


async def test_a_popup_of_the_same_origin_has_its_openers_time(rig):
    rig.site.pages["http://site.test/popup"] = "<script>document.write(new Date().toISOString())</script>"
    async with rig.visit() as visit:
        await visit.show("<script>setTimeout(() => open('/popup'), 123)</script>")
        popup = visit.context.pages[1]
        await settle(popup, visit.activity)
        assert await page_text(popup) == "2024-01-02T03:04:05.123Z"

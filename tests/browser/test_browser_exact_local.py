"""Level EXACT: what no request shows comes in one order: blob: and data: URLs, animations, timers of several frames."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import asyncio
import json

import pytest

from stillweb.browser import Level, page_text, screenshot, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = "http://localhost/"
LOG = "<!doctype html><pre id=log></pre><script>var L = (what) => { log.textContent += `${what}\\n`; };</script>"
BUSY = "<script>for (let i = 0, at = 0; i < 2e7; i++) at += i;</script>"  # the parser yields after it
SVG = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"


async def shown(rig, body, *, other="", data=b"data", slowness=1):
    """Return the lines of a page's log, and the flags; the renderer's scripts take `slowness` times as long."""
    rig.site.pages[HOME] = LOG + body
    rig.site.pages[f"{HOME}other"] = other
    rig.site.pages[f"{HOME}data"] = ("text/javascript", data)
    async with rig.visit(Level.EXACT) as visit:
        probe = await PageProbe.of(visit.page)
        await probe.send("Emulation.setCPUThrottlingRate", rate=slowness)
        await probe.open(HOME)
        assert (await settle(visit.page, visit.activity)).settled
        return (await page_text(visit.page)).split("\n"), state_of(visit.context).exact.flags


async def test_requests_of_blob_and_data_urls_are_sent_at_rests(rig):
    body = f"""<script>
        const ask = (url, isAsync = true) => {{ const x = new XMLHttpRequest(); x.open('GET', url, isAsync); x.onload = () => L(`load ${{x.responseText.length}}`); x.send(); return x; }};
        const given = (size) => URL.createObjectURL(new Blob(['x'.repeat(size)])); ask(given(900000)); ask(given(9)); ask('data:,four'); ask(given(1), false);
        const x = ask(given(7)); x.onabort = () => L('abort'); x.abort();
        </script>{BUSY}<script>L('first')</script>{BUSY}<script>L('last')</script>"""
    lines, flags = await shown(rig, body)
    assert lines == ["load 1", "abort", "first", "last", "load 900000", "load 9", "load 4"]
    assert flags == []


async def test_images_and_styles_of_local_urls_come_at_rests_in_tree_order(rig):
    body = f"""<link rel=stylesheet href="data:text/css,p{{}}" onload="L('style')">{BUSY}<script>L('first')</script><img src="data:image/svg+xml,{SVG.replace("'", "%27")}" onload="L('one')">
        {BUSY}<script>L('second')</script><img id=two onload="L('two')" onerror="L('error')">{BUSY}<script>
        const link = Object.assign(document.createElement('link'), {{ rel: 'stylesheet', onload: () => L('blob style') }});
        link.href = URL.createObjectURL(new Blob(['p {{ color: red }}'.repeat(9e4)], {{ type: 'text/css' }}));
        two.src = URL.createObjectURL(new Blob(["{SVG}"], {{ type: 'image/svg+xml' }}));
        two.before(link);
        </script>{BUSY}<script>L('last')</script>"""
    lines, flags = await shown(rig, body)
    assert lines == ["first", "second", "last", "style", "one", "blob style", "two"]
    assert flags == []


async def test_an_image_of_a_blob_url_is_awaited_before_the_next_response(rig):
    body = f"""<script>addEventListener('load', () => {{
        const image = new Image(); image.onload = () => L('image');
        image.src = URL.createObjectURL(new Blob([`{SVG}<!--${{'x'.repeat(3e7)}}-->`], {{ type: 'image/svg+xml' }}));
        fetch('/data').then(() => L('data')); }})</script>"""
    lines, _ = await shown(rig, body)
    assert lines == ["image", "data"]


async def test_events_of_animations_come_in_tree_order(rig):
    body = """<style>@keyframes move { to { margin-left: 9px } } .on { animation: move 80ms } b { transition: opacity 80ms } .on b { opacity: .5 }</style>
        <p id=a><b></b></p><p id=b><b></b></p><p id=c><b></b></p><p id=d><b></b></p><div id=host></div><script>
        const root = host.attachShadow({ mode: 'open' }); root.innerHTML = '<style>@keyframes move { to { margin-left: 9px } } .on { animation: move 80ms }</style><p id=e></p>';
        for (const type of ['animationstart', 'animationend', 'transitionend']) for (const each of [...document.querySelectorAll('p'), ...root.querySelectorAll('p')]) {
          each.addEventListener(type, ({ type, isTrusted }) => L(`${type} ${each.id}`)); }
        addEventListener('load', () => { for (const each of [root.querySelector('p'), d, a, c, b]) { each.offsetWidth; each.className = 'on'; each.getAnimations(); } });
        </script>"""
    lines, flags = await shown(rig, body)
    for kind, order in {"animationstart": "abcde", "animationend": "abcde", "transitionend": "abcd"}.items():
        assert "".join(line[-1] for line in lines if line.startswith(kind)) == order
    assert flags == []


async def test_tasks_of_a_frames_timers_come_before_the_timers_of_the_next_frame(rig):
    body = """<iframe src=/other></iframe><script>addEventListener('load', () => setTimeout(() => {
        setTimeout(() => { L('timer'); scheduler.postTask(() => L('task'), { priority: 'background' }); }, 20);
        frames[0].setTimeout(L, 120, 'frame'); }, 99));</script>"""
    lines, _ = await shown(rig, body, other="<p>other")
    assert lines[:3] == ["timer", "task", "frame"]


async def test_scripts_are_requested_when_the_parser_reaches_them(rig):
    # A preload scanner is ahead by as much as the machine is slow; a script after a picture has another priority.
    rig.site.pages[HOME] = "<!doctype html><script src=/one.js></script><script src=/two.js></script>"
    rig.site.pages |= {f"{HOME}{name}.js": ("text/javascript", b"") for name in ("one", "two")}
    async with rig.visit(Level.EXACT) as visit:
        probe = await PageProbe.of(visit.page)
        seen = []
        probe.cdp.on("Network.requestWillBeSent", lambda event: seen.append(event["request"]["url"]))
        probe.cdp.on("Network.responseReceived", lambda event: seen.append(event["response"]["url"]))
        await probe.open(HOME)
        await settle(visit.page, visit.activity)
    assert seen[-4:] == [f"{HOME}one.js"] * 2 + [f"{HOME}two.js"] * 2


BESIDE = "a frame without a request ran scripts beside the parser of its page"


@pytest.mark.parametrize(
    ("frame", "flags"),
    [
        ("""<iframe srcdoc="<script>parent.L('in')</script>"></iframe>""", [BESIDE]),
        ("""<iframe src="javascript:parent.L('in')"></iframe>""", [BESIDE]),
        (
            """<iframe srcdoc="<script>document.body.append('in')</script>"></iframe><iframe src="javascript:''"></iframe>""",
            [],
        ),
        ("""<iframe sandbox srcdoc="<script>parent.L('in')</script>"></iframe>""", []),
        (
            """<script>onload = () => { document.body.append(Object.assign(document.createElement('iframe'), { srcdoc: "<script>parent.L('in')<" + '/script>' })); };</script>""",
            [],
        ),
    ],
)
async def test_frames_without_a_request_beside_the_parser_are_flagged(rig, frame, flags):
    _, found = await shown(rig, f"{frame}<p>after")
    assert found == flags


async def test_a_websocket_that_never_reaches_the_server_is_flagged(rig):
    rig.site.pages[HOME] = (
        LOG + "<script>new WebSocket('ws://other.test/').onclose = ({ code }) => L(code);</script>"
    )
    async with rig.visit(Level.EXACT) as visit:

        async def serve(_):
            return exact.connections.counts, None

        exact = state_of(visit.context).exact
        exact.connections.server = serve  # as replay, while the proxy here refuses the tunnel
        await (await PageProbe.of(visit.page)).open(HOME)
        await settle(visit.page, visit.activity)
        assert await page_text(visit.page) == "1006"
        assert exact.flags == ["a WebSocket failed before its handshake was answered"]


async def test_view_transitions_begin_at_the_same_instant_on_a_slow_machine(rig):
    body = """<p id=p>old</p><script>const move = (n) => { const made = document.startViewTransition(() => { p.textContent = n; L(`update ${n} ${performance.now()}`); });
        made.ready.then(() => L(`ready ${n} ${performance.now()}`)); made.finished.then(() => { L(`end ${n} ${performance.now()}`); if (n < 4) move(n + 1); }); };
        addEventListener('load', () => move(0));</script>"""
    came = await asyncio.gather(*(shown(rig, body, slowness=slowness) for slowness in (1, 12)))
    assert came[1:] == came[:1]
    assert came[0][1] == []
    assert sum(line.startswith("end") for line in came[0][0]) == 5


_TRANSITION = "<!doctype html><style>@view-transition { navigation: auto }</style><p id=p>%s</p><a href=%s>next</a><pre id=log></pre>"
_TRANSITION += "<script>addEventListener('pagereveal', ({ viewTransition }) => { log.textContent = !!viewTransition; });</script>%s"


async def test_documents_that_ask_for_a_view_transition_follow_each_other(rig):
    frame = "<iframe src=/frame></iframe>"
    rig.site.pages[HOME] = _TRANSITION % ("one", "/two", frame)
    rig.site.pages[f"{HOME}two"] = _TRANSITION % (
        "two",
        "/one",
        "<script>if (!history.state) { history.replaceState(1, ''); location = '/three'; }</script>",
    )
    rig.site.pages[f"{HOME}three"] = _TRANSITION % ("three", "/two", frame)
    rig.site.pages[f"{HOME}frame"] = _TRANSITION % ("frame", "/two", "")
    async with rig.visit(Level.EXACT) as visit:
        await visit.goto(HOME)

        async def after(act):
            await act
            settled = await asyncio.wait_for(settle(visit.page, visit.activity), 30)
            assert settled.settled
            await screenshot(visit.page)
            return await visit.page.evaluate("p.textContent + log.textContent")

        click = "document.querySelector('a').click()"
        assert await after(visit.page.evaluate(click)) == "threefalse"
        assert await after(visit.page.frames[1].evaluate(click)) == "threefalse"
        assert await after(visit.page.evaluate("location.reload()")) == "threefalse"
        assert await after(visit.page.evaluate("history.go(2 - history.length)")) == "onefalse"
        assert state_of(visit.context).exact.flags == []


async def test_documents_of_speculation_rules_are_flagged_and_not_listed(rig):
    rules = (
        '<script type=speculationrules>{"prefetch": [{"urls": ["/two"], "eagerness": "immediate"}]}</script>'
    )
    requested = asyncio.Event()
    rig.site.pages[f"{HOME}two"] = lambda _: requested.set() or ("text/html", b"two")
    async with rig.visit(Level.EXACT) as visit:
        rig.site.pages[HOME] = f"<!doctype html>{rules}<link rel=prefetch href=/three>one"
        await visit.goto(HOME)
        await asyncio.wait_for(requested.wait(), 30)
        assert sorted(request.url for request in visit.activity.requests) == [HOME, f"{HOME}three"]
        assert state_of(visit.context).exact.flags == [
            "a document was prefetched by speculation rules, which nothing holds"
        ]
        assert await visit.page.evaluate("typeof fetchLater") == "undefined"


async def test_what_arrives_beside_the_parser_comes_after_the_calls_of_the_page(rig):
    body = f"""<link rel=stylesheet href="data:text/css,p{{}}" onload="L('style')">{BUSY}{BUSY}<script>
        const x = new XMLHttpRequest(); x.open('GET', 'data:,text'); x.onload = () => L('request'); x.send();</script>"""
    lines, flags = await shown(rig, body)
    assert lines == ["request", "style"]
    assert flags == []


async def test_responses_of_texts_are_read_at_rests_while_a_page_loads(rig):
    body = f"""<script>new Response('text').text().then(L); new Response(new Uint8Array(4)).arrayBuffer().then((b) => L(b.byteLength));</script>
        {BUSY}{BUSY}<script>L('last'); addEventListener('load', () => setTimeout(() => new Response('{{"n": 1}}').json().then(({{ n }}) => L(n)), 10));</script>"""
    lines, flags = await shown(rig, body)
    assert lines == ["last", "text", "4", "1"]
    assert flags == []


async def test_messages_without_end_take_time_of_the_page(rig):
    body = """<p id=p></p><script>const counts = {}; const step = (name) => { counts[name] = (counts[name] ?? 0) + 1; p.textContent = JSON.stringify(counts); };
        addEventListener('load', () => setTimeout(() => {
          onmessage = () => { step('window'); postMessage(0); }; postMessage(0);
          const { port1, port2 } = new MessageChannel(); port1.onmessage = () => { step('port'); port2.postMessage(0); }; port2.postMessage(0);
          const [a, b] = [new BroadcastChannel('c'), new BroadcastChannel('c')]; a.onmessage = () => { step('channel'); b.postMessage(0); }; b.postMessage(0);
          const task = () => { step('task'); scheduler.postTask(task); }; task();
          setTimeout(async () => { for (;;) { step('yield'); await scheduler.yield(); } }, 60);
          const w = new Worker(URL.createObjectURL(new Blob(['onmessage = () => postMessage(0)']))); w.onmessage = () => { step('worker'); w.postMessage(0); }; w.postMessage(0);
        }));</script>"""
    rig.site.pages[HOME] = body
    async with rig.visit(Level.EXACT) as visit:
        await visit.page.goto(HOME, wait_until="commit")
        settled = await settle(visit.page, visit.activity, horizon=600)
        assert settled.reason.startswith("still changing after")
        counts = json.loads(await page_text(visit.page))
        assert len(counts) == 6
        assert 500 < max(counts.values()) < 11_000
        assert state_of(visit.context).exact.flags == []


async def test_databases_open_one_after_the_other(rig):
    body = f"""<script>
        const fill = (name) => {{ const o = indexedDB.open(name, 1); o.onupgradeneeded = () => {{ L(`upgrade ${{name}}`); const s = o.result.createObjectStore('s'); for (let n = 0; n < 30; n++) s.add('x'.repeat(9e4), n); }};
          o.onsuccess = () => {{ let count = 0; o.result.transaction('s').objectStore('s').openCursor().onsuccess = ({{ target: {{ result }} }}) => {{ count += 1; result ? result.continue() : L(`${{name}} ${{count}}`); }}; L(`open ${{name}}`); }}; }};
        const drop = () => {{ indexedDB.deleteDatabase('none').onsuccess = ({{ oldVersion }}) => L(`dropped ${{oldVersion}}`); }};
        drop(); addEventListener('load', () => {{ L('load'); fill('a'); fill('b'); drop(); }});
        </script>{BUSY}<script>L('first')</script>{BUSY}<script>L('last')</script>"""
    lines, flags = await shown(rig, body)
    assert lines == [
        *("first", "last", "load", "dropped 0"),
        *("upgrade a", "upgrade b", "dropped 0", "open a", "a 31", "open b", "b 31"),
    ]
    assert flags == []


async def test_transactions_end_one_after_the_other(rig):
    body = """<script>
        const open = (name) => new Promise((done) => { const o = indexedDB.open(name, 1); o.onsuccess = () => done(o.result);
          o.onupgradeneeded = () => { for (const store of 'pq') { const s = o.result.createObjectStore(store); for (let n = 0; n < 4; n++) s.add('x'.repeat(20000), n); } }; });
        const write = (db, store) => { const t = db.transaction(store, 'readwrite'), s = t.objectStore(store), name = db.name + store; t.oncomplete = () => L(`${name} end`);
          for (const n of [0, 1]) s.get(n).onsuccess = ({ target }) => { L(`${name} get ${n} ${target.result.length}`); s.put('new', n).onsuccess = () => L(`${name} put ${n}`); }; return t; };
        addEventListener('load', async () => { const [a, b] = [await open('a'), await open('b')];
          write(a, 'p'); write(b, 'q'); write(a, 'q'); const t = b.transaction('p'); t.oncomplete = () => L('bp end'); t.objectStore('p').count().onsuccess = () => L('bp count'); t.commit(); });
        </script>"""
    lines, flags = await shown(rig, body)
    of = {name: [line for line in lines if line.startswith(name)] for name in ("ap", "bq", "aq")}
    assert lines == [*of["ap"], *of["bq"], *of["aq"], "bp count", "bp end"]
    for name, steps in of.items():
        assert steps == [
            *(f"{name} get {n} 20000" for n in (0, 1)),
            *(f"{name} put {n}" for n in (0, 1)),
            f"{name} end",
        ]
    assert flags == []


async def test_fullscreen_comes_at_the_instant_of_the_click(rig):
    body = """<button id=b>full</button><script>const named = ({ type }) => L(`${type} ${performance.now()}`); addEventListener('click', named);
        for (const type of ['fullscreenchange', 'fullscreenerror']) document.addEventListener(type, named);
        const ask = (wanted) => wanted.then(() => named({ type: 'done' }), (error) => named({ type: error.name })); document.body.requestFullscreen().catch(() => L('denied'));
        b.onclick = () => ask(document.fullscreenElement ? document.exitFullscreen() : b.requestFullscreen()); document.exitFullscreen().catch(() => L('none'));</script>"""
    rig.site.pages[HOME] = LOG + body
    async with rig.visit(Level.EXACT) as visit:
        await visit.goto(HOME)
        for _ in range(2):
            await visit.page.click("#b", force=True, no_wait_after=True)
            await settle(visit.page, visit.activity)
        lines = (await page_text(visit.page)).split("\n")[:-2]  # without the button
        times = [line.split()[1] for line in lines if line.startswith("click")]
        once = ("click", "fullscreenchange", "done")
        assert lines[-6:] == [f"{what} {time}" for time in times for what in once]
        assert sorted(line.split()[0] for line in lines[:-6]) == ["denied", "fullscreenerror", "none"]
        assert state_of(visit.context).exact.flags == []


async def test_what_a_cache_adds_is_written_before_the_next_answer(rig):
    body = """<script>addEventListener('load', async () => { const c = await caches.open('c'); await c.addAll(0).catch(({ name }) => L(`rejected ${name}`)); fetch('/next').then(() => L('next'));
        c.add('/missing').catch(({ name, message }) => L(`${name} ${message}`)); await c.addAll(['/data', new Request('/data?2')]); L(`added ${(await c.keys()).length}`); });</script>"""
    lines, flags = await shown(rig, body, data=bytes(9_000_000))
    assert lines == [
        "rejected TypeError",
        "added 2",
        "TypeError Failed to execute 'add' on 'Cache': Request failed",
        "next",
    ]
    assert flags == []


async def test_one_shared_worker_with_two_connections_begins(rig):
    body = """<script>for (const n of [1, 2]) { const w = new SharedWorker('/data', 'one'); w.port.onmessage = ({ data }) => L(`${n} ${data}`); w.port.postMessage(n); }</script>"""
    code = b"let count = 0; onconnect = ({ ports: [port] }) => { port.onmessage = ({ data }) => port.postMessage(`${data} ${++count}`); };"
    lines, flags = await shown(rig, body, data=code)
    if flags:  # on a busy machine the worker may run before the commands that pin it; the flag says so
        assert flags == ["shared_worker http://localhost/data ran before it could be pinned"]
        assert sorted(lines) in (["1 1 1", "2 2 2"], ["1 1 2", "2 2 1"])
    else:
        assert lines == ["1 1 1", "2 2 2"]


@pytest.mark.parametrize(
    ("element", "event"),
    [
        ("<img src='' onerror=L('end')>", "end"),
        ("<svg><image href='http://[no' onerror=L('end') /></svg>", "end"),
        ("<style onload=L('end')>p {}</style>", "end"),
        ("<script src='http://[no' onerror=L('end')></script>", "end"),
        ("<iframe src='http://[no' onload=L('end')></iframe>", "end"),
        ("<script>Object.assign(new Image(), { onerror: () => L('end'), src: '' })</script>", "end"),
    ],
)
async def test_sources_without_a_request_fail_at_rests_while_the_parser_runs(rig, element, event):
    body = f"{BUSY}<script>L('first')</script>{element}{BUSY}<script>L('second')</script>{BUSY}<script>L('last')</script>"
    lines, flags = await shown(rig, body)
    assert lines == ["first", "second", "last", event]
    assert flags == []


async def test_a_script_that_the_parser_waits_for_fails_before_the_next_one(rig):
    body = f"<script src=missing onerror=\"document.write('<script>L(1)</'+'script>')\"></script><script>L(2)</script>{BUSY}<script>L(3)</script>"
    lines, flags = await shown(rig, body)
    assert (lines, flags) == (["1", "2", "3"], [])


async def test_requests_that_cannot_be_sent_fail_at_rests_while_a_page_loads(rig):
    body = f"""<script>const ask = () => {{ const x = new XMLHttpRequest(); x.open('GET', 'file:///none');
        for (const type of ['readystatechange', 'error', 'loadend', 'abort']) x.addEventListener(type, () => L(`${{type}} ${{x.readyState}}`)); x.send(); return x; }};
        ask(); setTimeout(() => ask().abort());</script>{BUSY}<script>L('first')</script>{BUSY}<script>L('last')</script>"""
    lines, flags = await shown(rig, body)
    aborted = ["readystatechange 4", "abort 4", "loadend 4"]
    assert lines == ["first", "last", "readystatechange 4", "error 4", "loadend 4", *aborted]
    assert flags == []


async def test_observers_of_the_document_are_called_once_while_the_parser_runs(rig):
    body = f"""<script>
        const called = (found, by) => {{ by.disconnect(); L(`${{found.length > 3}} ${{by.takeRecords().length}}`); }}; new MutationObserver(called).observe(document, {{ childList: true, subtree: true }});
        const taken = new MutationObserver(() => L('taken')); taken.observe(document, {{ childList: true, subtree: true }});
        const left = new MutationObserver(() => L('left')); left.observe(document.body, {{ childList: true }});
        const apart = document.createElement('p'); new MutationObserver(() => L('apart')).observe(apart, {{ childList: true }}); apart.append('x');
        </script>{BUSY}<p>row</p>{BUSY}<script>L(taken.takeRecords().length > 1); left.disconnect();</script>{BUSY}<p>row</p>{BUSY}<script>taken.disconnect(); L('last')</script>"""
    lines, flags = await shown(rig, body)
    lines = [line for line in lines if line != "row" and line]
    assert lines == ["apart", "true", "last", "true 0"]
    assert flags == []


async def test_intersection_observers_are_called_in_the_order_of_their_creation(rig):
    body = "<p id=p>x</p><script>for (let i = 0; i < 20; i++) new IntersectionObserver((all) => L(`${i} ${all.length}`), { delay: 300 * (i % 2) }).observe(p)</script>"
    lines, flags = await shown(rig, body)
    assert [line for line in lines if line and line != "x"] == [f"{number} 1" for number in range(20)]
    assert flags == []


async def test_observers_of_reports_and_measures_get_one_call_at_a_rest(rig):
    body = f"""<script>new PerformanceObserver((list) => L(list.getEntries().map(({{ name }}) => name))).observe({{ entryTypes: ['mark'] }});
        new ReportingObserver((all) => L(all.length)).observe(); performance.mark('a'); document.createEvent('Event').initEvent; event;</script>{BUSY}
        <script>performance.mark('b'); const old = new XMLHttpRequest(); old.open('GET', '/data', false); old.send();</script>{BUSY}<script>L('last')</script>"""
    lines, flags = await shown(rig, body)
    assert lines[:2] == ["last", "a,b"]
    assert len(lines) <= 3, lines
    assert flags == []


async def test_entries_of_resources_come_before_later_marks(rig):
    body = f"""<script src=data></script><script>setTimeout(() => {{ performance.mark('late'); const next = new Image(); next.onerror = () => {{
        L(performance.getEntries().map(({{ name }}) => name.split('/').at(-1)).filter((name) => ['data', 'late', 'gone'].includes(name))); }}; next.src = '/gone'; }}, 1);</script>{BUSY}"""
    lines, flags = await shown(rig, body, data=b"0")
    assert lines == ["data,gone,late"]
    assert flags == []


async def test_a_beacon_reaches_the_server_before_the_next_one_is_sent(rig):
    events = []
    for name in ("one", "two"):
        rig.site.delays[f"{HOME}{name}"] = lambda name=name: events.append(f"{name} asked") or 0.1
        rig.site.pages[f"{HOME}{name}"] = lambda _, name=name: (
            events.append(f"{name} answered") or ("text/plain", b"")
        )
    _, flags = await shown(
        rig, "<script>navigator.sendBeacon('/one'); navigator.sendBeacon('/two');</script>"
    )
    assert events == ["one asked", "one answered", "two asked", "two answered"]
    assert flags == []


async def test_reports_of_a_policy_have_their_place_among_the_pictures(rig):
    """The page reports them as another kind, before or after they are paused."""
    rig.site.headers = "Content-Security-Policy: style-src 'none'; report-uri /report\r\n"
    try:
        _, flags = await shown(rig, "<link rel=stylesheet href=style.css><img src=picture>")
    finally:
        rig.site.headers = ""
    assert [url.removeprefix(HOME) for url in rig.site.requests[-3:]] == ["", "picture", "report"]
    assert flags == []

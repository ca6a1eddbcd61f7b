"""Level EXACT: the work of other threads and processes for a page, and their messages to it, come in one order."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import asyncio

import pytest

from repetitions import times
from stillweb.browser import Level, settle
from stillweb.browser.cdp.connection import CdpConnection
from stillweb.browser.exact import context as exact_context
from stillweb.browser.exact.context import ExactContext
from stillweb.browser.exact.frames import FrameDocuments
from stillweb.browser.observe.bids import Bids
from stillweb.browser.state import state_of
from stillweb.env.observations.observation import Observe, observe_kinds, take_observation
from stillweb.urls import BLOB_URL

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

# Loopback is a secure context, which crypto.subtle and others need.
HOME = "http://localhost/"
SESSIONS = times(3, 5)
LOG = "<pre id=log></pre><script>window.L = (what) => { log.textContent += `${what} @${Date.now() % 100000}\\n`; };"


async def come_to(rig, script, *, sessions=SESSIONS, **profile):
    """Show a page in several sessions simultaneously; return the one log and the flags of all.

    Raises:
        AssertionError: if their logs or flags differ.
    """
    rig.site.pages[HOME] = f"<!doctype html><meta charset=utf-8><body>{LOG}{script}</script>"

    async def one():
        async with rig.visit(Level.EXACT, **profile) as visit:
            await visit.goto(HOME)
            await settle(visit.page, visit.activity)
            exact = state_of(visit.context).exact
            return await visit.page.evaluate("log.textContent"), tuple(exact.flags)

    came = set(await asyncio.gather(*(one() for _ in range(sessions))))
    assert len(came) == 1, "\n--\n".join(text for text, _ in came)
    return came.pop()


async def test_what_other_threads_finish_comes_in_the_order_of_asking(rig):
    text, flags = await come_to(
        rig,
        """const s = crypto.subtle;
        for (let i = 0; i < 6; i++) s.digest(i % 2 ? 'SHA-256' : 'SHA-512', new Uint8Array(200000 * (6 - i))).then(() => L('digest ' + i));
        s.generateKey({ name: 'HMAC', hash: 'SHA-256' }, true, ['sign']).then((k) => s.exportKey('jwk', k)).then((k) => L('key ' + k.k));
        const c = new ImageData(600, 600);
        for (const w of [500, 5, 50]) createImageBitmap(c, { resizeWidth: w }).then((b) => L('bitmap ' + b.width));
        new Blob(['y'.repeat(300000)]).text().then((t) => L('blob ' + t.length));
        const open = indexedDB.open('d', 1);
        open.onupgradeneeded = () => open.result.createObjectStore('s', { autoIncrement: true });
        open.onsuccess = () => { for (const n of [1, 2, 3]) open.result.transaction('s', 'readwrite').objectStore('s').add(n).onsuccess = () => L('stored ' + n); };
        setTimeout(() => L('timer'), 1);""",
    )
    assert flags == ()
    names = [line.rsplit(" @", 1)[0] for line in text.splitlines()]
    assert [name for name in names if name.startswith("digest")] == [f"digest {i}" for i in range(6)]
    assert [name for name in names if name.startswith("bitmap")] == ["bitmap 500", "bitmap 5", "bitmap 50"]
    assert names[-1] == "timer", "what the page waits for comes before the clock moves"
    assert any(name.startswith("key ") for name in names)
    assert "stored 3" in names


async def test_key_pairs_are_flagged(rig):
    _, flags = await come_to(
        rig,
        "crypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, false, ['sign']).then(() => L('made'));",
        sessions=1,
    )
    assert flags == ("crypto.subtle made a key pair, which has no seed",)


async def test_modules_channels_and_storage_events_are_exact(rig):
    rig.site.pages["http://localhost/module.js"] = (
        "text/javascript",
        b"import { at } from './dep.js'; postMessage(`module ${at} ${Math.random()}`);",
    )
    rig.site.pages["http://localhost/dep.js"] = ("text/javascript", b"export const at = Date.now() % 100000;")
    rig.site.pages["http://localhost/talk.js"] = (
        "text/javascript",
        b"""const c = new BroadcastChannel('c'); const me = location.search;
        c.onmessage = ({ data }) => { if (data.length < 9) c.postMessage(data + me); }; c.postMessage(me);""",
    )
    rig.site.pages["http://localhost/frame"] = (
        "<script>addEventListener('storage', (e) => parent.postMessage(location.search + e.key, '*'));"
        "localStorage[location.search] = 1</script>"
    )
    text, flags = await come_to(
        rig,
        """const c = new BroadcastChannel('c'); c.onmessage = (e) => L('channel ' + e.data);
        for (const n of [1, 2]) new Worker('/talk.js?' + n);
        new Worker('/module.js', { type: 'module' }).onmessage = (e) => L(e.data);
        onmessage = (e) => L('stored ' + e.data);
        for (const n of [1, 2, 3]) document.body.append(Object.assign(document.createElement('iframe'), { src: '/frame?' + n }));
        setTimeout(() => { localStorage.last = 1; }, 90);""",
    )
    assert flags == ()
    assert "module 45000 0." in text
    assert text.count("last") == 3
    assert text.count("channel") > 4


async def test_client_hints_are_the_profiles(rig):
    script = """(async () => { const d = navigator.userAgentData;
        L(JSON.stringify([d.toJSON(), await d.getHighEntropyValues(['fullVersionList', 'model', 'platformVersion'])])); })();"""
    agent = "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Mobile Safari/537.36"
    phone, _ = await come_to(rig, script, sessions=1, user_agent=agent)
    assert '"platform":"Android"' in phone
    assert '"model":"Pixel 8"' in phone
    assert '"mobile":true' in phone
    plain, _ = await come_to(rig, script, sessions=1)
    assert "Headless" not in plain
    assert '"platform":"Linux"' in plain


async def test_what_the_machine_would_report_is_pinned(rig):
    text, _ = await come_to(
        rig,
        """const file = new File(['x'], 'x.txt', { type: 'text/plain' });
        L([file.name, file.type, file.lastModified, new File([], 'y', { lastModified: 5 }).lastModified, file instanceof File, file.constructor === File].join());
        try { new File([]); } catch (error) { L(error.name); }
        setTimeout(() => { const { confidence } = performance.getEntriesByType('navigation')[0];
          L(['confidence', confidence?.value, JSON.stringify(confidence)].join()); }, 100);
        for (let i = 0; i < 4; i++) { navigator.mediaDevices.enumerateDevices().then(() => L('devices ' + i)); crypto.subtle.digest('SHA-1', new Uint8Array(9)).then(() => L('digest ' + i)); }
        L(new Error('here').stack);
        setTimeout(() => { try { throw new Error('later'); } catch (error) { L(error.stack); } });""",
    )
    lines = text.splitlines()
    assert lines[0].startswith("x.txt,text/plain,")
    assert ",5,true,true @" in lines[0]
    assert lines[1].startswith("TypeError")
    assert any(line.startswith('confidence,high,{"value":"high",') for line in lines), text
    order = [line.rsplit(" @", 1)[0] for line in lines if line.startswith(("devices", "digest"))]
    assert order == [f"{what} {i}" for i in range(4) for what in ("devices", "digest")]


async def test_answers_about_models_come_in_order_and_real_waits_are_flagged(rig):
    text, flags = await come_to(
        rig,
        """for (const name of ['Summarizer', 'LanguageModel', 'LanguageDetector']) globalThis[name]?.availability().then((each) => L(name));
        const memory = new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true });
        Atomics.waitAsync(new Int32Array(memory.buffer), 0, 0);
        document.body.insertAdjacentHTML('beforeend', '<button autofocus interestfor=shown>b</button><p id=shown popover>shown');
        addEventListener('load', () => document.querySelector('button').focus());""",
    )
    models = [
        name for name in ("Summarizer", "LanguageModel", "LanguageDetector") if name in text
    ]  # of this build
    assert [line.partition(" @")[0] for line in text.splitlines()] == models
    assert flags == (
        "Atomics.waitAsync ends by the real clock, or when another thread notifies",
        "interestfor shows its target by the real clock",
    )


async def test_workers_that_ask_for_the_same_are_answered_in_the_order_of_their_beginning(rig):
    rig.site.pages["http://localhost/same"] = ("text/plain", b"same")
    rig.site.pages["http://localhost/asks.js"] = (
        "text/javascript",
        b"onmessage = () => fetch('/same').then((r) => r.text()).then(() => postMessage('has'));",
    )
    text, flags = await come_to(
        rig,
        """const all = [0, 1, 2, 3].map((n) => { const w = new Worker('/asks.js'); w.onmessage = () => L(`worker ${n}`); return w; });
        setTimeout(() => all.forEach((w) => w.postMessage(1)), 50);""",
        sessions=times(4, 8),
    )
    assert flags == ()
    assert [line.partition(" @")[0] for line in text.splitlines()] == [f"worker {n}" for n in range(4)]


async def test_addresses_of_blobs_are_numbered(rig):
    rig.site.pages[HOME] = (
        "<!doctype html><body><script>for (const text of 'ab') { const made = URL.createObjectURL(new Blob([text]));"
        "for (let i = 0; i < 2; i++) { const a = document.createElement('a'); a.href = a.textContent = document.title = made; document.body.append(a); } }"
        "</script><iframe sandbox=allow-scripts srcdoc=\"<script>document.write(URL.createObjectURL(new Blob(['c'])))</script>\"></iframe>"
    )
    async with rig.visit(Level.EXACT) as visit:
        await visit.goto(HOME)
        await settle(visit.page, visit.activity)
        kinds = observe_kinds([kind for kind in Observe if kind not in ("screenshot", "som")])
        seen = await take_observation([visit.page], visit.page, Bids(), kinds)
    assert seen.title == "blob:http://localhost/1"
    for kind in ("axtree", "dom", "compact", "markdown", "text", "html", "elements"):
        text = (seen.body(kind) or b"").decode()
        assert [f"blob:http://localhost/{n}" in text for n in (1, 2, 3)] == [True, True, False], kind
        assert "blob:null/3" in text or kind in ("html", "elements"), kind
        assert not BLOB_URL.search(text), kind


@pytest.mark.parametrize(
    "script",
    [
        "Array.prototype.toJSON = Object.prototype.toJSON = function () { return 'odd'; };",
        "JSON.stringify = JSON.parse = () => { throw new Error('odd'); };",
    ],
)
async def test_a_page_with_a_json_of_its_own_settles(rig, script):
    text, flags = await come_to(rig, script + "setTimeout(() => L('later'), 300);", sessions=1)
    assert (text.partition(" @")[0], flags) == ("later", ())


async def test_synchronous_requests_of_pages_and_workers_are_let_in_at_once(rig):
    code = {
        "a": "self.a = `a ${Date.now() % 100000}`;",
        "b": "importScripts('/c.js'); self.b = 'b' + c;",
        "c": "self.c = 'c';",
        "nested": "importScripts('/c.js'); postMessage(`nested ${c}`);",
        "worker": """importScripts('/a.js', '/b.js'); postMessage(`begins ${a} ${b}`);
            onmessage = ({ data }) => postMessage(`heard ${data}`);
            new Worker('/nested.js').onmessage = ({ data }) => postMessage(data);
            setTimeout(() => { importScripts('/c.js?later'); postMessage('later'); fetch('/data').then((r) => r.text()).then(postMessage);
              const x = new XMLHttpRequest(); x.open('GET', '/data', false); x.send(); postMessage(`synchronous ${x.responseText}`); }, 50);""",
    }
    for name, script in code.items():
        rig.site.pages[f"http://localhost/{name}.js"] = ("text/javascript", script.encode())
    rig.site.pages["http://localhost/data"] = ("text/plain", b"data")
    rig.site.pages["http://other.test/data"] = ("text/plain", b"of another origin")
    rig.site.pages["http://localhost/i.svg"] = ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    text, flags = await come_to(
        rig,
        """const image = new Image(); image.src = '/i.svg';
        const w = new Worker('/worker.js'); w.onmessage = (e) => L(e.data); w.postMessage(1);
        const get = (url) => { const x = new XMLHttpRequest(); x.open('GET', url, false); x.setRequestHeader('x-own', '1'); x.send(); L(x.responseText); };
        get('/data'); get('http://other.test/data');
        setTimeout(() => { get('/data'); w.postMessage(2); }, 60);
        new IntersectionObserver(() => get('/data')).observe(document.body);""",
    )
    assert flags == ()
    lines = [line.partition(" @")[0] for line in text.splitlines()]
    assert lines[:2] == ["data", "of another origin"]
    assert {"begins a 45000 bc", "nested c", "heard 2", "later", "synchronous data"} <= set(lines)


async def test_a_worker_that_starts_late_is_waited_for(rig, monkeypatch):
    post, LATE = CdpConnection.post, 1.5

    def late(connection, session, method, params):
        if session.target["type"] != "worker" or method != "Runtime.runIfWaitingForDebugger":
            return post(connection, session, method, params)
        loop = asyncio.get_running_loop()
        loop.call_later(LATE, post, connection, session, method, params)
        return loop.create_future()

    monkeypatch.setattr(CdpConnection, "post", late)
    text, flags = await come_to(
        rig,
        """const blob = URL.createObjectURL(new Blob(['postMessage("begins"); onmessage = (e) => postMessage(e.data)']));
        const w = new Worker(blob); w.onmessage = (e) => L(e.data); w.postMessage('heard'); setTimeout(() => L('timer'), 20);""",
        sessions=2,
    )
    assert flags == ()
    assert text.splitlines() == ["begins @45000", "heard @45000", "timer @45020"]


@pytest.mark.parametrize("script", ["no script", "import '/missing.js';", "", None])
@pytest.mark.parametrize("options", ["{}", "{ type: 'module' }"])
async def test_a_worker_that_never_begins_is_not_waited_for(rig, script, options):
    if script is not None:
        rig.site.pages["http://localhost/w.js"] = ("text/javascript", script.encode())
    rig.site.pages[HOME] = (
        f"<!doctype html>{LOG} new Worker('/w.js', {options}); new SharedWorker('/w.js', {options});</script>"
    )
    async with rig.visit(Level.EXACT) as visit:
        settled = await visit.goto(HOME)
        assert settled.settled, settled.reason
        assert settled.waited < 5
        assert state_of(visit.context).exact.flags in (
            [],
            ["shared_worker http://localhost/w.js ran before it could be pinned"],
        )


async def test_messages_to_and_from_a_shared_worker_come_in_their_turn(rig):
    rig.site.pages["http://localhost/s.js"] = (
        "text/javascript",
        b"""onconnect = ({ ports: [port] }) => { port.postMessage('hello'); port.onmessage = ({ data }) => port.postMessage(`heard ${data}`);
        setTimeout(() => port.postMessage('later'), 100); };""",
    )
    rig.site.pages[
        HOME
    ] = f"""<!doctype html><body>{LOG} const s = new SharedWorker('/s.js'); s.port.postMessage('early');
        s.port.onmessage = ({{ data }}) => {{ L(data); if (data === 'later') s.port.postMessage('late'); }};</script>"""

    async def one():
        async with rig.visit(Level.EXACT) as visit:
            await visit.goto(HOME)
            lines = tuple((await visit.page.evaluate("log.textContent")).splitlines())
            return lines, tuple(state_of(visit.context).exact.flags)

    came = [each for _ in range(times(2, 3)) for each in await asyncio.gather(*(one() for _ in range(4)))]
    exact = [lines for lines, flags in came if not flags]
    assert set(exact) == {("hello @45000", "heard early @45000", "later @45100", "heard late @45100")}


async def test_results_wait_for_the_end_of_a_document_that_arrives(rig):
    # Between two parts of it the page is idle: results would come before or after the rest was parsed.
    arrives = rig.site.withheld[HOME] = asyncio.Event()
    rig.site.pages[HOME] = (
        f"<!doctype html>{LOG} addEventListener('DOMContentLoaded', () => L('parsed'));"
        "crypto.subtle.digest('SHA-1', new Uint8Array(9)).then(() => L('digest'));</script>"
        + "<p>row</p>"
        * 99
    )
    rig.site.pages[f"{HOME}before"] = "before"
    async with rig.visit(Level.EXACT) as visit:
        await visit.goto(f"{HOME}before")
        asyncio.get_running_loop().call_later(1.5, arrives.set)
        await visit.goto(HOME)
        rig.site.withheld.clear()
        text = await visit.page.evaluate("log.textContent")
    assert text.split() == ["parsed", "@45500", "digest", "@45500"]


async def test_paints_are_not_reported(rig):
    # Other threads report them after a frame was shown: an observer would be called at any time after it.
    text, flags = await come_to(
        rig,
        """new PerformanceObserver((list) => { for (const { entryType } of list.getEntries()) L(entryType); }).observe({ entryTypes: ['paint', 'largest-contentful-paint', 'mark'] });
        performance.mark('one'); setTimeout(() => L(performance.getEntries().some(({ entryType }) => entryType === 'paint')), 100);""",
        sessions=2,
    )
    assert flags == ()
    assert [line.partition(" @")[0] for line in text.splitlines()] == ["mark", "false"]


async def test_no_object_is_collected_that_a_page_can_ask_about(rig):
    text, flags = await come_to(
        rig,
        """let held = { many: new Array(1e5).fill(0) }; const weak = new WeakRef(held);
        new FinalizationRegistry(() => L('collected')).register(held, 0); held = null;
        let n = 0; const look = setInterval(() => { for (let i = 0; i < 60; i++) new Array(1e5).fill(i); L(`there ${Boolean(weak.deref())}`); if (++n === 5) clearInterval(look); }, 100);
        try { new FinalizationRegistry(1); } catch (error) { L(error.name); } try { new WeakRef(1); } catch (error) { L(error.name); }
        L(weak instanceof WeakRef); L(performance.memory.usedJSHeapSize);""",
        sessions=3,
    )
    names = [line.rsplit(" @", 1)[0] for line in text.splitlines()]
    assert names == ["TypeError", "TypeError", "true", "10000000", *["there true"] * 5]
    assert flags == ()


async def test_files_of_the_page_are_written_before_the_next_answer(rig):
    rig.site.pages["http://localhost/data"] = "data"
    text, _ = await come_to(
        rig,
        """fetch('/data').then(() => L('data')); (async () => {
          const folder = await navigator.storage.getDirectory(), file = await folder.getFileHandle('a', { create: true });
          const to = await file.createWritable(); await to.write('abc'); await to.close();
          for await (const name of folder.keys()) L(name); L(await (await file.getFile()).text()); })();""",
    )
    assert [line.rsplit(" @", 1)[0] for line in text.splitlines()] == ["a", "abc", "data"]


async def test_a_worker_begins_after_what_its_page_has_sent(rig):
    text, _ = await come_to(
        rig,
        """const code = (n) => URL.createObjectURL(new Blob([`const c = new BroadcastChannel('q'); c.onmessage = ({ data }) => postMessage(data);
          navigator.locks.request('one', () => postMessage('has it')); postMessage('begins');`]));
        for (const n of [1, 2, 3]) new Worker(code(n)).onmessage = ({ data }) => L(`${n} ${data}`);
        const c = new BroadcastChannel('q'); let sent = 0; const say = () => { c.postMessage(`said ${sent}`); if (sent++ < 3) crypto.subtle.digest('SHA-256', new Uint8Array(99)).then(say); }; say();""",
    )
    names = [line.rsplit(" @", 1)[0] for line in text.splitlines()]
    assert [name for name in names if "begins" in name] == ["1 begins", "2 begins", "3 begins"]
    assert [name for name in names if "has it" in name] == ["1 has it", "2 has it", "3 has it"]
    assert not any("said" in name for name in names)


async def test_a_frame_without_a_request_begins_before_the_next_answer(rig):
    rig.site.pages["http://localhost/data"] = "data"
    text, flags = await come_to(
        rig,
        """addEventListener('load', () => { addEventListener('message', ({ data }) => L(data)); fetch('/data').then(() => L('data'));
          for (const n of [1, 2]) document.body.append(Object.assign(document.createElement('iframe'), { sandbox: 'allow-scripts', srcdoc: `<script>parent.postMessage('in ${n}', '*')<` + '/script>' })); });""",
    )
    assert [line.rsplit(" @", 1)[0] for line in text.splitlines()] == ["in 1", "in 2", "data"]
    assert flags == ()


async def test_a_frame_that_gets_its_document_too_late_is_flagged(rig, monkeypatch):
    monkeypatch.setattr(exact_context, "_ACCOUNT_SECONDS", 0.05)
    for name in ("_on_navigated", "_end"):
        native = getattr(FrameDocuments, name)
        late = lambda *args, native=native: asyncio.get_running_loop().call_later(0.8, native, *args)  # noqa: E731
        monkeypatch.setattr(FrameDocuments, name, late)
    rig.site.pages["http://localhost/data"] = "data"
    rig.site.delays["http://localhost/data"] = 2
    script = """addEventListener('load', () => { document.body.append(Object.assign(document.createElement('iframe'), { srcdoc: 'frame' }));
        fetch('/data').then((response) => response.text()).then(L); });"""
    _, flags = await come_to(rig, script, sessions=1)
    assert flags == ("the document of a frame came after it had been given up",)


@pytest.mark.parametrize(
    ("script", "flag"),
    [
        ("speechSynthesis.speak(new SpeechSynthesisUtterance('a'));", "speech runs on the real clock"),
        ("new PressureObserver(() => {}).observe('cpu');", "a PressureObserver reports the machine's load"),
        (
            "new IntersectionObserver(() => {}, { trackVisibility: true, delay: 200 });",
            "IntersectionObserver that tracks visibility waits by the real clock",
        ),
        ("new Audio('/none.wav');", "http://localhost/none.wav was loaded on other threads"),
        (
            "document.createElement('video').src = '/none.webm';",
            "http://localhost/none.webm was loaded on other threads",
        ),
        ("cookieStore.onchange = () => {};", "a page hears of changes of cookies at any time"),
        (
            "cookieStore.addEventListener('change', () => {});",
            "a page hears of changes of cookies at any time",
        ),
    ],
)
async def test_what_comes_at_any_time_is_flagged(rig, script, flag):
    _, flags = await come_to(rig, script, sessions=1)
    assert flags == (flag,)


async def test_the_list_of_voices_is_not_announced(rig):
    text, flags = await come_to(
        rig,
        "speechSynthesis.onvoiceschanged = () => L('voices'); L(speechSynthesis.getVoices().length);",
        sessions=2,
    )
    assert (text.splitlines()[0].split()[0], len(text.splitlines()), flags) == ("0", 1, ())


async def test_a_keepalive_request_of_a_page_that_is_left_holds_nothing_up(rig, monkeypatch):
    """The browser process may report its pause after the renderer has reported its end."""
    paused = ExactContext._on_paused

    def late(self, session, event, holder=None):
        delay = 0.5 if event["request"]["url"].endswith("/left") else 0.0
        asyncio.get_running_loop().call_later(delay, paused, self, session, event, holder)

    monkeypatch.setattr(ExactContext, "_on_paused", late)
    rig.site.pages[HOME] = (
        "<script>addEventListener('pagehide', () => fetch('/left', { keepalive: true, method: 'POST' }))</script>"
    )
    rig.site.pages[f"{HOME}left"] = "left"
    rig.site.pages[f"{HOME}next"] = "<p>next"
    async with rig.visit(Level.EXACT) as visit:
        await visit.goto(HOME)
        settled = [await visit.goto(f"{HOME}next")]
        await asyncio.sleep(0.6)  # the report comes between two rests
        settled.append(await settle(visit.page, visit.activity))
        assert all(each.settled and each.waited < 20 for each in settled), settled
        assert state_of(visit.context).exact.flags == []


async def test_events_of_a_document_that_loads_come_in_one_order(rig):
    """Its parser yields by the real clock: between two scripts come as many tasks as the machine is slow."""
    rows = "<p>row</p>" * 400
    text, flags = await come_to(
        rig,
        f"""new PerformanceObserver(() => L('measured')).observe({{ type: 'mark' }}); performance.mark('a'); addEventListener('unhandledrejection', ({{ reason }}) => L(reason)); Promise.reject('refused'); L('first');</script>
        <details id=d>x</details><dialog id=g>y</dialog><textarea id=t>abc</textarea>
        <script>for (const type of ['toggle', 'close', 'select']) addEventListener(type, ({{ type, target }}) => L(`${{type}} ${{target.id}}`), true);
        d.open = true; g.show(); g.close();</script>{rows}<script>t.setSelectionRange(1, 2); new CSSStyleSheet().replace('p {{}}').then(() => L('sheet')); L('second');</script>{rows}
        <script>crypto.subtle.digest('SHA-256', new Uint8Array(9)).then(() => L('digest')); L('third');""",
    )
    names = [line.rsplit(" @", 1)[0] for line in text.splitlines()]
    assert names[:3] == ["first", "second", "third"]
    assert names[3:] == [
        "toggle d",
        "toggle g",
        "refused",
        "sheet",
        "digest",
        "measured",
        "close g",
        "select t",
    ]
    assert flags == ()


async def test_results_wait_for_a_frame_that_gets_its_document(rig):
    text, flags = await come_to(
        rig,
        """addEventListener('load', () => { for (const n of [1, 2, 3]) {
          crypto.subtle.digest('SHA-256', new Uint8Array(9)).then(() => L(`digest ${n}`));
          document.body.append(Object.assign(document.createElement('iframe'), { srcdoc: `<script>parent.L('in ${n}')<` + '/script>' })); } });""",
    )
    names = [line.rsplit(" @", 1)[0] for line in text.splitlines()]
    assert names == ["in 1", "in 2", "in 3", "digest 1", "digest 2", "digest 3"]
    assert flags == ()


async def test_workers_begin_in_the_order_of_their_creation(rig):
    # A long script arrives later, and the browser reports a worker when its script has arrived.
    text, flags = await come_to(
        rig,
        """for (const [name, size] of [['long', 8e6], ['short', 0]]) {
          const code = new Blob([`/*${'x'.repeat(size)}*/ postMessage('${name} ' + Math.random())`]);
          new Worker(URL.createObjectURL(code)).onmessage = ({ data }) => L(data);
        }""",
        sessions=2,
    )
    assert flags == ()
    assert [line.split()[0] for line in text.splitlines()] == ["long", "short"]


async def test_steps_of_the_navigation_api_are_taken_at_rests(rig):
    text, flags = await come_to(
        rig,
        """addEventListener('hashchange', () => L(`hash ${location.hash}`)); addEventListener('popstate', () => L(`pop ${location.hash}`));
        addEventListener('load', () => setTimeout(async () => {
          const { key } = navigation.currentEntry;
          location.hash = 'a';
          history.pushState(1, '', '#b');
          await navigation.back().finished; L('back');
          await navigation.forward().committed; L('forward');
          const first = navigation.traverseTo(key); L('asked'); await first.finished; L('first');
          await navigation.back().finished.catch(({ name }) => L(name));
          await navigation.traverseTo('none').committed.catch(({ name }) => L(name));
          try { navigation.traverseTo(); } catch ({ name }) { L(name); }
        }, 10));""",
    )
    assert flags == ()
    names = [line.rsplit(" @", 1)[0] for line in text.splitlines()]
    for event in ("hash #a", "pop #a", "hash #b", "pop #b", "hash ", "pop "):
        assert event in names
    others = [name for name in names if not name.startswith(("hash", "pop"))]
    assert others == [
        *("back", "forward", "asked", "first", "InvalidStateError", "InvalidStateError", "TypeError")
    ]


_BESIDE_DOCUMENT = "import('data:text/javascript,L(1)');"
_TWO_AT_ONE_TIME = """addEventListener('load', () => setTimeout(() => {
  for (const n of [1, 2]) import(URL.createObjectURL(new Blob([`L(${n})`], { type: 'text/javascript' })));
}));"""


@pytest.mark.parametrize("script", [_BESIDE_DOCUMENT, _TWO_AT_ONE_TIME])
async def test_scripts_of_blobs_are_flagged_where_they_race(rig, script):
    _, flags = await come_to(rig, script, sessions=1)
    assert flags == ("a script of a blob: or data: URL came beside a loading document or another one",)


async def test_requests_that_a_page_stops_are_flagged(rig):
    rig.site.pages["http://localhost/data"] = ("text/plain", b"data")
    script = "for (const n of [1, 2]) fetch(`/data?${n}`).catch(({ name }) => L(name));"
    text, flags = await come_to(rig, f"addEventListener('load', () => {{ {script} stop(); }});", sessions=1)
    assert text.count("TypeError") == 2
    assert flags == ("window.stop() cancels requests in any order",)


_IMPORTERS = {
    "then": ("for (const n of 'abcdef') import('/x.js').then(({ x }) => L(n + x));", "x.js"),
    "all": ("for (const n of 'abcdef') Promise.all([import('/x.js')]).then(([{ x }]) => L(n + x));", "x.js"),
    "catch": ("for (const n of 'abcdef') import('/x.js').catch(() => {}).then(({ x }) => L(n + x));", "x.js"),
    "async": (
        "for (const n of 'abcdef') (async () => { const { x } = await (async () => import('/x.js'))(); L(n + x); })();",
        "x.js",
    ),
    "missing": ("for (const n of 'abcdef') import('/x.js').catch(({ name }) => L(n + name));", "y.js"),
    "worker": ("new Worker('/w.js').onmessage = ({ data }) => L(data);", "x.js"),
}


@pytest.mark.parametrize("name", _IMPORTERS)
async def test_several_importers_of_a_module_continue_in_their_order(rig, name):
    script, module = _IMPORTERS[name]
    rig.site.pages[f"{HOME}{module}"] = ("text/javascript", b"export const x = 1;")
    worker = b"for (const n of 'abcdef') import('/x.js').then(({ x }) => postMessage(n + x));"
    rig.site.pages[f"{HOME}w.js"] = ("text/javascript", worker)
    text, flags = await come_to(rig, script)
    assert flags == ()
    order = [line[0] for line in text.splitlines()]
    assert "".join(order) == "abcdef"


async def test_values_that_look_like_modules_go_through_a_promise(rig):
    text, flags = await come_to(
        rig,
        """(async () => {
          const looks = Object.create(null, { [Symbol.toStringTag]: { get() { L('read'); } } });
          L(await Promise.resolve(looks).then((value) => value === looks)); L(await Promise.resolve(1).then(null));
          L(await Promise.reject(new TypeError('none')).then(null, ({ message }) => message));
          await Promise.reject(2).then(() => {}).catch(L); await Promise.resolve().then(() => { throw 3; }).catch(L);
          L(Promise.prototype.then.length + Promise.prototype.then.name); class Own extends Promise {} L(Own.resolve(1).then() instanceof Own);
        })();""",
        sessions=1,
    )
    assert flags == ()
    assert [line.split(" @")[0] for line in text.splitlines()] == [
        *("true", "1", "none", "2", "3", "2then", "true")
    ]

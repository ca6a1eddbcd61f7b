"""Level EXACT on pages that replace the language's and the browser's own functions: the clock and the order stay."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import pytest

from stillweb.browser import Level, page_text, settle
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = "http://localhost/"

# Uses no method that a page replaces below, except through what it keeps here.
KEEP = """<pre id=log></pre><canvas id=area width=40 height=40></canvas><script>
const S = { timeout: setTimeout, clear: clearTimeout, every: setInterval, stop: clearInterval, frame: requestAnimationFrame, now: Date.now, random: Math.random,
  since: performance.now, fetch, text: Response.prototype.text, body: Blob.prototype.text, digest: crypto.subtle.digest, open: indexedDB.open, locks: navigator.locks.request,
  post: MessagePort.prototype.postMessage, to: Worker.prototype.postMessage, read: FileReader.prototype.readAsText, url: URL.createObjectURL, apply: Reflect.apply,
  Request: XMLHttpRequest, begin: XMLHttpRequest.prototype.open, send: XMLHttpRequest.prototype.send, Channel: MessageChannel, Worker, Blob, Reader: FileReader, image: Image,
  decode: Image.prototype.decode, listen: EventTarget.prototype.addEventListener, say: postMessage, blob: HTMLCanvasElement.prototype.toBlob, subtle: crypto.subtle, bytes: new Uint8Array(9000),
  locker: navigator.locks, stores: indexedDB, seconds: performance, page: log, canvas: area, socket: EventSource };
let lines = '';
const L = (what) => { lines += what + ' @' + (S.now() % 100000) + ' ' + S.since() + '\\n'; S.page.textContent = lines; };
S.listen('load', () => L('loaded')); S.listen('error', ({ message }) => L('error ' + message));
</script>"""
WORK = """<script>
S.timeout(() => { L('timer'); S.timeout(() => L('nested'), 30); }, 20); S.clear(S.timeout(() => L('never'), 25));
let ticks = 0; const ticker = S.every(() => { L('tick'); if (++ticks === 3) S.stop(ticker); }, 40);
S.frame((at) => { L('frame ' + at); S.frame((at) => L('frame ' + at)); }); L('random ' + S.random());
(async () => { L('fetched ' + await S.apply(S.text, await S.fetch('/data/1'), [])); })(); (async () => { L('fetched ' + await S.apply(S.text, await S.fetch('/data/2'), [])); })();
(async () => { L('digest ' + (await S.apply(S.digest, S.subtle, ['SHA-1', S.bytes])).byteLength); })(); (async () => { L('blob ' + await S.apply(S.body, new S.Blob(['words']), [])); })();
(async () => { await S.apply(S.locks, S.locker, ['one', async () => { L('lock'); }]); L('unlocked'); })();
const x = new S.Request(); S.apply(S.begin, x, ['GET', '/data/3']); x.onprogress = x.onload = ({ type }) => L(type + ' ' + x.responseText); S.apply(S.send, x, []);
const c = new S.Channel(); c.port1.onmessage = ({ data }) => L('port ' + data); S.apply(S.post, c.port2, ['a']); S.listen('message', ({ data }) => L('window ' + data)); S.say('b', '*');
const w = new S.Worker('/worker.js'); w.onmessage = ({ data }) => { L('worker ' + data); }; S.apply(S.to, w, ['c']);
const r = new S.Reader(); r.onload = () => L('read ' + r.result); S.apply(S.read, r, [new S.Blob(['file'])]); S.apply(S.blob, S.canvas, [(b) => L('canvas ' + b.type)]);
const i = new S.image(); i.src = '/i.svg'; (async () => { await S.apply(S.decode, i, []); L('decoded'); })();
const o = S.apply(S.open, S.stores, ['s', 1]); o.onupgradeneeded = () => L('upgrade'); o.onsuccess = () => L('open');
const e = new S.socket('/events'); e.onmessage = ({ data }) => { L('event ' + data); e.close(); };
S.canvas.animate([{ opacity: 0 }, { opacity: 1 }], 90).onfinish = () => L('finished');
</script>"""
WORKER = "onmessage = ({ data }) => { setTimeout(() => postMessage(`${data} ${Date.now() % 100000}`), 15); };"

# Makes each function of an object throw, once the parser has passed the work: `of(...)` for the names given.
BREAK = """<script>const broken = (owner, ...names) => { for (const name of names.length ? names : Reflect.ownKeys(owner)) {
  const own = Object.getOwnPropertyDescriptor(owner, name);
  if (name !== 'constructor' && own?.configurable && typeof own.value === 'function') Object.defineProperty(owner, name, { ...own, value() { throw new Error(`${String(name)} is replaced`); } }); } };
const gone = (...names) => { for (const name of names) globalThis[name] = undefined; };</script>"""

TAMPERS = {
    "dates": "Date = class { constructor() { throw 0; } static now() { return 5; } getTime() { return 5; } };",
    "dates' methods": "broken(Date); broken(Date.prototype);",
    "performance": "Performance.prototype.now = () => 1; performance.now = () => 2; broken(Performance.prototype);",
    "timers": "setTimeout = setInterval = clearTimeout = clearInterval = requestAnimationFrame = queueMicrotask = () => { throw 0; };",
    "timers that run immediately": "setTimeout = (call) => { call(); return 1; };",
    "functions": "broken(Function.prototype, 'call', 'apply', 'bind', 'toString');",
    "a function's call that counts": "const { call } = Function.prototype; Function.prototype.call = function () { return undefined; };",
    "a promise of a library": "const P = Promise; Promise = function (run) { const made = new P(run); made.own = true; return made; }; P.prototype.then = ((then) => function (...args) { queueMicrotask(() => {}); return Reflect.apply(then, this, args); })(P.prototype.then);",
    "json": "broken(JSON); Object.prototype.toJSON = () => 'x';",
    "messages": "broken(MessagePort.prototype); broken(Worker.prototype); broken(BroadcastChannel.prototype); gone('structuredClone', 'MessageChannel', 'BroadcastChannel', 'Worker');",
    "interfaces": "gone('Blob', 'Response', 'FileReader', 'DOMException', 'AbortController', 'ReadableStream', 'Uint8Array', 'IDBFactory', 'LockManager', 'WeakRef', 'navigator');",
    "styles and animations": "broken(Document.prototype, 'getAnimations', 'createElement'); broken(Animation.prototype, 'play', 'pause'); gone('CSSStyleSheet', 'getComputedStyle', 'CSSAnimation'); broken(CSSStyleSheet.prototype);",
}


async def log_of(rig, html):
    rig.site.pages[HOME] = "<!doctype html><meta charset=utf-8>" + html
    async with rig.visit(Level.EXACT) as visit:
        await visit.page.goto(HOME, wait_until="commit")
        settled = await settle(visit.page, visit.activity, cap=4)
        return (
            settled.settled,
            settled.virtual_ms,
            await page_text(visit.page),
            tuple(state_of(visit.context).exact.flags),
        )


def prepare(site):
    for n in (1, 2, 3):
        site.pages[f"{HOME}data/{n}"] = ("text/plain", f"answer {n}".encode())
    site.pages[f"{HOME}worker.js"] = ("text/javascript", WORKER.encode())
    site.pages[f"{HOME}events"] = ("text/event-stream", b"data: one\n\n")
    site.pages[f"{HOME}i.svg"] = (
        "image/svg+xml",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    )


@pytest.fixture(scope="module")
def untouched():
    """The log of the work on a page that replaces nothing, once it is known."""
    return {}


@pytest.mark.parametrize("name", TAMPERS)
@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_page_that_replaces_functions_changes_nothing(rig, untouched, name, place):
    prepare(rig.site)
    if not untouched:
        untouched["log"] = await log_of(rig, KEEP + BREAK + WORK)
        assert untouched["log"][0]
    tamper = f"<script>{{ {TAMPERS[name]} }}</script>"
    html = KEEP + BREAK + (tamper + WORK if place == "before" else WORK + tamper)
    assert await log_of(rig, html) == untouched["log"]

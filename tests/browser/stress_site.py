"""Generated pages that race with themselves: each starts many operations simultaneously, and logs when each happens."""

# ruff: noqa: E501  (pages read better whole)

from __future__ import annotations

import random

HOME = "http://localhost/"
CACHEABLE = "Cache-Control: max-age=3600\r\nLast-Modified: Tue, 02 Jan 2024 00:00:00 GMT\r\n"
SCRIPT = "text/javascript"
LOG = """<!doctype html><meta charset=utf-8><title>stress</title><style>body { margin: 0 } pre { font: 12px monospace }</style>
<body><pre id=log></pre><script>window.L = (what) => { log.textContent += `${what} @${Date.now() % 100000}\\n`; };
addEventListener('pageshow', ({ persisted }) => L(`shown ${persisted}`)); L(`visit ${sessionStorage.visits = Number(sessionStorage.visits ?? 0) + 1}`);
</script>"""

PAGES = {
    "racing": """<script>
        for (let n = 0; n < 8; n++) {
          fetch(`/data/${n}`).then((r) => r.json()).then(({ n }) => { L(`fetched ${n}`); return fetch(`/data/${n + 8}`); }).then((r) => r.text()).then(L);
          const x = new XMLHttpRequest(); x.open('GET', `/data/${n}?x`); x.onprogress = x.onload = (e) => L(`${e.type} ${n} ${e.loaded}`); x.send();
        }
        Promise.race([1, 2, 3].map((n) => fetch(`/data/${n}?race`))).then((r) => L(`first ${r.url.slice(-7)}`));
        const given = new AbortController(); fetch('/data/9', { signal: given.signal }).catch((e) => L(e.name)); setTimeout(() => given.abort(), 0);
        </script>""",
    "streams": """<script>
        const read = async (name, stream) => { const reader = stream.getReader(); let size = 0, parts = 0;
          for (let each; !(each = await reader.read()).done;) { size += each.value.length; parts++; } L(`${name} ${parts} ${size}`); };
        for (const n of [1, 2, 3]) fetch(`/large/${n}`).then((r) => { const [a, b] = r.body.tee(); read(`a${n}`, a); read(`b${n}`, b); });
        fetch('/large/4').then((r) => read('text', r.body.pipeThrough(new TextDecoderStream())));
        fetch('/large/5').then((r) => read('zipped', r.body.pipeThrough(new CompressionStream('gzip')).pipeThrough(new DecompressionStream('gzip'))));
        new Response(new Blob(['x'.repeat(99999)]).stream()).arrayBuffer().then((b) => L(`blob ${b.byteLength}`)); new Response(new Blob(['y'])).text().then((t) => L(`of a blob ${t}`));
        for (const url of [URL.createObjectURL(new Blob(['z'])), 'data:text/plain,data']) fetch(url).then((r) => { L('fetched'); return r.text(); }).then(L);
        const one = new Blob(['w'.repeat(70000)]).stream().getReader(); one.read().then(({ value }) => L(`piece ${value.length}`)); addEventListener('load', () => L('loaded'));
        </script>""",
    "workers": """<script>
        for (const name of ['classic', 'module', 'nested']) { const w = new Worker(`/w/${name}.js`, { type: name === 'module' ? 'module' : 'classic' });
          w.onmessage = ({ data }) => L(`${name}: ${data}`); w.postMessage('go'); setTimeout(() => w.postMessage('later'), 70); }
        const code = URL.createObjectURL(new Blob(["onmessage = ({ data }) => { data.port.onmessage = ({ data }) => postMessage(`port ${data}`); data.port.postMessage('ready'); }"]));
        const { port1, port2 } = new MessageChannel(); const b = new Worker(code); b.onmessage = ({ data }) => L(data); b.postMessage({ port: port2 }, [port2]);
        port1.onmessage = ({ data }) => { L(`from port ${data}`); };
        new Worker('/w/missing.js').onerror = () => L('missing');
        const c = new Worker('/w/classic.js'); c.onmessage = () => { c.terminate(); L('terminated'); };
        </script>""",
    "frames": """<iframe src=/f/1></iframe><iframe srcdoc="<p>still</p><script>document.body.append('script')</script>"></iframe><script>
        addEventListener('load', () => { document.body.append(Object.assign(document.createElement('iframe'), { srcdoc: "<script>parent.L('srcdoc'); fetch('/data/1').then(() => parent.L('srcdoc data'))<" + '/script>' })); });
        addEventListener('message', ({ data }) => L(`said ${data}`)); const empty = document.createElement('iframe'); document.body.append(empty);
        empty.contentDocument.write('<script>parent.L(`written`)<' + '/script>'); empty.contentDocument.close();
        setTimeout(() => { const late = document.createElement('iframe'); late.src = '/f/2'; late.onload = () => L('late'); document.body.append(late); setTimeout(() => late.remove(), 90); }, 40);
        const gone = document.createElement('iframe'); gone.src = '/f/3'; document.body.append(gone); gone.remove();
        const other = document.createElement('iframe'); other.src = 'http://other.test/f'; other.loading = 'lazy'; document.body.append(other);
        </script>""",
    "observers": """<div id=box style="width: 50px; height: 20px"></div><div id=many></div><script>
        const seen = new IntersectionObserver((all) => { for (const { target, isIntersecting: is } of all) if (is) { seen.unobserve(target); L(`seen ${target.id}`); fetch(`/data/${target.id}`).then(() => { target.style.height = '40px'; L(`grown ${target.id}`); }); } });
        for (let n = 0; n < 60; n++) { many.append(Object.assign(document.createElement('p'), { id: n, textContent: `row ${n}` })); seen.observe(many.lastChild); }
        for (let n = 0; n < 9; n++) many.append(Object.assign(new Image(), { loading: 'lazy', src: `/i.svg?${n}`, onload: () => L(`image ${n}`) }));
        new ResizeObserver(([{ contentRect: r }]) => { L(`size ${r.width}`); if (r.width < 90) box.style.width = `${r.width + 20}px`; }).observe(box);
        new MutationObserver((all) => { if (all.some((e) => e.attributeName === 'style') && !self.once) { self.once = 1; L('mutated'); } }).observe(box, { attributes: true });
        addEventListener('scroll', () => L(`scroll ${scrollY}`));
        </script>""",
    "animations": """<style>@keyframes slide { to { transform: translateX(200px) } } #a { animation: slide .4s 2 alternate } #b { transition: width .3s; width: 20px } div { height: 9px; background: teal }</style>
        <div id=a></div><div id=b></div><div id=c></div><script>
        for (const type of ['animationstart', 'animationiteration', 'animationend', 'transitionrun', 'transitionend']) document.addEventListener(type, ({ target }) => L(`${type} ${target.id}`));
        b.offsetWidth; b.style.width = '90px'; c.animate([{ opacity: 0 }, { opacity: 1 }], 250).finished.then(() => { L('finished'); fetch('/data/1').then(() => L('then')); });
        let n = 0; const step = (t) => { if (n++ < 5) { L(`frame ${Math.round(t)}`); requestAnimationFrame(step); } }; requestAnimationFrame(step); requestIdleCallback(() => L('idle'));
        </script>""",
    "components": """<my-card n=1><b>slotted</b></my-card><my-list></my-list><script type=module>
        import { make } from '/m/base.js'; make('my-card', (host) => import(`/m/card.js?${host.getAttribute('n')}`).then(({ render }) => render(host)));
        await import('/m/late.js'); L('defined'); customElements.whenDefined('my-item').then(() => L('item'));
        for (let n = 2; n < 5; n++) { const card = document.createElement('my-card'); card.setAttribute('n', n); document.body.append(card); }
        </script><script type=module src=/m/list.js></script><script async type=module src=/m/base.js></script>""",
    "modules": """<script>
        for (const n of 'dcba') import(`/m/route-${n}.js`).then(() => L(`have ${n}`)); setTimeout(() => { for (const n of 'ef') import(`/m/route-${n}.js`).then(() => L(`later ${n}`)); }, 30);
        </script><script type=module>import { at } from '/m/shared.js'; L(`inline ${at}`);</script><script type=module>import '/m/shared.js'; L('second');</script>""",
    "stores": """<script>
        addEventListener('load', () => setTimeout(() => {
        const open = indexedDB.open('store', 1); open.onupgradeneeded = () => { L('upgrade'); open.result.createObjectStore('s', { autoIncrement: true }); };
        open.onsuccess = () => { const t = open.result.transaction('s', 'readwrite'); for (const n of [1, 2]) t.objectStore('s').add(n).onsuccess = (e) => L(`added ${e.target.result}`);
          t.objectStore('s').getAll().onsuccess = (e) => L(`all ${e.target.result}`); t.oncomplete = () => { L('complete'); fetch('/data/1').then(() => L('data')); }; };
        localStorage.n = Number(localStorage.n ?? 0) + 1; L(`local ${localStorage.n}`); document.cookie = `c${localStorage.n}=1`; L(document.cookie);
        crypto.subtle.digest('SHA-256', new Uint8Array(99999)).then(() => L('digest'));
        const c = new BroadcastChannel('c'); c.onmessage = (e) => L(`channel ${e.data}`); new BroadcastChannel('c').postMessage(1);
        })); </script>""",
    "hints": """<link rel=preload as=script href=/m/plain.js?p><link rel=prefetch href=/data/1><link rel=modulepreload href=/m/base.js><link rel=preload as=fetch crossorigin href=/data/2><link rel=stylesheet href=/s.css>
        <script>L('inline')</script><script defer src=/m/plain.js?defer></script><script async src=/m/plain.js?async></script><script src=/m/plain.js?p></script><img src=/i.svg><img src=/i.svg srcset="/i.svg?2x 2x"><picture><source srcset=/i.svg?s><img src=/i.svg></picture>
        <script>fetch('/data/2').then(() => L('preloaded')); for (const n of [1, 2, 3]) { const i = new Image(); i.onload = () => { L(`image ${n}`); const again = new Image(); again.onload = () => L(`again ${n}`); again.src = i.src; }; i.src = `/i.svg?${n}`; }
        fetch('/data/3', { cache: 'force-cache' }).then(() => fetch('/data/3', { cache: 'no-store' })).then(() => L('modes')); setTimeout(() => fetch('/data/3', { cache: 'reload' }).then(() => L('reloaded')), 30);
        document.write('<script src=/m/plain.js?written><' + '/script>'); navigator.sendBeacon('/beacon', 'x');</script>""",
    "history": """<script>
        addEventListener('popstate', ({ state }) => L(`state ${state}`)); for (const n of [1, 2]) history.pushState(n, '', `?${n}`); setTimeout(() => history.back(), 30);
        addEventListener('pagehide', () => { localStorage.left = Date.now() % 100000; }); L(`left ${localStorage.left}`);
        const { port1, port2 } = new MessageChannel(); port1.onmessage = ({ data }) => { L(`turn ${data}`); if (data < 5) port2.postMessage(data + 1); }; port2.postMessage(0);
        scheduler.postTask(() => L('background'), { priority: 'background' }); scheduler.postTask(() => L('blocking'), { priority: 'user-blocking' }); queueMicrotask(() => L('micro'));
        setTimeout(() => L('timer'), 0); Promise.resolve().then(() => L('promise')); new Image().src = '/missing.png'; addEventListener('error', () => L('error'), true);
        </script><img src=/none.png><script src=/none.js></script>""",
    "loader": """<div id=app></div><script>
        const have = {}, wanting = [];
        const load = (n) => have[n] ??= new Promise((done) => { const s = document.createElement('script'); s.type = n % 3 ? '' : 'module'; s.src = `/part/${n}.js`; s.onload = () => { L(`part ${n}`); done(n); }; document.head.append(s); });
        const get = (n, after) => { const x = new XMLHttpRequest(); x.open(n % 2 ? 'POST' : 'GET', `/data/${n}?${after}`); x.responseType = 'json'; x.onloadend = () => { app.insertAdjacentHTML('beforeend', `<p id=r${n}>${x.response.n} after ${after}`); wanting.splice(0).forEach((go) => go()); }; x.send(`${n}`); };
        self.part = (n) => { L(`runs ${n}`); get(n, 'part'); if (n < 12) Promise.all([load(n + 6), load((n * 5) % 24)]).then(() => get(n + 24, 'both')); };
        for (let n = 0; n < 24; n += 4) load(n).then((n) => wanting.push(() => L(`then ${n}`)));
        new MutationObserver((all) => { if (app.childElementCount % 8 === 0) { L(`grown ${app.childElementCount}`); document.write?.name; } }).observe(app, { childList: true });
        addEventListener('load', () => { for (const n of [20, 21]) load(n); setTimeout(() => { for (const n of [1, 22, 23]) load(n); }, 20); });
        </script>""",
    "mirrors": """<script>const depth = location.hash.length, name = `at ${depth}`; top.L(`${name} begins`);
        const post = (what) => fetch(`/data/${depth}?${what}`, { method: 'POST', body: name }).then(() => top.L(`${name} ${what}`)); post('first');
        addEventListener('load', () => { post('load'); if (depth < 3) { const f = document.createElement('iframe'); f.src = `?${depth}#${'x'.repeat(depth + 1)}`; f.onload = () => top.L(`${name} has its frame`); document.body.append(f); } });
        if (depth === 2) setTimeout(() => location.replace('/f/3'), 60);
        addEventListener('message', ({ data, source }) => { L(`${name} hears ${data}`); if (data < 3) source.postMessage(data + 1, '*'); }); if (depth) parent.postMessage(depth, '*');
        </script><iframe src=/f/2 name=inner></iframe><script src=/m/plain.js?mirror></script>""",
    "nested": """<script>
        const outer = new Worker('/w/outer.js'); outer.onmessage = ({ data }) => L(data); fetch('/data/5').then(() => L('page has data'));
        for (const n of [1, 2]) { const same = new Worker('/w/same.js'); same.onmessage = ({ data }) => L(`same ${n} ${data}`); fetch(`/data/${n}`).then(() => same.postMessage(n)); }
        new Worker('/w/broken.js').onerror = ({ message }) => L(`broken ${message}`); addEventListener('error', ({ message }) => L(`window ${message}`));
        </script>"""
    + "<p>row</p>" * 300
    + "<script>L('parsed'); addEventListener('load', () => L('loaded'));</script>",
    "databases": """<script>
        for (const type of ['DOMContentLoaded', 'load']) addEventListener(type, () => L(type));
        for (const name of ['b', 'a']) { const open = indexedDB.open(name, 2); open.onupgradeneeded = ({ oldVersion }) => { L(`upgrade ${name} ${oldVersion}`); open.result.createObjectStore('s', { autoIncrement: true }).add('first').onsuccess = () => L(`filled ${name}`); };
          open.onsuccess = ({ target: { result: db } }) => { L(`open ${name} ${[...db.objectStoreNames]}`); const t = db.transaction('s', 'readwrite'); t.objectStore('s').add(1); t.objectStore('s').count().onsuccess = (e) => { L(`count ${name} ${e.target.result}`); fetch(`/data/7?${name}`).then(() => L(`data ${name}`)); }; }; }
        </script>"""
    + "<p>row</p>" * 300
    + "<script src=/m/plain.js?parsed></script><script>L('parsed')</script><img src=/i.svg>",
    "events": """<form action=/other><input name=q value=1><button>go</button></form><script>
        const s = new EventSource('/events'); s.onopen = () => L('open'); let count = 0; s.onmessage = ({ data, lastEventId }) => { L(`event ${data} ${lastEventId}`); fetch(`/data/${data}`).then(() => L(`for ${data}`)); if (++count === 4) { s.close(); L('closed'); } };
        const c = new BroadcastChannel('x'), d = new BroadcastChannel('x'); c.onmessage = ({ data }) => L(`channel ${data}`); d.postMessage('a'); fetch('/data/8').then(() => d.postMessage('b'));
        document.forms[0].addEventListener('submit', (e) => { e.preventDefault(); L('submit'); fetch('/data/9', { method: 'POST', body: new FormData(e.target) }).then(() => L('posted')); }); setTimeout(() => document.forms[0].requestSubmit(), 40);
        const r = new ReadableStream({ async pull(to) { const t = await (await fetch(`/data/${++this.n || (this.n = 10)}`)).text(); L(`pull ${this.n}`); to.enqueue(t); if (this.n > 12) to.close(); } }); new Response(r.pipeThrough(new TextEncoderStream())).text().then((t) => L(`stream ${t.length}`));
        navigator.serviceWorker?.register('/w/a.js').then(() => L('registered'), (e) => L(e.name)); caches.open('c').then((c) => c.add('/data/14')).then(() => L('cached'));
        </script>""",
    "callbacks": """<canvas id=c width=300 height=300></canvas><script>
        const P = (name, made) => Promise.resolve(made).then(() => L(`${name} given`), (e) => L(`${name} ${e.name}`)); const x = c.getContext('2d'); x.fillRect(5, 5, 90, 90);
        for (const n of [1, 2]) { c.toBlob((b) => { L(`blob ${b.size}`); fetch(`/data/${n}?blob`).then(() => L(`for blob ${n}`)); }); c.toBlob((b) => L(b.type), 'image/jpeg'); }
        for (const n of [1, 2]) navigator.locks.request('one', async () => { L(`lock ${n}`); await fetch(`/data/${n}?lock`); L(`unlock ${n}`); }); navigator.locks.request('one', { ifAvailable: true }, (lock) => L(`available ${Boolean(lock)}`));
        navigator.locks.query().then(({ held, pending }) => L(`locks ${held.length} ${pending.length}`)); const given = new AbortController(); navigator.locks.request('one', { signal: given.signal }, () => L('never')).catch((e) => L(e.name)); given.abort();
        P('battery', navigator.getBattery?.()); P('decoding', navigator.mediaCapabilities.decodingInfo({ type: 'file', audio: { contentType: 'audio/webm;codecs=opus' } })); P('gpu', navigator.gpu?.requestAdapter());
        P('keys', navigator.requestMediaKeySystemAccess('org.w3.clearkey', [{ initDataTypes: ['keyids'], audioCapabilities: [{ contentType: 'audio/webm;codecs=opus' }] }])); P('devices', navigator.usb?.getDevices()); P('workers', navigator.serviceWorker.getRegistrations());
        P('place', new Promise((y, n) => navigator.geolocation.getCurrentPosition(y, n))); P('access', document.hasStorageAccess()); P('capture', navigator.mediaDevices.getUserMedia({ audio: true })); P('quota', new Promise((y) => navigator.webkitTemporaryStorage.queryUsageAndQuota(y)));
        P('credential', PublicKeyCredential.isUserVerifyingPlatformAuthenticatorAvailable()); P('image', new ImageDecoder({ data: new Uint8Array(9), type: 'image/png' }).decode()); P('full', document.body.requestFullscreen()); P('pointer', document.body.requestPointerLock()); P('lock', screen.orientation.lock('portrait'));
        const r = new FileReader(); r.onload = r.onloadend = ({ type }) => L(`${type} ${r.result.length}`); r.readAsText(new Blob(['x'.repeat(99999)])); fetch('/data/5').then(() => L('data'));
        </script>""",
    "loading": """<script>
        const { port1, port2 } = new MessageChannel(); port1.onmessage = ({ data }) => { L(`turn ${data}`); if (data < 9) port2.postMessage(data + 1); }; port2.postMessage(0);
        addEventListener('message', ({ data, source, origin }) => { L(`message ${data} ${source === self} ${origin}`); if (data < 9) postMessage(data + 1, '*'); }); postMessage(0, '*');
        const step = (n) => { L(`task ${n}`); if (n < 9) scheduler.postTask(() => step(n + 1)); }; step(0); scheduler.postTask(() => L('background'), { priority: 'background' });
        (async () => { for (let n = 0; n < 9; n++) { await scheduler.yield(); L(`yielded ${n}`); } })(); for (const type of ['DOMContentLoaded', 'load']) addEventListener(type, () => L(type));
        new Promise((y) => { const r = new FileReader(); r.onloadstart = r.onload = r.onloadend = ({ type, loaded }) => { L(`${type} ${loaded}`); if (type === 'loadend') y(); }; r.readAsArrayBuffer(new Blob(['y'])); }).then(() => L('read'));
        </script>"""
    + "<p>row</p>" * 900
    + "<script>L(`parsed ${document.querySelectorAll('p').length}`)</script>"
    + "<p>row</p>" * 900,
    "travels": """<script>
        for (const type of ['popstate', 'hashchange']) addEventListener(type, () => L(`${type} ${location.hash} ${history.state}`)); if (!location.hash) setTimeout(() => { for (const n of [1, 2, 3]) history.pushState(n, '', `#${n}`); location.hash = 'x';
          setTimeout(() => { history.back(); L('back'); fetch('/data/1').then(() => L('data')); setTimeout(() => { history.go(-2); history.forward(); history.go(9); L('asked'); }, 40); }, 20); }, 5); else L('came');
        </script>""",
    "quick workers": """<script>
        const code = URL.createObjectURL(new Blob(["onmessage = async ({ data }) => { data.port.postMessage('port'); postMessage((await (await fetch(data.url)).text()).length); }; postMessage('begins');"]));
        for (const n of [1, 2, 3]) { fetch(`/data/${n}?p`).then(() => L(`page ${n}`)); const { port1, port2 } = new MessageChannel(), w = new Worker(code); w.onmessage = ({ data }) => L(`${n} ${data}`);
          w.postMessage({ port: port2, url: `${location.origin}/data/${n}?w` }, [port2]); port1.onmessage = ({ data }) => L(`${n} ${data}`); }
        </script>""",
}

_WORKERS = {
    "classic": "importScripts('/w/a.js', '/w/b.js'); postMessage(`begins ${a}${b} ${Math.random()}`); onmessage = async ({ data }) => { const t = await (await fetch('/data/1')).text(); postMessage(`${data} ${t}`); };",
    "a": "self.a = 'a';",
    "b": "importScripts('/w/a.js'); self.b = 'b' + a; const x = new XMLHttpRequest(); x.open('GET', '/data/2', false); x.send(); b += x.responseText.length;",
    "module": "import { c } from '/w/c.js'; postMessage(`module ${c}`); onmessage = ({ data }) => import(`/w/d.js?${data}`).then(({ d }) => postMessage(`${data} ${d}`)); setTimeout(() => postMessage('tick'), 25);",
    "c": "import { d } from '/w/d.js'; export const c = `c${d}`;",
    "d": "export const d = 'd' + performance.now();",
    "outer": "for (let n = 0; n < 3; n++) { const w = new Worker(`/w/same.js?${n % 2}`); w.onmessage = ({ data }) => postMessage(`inner ${n} ${data}`); fetch(`/data/${n}`).then((r) => r.text()).then((t) => { postMessage(`outer ${t}`); w.postMessage(n); }); }",
    "same": "postMessage(Math.random()); fetch('/data/6').then((r) => r.text()).then(() => postMessage('has')); onmessage = ({ data }) => postMessage(`heard ${data}`);",
    "broken": "no script",
    "nested": "const inner = new Worker('/w/classic.js'); inner.onmessage = ({ data }) => postMessage(`inner ${data}`); onmessage = ({ data }) => inner.postMessage(data);",
}
_MODULES = {
    **{
        f"route-{n}": f"import {{ at }} from './shared.js'; import './part-{'xy'[place % 2]}.js'; L(`route {n}`);"
        for place, n in enumerate("abcdef")
    },
    **{f"part-{n}": f"import './deep.js'; L('part {n}');" for n in "xy"},
    "shared": "import './deep.js'; L('shared'); export const at = performance.now();",
    "deep": "L('deep');",
    "base": "export const make = (name, start) => { customElements.get(name) ?? customElements.define(name, class extends HTMLElement { connectedCallback() { this.attachShadow({ mode: 'open' }).innerHTML = '<i><slot></slot></i>'; L(`connected ${name}`); start(this); } disconnectedCallback() { L(`gone ${name}`); } }); };",
    "card": "const data = await (await fetch('/data/4' + new URL(import.meta.url).search)).text(); export const render = (host) => { L(`card ${host.getAttribute('n')}`); host.shadowRoot.append(data); };",
    "list": "import { make } from './base.js'; make('my-item', () => {}); make('my-list', (host) => { for (let n = 0; n < 3; n++) host.append(document.createElement('my-item')); setTimeout(() => host.lastChild.remove(), 50); });",
    "late": "import { make } from './base.js'; make('my-late', () => {});",
    "plain": "L(`plain ${document.currentScript?.src.split('?')[1]}`); for (let i = 0, all = []; i < 9999; i++) all.push(i);",
}


def build(site, name: str) -> str:
    """Put a page and its subresources on a site; return the page's URL.

    The answers take their time, each another one, and another one at each visit.
    """
    draw = random.Random(name)
    site.headers = CACHEABLE
    page = f"{HOME}{name}"
    site.pages[page] = LOG + PAGES[name] + "<a href=/other style='display: block; height: 2000px'>on</a>"
    site.pages[f"{HOME}other"] = "<!doctype html><title>other</title><p>other"
    site.pages["http://other.test/f"] = (
        "<script>fetch('/none').then(() => top.postMessage('other', '*'))</script>"
    )
    for n in range(3):
        inner = "<iframe src=/f/3></iframe>" if n < 2 else ""
        site.pages[f"{HOME}f/{n + 1}"] = (
            f"<p>{n}<script>top.L('frame {n}'); fetch('/data/{n}').then(() => top.postMessage('{n}'))</script>{inner}"
        )
    for n in range(60):
        site.pages[f"{HOME}data/{n}"] = ("application/json", f'{{"n": {n}}}'.encode())
        if n < 20:
            site.delays[f"{HOME}data/{n}"] = lambda: draw.random() * 0.01
        if n < 24:
            site.pages[f"{HOME}part/{n}.js"] = (SCRIPT, f"/*{'x' * 9999 * (n % 4)}*/ part({n});".encode())
            site.delays[f"{HOME}part/{n}.js"] = lambda: draw.random() * 0.01
    events = "".join(f"id: {n}\ndata: {n}\n\n" for n in range(1, 5))
    site.pages[f"{HOME}events"] = ("text/event-stream", events.encode())
    for n in range(1, 6):
        site.pages[f"{HOME}large/{n}"] = ("text/plain", bytes([64 + n]) * (70_000 * n))
    for folder, scripts in (("w", _WORKERS), ("m", _MODULES)):
        for script, code in scripts.items():
            site.pages[f"{HOME}{folder}/{script}.js"] = (SCRIPT, code.encode())
            site.delays[f"{HOME}{folder}/{script}.js"] = lambda: draw.random() * 0.01
    site.pages[f"{HOME}s.css"] = ("text/css", b"pre { color: navy }")
    site.pages[f"{HOME}i.svg"] = (
        "image/svg+xml",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><rect width='9' height='9'/></svg>",
    )
    return page

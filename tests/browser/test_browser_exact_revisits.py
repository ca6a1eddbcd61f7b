"""Level EXACT: coming back to a page gives what its first visit gave, whatever caches a browser has."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter

import pytest

from stillweb.browser import Level, axtree, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CACHEABLE = "Cache-Control: max-age=3600\r\nLast-Modified: Tue, 02 Jan 2024 00:00:00 GMT\r\n"
SCRIPT = "text/javascript"
# A loader of modules with dependencies, as pages had it in 2014: a module runs once all of these have run.
LOADER = """<script>
const log = Object.assign(document.createElement('pre'), { id: 'log' });
addEventListener('DOMContentLoaded', () => document.body.append(log));
const L = (what) => { log.textContent += `${what} @${Date.now() % 100000}\\n`; };
const modules = {}, waiting = [];
const need = (name) => {
  if (modules[name]) return;
  modules[name] = 'loading';
  const script = document.createElement('script');
  document.head.append(Object.assign(script, { src: `/m/${name}.js`, onload: () => L(`loaded ${name}`) }));
};
const define = (name, needs, body) => {
  needs.forEach(need);
  waiting.push({ name, needs, body });
  for (let found; (found = waiting.find((each) => each.needs.every((other) => modules[other] === true))); ) {
    waiting.splice(waiting.indexOf(found), 1);
    found.body();
    modules[found.name] = true;
    L(`ran ${found.name}`);
  }
};
const xhr = (name) => {
  const request = new XMLHttpRequest();
  request.open('GET', `/x/${name}`);
  request.onload = () => {
    const list = document.createElement('ul');
    list.innerHTML = `<li>${request.responseText}<img src=/i.svg?${name}>`;
    document.body.append(list);
    L(`data ${name}`);
  };
  request.send();
};
need('main');
</script>"""
MODULES = {"main": [f"a{n}" for n in range(5)], "shared": []}
MODULES |= {f"a{n}": [f"b{n * 5 % 4}", f"b{n * 7 % 4}", "shared"] for n in range(5)}
MODULES |= {f"b{n}": ["shared"] for n in range(4)}


def build(site):
    site.headers = CACHEABLE
    for name, other in (("", "next"), ("next", "")):
        site.pages[f"http://site.test/{name}"] = (
            f"<!doctype html><title>{name}</title><link rel=stylesheet href=/s.css>{LOADER}"
            f"<h1>{name}</h1><a href=/{other}>on</a><iframe src=/frame></iframe>"
        )
    site.pages["http://site.test/frame"] = (
        "<script>const define = (name) => document.write(name);</script>"
        "<script src=/m/main.js></script><script type=module src=/e.js></script>"
    )
    site.pages["http://site.test/e.js"] = (SCRIPT, b"document.body.append('module');")
    site.pages["http://site.test/s.css"] = ("text/css", b"h1 { color: red }")
    image = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"
    site.pages["http://site.test/i.svg"] = ("image/svg+xml", image)
    for place, (name, needs) in enumerate(MODULES.items()):
        filler = f"/*{'x' * 30000 * (place % 3)}*/ for (let i = 0, all = []; i < 9999; i++) all.push(i);"
        code = f"{filler} define('{name}', {json.dumps(needs)}, () => xhr('{name}'));"
        site.pages[f"http://site.test/m/{name}.js"] = (SCRIPT, code.encode())
        site.pages[f"http://site.test/x/{name}"] = ("text/plain", name.encode())


async def walk(rig):
    """Visit, leave, come back, reload and revisit; return for each step what was seen and requested."""
    seen = []
    async with rig.visit(Level.EXACT) as visit:
        probe = await PageProbe.of(visit.page)

        async def travel(by):
            history = await probe.send("Page.getNavigationHistory")
            await probe.travel(history["entries"][history["currentIndex"] + by]["id"], 30.0)

        steps = [
            lambda: probe.open("http://site.test/"),
            lambda: probe.open("http://site.test/next"),
            lambda: travel(-1),
            lambda: travel(1),
            lambda: visit.page.reload(wait_until="commit"),
            lambda: probe.open("http://site.test/next"),
            lambda: probe.open("http://site.test/"),
        ]
        for step in steps:
            await step()
            settled = await settle(visit.page, visit.activity)
            tree = hashlib.sha256((await axtree(visit.page, visit.bids)).text.encode()).hexdigest()
            requests = tuple(request.url for request in visit.activity.requests)
            visit.activity.clear()
            seen.append((settled.settled, settled.virtual_ms, tree, requests))
        return tuple(seen), tuple(state_of(visit.context).exact.flags)


async def test_coming_back_to_a_page_of_many_scripts_is_exact(rig):
    build(rig.site)
    came = await asyncio.gather(*(walk(rig) for _ in range(2)))
    assert len(set(came)) == 1
    seen, flags = came[0]
    assert flags == ()
    assert all(settled for settled, *_ in seen)
    assert len({len(requests) for *_, requests in seen}) == 1
    # Nothing is answered by a cache, whose answers are not held and come when they are ready.
    counts = Counter(url.partition("/m/")[2] for url in rig.site.requests if "/m/" in url)
    assert {name: count for name, count in counts.items() if name != "main.js"} == dict.fromkeys(
        (f"{name}.js" for name in MODULES if name != "main"), len(came) * len(seen)
    )

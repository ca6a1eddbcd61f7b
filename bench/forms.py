"""Forms with CSRF tokens, submitted to the shared shop and wiki in two recordings, and learned from.

    python bench/forms.py

A visitor logs in to shop.test and puts a thing into the basket, logs in to wiki.test and previews an edit;
twice, through the recording proxy. Then the second recording's POSTs, with their tokens, are sent to a replay
of the first: before and after `learn`. Prints JSON: what was learned, and the ledger's counts. The shared
sites must be up. Nothing here is a gate.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import learn, merge, read_rules, write_rules
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.recording import begin
from stillweb.replay import ReplayClient, ReplayOptions, serve

SITES_CA = Path("~/.cache/stillweb-sites/ca.pem").expanduser()
RESOLVE = ("*.test=127.0.0.1:8443", "*.test:80=127.0.0.1:8480")
SHOP, WIKI = "https://shop.test", "https://wiki.test/doku.php"
HIDDEN = re.compile(r'type="hidden" name="([^"]+)" value="([^"]*)"')


def hidden(text: str) -> dict[str, str]:
    """Return the hidden fields of a page's forms."""
    return dict(HIDDEN.findall(text))


async def submit(client: httpx.AsyncClient) -> None:
    """Log in, fill the basket, preview an edit."""
    page = await client.get(f"{SHOP}/accounts/login/")
    secret = {"login-username": "shopper@shop.test", "login-password": "shopper-pass-1"}
    form = {**hidden(page.text), **secret, "login-redirect_url": "", "login_submit": "Log In"}
    (await client.post(str(page.url), data=form, headers={"referer": str(page.url)})).raise_for_status()
    page = await client.get(f"{SHOP}/catalogue/")
    action = re.search(r'action="(/basket/add/\d+/)"', page.text)
    assert action, "the shop shows nothing to buy"
    form = {"csrfmiddlewaretoken": hidden(page.text)["csrfmiddlewaretoken"], "quantity": "1"}
    added = await client.post(SHOP + action[1], data=form, headers={"referer": str(page.url)})
    added.raise_for_status()
    page = await client.get(WIKI, params={"id": "start", "do": "login"})
    await client.post(str(page.url), data={**hidden(page.text), "u": "demo", "p": "demo"})
    page = await client.get(WIKI, params={"id": "playground", "do": "edit"})
    form = {**hidden(page.text), "wikitext": "Hello", "summary": "", "do[preview]": "1"}
    (await client.post(str(page.url), data=form)).raise_for_status()


def through(proxy: str, ca: Path) -> httpx.AsyncClient:
    """Return a client of a proxy."""
    context = ssl.create_default_context(cafile=ca)
    return httpx.AsyncClient(proxy=proxy, verify=context, follow_redirects=True, timeout=60)


async def record(folder: Path, ca: CertAuthority, name: str) -> Collection:
    """Record the forms once."""
    collection = Collection.create(folder, name)
    begin(collection)
    options = RecordOptions(resolve=parse_all(RESOLVE), upstream_ca=SITES_CA)
    with CollectionWriter(collection) as writer:
        async with (
            recording_proxy(writer, ca, options) as recording,
            through(recording.url, folder / "certs" / "ca.pem") as client,
        ):
            await submit(client)
    return collection


async def post_again(folder: Path, ca: CertAuthority, one: Collection, two: Collection) -> dict[str, Any]:
    """Send the POSTs of one recording to a replay of the other; return how they were answered."""
    seal(one)
    options = ReplayOptions(port=0, session_ports=None)
    async with serve([one], ca, options) as server, ReplayClient(server.url) as client:
        session = await client.open_session(one.name)
        async with through(session.proxy, folder / "certs" / "ca.pem") as browser:
            browser.follow_redirects = False
            for request in (e.request for e in two.exchanges() if e.request.method == "POST"):
                headers = [h for h in request.headers if h[0].lower() not in ("content-length", "host")]
                await browser.post(request.url, headers=headers, content=request.raw_body)
        return dict((await client.ledger(session.id)).counts)


async def measure() -> dict[str, Any]:
    """Record twice, learn, and replay before and after."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ca = CertAuthority.init(folder / "certs")
        one, two = [await record(folder, ca, name) for name in ("one", "two")]
        before = await post_again(folder, ca, one, two)
        learned = learn(one, two)
        write_rules(one, merge(read_rules(one), learned))
        after = await post_again(folder, ca, one, two)
        return {"before": before, "after": after, "learned": asdict(learned)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()), indent=1))

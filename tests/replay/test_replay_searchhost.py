"""http://search.stillweb.internal/ of a replay server: off unless requested, escaped, always the same."""

from __future__ import annotations

import re
import ssl
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env import Env
from stillweb.model import Exchange, Request, Response, Tier
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve

HOST = "search.stillweb.internal"
PAGES = {
    "https://shop.example/lamp": "<title>Brass lamp</title><p>A lamp of brass, 40 EUR",
    "https://shop.example/desk": "<title>Desk <b></title><p>A desk &lt;script&gt; without a lamp",
    "https://maker.example/": "<title>Maker</title><p>Brass is made here",
}


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return CertAuthority.init(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    collection = Collection.create(tmp_path_factory.mktemp("searched"), "shop")
    with CollectionWriter(collection) as writer:
        for url, text in PAGES.items():
            response = Response(200, "OK", (("Content-Type", "text/html"),), text.encode())
            writer.write(Exchange(Request("GET", url), response, "20260101000000"))
    reindex(collection)
    ensure_sealed(collection)
    return collection


@asynccontextmanager
async def searching(collection, ca, *, search=True):
    options = ReplayOptions(port=0, session_ports=None, drain=1, search_host=search)
    trust = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with serve([collection], ca, options) as server, ReplayClient(server.url) as control:
        session = await control.open_session()
        async with httpx.AsyncClient(proxy=session.proxy, verify=trust, trust_env=False) as web:
            yield web, partial(control.ledger, session.id), server


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_pages_that_hold_all_words_are_found(collection, ca, scheme):
    async with searching(collection, ca) as (web, _, _):
        page = await web.get(f"{scheme}://{HOST}/search", params={"q": "brass"})
        assert set(re.findall(r'href="(https[^"]+)"', page.text)) == {
            "https://shop.example/lamp",
            "https://maker.example/",
        }
        assert (await web.get(re.findall(r'href="(https[^"]+)"', page.text)[0])).status_code == 200
        assert "No page holds" in (await web.get(f"{scheme}://{HOST}/?q=brass+desk")).text
        assert "No page holds" in (await web.get(f"{scheme}://{HOST}/?q=%2B%2B")).text
        assert "<form" in (await web.get(f"{scheme}://{HOST}/")).text
        assert (await web.get(f"{scheme}://{HOST}/other")).status_code == 404
        assert (await web.post(f"{scheme}://{HOST}/")).status_code == 404


async def test_text_of_pages_and_queries_stays_text(collection, ca):
    async with searching(collection, ca) as (web, _, _):
        page = (await web.get(f"http://{HOST}/", params={"q": 'lamp "><script>'})).text
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        found = (await web.get(f"http://{HOST}/", params={"q": "desk"})).text
        assert "<script" not in found
        assert "<b></" not in found


async def test_results_are_equal_in_a_hundred_runs_and_synthetic_on_the_ledger(collection, ca):
    async with searching(collection, ca) as (web, ledger, server):
        pages = {(await web.get(f"http://{HOST}/?q=lamp")).content for _ in range(100)}
        assert len(pages) == 1
        assert server.totals[Tier.SYNTHETIC.value] == 100
        entries = (await ledger()).entries
    assert {entry.tier for entry in entries} == {Tier.SYNTHETIC}
    async with searching(collection, ca) as (web, _, _):
        assert (await web.get(f"http://{HOST}/?q=lamp")).content in pages


async def test_it_is_off_unless_requested(collection, ca):
    async with searching(collection, ca, search=False) as (web, ledger, _):
        assert (await web.get(f"http://{HOST}/?q=lamp")).status_code == 404
        entries = (await ledger()).entries
    assert [entry.tier for entry in entries] == [Tier.MISS]


@pytest.mark.browser
async def test_an_agent_looks_up_a_second_site_at_level_exact(collection, ca):
    async with searching(collection, ca) as (_, __, server):
        digests = []
        for _ in range(2):
            async with Env(server.url, level="exact") as env:
                await env.reset(url="https://shop.example/lamp")
                seen, *_ = await env.step({"action": "goto", "url": f"http://{HOST}/"})
                bid = re.search(r"\[(\w+)\] searchbox", seen.axtree)[1]
                seen, *_ = await env.step({"action": "fill", "bid": bid, "value": "made", "enter": True})
                link = re.search(r"\[(\w+)\] link 'Maker'", seen.axtree)[1]
                seen, *_, info = await env.step({"action": "click", "bid": link})
                assert seen.url == "https://maker.example/"
                assert "Brass is made here" in seen.axtree
                assert info["traffic"]["misses"] == 0
                digests.append(dict(seen.digests))
        assert digests[0] == digests[1]

"""http://stillweb.internal/ of a replay server: the page, the certificate, and who may open them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx
import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Page, Request, Response, Tier
from stillweb.replay import ReplayClient, ReplayOptions, ReplayServer, ensure_sealed, serve

HOST = "http://stillweb.internal"
HOSTILE = '<img src=x onerror=alert(1)>"'


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    collection = Collection.create(tmp_path_factory.mktemp("about"), "shop")
    with CollectionWriter(collection) as writer:
        response = Response(200, "OK", (("Content-Type", "text/html"),), b"page")
        writer.write(Exchange(Request("GET", "https://shop.example/"), response, "20260101000000"))
    reindex(collection)
    collection.write_pages(
        [
            Page("https://shop.example/?a=1&b=%22", "20260101000000", title=HOSTILE),
            Page("javascript:alert(1)", "20260101000000", title="script"),
        ]
    )
    ensure_sealed(collection)
    return collection


@pytest.fixture
async def server(collection: Collection, ca: CertAuthority) -> AsyncIterator[ReplayServer]:
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None, drain=1)) as server:
        yield server


def client(proxy: str, ca: CertAuthority) -> httpx.AsyncClient:
    trust = ssl.create_default_context(cadata=ca.cert_pem.decode())
    return httpx.AsyncClient(proxy=proxy, verify=trust, trust_env=False)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_page_lists_what_is_served(server: ReplayServer, ca: CertAuthority, scheme: str) -> None:
    async with client(server.url, ca) as web:
        page = await web.get(f"{scheme}://stillweb.internal/")
    assert page.status_code == 200
    assert "<h2>shop</h2>" in page.text
    assert 'href="https://shop.example/?a=1&amp;b=%22"' in page.text
    assert ca.fingerprint in page.text


async def test_text_of_a_collection_stays_text(server: ReplayServer, ca: CertAuthority) -> None:
    async with client(server.url, ca) as web:
        page = await web.get(f"{HOST}/")
    assert "<img" not in page.text
    assert "&lt;img" in page.text
    assert 'href="javascript' not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


async def test_the_certificate_is_that_of_the_ca(server: ReplayServer, ca: CertAuthority) -> None:
    async with client(server.url, ca) as web:
        pem = await web.get(f"{HOST}/stillweb-ca.pem")
        der = await web.get(f"{HOST}/stillweb-ca.crt")
    assert pem.content == ca.cert_pem
    assert der.content == ssl.PEM_cert_to_DER_cert(ca.cert_pem.decode())
    assert pem.headers["content-type"] == "application/x-x509-ca-cert"


async def test_the_ledger_shows_the_page_as_synthetic(server: ReplayServer, ca: CertAuthority) -> None:
    async with client(server.url, ca) as web, ReplayClient(server.url) as control:
        await web.get(f"{HOST}/")
        ledger = await control.ledger()
    assert [entry.tier for entry in ledger.entries] == [Tier.SYNTHETIC]


async def test_other_paths_and_methods_have_nothing(server: ReplayServer, ca: CertAuthority) -> None:
    async with client(server.url, ca) as web:
        assert (await web.get(f"{HOST}/other")).status_code == 404
        assert (await web.post(f"{HOST}/")).status_code == 404


async def test_the_session_of_an_episode_cannot_open_it(server: ReplayServer, ca: CertAuthority) -> None:
    async with ReplayClient(server.url) as control:
        opened = await control.open_session()
        for proxy in (opened.proxy, server.url.replace("//", f"//{opened.id}:@")):
            async with client(proxy, ca) as web:
                assert (await web.get(f"{HOST}/")).status_code == 404
        ledger = await control.ledger(opened.id)
    assert [entry.tier for entry in ledger.entries] == [Tier.MISS, Tier.MISS]


@pytest.mark.parametrize("url", ["http://stillweb.internal.example/", "http://x.example/stillweb.internal"])
async def test_similar_urls_are_no_page_of_ours(server: ReplayServer, ca: CertAuthority, url: str) -> None:
    async with client(server.url, ca) as web:
        assert (await web.get(url)).status_code == 404

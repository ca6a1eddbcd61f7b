"""The recording proxy's own answers: the CA's page, sessions for an Env, and access control."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UsageError
from stillweb.model import header
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.control import is_authorized, parse_user
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.urls import is_loopback

# mitmproxy 11 and what its default addons import, not us.
PLAIN = "http://odd.test/plain"


@asynccontextmanager
async def running(
    collection: Collection, ca: CertAuthority, options: RecordOptions
) -> AsyncIterator[RecordingProxy]:
    with CollectionWriter(collection) as writer:
        async with recording_proxy(writer, ca, options) as recording:
            yield recording


async def test_the_page_hands_out_the_ca_and_is_not_recorded(odd, collection, ca) -> None:
    async with running(collection, ca, odd.options) as recording:
        async with httpx.AsyncClient(proxy=recording.url) as client:
            page = await client.get("http://stillweb.internal/")
            pem = await client.get("http://stillweb.internal/stillweb-ca.pem")
            der = await client.get("http://stillweb.internal/stillweb-ca.crt")
            missing = await client.get("http://stillweb.internal/other")
        async with httpx.AsyncClient() as client:
            direct = await client.get(recording.url)

    assert direct.text == page.text
    assert "<strong>odd</strong>" in page.text
    assert ca.fingerprint.replace(":", "") in page.text.replace(" ", "")
    assert (pem.content, pem.headers["content-type"]) == (ca.cert_pem, "application/x-x509-ca-cert")
    assert ssl.DER_cert_to_PEM_cert(der.content).split() == ca.cert_pem.decode().split()
    assert missing.status_code == 403
    assert list(collection.captures()) == []
    assert recording.account.total == 0


async def test_sessions_report_requests_apart(odd, collection, ca) -> None:
    async with running(collection, ca, odd.options) as recording, httpx.AsyncClient() as control_api:
        first, second = [
            (await control_api.post(f"{recording.url}/sessions", json={"collection": name})).json()
            for name in (None, "odd")
        ]
        for session, paths in ((first, ("plain", "hints")), (second, ("none",))):
            async with httpx.AsyncClient(proxy=session["proxy"]) as client:
                for path in paths:
                    await client.get(f"http://odd.test/{path}")
        ledgers = [
            (await control_api.get(f"{recording.url}/sessions/{each['id']}/ledger")).json()
            for each in (first, second, {"id": "default"})
        ]
        after = (await control_api.get(f"{recording.url}/sessions/{first['id']}/ledger?after=1")).json()
        listed = (await control_api.get(f"{recording.url}/sessions")).json()["sessions"]
        closed = await control_api.delete(f"{recording.url}/sessions/{first['id']}")
        gone = await control_api.get(f"{recording.url}/sessions/{first['id']}")
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(proxy=first["proxy"]) as client:
                await client.get(PLAIN)
        async with httpx.AsyncClient(proxy=second["proxy"]) as client:
            assert (await client.get(PLAIN)).text == "hi"  # the others live on

    shown = [[entry["url"].rpartition("/")[2] for entry in ledger["entries"]] for ledger in ledgers]
    assert shown == [["plain", "hints"], ["none"], ["plain", "hints", "none"]]
    assert [entry["seq"] for entry in after["entries"]] == [2]
    assert [(each["requests"], each["in_flight"]) for each in listed] == [(3, 0), (2, 0), (1, 0)]
    assert (closed.status_code, gone.status_code) == (204, 404)


async def test_control_is_for_programs_and_for_this_collection(odd, collection, ca) -> None:
    async with running(collection, ca, odd.options) as recording, httpx.AsyncClient() as control_api:
        from_a_page = await control_api.post(
            f"{recording.url}/sessions", headers={"Origin": "https://evil.test"}
        )
        other = await control_api.post(f"{recording.url}/sessions", json={"collection": "another"})
        nonsense = await control_api.post(f"{recording.url}/sessions", content=b"[")
        wrong = await control_api.put(f"{recording.url}/sessions")

    answers = [each.status_code for each in (from_a_page, other, nonsense, wrong)]
    assert answers == [403, 404, 400, 405]
    assert "odd" in other.json()["hint"]


async def test_a_password_is_requested_but_in_sessions(odd, collection, ca, site) -> None:
    site.page("/", "hi")
    options = replace(site.options, user=("me", "päss:word"))
    trusted = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with running(collection, ca, options) as recording:

        async def ask(proxy: str | httpx.Proxy, url: str) -> int:
            async with httpx.AsyncClient(proxy=proxy, verify=trusted) as client:
                return (await client.get(url)).status_code

        assert await ask(recording.url, "http://site.test/") == 407
        with pytest.raises(httpx.ProxyError, match="407"):
            await ask(recording.url, "https://site.test/")
        for auth in (("me", "other"), ("you", "päss:word")):
            with pytest.raises(httpx.ProxyError, match="407"):
                await ask(httpx.Proxy(recording.url, auth=auth), "https://site.test/")
        assert await ask(recording.url, "http://stillweb.internal/") == 200
        assert await ask(httpx.Proxy(recording.url, auth=("me", "päss:word")), "https://site.test/") == 200
        async with httpx.AsyncClient() as control_api:
            session = (await control_api.post(f"{recording.url}/sessions")).json()
        assert await ask(session["proxy"], "https://site.test/") == 200

    assert recording.exchanges == 2
    assert all("proxy-authorization" not in request.headers for request in site.requests)
    stored = [collection.read_capture(capture).request.headers for capture in collection.captures()]
    assert len(stored) == 2
    assert all(header(headers, "proxy-authorization") == "" for headers in stored)


async def test_a_client_that_distrusts_the_ca_is_reported_of(collection, ca, site) -> None:
    warnings: list[str] = []
    async with running(collection, ca, site.options) as recording:
        recording.on_warning.append(warnings.append)
        async with httpx.AsyncClient(proxy=recording.url) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("https://site.test/")
        async with asyncio.timeout(10):
            while not warnings:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    assert "site.test" in warnings[0]
    assert "trust" in warnings[0]


@pytest.mark.parametrize(
    "given", ["", "Basic", "Basic !!", "Bearer bWU6eA==", "Basic bWU6eQ==", "Basic bWU="]
)
def test_only_the_right_words_admit(given: str) -> None:
    assert not is_authorized(("me", "x"), given)
    assert is_authorized(("me", "x"), "basic bWU6eA==")
    assert is_authorized(None, given)


@pytest.mark.parametrize("text", ["", "me", "me:", ":word"])
def test_a_user_has_a_name_and_a_password(text: str) -> None:
    with pytest.raises(UsageError):
        parse_user(text)
    assert parse_user("me:a:b") == ("me", "a:b")


def test_loopback_is_reported_from_the_rest() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "localhost", "[::1]")] == [True] * 4
    assert [is_loopback(each) for each in ("0.0.0.0", "::", "192.168.1.5", "mine.example")] == [False] * 4

"""Real sockets, real TLS, a real pack: what a client sees of the native back-end."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import brotli
import httpx
import pytest
from small_sites import distrust

from stillweb.certs import CertAuthority
from stillweb.clock import seeded
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.errors import CollectionNotFound, PortInUse, ReplayUnreachable, UsageError
from stillweb.matching.keys import request_key
from stillweb.model import Response
from stillweb.replay import ReplayClient, ReplayOptions, ReplayServer, serve
from stillweb.replay.server.connection import Connection, ListenerTarget
from stillweb.replay.server.listeners import Listener, drain, listen_unix

SHOP = "https://shop.example"
HTML = (("Content-Type", "text/html"), ("ETag", '"v1"'))
PAGE = b"<!doctype html><title>Shop</title>" + b"x" * 500
BIG = bytes(range(256)) * 4096 * 30  # 30 MiB


def entry(
    method: str,
    url: str,
    response: Response,
    *,
    second: int = 0,
    body: bytes = b"",
    mime: str = "application/json",
) -> PackEntry:
    key = request_key(method, url, mime if body else "", body)
    return PackEntry(key, method, url, f"202601010000{second:02d}", response)


def text(content: str, *headers: tuple[str, str], status: int = 200) -> Response:
    return Response(status, "OK", (("Content-Type", "text/plain"), *headers), content.encode())


ENTRIES = [
    entry("GET", f"{SHOP}/", Response(200, "OK", HTML, PAGE)),
    entry(
        "GET",
        f"{SHOP}/gz",
        Response(200, "OK", (*HTML, ("Content-Encoding", "gzip")), gzip.compress(PAGE, mtime=0)),
    ),
    entry(
        "GET", f"{SHOP}/br", Response(200, "OK", (*HTML, ("Content-Encoding", "br")), brotli.compress(PAGE))
    ),
    entry("GET", f"{SHOP}/big", Response(200, "OK", (("Content-Type", "video/mp4"),), BIG)),
    entry("GET", "http://plain.example/a?b=1", text("plain")),
    entry("GET", f"{SHOP}/cart", text("empty"), second=1),
    entry("POST", f"{SHOP}/cart", text("added 1"), second=2, body=b'{"item":1}'),
    entry("GET", f"{SHOP}/cart", text("one"), second=3),
    entry("POST", f"{SHOP}/cart", text("added 1 again"), second=4, body=b'{"item": 1}'),
    entry("GET", f"{SHOP}/cart", text("two"), second=5),
    entry("POST", "https://count.example/hit", Response(204), body=b"{}", second=1),
    entry("GET", f"{SHOP}/gone", Response(204, "No Content")),
    entry("GET", f"{SHOP}/favicon.ico", text("icon")),
    entry(
        "GET",
        "https://cdn.example/a.js",
        text("js", ("Access-Control-Allow-Origin", "https://other.example")),
    ),
]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pack]:
    target = tmp_path_factory.mktemp("shop") / "pack"
    build_pack(ENTRIES, {"name": "shop"}, target)
    with Pack.open(target) as pack:
        yield pack


OPTIONS = ReplayOptions(port=0, session_ports=None, drain=1)


@pytest.fixture
async def server(pack: Pack, ca: CertAuthority) -> AsyncIterator[ReplayServer]:
    async with serve({"shop": pack}, ca, OPTIONS) as server:
        yield server


def browser(proxy: str, ca: CertAuthority, **options: object) -> httpx.AsyncClient:
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    return httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False, timeout=20, **options)  # type: ignore[arg-type]


@pytest.fixture
async def web(server: ReplayServer, ca: CertAuthority) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(server.url, ca) as client:
        yield client


@pytest.fixture
async def control_api(server: ReplayServer) -> AsyncIterator[ReplayClient]:
    async with ReplayClient(server.url) as client:
        yield client


async def test_a_hit_is_as_recorded(web: httpx.AsyncClient, control_api: ReplayClient) -> None:
    response = await web.get(f"{SHOP}/")
    assert (response.status_code, response.content) == (200, PAGE)
    assert response.headers.raw == [
        (b"Content-Type", b"text/html"),
        (b"ETag", b'"v1"'),
        (b"Content-Length", b"%d" % len(PAGE)),
    ]
    (line,) = (await control_api.ledger()).entries
    assert (line.seq, line.method, line.url, line.status, line.tier) == (1, "GET", f"{SHOP}/", 200, "exact")
    assert line.bytes == len(PAGE)


async def test_plain_http_through_the_proxy(web: httpx.AsyncClient) -> None:
    assert (await web.get("http://plain.example/a?b=1")).text == "plain"
    assert (await web.get("http://plain.example/a?b=2")).status_code == 404


async def test_the_other_scheme_stands_in(web: httpx.AsyncClient, control_api: ReplayClient) -> None:
    assert (await web.get("https://plain.example/a?b=1")).text == "plain"
    assert (await control_api.ledger()).entries[0].reason == "recorded over http"


async def test_codings_are_stored_or_removed_as_the_client_wants(web: httpx.AsyncClient) -> None:
    for path, coding in (("/gz", "gzip"), ("/br", "br")):
        stored = await web.get(SHOP + path, headers={"Accept-Encoding": "gzip, br"})
        removed = await web.get(SHOP + path, headers={"Accept-Encoding": "identity"})
        assert stored.content == removed.content == PAGE
        assert (stored.headers["content-encoding"], removed.headers.get("content-encoding")) == (coding, None)


async def test_head_has_the_head_of_get(web: httpx.AsyncClient) -> None:
    head = await web.head(f"{SHOP}/")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(PAGE)))


async def test_conditions_are_not_looked_at(web: httpx.AsyncClient) -> None:
    response = await web.get(f"{SHOP}/", headers={"If-None-Match": '"v1"'})
    assert (response.status_code, response.content) == (200, PAGE)


@pytest.mark.parametrize(
    ("requested_range", "status", "content_range", "content"),
    [
        ("bytes=0-9", 206, f"bytes 0-9/{len(BIG)}", BIG[:10]),
        ("bytes=-4", 206, f"bytes {len(BIG) - 4}-{len(BIG) - 1}/{len(BIG)}", BIG[-4:]),
        (f"bytes={len(BIG)}-", 416, f"bytes */{len(BIG)}", b""),
    ],
)
async def test_ranges(
    web: httpx.AsyncClient, requested_range: str, status: int, content_range: str, content: bytes
) -> None:
    response = await web.get(f"{SHOP}/big", headers={"Range": requested_range})
    assert (response.status_code, response.headers["content-range"], response.content) == (
        status,
        content_range,
        content,
    )


async def test_a_miss_says_nothing_but_lets_the_page_see_its_status(
    web: httpx.AsyncClient, control_api: ReplayClient
) -> None:
    response = await web.get(f"{SHOP}/?page=2", headers={"Origin": "https://a.example"})
    assert (response.status_code, response.content) == (404, b"")
    assert dict(response.headers) == {
        "access-control-allow-origin": "https://a.example",
        "access-control-allow-credentials": "true",
        "content-length": "0",
    }
    assert dict((await web.get(f"{SHOP}/none")).headers) == {"content-length": "0"}
    ledger = await control_api.ledger()
    assert [entry.reason for entry in ledger.misses] == [
        "same path recorded with other query: 1",
        f"path not recorded, of its host: {len({e.url for e in ENTRIES if e.url.startswith(SHOP)})}",
    ] or all(entry.reason for entry in ledger.misses)
    assert ledger.counts == {"miss": 2}


async def test_a_preflight_is_allowed_and_the_real_request_missed(web: httpx.AsyncClient) -> None:
    headers = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "DELETE",
        "Access-Control-Request-Headers": "x-token",
    }
    response = await web.request("OPTIONS", f"{SHOP}/cart", headers=headers)
    assert response.status_code == 204
    assert dict(response.headers) == {
        "access-control-allow-origin": "https://a.example",
        "access-control-allow-credentials": "true",
        "access-control-allow-methods": "DELETE",
        "access-control-allow-headers": "x-token",
        "access-control-max-age": "0",
    }
    assert (await web.delete(f"{SHOP}/cart")).status_code == 404


async def test_a_recorded_cors_header_stays(web: httpx.AsyncClient) -> None:
    response = await web.get("https://cdn.example/a.js", headers={"Origin": "https://a.example"})
    assert response.headers["access-control-allow-origin"] == "https://other.example"


async def test_noise_is_counted_apart_but_never_what_was_recorded(
    web: httpx.AsyncClient, control_api: ReplayClient
) -> None:
    assert (await web.get("https://plain.example/favicon.ico")).status_code == 204
    assert (await web.get(f"{SHOP}/favicon.ico")).text == "icon"
    assert (await web.post("https://www.google-analytics.com/g/collect?v=2")).status_code == 204
    assert (await control_api.ledger()).counts == {"noise": 2, "exact": 1}


async def test_the_story_of_a_cart(web: httpx.AsyncClient, control_api: ReplayClient) -> None:
    async def cart() -> str:
        return (await web.get(f"{SHOP}/cart")).text

    async def add() -> str:
        return (await web.post(f"{SHOP}/cart", json={"item": 1})).text

    for _ in range(2):
        assert [await cart(), await cart()] == ["empty", "empty"]
        assert [await add(), await cart(), await cart()] == ["added 1", "one", "one"]
        assert [await add(), await cart()] == ["added 1 again", "two"]
        assert [await add(), await cart()] == ["added 1 again", "two"]
        assert "past the end" in (await control_api.ledger()).entries[-2].reason
        assert (await control_api.session("default"))["epoch"] == 3  # one is the counter's
        await control_api.reset_session()
        assert (await control_api.ledger()).entries == ()


async def test_a_beacon_leads_no_session_back(control_api: ReplayClient, ca: CertAuthority) -> None:
    session = await control_api.open_session()
    async with browser(session.proxy, ca) as web:

        async def beacon() -> None:
            sent = {"Sec-Fetch-Mode": "no-cors", "Content-Type": "application/json"}
            hit = await web.post("https://count.example/hit", content=b"{}", headers=sent)
            assert hit.status_code == 204

        await beacon()
        assert (await web.get(f"{SHOP}/cart")).text == "empty"
        await web.post(f"{SHOP}/cart", json={"item": 1})
        await beacon()
        assert (await web.get(f"{SHOP}/cart")).text == "one"
    await control_api.close_session(session.id)


async def test_interleaved_sessions_keep_their_cursors(control_api: ReplayClient, ca: CertAuthority) -> None:
    async def episode(posts: int) -> list[str]:
        session = await control_api.open_session("shop")
        seen = []
        async with browser(session.proxy, ca) as web:
            for turn in range(3):
                if turn < posts:
                    await web.post(f"{SHOP}/cart", json={"item": 1})
                seen.append((await web.get(f"{SHOP}/cart")).text)
        ledger = await control_api.ledger(session.id)
        assert len(ledger.entries) == 3 + posts
        assert [entry.seq for entry in ledger.entries] == list(range(1, 4 + posts))
        await control_api.close_session(session.id)
        return seen

    stories = [["empty"] * 3, ["one"] * 3, ["one", "two", "two"]]
    assert await asyncio.gather(*(episode(i % 3) for i in range(16))) == [stories[i % 3] for i in range(16)]
    assert [session["id"] for session in await control_api.sessions()] == ["default"]


async def test_a_session_may_be_named_by_proxy_user(
    server: ReplayServer, control_api: ReplayClient, ca: CertAuthority
) -> None:
    session = await control_api.open_session()
    by_user = server.url.replace("http://", f"http://{session.id}:@")
    async with browser(by_user, ca) as web, browser(session.proxy, ca) as by_port:
        await web.post(f"{SHOP}/cart", json={"item": 1})
        assert [(await each.get(f"{SHOP}/cart")).text for each in (web, by_port)] == ["one", "one"]
        assert (await web.get("http://plain.example/a?b=1")).text == "plain"
        assert (await control_api.session("default"))["requests"] == 0
        assert (await control_api.session(session.id))["requests"] == 4
        await control_api.close_session(session.id)
        with pytest.raises(httpx.ProxyError, match="407"):
            await web.get(f"{SHOP}/cart")
        assert (await web.get("http://plain.example/a?b=1")).status_code == 407


# Below HTTP clients: what goes over the wire.


@asynccontextmanager
async def dialled(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def converse(url: str, sent: bytes) -> bytes:
    async with dialled(url) as (reader, writer):
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), 10)


async def test_a_proxy_user_counts_for_the_request_that_names_it(
    server: ReplayServer, control_api: ReplayClient
) -> None:
    session = await control_api.open_session()
    user = b64encode(f"{session.id}:".encode()).decode()
    named = f"GET http://plain.example/a?b=1 HTTP/1.1\r\nHost: p\r\nProxy-Authorization: Basic {user}\r\n\r\n"
    plain = "GET http://plain.example/a?b=1 HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"
    assert (await converse(server.url, (named + plain).encode())).count(b" 200 ") == 2
    requests = [(await control_api.session(each))["requests"] for each in (session.id, "default")]
    await control_api.close_session(session.id)
    assert requests == [1, 1]


@pytest.mark.parametrize(
    "target",
    ["/a?b=1", "http://plain.example/a?b=1", "/a?b=1&to=http://x.example/", "https://plain.example/a?b=1"],
)
async def test_both_forms_of_a_target_are_taken_in_a_tunnel(server: ReplayServer, target: str) -> None:
    sent = f"GET {target} HTTP/1.1\r\nHost: plain.example\r\nConnection: close\r\n\r\n"
    answered = await converse(server.url, b"CONNECT plain.example:80 HTTP/1.1\r\n\r\n" + sent.encode())
    assert answered.endswith(b"plain") is ("&to=" not in target)


async def test_a_control_request_with_a_url_in_its_query_is_one(server: ReplayServer) -> None:
    sent = b"GET /health?for=http://plain.example/ HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"
    assert b'"ok"' in await converse(server.url, sent)


async def test_pipelined_requests_are_answered_in_order(server: ReplayServer) -> None:
    got = await converse(
        server.url,
        b"GET http://plain.example/a?b=1 HTTP/1.1\r\nHost: plain.example\r\n\r\n"
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET http://plain.example/none HTTP/1.1\r\nConnection: close\r\n\r\n",
    )
    places = [got.index(part) for part in (b"plain", b'"status": "ok"', b"404 Not Found")]
    assert places == sorted(places)
    assert got.endswith(b"Connection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x80\x2e\x01\x00\x02 this is no HTTP", b"400"),
        (b"GET http://x/ HTTP/1.1\r\nA: " + b"a" * 300_000 + b"\r\n\r\n", b"431"),
        (b"CONNECT bad..name:443 HTTP/1.1\r\n\r\n", b"400"),
        (b"POST http://x/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
    ],
)
async def test_what_is_malformed_is_refused_and_the_server_lives(
    server: ReplayServer, control_api: ReplayClient, sent: bytes, status: bytes
) -> None:
    got = await converse(server.url, sent)
    assert got.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in got
    assert (await control_api.session("default"))["requests"] == 0


SHAPES = [
    b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT shop.example:443 HTTP/1.1\r\n\r\n",
    b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n",
    b"CONNECT  HTTP/1.1\r\n\r\n",
    b"POST /sessions HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]",
    b'POST /sessions HTTP/1.1\r\nContent-Length: 21\r\n\r\n{"collection": [1, 2]}',
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nProxy-Authorization: Basic \xff\r\n\r\n",
    b"GET http://x/ HTTP/1.1\r\nProxy-Authorization: Basic eA==\r\n\r\n",
    b"GET /sessions/../x HTTP/1.1\r\n\r\n",
    b"GET /sessions/default/ledger?after=-1 HTTP/1.1\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\nRange: bytes=9-\r\nOrigin: \xff\xfe\r\n\r\n",
    b"GET http:///\xc3\xa9 HTTP/1.1\r\nHost: \r\n\r\n",
    b"\x16\x03\x01\x00\x05hello",
    b"\x00\xff\r\n\r\n",
]


async def test_no_rubbish_brings_it_down(
    server: ReplayServer, control_api: ReplayClient, caplog: pytest.LogCaptureFixture
) -> None:
    draw = seeded("rubbish")
    for _ in range(150):
        sent = b"".join(draw.choice(SHAPES) for _ in range(draw.randint(1, 4)))
        sent = sent[: draw.randint(1, len(sent))]
        async with dialled(server.url) as (reader, writer):
            writer.write(sent)
            if draw.random() < 0.5:
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 10)
            else:
                writer.transport.abort()
    assert (await control_api.session("default"))["in_flight"] == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /sessions/default/ledger?after=%b HTTP/1.1\r\n\r\n" % (b"9" * 5000), b"200"),
        (b"POST /sessions HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000, b"400"),
        (
            b"POST /sessions/default/misses HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000,
            b"409",
        ),
    ],
    ids=["digits", "brackets", "brackets of a miss"],
)
async def test_what_python_refuses_to_read_is_answered(
    server: ReplayServer, sent: bytes, status: bytes
) -> None:
    async with dialled(server.url) as (reader, writer):
        writer.write(sent)
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 " + status)


async def test_a_session_port_takes_no_control_requests(control_api: ReplayClient) -> None:
    session = await control_api.open_session()
    request = b"GET /sessions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert (await converse(session.proxy, request)).startswith(b"HTTP/1.1 404")
    (line,) = (await control_api.ledger(session.id)).entries
    assert (line.url, line.tier) == ("http://x/sessions", "miss")


async def test_a_web_page_cannot_steer_replay(server: ReplayServer) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.post(server.url + "/sessions", headers={"Origin": "https://evil.example"})
        assert response.status_code == 403
        page = await client.get(server.url + "/info", headers={"Sec-Fetch-Site": "cross-site"})
        assert page.status_code == 403


async def test_the_control_api_is_not_on_the_replayed_web(
    web: httpx.AsyncClient, server: ReplayServer
) -> None:
    assert (await web.get(server.url + "/info")).status_code == 404


async def test_a_client_that_leaves_mid_answer_is_noted(
    server: ReplayServer, control_api: ReplayClient
) -> None:
    async with dialled(server.url) as (reader, writer):
        writer.write(b"GET http://shop.example/big HTTP/1.1\r\n\r\n")
        await reader.readexactly(1000)
        assert (await control_api.session("default"))["in_flight"] == 1
        writer.transport.abort()
    async with asyncio.timeout(5):
        while (await control_api.session("default"))["in_flight"]:
            pass
    (line,) = (await control_api.ledger()).entries
    assert "client went away after" in line.reason
    assert 0 < line.bytes < len(BIG)


async def test_a_slow_client_costs_slices_not_bodies(
    server: ReplayServer, control_api: ReplayClient, ca: CertAuthority
) -> None:
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with dialled(server.url) as (reader, writer):
        writer.write(b"CONNECT shop.example:443 HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(context, server_hostname="shop.example")
        writer.write(b"GET /big HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
        connections = server._sessions["default"].listener.target.connections
        (connection,) = (each for each in connections if each._tunnel._layers)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(BIG) in head
        most, got = 0, bytearray()
        while piece := await reader.read(50_000):
            got += piece
            if not connection._transport.is_closing():
                most = max(most, connection._transport.get_write_buffer_size())
    assert bytes(got) == BIG
    assert 0 < most < 1024 * 1024
    (line,) = (await control_api.ledger()).entries
    assert (line.bytes, line.reason) == (len(BIG), "")


async def test_a_tunnel_may_be_plain(server: ReplayServer) -> None:
    got = await converse(
        server.url,
        b"CONNECT plain.example:80 HTTP/1.1\r\n\r\n"
        b"GET /a?b=1 HTTP/1.1\r\nHost: plain.example\r\nConnection: close\r\n\r\n",
    )
    assert got.startswith(b"HTTP/1.1 200 Connection Established\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert got.endswith(b"plain")


async def test_a_client_that_does_not_trust_the_ca_is_reported_of(
    server: ReplayServer, control_api: ReplayClient, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(distrust, server.url)
    assert (await control_api.info()).backend == "native"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "TLS with a client failed: it does not trust the CA (stillweb certs trust)"
    ]


async def test_the_server_waits_for_an_answer_at_hand(pack: Pack, ca: CertAuthority) -> None:
    async with serve({"shop": pack}, ca, OPTIONS) as server:
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        writer.write(b"GET http://shop.example/big HTTP/1.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        reading = asyncio.create_task(reader.read())
    assert head.startswith(b"HTTP/1.1 200")
    assert await reading == BIG
    writer.close()
    await writer.wait_closed()


# The control API.


async def test_info_says_what_is_served(control_api: ReplayClient, pack: Pack, ca: CertAuthority) -> None:
    info = await control_api.info()
    assert info.collections == {"shop": pack.environment_id}
    assert (info.default, info.spki) == ("shop", ca.spki_hashes())
    assert info.features["ledger"]
    assert info.manifests["shop"]["name"] == "shop"


async def test_errors_of_the_control_api_have_their_types(control_api: ReplayClient) -> None:
    with pytest.raises(CollectionNotFound, match="'blog' is not served here"):
        await control_api.open_session("blog")
    with pytest.raises(UsageError, match="no session nope"):
        await control_api.ledger("nope")
    with pytest.raises(UsageError, match="default session lives"):
        await control_api.close_session("default")


async def test_session_ports_come_from_the_range(pack: Pack, ca: CertAuthority) -> None:
    first, second = _two_free_ports()
    options = ReplayOptions(port=0, session_ports=range(first, second + 1))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        async with serve({"shop": pack}, ca, options) as server, ReplayClient(server.url) as control_api:
            session = await control_api.open_session()
            assert session.proxy == f"http://127.0.0.1:{second}"
            with pytest.raises(PortInUse, match="1 sessions are open here"):
                await control_api.open_session()
            await control_api.close_session(session.id)
            again = await control_api.open_session()
            assert (again.proxy, again.id != session.id) == (session.proxy, True)


async def test_a_port_in_use_is_said_with_a_way_out(pack: Pack, ca: CertAuthority) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 .* in use") as error:
            async with serve({"shop": pack}, ca, ReplayOptions(port=port, session_ports=None)):
                pass
        assert "--port" in error.value.hint
        with pytest.raises(PortInUse, match="every session port") as error:
            async with serve({"shop": pack}, ca, ReplayOptions(port=0, session_ports=range(port, port + 1))):
                pass
        assert "--session-ports" in error.value.hint


async def test_no_server_is_said_as_such() -> None:
    with socket.socket() as no_one:
        no_one.bind(("127.0.0.1", 0))
        async with ReplayClient(f"http://127.0.0.1:{no_one.getsockname()[1]}") as control_api:
            with pytest.raises(ReplayUnreachable, match="no replay server"):
                await control_api.info()


async def test_the_ledger_file_has_a_line_per_answer(pack: Pack, ca: CertAuthority, tmp_path: Path) -> None:
    file = tmp_path / "out" / "ledger.jsonl"
    options = ReplayOptions(port=0, session_ports=None, ledger=file)
    async with serve({"shop": pack}, ca, options) as server, browser(server.url, ca) as web:
        await web.get(f"{SHOP}/", headers={"Sec-Fetch-Dest": "document"})
        await web.get(f"{SHOP}/none")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["session"], line["tier"], line["resource"]) for line in lines] == [
        ("default", "exact", "document"),
        ("default", "miss", ""),
    ]


def _two_free_ports() -> tuple[int, int]:
    for _ in range(50):
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port, port + 1
    raise AssertionError("no two free ports side by side")


async def test_who_is_reported_of_after_the_listener_was_closed_is_not_served(server: ReplayServer) -> None:
    loop = asyncio.get_running_loop()
    entrance = ListenerTarget(server.spawn, session=server.public.session)
    await drain([Listener(entrance)], 1)
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        await loop.sock_sendall(
            ours, b"GET http://plain.example/a?b=1 HTTP/1.1\r\nHost: plain.example\r\n\r\n"
        )
        theirs.setblocking(False)
        await loop.connect_accepted_socket(lambda: Connection(entrance), theirs)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(loop.sock_recv(ours, 1000), 10) == b""
    await asyncio.wait_for(entrance.empty.wait(), 10)


async def test_a_path_too_long_for_a_unix_socket_is_said(server: ReplayServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on .*too long") as raised:
        await listen_unix(ListenerTarget(server.spawn), tmp_path / ("x" * 100))
    assert "TMPDIR" in raised.value.hint

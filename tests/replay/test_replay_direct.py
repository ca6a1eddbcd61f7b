"""Ports that clients reach without a proxy: TLS from the first byte, and requests in origin form."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.matching.keys import request_key
from stillweb.model import Response
from stillweb.replay import ReplayClient, ReplayOptions, ReplayServer, serve

SHOP = "https://shop.example"
BIG = bytes(range(256)) * 4096 * 8  # 8 MiB


def entry(method: str, url: str, content: bytes, second: int = 0, body: bytes = b"") -> PackEntry:
    key = request_key(method, url, "text/plain" if body else "", body)
    response = Response(200, "OK", (("Content-Type", "text/plain"),), content)
    return PackEntry(key, method, url, f"202601010000{second:02d}", response)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pack]:
    target = tmp_path_factory.mktemp("direct") / "pack"
    entries = [
        entry("GET", f"{SHOP}/", b"secure"),
        entry("GET", "http://plain.example/", b"plain"),
        entry("GET", f"{SHOP}/big", BIG),
    ]
    build_pack(entries, {"name": "direct"}, target)
    with Pack.open(target) as pack:
        yield pack


@pytest.fixture
async def server(pack: Pack, ca: CertAuthority) -> AsyncIterator[ReplayServer]:
    async with serve({"direct": pack}, ca, ReplayOptions(port=0, session_ports=None, drain=1)) as server:
        yield server


@asynccontextmanager
async def dialled(
    url: str, ca: CertAuthority | None = None, host: str = "shop.example"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    where = urlsplit(url)
    context = ssl.create_default_context(cadata=ca.cert_pem.decode()) if ca else None
    reader, writer = await asyncio.open_connection(
        where.hostname, where.port, ssl=context, server_hostname=host if ca else None
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.wait({asyncio.ensure_future(writer.wait_closed())}, timeout=5)


async def converse(url: str, sent: bytes, ca: CertAuthority | None = None) -> bytes:
    async with dialled(url, ca) as (reader, writer):
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), 10)


def get(path: str, host: str, *fields: str) -> bytes:
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode()


CLOSE = "Connection: close"


async def test_a_session_port_takes_tls_at_once_and_reports_hosts_apart_by_name(
    server: ReplayServer, ca: CertAuthority
) -> None:
    async with ReplayClient(server.url) as control_api:
        session = await control_api.open_session()
        # A browser that maps every host name here checks each certificate against the requested name.
        for host, status in (("shop.example", b"200"), ("other.example", b"404")):
            async with dialled(session.proxy, ca, host) as (reader, writer):
                writer.write(get("/", host, CLOSE))
                assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
        urls = [line.url for line in (await control_api.ledger(session.id)).entries]
    assert urls == [f"{SHOP}/", "https://other.example/"]


async def test_the_main_port_takes_tls_at_once_for_the_default_session(
    server: ReplayServer, ca: CertAuthority
) -> None:
    # /health over TLS is a page of the archived host, not the control API.
    got = await converse(server.url, get("/", "shop.example") + get("/health", "shop.example", CLOSE), ca)
    assert got.count(b"HTTP/1.1 200 OK") == 1
    assert b"secure" in got
    assert b"404" in got
    assert b"status" not in got


async def test_a_session_port_takes_plain_requests_by_host(server: ReplayServer) -> None:
    async with ReplayClient(server.url) as control_api:
        session = await control_api.open_session()
        assert (await converse(session.proxy, get("/", "plain.example", CLOSE))).endswith(b"plain")
        assert b"400" in await converse(session.proxy, b"GET / HTTP/1.1\r\n\r\n")  # of whom?


async def test_what_the_memo_knows_of_a_session_port_does_not_answer_for_the_control_api(
    server: ReplayServer,
) -> None:
    request = get("/", "plain.example", "Accept: */*")
    async with ReplayClient(server.url) as control_api:
        session = await control_api.open_session()
        async with dialled(session.proxy) as (reader, writer):
            for _ in range(2):
                writer.write(request)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(5) == b"plain"
        assert (await control_api.session(session.id))["requests"] == 2
    async with dialled(server.url) as (reader, writer):
        writer.write(request)
        assert b"stillweb" in await reader.readuntil(b"}")


async def test_a_proxy_within_tls_but_none_within_its_tunnel(server: ReplayServer, ca: CertAuthority) -> None:
    connect = b"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example\r\n\r\n"
    async with dialled(server.url, ca) as (reader, writer):
        writer.write(connect)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await writer.start_tls(
            ssl.create_default_context(cadata=ca.cert_pem.decode()), server_hostname="shop.example"
        )
        writer.write(connect)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")


async def test_rubbish_that_begins_like_tls_ends_that_connection_only(server: ReplayServer) -> None:
    got = await converse(server.url, b"\x16\x03\x01\x00\x05rubbish and more of it")
    assert not got.startswith(b"HTTP")
    assert b'"ok"' in await converse(server.url, get("/health", "x", CLOSE))


async def test_a_large_answer_over_tls_to_one_who_reads_late(server: ReplayServer, ca: CertAuthority) -> None:
    async with ReplayClient(server.url) as control_api, dialled(server.url, ca) as (reader, writer):
        writer.write(get("/big", "shop.example"))
        head = await reader.readuntil(b"\r\n\r\n")
        standing = await control_api.session("default")
        assert standing["in_flight"] == 1  # 8 MiB are more than sockets hold
        assert b"Content-Length: %d" % len(BIG) in head
        assert await reader.readexactly(len(BIG)) == BIG
        assert (await control_api.session("default"))["in_flight"] == 0


async def test_an_upload_aborted_under_tls_is_no_request(server: ReplayServer, ca: CertAuthority) -> None:
    async with ReplayClient(server.url) as control_api:
        async with dialled(server.url, ca) as (reader, writer):
            writer.write(
                b"POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000
            )
            writer.write(b"y" * 300_000)
            await writer.drain()
            writer.transport.abort()
            del reader
        async with dialled(server.url, ca) as (reader, writer):
            writer.write(get("/", "shop.example", CLOSE))
            assert (await reader.read()).endswith(b"secure")
        assert [line.method for line in (await control_api.ledger()).entries] == ["GET"]
        assert (await control_api.session("default"))["in_flight"] == 0


async def test_nothing_behind_connection_close_is_answered(server: ReplayServer, ca: CertAuthority) -> None:
    sent = get("/", "shop.example") + get("/", "shop.example", CLOSE) + get("/", "shop.example")
    assert (await converse(server.url, sent, ca)).count(b"HTTP/1.1 200") == 2


async def test_one_who_says_no_more_still_gets_all_answers(server: ReplayServer) -> None:
    async with ReplayClient(server.url) as control_api:
        session = await control_api.open_session()
        async with dialled(session.proxy) as (reader, writer):
            writer.write(get("/big", "shop.example") + get("/", "plain.example"))
            writer.write_eof()
            got = await asyncio.wait_for(reader.read(), 20)
    assert got.count(b"HTTP/1.1 200 OK") == 2
    assert got.endswith(b"plain")

"""Clumsy and hostile clients over real sockets: whatever they do, the next one is served and nothing is left.

`served` holds it after each test: a page is answered, no request is in flight, no connection and no task is
left, and nothing is on the log at ERROR.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.http.wire import refusal
from stillweb.matching.keys import request_key
from stillweb.model import Response
from stillweb.replay import ReplayOptions, ReplayServer, serve
from stillweb.replay.server.takeover import DROPPED

PAGE = b"<!doctype html><title>Shop</title>"
BIG = bytes(range(256)) * 4096 * 50  # 50 MiB
MANY = 100
POSTED = b'{"item": 1}'
GET = b"GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"
GET_BIG = GET.replace(b".example/ ", b".example/big ")
LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
CONNECT = b"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n"
POST = b"POST http://shop.example/cart HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\n"
HELLO = bytes.fromhex("16030102000100") + b"\x01\xfc\x03\x03" + b"r" * 60

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def numbered(number: int) -> bytes:
    return b"answer %d " % number * (1 + number % 7 * 3000)


def entries() -> Iterator[PackEntry]:
    html = (("Content-Type", "text/html"),)
    yield PackEntry.of("GET", "http://shop.example/", Response(200, "OK", html, PAGE))
    yield PackEntry.of("GET", "http://shop.example/big", Response(200, "OK", (), BIG))
    for number in range(MANY):
        yield PackEntry.of("GET", f"http://shop.example/{number}", Response(200, "OK", (), numbered(number)))
    key = request_key("POST", "http://shop.example/cart", "application/json", POSTED)
    yield PackEntry(
        key, "POST", "http://shop.example/cart", "20260101000000", Response(200, "OK", (), b"added")
    )


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pack]:
    target: Path = tmp_path_factory.mktemp("hostile") / "pack"
    build_pack(entries(), {"name": "shop"}, target)
    with Pack.open(target) as pack:
        yield pack


@asynccontextmanager
async def dialled(url: str, *, limit: int = 1 << 16) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"), limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def tunnelled(url: str, ca: CertAuthority) -> AsyncIterator[Streams]:
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with dialled(url) as (reader, writer):
        writer.write(CONNECT)
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(context, server_hostname="shop.example")
        yield reader, writer


async def converse(url: str, sent: bytes) -> bytes:
    async with dialled(url) as (reader, writer):
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), 20)


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = next(
        (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
    )
    return int(head.split(b" ")[1]), await reader.readexactly(int(length.partition(b":")[2]))


async def control(url: str, path: str) -> dict[str, object]:
    got = await converse(url, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer: dict[str, object] = json.loads(got.partition(b"\r\n\r\n")[2])
    return answer


async def state(url: str) -> tuple[object, object]:
    """Return requests in flight, and connections but the one that asks."""
    session = await control(url, "/sessions/default")
    connections = session["connections"]
    assert isinstance(connections, int)
    return session["in_flight"], connections - 1


@pytest.fixture
async def served(
    pack: Pack, ca: CertAuthority, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[ReplayServer]:
    caplog.set_level(logging.INFO)
    async with serve({"shop": pack}, ca, ReplayOptions(port=0, session_ports=None, drain=1)) as server:
        tasks = asyncio.all_tasks()
        yield server
        got = await converse(server.url, LAST)
        assert got.endswith(b"\r\n\r\n" + PAGE)
        async with asyncio.timeout(10):
            while await state(server.url) != (0, 0):
                pass
            while left := asyncio.all_tasks() - tasks - {asyncio.current_task()}:
                await asyncio.wait(left)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def requests(url: str) -> int:
    number = (await control(url, "/sessions/default"))["requests"]
    assert isinstance(number, int)
    return number


# Slow ones.


async def test_those_who_send_byte_by_byte_stop_no_one(served: ReplayServer) -> None:
    async def drip(sent: bytes) -> bytes:
        async with dialled(served.url) as (reader, writer):
            for at in range(len(sent)):
                writer.write(sent[at : at + 1])
                await writer.drain()
                await control(served.url, "/health")  # another client in between
            return await asyncio.wait_for(reader.read(), 20)

    cart = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n" + POSTED[:5]
    cart += b"\r\n6\r\n" + POSTED[5:] + b"\r\n0\r\n\r\n"
    answers = await asyncio.gather(*(drip(LAST) for _ in range(4)), drip(cart))
    assert [answer.rpartition(b"\r\n\r\n")[2] for answer in answers] == [PAGE] * 4 + [b"added"]


@pytest.mark.parametrize("secure", [False, True])
async def test_one_who_never_reads_costs_slices_not_bodies(
    served: ReplayServer, ca: CertAuthority, secure: bool
) -> None:
    opened = tunnelled(served.url, ca) if secure else dialled(served.url)
    async with opened as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        tracemalloc.start()
        try:
            writer.write(GET_BIG * 20)
            while (await state(served.url))[0] != 1:
                pass
            for _ in range(10):
                assert (await converse(served.url, LAST)).endswith(PAGE)
            held, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert await requests(served.url) == 1 + 10  # those behind the first one wait
    assert most < 4 * 1024 * 1024, held


# Those who leave.


def aborts(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def closes(writer: asyncio.StreamWriter) -> None:
    writer.close()


def half_closes(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


@pytest.mark.parametrize("leave", [aborts, closes, half_closes])
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        GET[:20],
        GET[:-2],
        POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 10,
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        POST + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n",
        CONNECT[:20],
        CONNECT,
        CONNECT + HELLO,
        CONNECT + HELLO[:3],
        CONNECT + LAST[:25],
        b"POST /sessions HTTP/1.1\r\nContent-Length: 10\r\n\r\n{",
    ],
)
async def test_one_who_leaves_midway_requested_nothing(
    served: ReplayServer, sent: bytes, leave: Callable[[asyncio.StreamWriter], None]
) -> None:
    async with dialled(served.url) as (reader, writer):
        writer.write(sent)
        await writer.drain()
        leave(writer)
        if leave is half_closes:
            await asyncio.wait_for(reader.read(), 20)
    assert await requests(served.url) == 0


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("leave", [aborts, closes])
async def test_one_who_leaves_in_an_answer_is_noted(
    served: ReplayServer, ca: CertAuthority, secure: bool, leave: Callable[[asyncio.StreamWriter], None]
) -> None:
    async with tunnelled(served.url, ca) if secure else dialled(served.url) as (reader, writer):
        writer.write(GET_BIG + GET)
        await reader.readexactly(1000)
        leave(writer)
        async with asyncio.timeout(10):
            while (await state(served.url))[0]:
                pass
    (line,) = (await control(served.url, "/sessions/default/ledger"))["entries"]  # type: ignore[attr-defined,misc]
    assert "went away after" in line["reason"]
    assert line["bytes"] < len(BIG)


async def test_one_who_says_no_more_still_gets_what_was_requested(served: ReplayServer) -> None:
    for sent in (GET_BIG, GET + GET_BIG, CONNECT + GET_BIG):
        async with dialled(served.url, limit=1 << 20) as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            got = await asyncio.wait_for(reader.read(), 20)
            assert got.endswith(BIG)
    async with dialled(served.url) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write_eof()
        assert b'"ok"' in await asyncio.wait_for(reader.read(), 20)


async def test_a_thousand_who_only_knock(served: ReplayServer) -> None:
    async def knock(number: int) -> None:
        async with dialled(served.url) as (_, writer):
            writer.write((b"", GET[:9], CONNECT, CONNECT + HELLO[: number % 60])[number % 4])
            if number % 3:
                await writer.drain()

    for start in range(0, 1000, 125):
        await asyncio.gather(*(knock(number) for number in range(start, start + 125)))
    assert await requests(served.url) == 0


# Those in a hurry.


@pytest.mark.parametrize("secure", [False, True])
async def test_a_hundred_requests_in_one_write_are_answered_in_order(
    served: ReplayServer, ca: CertAuthority, secure: bool
) -> None:
    requests = b"".join(GET.replace(b".example/ ", b".example/%d " % number) for number in range(MANY))
    async with tunnelled(served.url, ca) if secure else dialled(served.url) as (reader, writer):
        writer.write(requests)
        answers = [await one_answer(reader) for _ in range(MANY)]
    assert answers == [(200, numbered(number)) for number in range(MANY)]


async def test_nothing_is_answered_behind_a_farewell(served: ReplayServer) -> None:
    got = await converse(served.url, GET * 3 + LAST + GET * 5)
    assert got.count(b"HTTP/1.1 200 ") == 4
    assert await requests(served.url) == 4


async def test_one_who_asks_leave_to_send_gets_it_once(served: ReplayServer) -> None:
    async with dialled(served.url) as (reader, writer):
        for _ in range(2):
            writer.write(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(POSTED))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(POSTED)
            assert await one_answer(reader) == (200, b"added")


async def test_ten_thousand_fields_are_many_but_no_crime(served: ReplayServer) -> None:
    fields = b"".join(b"X-Field-%d: v\r\n" % number for number in range(10_000))
    assert (await converse(served.url, LAST.replace(b"Host:", fields + b"Host:"))).endswith(PAGE)


# Those who would have a request taken for another.

INNER = b"GET http://shop.example/ HTTP/1.1\r\nHost: evil\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER, 400),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + INNER, 400),
        (POST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(INNER) + INNER, 400),
        (POST + b"Content-Length: 0, 0\r\n\r\n" + INNER, 400),
        (POST + b"Content-Length: +0\r\n\r\n" + INNER, 400),
        (POST + b"Content-Length: -1\r\n\r\n" + INNER, 400),
        (POST + b"Content-Length: 18446744073709551616\r\n\r\n" + INNER, 400),
        (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + INNER, 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER, 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + INNER, 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + INNER, 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\nX\n0\n\n" + INNER, 400),
        (GET[:-2] + b"A: b\r\n folded: c\r\n\r\n", 400),
        (GET[:-2] + b"A: b\0c\r\n\r\n", 400),
        (GET[:-2] + b"A: b\rHost: evil\r\n\r\n", 400),
        (GET[:-2] + b"A : b\r\n\r\n", 400),
        (GET.replace(b"/ HTTP", b"/\0 HTTP"), 400),
        (GET.replace(b" HTTP/1.1", b" and more HTTP/1.1"), 400),
        (GET.replace(b" HTTP/1.1", b" HTTP/one"), 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (POST + b"Content-Length: %d\r\n\r\n" % (1 << 40), 413),
        (POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (1 << 40), 413),
        (CONNECT + CONNECT, 400),
        (CONNECT + b"\0rubbish\r\n\r\n", 400),
        (b"CONNECT  HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT /sessions HTTP/1.1\r\n\r\n" + GET, 400),
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(
    served: ReplayServer, sent: bytes, status: int
) -> None:
    async with dialled(served.url) as (reader, writer):
        writer.write(sent)
        if sent.startswith(b"CONNECT shop"):
            await reader.readuntil(b"\r\n\r\n")
        assert await one_answer(reader) == (status, b"")
        assert await asyncio.wait_for(reader.read(), 20) == b""
    assert await requests(served.url) == 0


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        GET.replace(b"/ HTTP", b"/" + b"a" * (8 << 20) + b" HTTP"),
        GET[:-2] + b"A: " + b"a" * (8 << 20) + b"\r\n\r\n",
    ],
)
async def test_a_line_without_end_is_refused_also_to_who_reads_only_behind_it(
    served: ReplayServer, ca: CertAuthority, sent: bytes, tls: bool
) -> None:
    got = await asyncio.to_thread(said_before_reading, served.url, sent, ca if tls else None)
    assert got.startswith(b"HTTP/1.1 431 ")
    assert got.endswith(b"\r\n\r\n")
    assert await requests(served.url) == 0


def said_before_reading(url: str, sent: bytes, ca: CertAuthority | None) -> bytes:
    """Return all that comes to a client that looks for an answer only when it has said everything."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        if ca is None:
            line.sendall(sent)
            return b"".join(iter(lambda: line.recv(4096), b""))
        context = ssl.create_default_context(cadata=ca.cert_pem.decode())
        with context.wrap_socket(line, server_hostname="shop.example") as tls:
            tls.sendall(sent)
            return b"".join(iter(lambda: tls.recv(4096), b""))


@pytest.mark.parametrize("more", [b"", bytes(DROPPED)])
async def test_who_was_refused_and_does_not_go_is_waited_for_within_bounds(
    served: ReplayServer, more: bytes
) -> None:
    async with dialled(served.url) as (reader, writer):
        writer.write(b"no request\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 20) == refusal(400)
        assert await state(served.url) == (0, 1)  # so that it could say more
        with suppress(ConnectionError):
            for at in range(0, len(more), 1 << 20):
                writer.write(more[at : at + (1 << 20)])
                await writer.drain()
            writer.write(b"+")
        while await state(served.url) != (0, 0):
            pass


async def test_the_end_of_a_server_does_not_wait_for_who_was_refused(pack: Pack, ca: CertAuthority) -> None:
    async with serve({"shop": pack}, ca, ReplayOptions(port=0, session_ports=None, drain=1e6)) as server:
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        writer.write(b"no request\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 20) == refusal(400)
    writer.close()


async def test_a_body_beyond_the_limit_is_refused_as_it_comes(served: ReplayServer) -> None:
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    async with dialled(served.url) as (reader, writer):
        answer = asyncio.create_task(one_answer(reader))
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(64):
            writer.write(chunk)
            await writer.drain()
        writer.write(b"1\r\nx")
        assert await answer == (413, b"")
    assert await requests(served.url) == 0


@pytest.mark.parametrize(
    "length", [b"Content-Length: %d\r\n\r\n" % len(INNER), b"Transfer-Encoding: chunked\r\n\r\n"]
)
async def test_a_request_in_a_body_is_no_request(served: ReplayServer, length: bytes) -> None:
    body = INNER if b"Length" in length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)
    for extra in (b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"):
        got = await converse(served.url, POST + extra + length + body + LAST)
        assert (got.count(b"HTTP/1.1 404 "), got.count(b"HTTP/1.1 200 ")) == (1, 1)


# Where a page has no business.


@pytest.mark.parametrize(
    "field", [b"Origin: https://evil.example", b"Origin: null", b"Sec-Fetch-Site: cross-site"]
)
@pytest.mark.parametrize("target", [b"POST /sessions", b"GET /info", b"POST /sessions/default/reset"])
async def test_the_control_api_answers_no_page(served: ReplayServer, field: bytes, target: bytes) -> None:
    got = await converse(
        served.url, target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + field + b"\r\n\r\n"
    )
    assert got.startswith(b"HTTP/1.1 403 ")


async def test_no_way_through_a_tunnel_leads_to_the_control_api(
    served: ReplayServer, ca: CertAuthority
) -> None:
    own = served.url.encode()
    requests = (
        b"GET /sessions HTTP/1.1\r\nHost: " + own.removeprefix(b"http://") + b"\r\n\r\n",
        b"GET " + own + b"/sessions HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://shop.example/ HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n",
    )
    async with tunnelled(served.url, ca) as (reader, writer):
        writer.write(b"".join(requests))
        assert [await one_answer(reader) for _ in requests] == [
            (404, b""),
            (404, b""),
            (200, PAGE),
            (200, PAGE),
        ]
        writer.write(CONNECT)
        assert await one_answer(reader) == (400, b"")
    got = await converse(served.url, b"GET " + own + b"/sessions HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 404 ")

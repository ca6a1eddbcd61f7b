"""Limits for one client of a server that others use: its time, and the bytes of its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.matching.keys import STRUCTURED, FormBody, JsonBody, MultipartBody, RawBody, body_key, read_body
from stillweb.model import Response
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, ReplayServer, serve, serve_cluster
from stillweb.replay.server.connection import ConnectionLimits
from stillweb.replay.server.listeners import ExpiryTimer

GET = b"GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"
POST = b"POST http://shop.example/cart HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 800000\r\n\r\n"
HALF = 400_000


@asynccontextmanager
async def serving(tmp_path: Path, ca: CertAuthority, limits: ConnectionLimits) -> AsyncIterator[ReplayServer]:
    page = PackEntry.of("GET", "http://shop.example/", Response(200, "OK", (), b"shop"))
    build_pack([page], {"name": "shop"}, tmp_path / "pack")
    options = ReplayOptions(port=0, session_ports=None, drain=1, limits=limits)
    with Pack.open(tmp_path / "pack") as pack:
        async with serve({"shop": pack}, ca, options) as server:
            yield server


async def connect(server: ReplayServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


def expiring(server: ReplayServer) -> Callable[[], None]:
    def expire() -> None:
        for target in server._targets():
            target.expire()

    return expire


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET http://shop.example/ HTTP/1.1\r\nHost: sh", b"HTTP/1.1 408 "),
        (POST + b"x" * 1000, b"HTTP/1.1 408 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
        (GET + b"GET http:", b"HTTP/1.1 200 "),
    ],
)
async def test_who_does_not_finish_a_request_is_let_go(
    tmp_path: Path, ca: CertAuthority, sent: bytes, answer: bytes
) -> None:
    limits = ConnectionLimits(receive_seconds=0.05, idle_seconds=3600)
    async with serving(tmp_path, ca, limits) as server:
        reader, writer = await connect(server)
        writer.write(sent)
        read = asyncio.ensure_future(reader.read())
        expire = expiring(server)
        assert await poll(lambda: expire() or read.done(), timeout=10)
        assert (await read).startswith(answer)
        writer.close()


async def test_bytes_that_trickle_do_not_prolong_a_head(tmp_path: Path, ca: CertAuthority) -> None:
    async with serving(tmp_path, ca, ConnectionLimits(receive_seconds=0.2)) as server:
        reader, writer = await connect(server)
        expire = expiring(server)
        read = asyncio.ensure_future(reader.read())

        def trickle() -> bool:
            if not read.done():
                writer.write(b"a")
            expire()
            return read.done()

        writer.write(b"GET http://shop.example/")
        assert await poll(trickle, timeout=10)
        assert (await read).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_an_idle_connection_is_closed_later_than_a_slow_one(tmp_path: Path, ca: CertAuthority) -> None:
    async with serving(tmp_path, ca, ConnectionLimits(receive_seconds=0.0, idle_seconds=0.5)) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(GET)
            assert (await reader.readuntil(b"shop")).startswith(b"HTTP/1.1 200 ")
            expiring(server)()
        read = asyncio.ensure_future(reader.read())
        assert await poll(lambda: expiring(server)() or read.done(), timeout=10)
        assert await read == b""
        writer.close()


async def test_the_timer_runs_until_it_is_stopped(tmp_path: Path, ca: CertAuthority) -> None:
    async with serving(tmp_path, ca, ConnectionLimits(receive_seconds=0.0)) as server:
        timer = ExpiryTimer(server._targets, interval=0.01)
        timer.start()
        reader, writer = await connect(server)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        timer.stop()
        writer.close()


async def test_bodies_have_a_budget_by_session_and_in_total(tmp_path: Path, ca: CertAuthority) -> None:
    limits = ConnectionLimits(session_bodies=1_300_000, bodies=1_500_000)
    async with serving(tmp_path, ca, limits) as server:
        async with ReplayClient(server.url) as client:
            other = await client.open_session()
        first, second, third, fourth = [await connect(server) for _ in range(3)] + [
            await asyncio.open_connection("127.0.0.1", int(other.proxy.rpartition(":")[2]))
        ]
        budget = server._budget
        for _, writer in (first, second):
            writer.write(POST + b"x" * HALF)
        assert await poll(lambda: budget._total == 2 * HALF, timeout=10)
        third[1].write(POST + b"x" * (HALF + 300_000))  # of the same session: 1.5 MB
        assert (await asyncio.wait_for(third[0].read(), 10)).startswith(b"HTTP/1.1 503 ")
        third[1].close()
        assert await poll(lambda: budget._total == 2 * HALF, timeout=10)
        fourth[1].write(POST + b"x" * (HALF + 350_000))  # of another one, but 1.55 MB in all
        assert (await asyncio.wait_for(fourth[0].read(), 10)).startswith(b"HTTP/1.1 503 ")
        fourth[1].close()
        assert await poll(lambda: budget._total == 2 * HALF, timeout=10)
        for reader, writer in (first, second):
            writer.write(b"x" * HALF)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
            writer.close()
        assert await poll(lambda: budget._total == 0, timeout=10)
        assert not budget._by_session


async def test_large_bodies_have_an_allowance_of_time_by_session(tmp_path: Path, ca: CertAuthority) -> None:
    body = json.dumps(list(range(20_000))).encode()
    fields = b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
    large = POST.replace(b"Content-Length: 800000", fields) + body

    async def ask(at: tuple[asyncio.StreamReader, asyncio.StreamWriter], sent: bytes) -> bytes:
        at[1].write(sent)
        return await at[0].readuntil(b"\r\n\r\n" if sent is large else b"shop")

    async with serving(tmp_path, ca, ConnectionLimits()) as server:
        connections = [await connect(server) for _ in range(3)]
        async with ReplayClient(server.url) as client:
            other = await client.open_session()
        neighbour = await asyncio.open_connection("127.0.0.1", int(other.proxy.rpartition(":")[2]))
        time = server._sessions["default"].session.body_time
        time.initial, time.share = 0.0, 0.0001
        assert (await ask(connections[0], GET)).startswith(b"HTTP/1.1 200 ")
        assert (await ask(connections[0], large)).startswith(b"HTTP/1.1 404 ")
        second = asyncio.ensure_future(ask(connections[0], large))
        assert await poll(lambda: time.paused, timeout=10)
        behind = asyncio.ensure_future(ask(connections[1], GET))  # or it would overtake the large one
        assert await poll(lambda: len(time._waiting) == 2, timeout=10)
        for _ in range(3):
            assert (await ask(neighbour, GET)).startswith(b"HTTP/1.1 200 ")
            assert (await ask(neighbour, large)).startswith(b"HTTP/1.1 404 ")
        assert not second.done()
        assert not behind.done()
        time.initial, time.share = 0.0, 1.0
        time._paid = 0.0
        connections[2][1].write(GET)
        assert await poll(lambda: len(time._waiting) == 3, timeout=10)
        time._resume()
        assert (await second).startswith(b"HTTP/1.1 404 ")
        assert (await behind).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):  # each waits as long as the one before it took
            assert (await ask(connections[0], large)).startswith(b"HTTP/1.1 404 ")
        for _, writer in (*connections, neighbour):
            writer.close()


async def test_a_client_that_names_no_session_leaves_the_supervisor(
    tmp_path: Path, ca: CertAuthority
) -> None:
    from small_sites import recorded

    shop = recorded(tmp_path / "collections", "shop")
    limits = ConnectionLimits(receive_seconds=0.2)
    options = ReplayOptions(port=0, session_ports=None, limits=limits)
    async with serve_cluster([shop], ca, options, workers=1) as cluster:
        host, _, port = cluster.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET http://sho")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


def test_large_bodies_are_compared_by_their_bytes() -> None:
    small = json.dumps([{"item": n} for n in range(100)]).encode()
    large = b"[" + b",".join([b'{"item": 1}'] * (STRUCTURED // 12)) + b"]" + b" " * STRUCTURED
    assert isinstance(read_body("application/json", small), JsonBody)
    assert isinstance(read_body("application/json", large), RawBody)
    assert body_key("application/json", large) != body_key("application/json", large + b" ")
    form = b"a=" + quote("ä" * (STRUCTURED // 6)).encode()
    kind = "application/x-www-form-urlencoded"
    assert isinstance(read_body(kind, form[: STRUCTURED - 10]), FormBody)
    assert isinstance(read_body(kind, form + b"&b=1" * 10), RawBody)


def test_large_uploads_are_compared_without_their_boundary() -> None:
    def upload(boundary: str) -> bytes:
        part = b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * STRUCTURED
        edge = b"--" + boundary.encode()
        return edge + b"\r\n" + part + b"\r\n" + edge + b"--\r\n"

    kinds = [f"multipart/form-data; boundary={each}" for each in ("one", "another")]
    bodies = [upload(each) for each in ("one", "another")]
    assert isinstance(read_body(kinds[0], bodies[0]), MultipartBody)
    assert body_key(kinds[0], bodies[0]) == body_key(kinds[1], bodies[1])

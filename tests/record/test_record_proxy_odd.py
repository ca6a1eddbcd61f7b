"""Odd sites and clients at a recording proxy, and the exchanges it writes; every loss is reported."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import pytest
from odd_site import BROKEN

from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, header
from stillweb.record.proxy import proxy
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy, RequestOutcome, RequestRecord

# mitmproxy 11 and what its default addons import, not us.
ORIGIN = "http://odd.test"


@asynccontextmanager
async def recorded(
    collection: Collection, ca, options
) -> AsyncIterator[tuple[httpx.AsyncClient, RecordingProxy]]:
    with CollectionWriter(collection) as writer:
        async with (
            recording_proxy(writer, ca, options) as recording,
            httpx.AsyncClient(proxy=recording.url, timeout=20, base_url=ORIGIN) as client,
        ):
            yield client, recording


def written(collection: Collection) -> dict[str, Exchange]:
    assert check(collection) == []
    captures = list(collection.captures())
    return {capture.url.removeprefix(ORIGIN): collection.read_capture(capture) for capture in captures}


def entries(recording: RecordingProxy) -> dict[str, tuple[str, str]]:
    shown = [asdict(entry) for entry in recording.account.ledger().entries]
    return {entry["url"].removeprefix(ORIGIN): (entry["tier"], entry["reason"]) for entry in shown}


async def test_interim_answers_are_passed_over(odd, collection, ca) -> None:
    async with recorded(collection, ca, odd.options) as (client, recording):
        for path in ("/hints", "/processing", "/plain"):
            answer = await client.get(path)
            assert (answer.status_code, answer.text) == (200, "hi")

    assert {path: each.response.status for path, each in written(collection).items()} == dict.fromkeys(
        ("/hints", "/processing", "/plain"), 200
    )
    assert recording.failed == {}


async def test_trailers_are_stored_beside_the_answer(odd, collection, ca) -> None:
    async with recorded(collection, ca, odd.options) as (client, _):
        assert (await client.get("/trailers")).text == "hi"
        assert (await client.get("/plain")).text == "hi"  # on the same connection

    exchange = written(collection)["/trailers"]
    assert exchange.response.raw_body == b"hi"
    assert header(exchange.response.headers, "x-sum") == ""
    records = b"".join(_gunzipped(path) for path in collection.warc_files())
    assert b"\r\ntrailer: X-Sum: 7\r\ntrailer: x-sum: 8\r\n" in records
    assert seal(collection).warnings == ()


def _gunzipped(path: Path) -> bytes:
    import gzip

    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("path", BROKEN)
async def test_a_broken_answer_is_reported_and_not_written(odd, collection, ca, path) -> None:
    async with recorded(collection, ca, odd.options) as (client, recording):
        with pytest.raises(httpx.HTTPError):
            await client.get(path)
        assert (await client.get("/plain")).text == "hi"  # the proxy has survived it
        async with asyncio.timeout(10):
            await recording.idle()

    assert list(written(collection)) == ["/plain"]
    assert list(recording.failed) == [ORIGIN + path]
    assert recording.failed[ORIGIN + path]
    assert entries(recording)[path][0] == "miss"


async def test_a_request_without_an_end_to_its_fields_is_refused(odd, collection, ca) -> None:
    async with recorded(collection, ca, odd.options) as (client, recording):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(recording.url.rpartition(":")[2]))
        writer.write(f"GET {ORIGIN}/plain HTTP/1.1\r\nHost: odd.test\r\nX-A: ".encode())
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                while not writer.is_closing() and not reader.at_eof():
                    writer.write(b"a" * (16 << 10))
                    await writer.drain()
            with suppress(ConnectionError):
                assert (await reader.read()).startswith(b"HTTP/1.1 431")
        writer.close()
        assert (await client.get("/plain")).text == "hi"


CONNECT = b"CONNECT odd.test:443 HTTP/1.1\r\nHost: odd.test:443\r\n\r\n"
PLAIN = f"GET {ORIGIN}/plain HTTP/1.1\r\nHost: odd.test\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("complete", "begun"),
    [
        (b"", b"GET "),
        (PLAIN, b"GET "),
        (CONNECT, b""),
        (CONNECT, b"\x16\x03\x01\x02\x00"),
        (CONNECT, b"GET "),
    ],
    ids=["a first head", "a second head", "no handshake", "half a handshake", "a head in a tunnel"],
)
async def test_a_slow_head_or_handshake_is_cut_off(
    odd, collection, ca, monkeypatch, complete: bytes, begun: bytes
) -> None:
    monkeypatch.setattr(proxy, "_HEAD_SECONDS", 0.5)
    async with recorded(collection, ca, odd.options) as (client, recording):
        port = int(recording.url.rpartition(":")[2])
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            if complete:
                writer.write(complete)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(begun)
            with suppress(ConnectionError):
                await reader.read()  # to the end of the connection
        idle_writer.write(PLAIN)  # a connection on which nothing was sent has no such limit
        assert (await idle_reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        idle_writer.close()
        writer.close()
        assert (await client.get("/plain")).text == "hi"


async def test_answers_without_a_body_and_of_a_wrong_length(odd, collection, ca) -> None:
    async with recorded(collection, ca, odd.options) as (client, _):
        assert (await client.get("/none")).status_code == 204
        assert (await client.get("/not-modified")).status_code == 304
        assert (await client.get("/more-than-said")).text == "hi"

    bodies = {
        path: (each.response.status, each.response.raw_body) for path, each in written(collection).items()
    }
    assert bodies == {"/none": (204, b""), "/not-modified": (304, b""), "/more-than-said": (200, b"hi")}


async def test_heads_that_browsers_take_are_taken(odd, collection, ca) -> None:
    paths = ("/length-and-chunks", "/length-twice", "/no-token", "/none-in-chunks")
    async with recorded(collection, ca, odd.options) as (_, recording):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(recording.url.rpartition(":")[2]))
        heads = {}
        for path in paths:  # httpx refuses the names that browsers pass over
            writer.write(f"GET {ORIGIN}{path} HTTP/1.1\r\nHost: odd.test\r\n\r\n".encode())
            head = heads[path] = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"transfer-encoding: chunked" in head:
                assert await reader.readexactly(12) == b"2\r\nhi\r\n0\r\n\r\n"
            elif b" 200 " in head:
                assert await reader.readexactly(2) == b"hi"
        writer.close()

    assert b"content-length" not in heads["/length-and-chunks"]
    assert heads["/length-twice"].count(b"content-length") == 1
    assert b"transfer-encoding" not in heads["/none-in-chunks"]
    answers = {path: each.response for path, each in written(collection).items()}
    bodies = {path: (each.status, each.raw_body) for path, each in answers.items()}
    assert bodies == {path: (200, b"hi") for path in paths[:3]} | {paths[3]: (204, b"")}
    assert recording.failed == {}
    assert seal(collection).warnings == ()
    with Pack.open(collection.pack) as pack:
        for row in range(len(pack)):  # replay counts for itself
            assert b"content-length" not in bytes(pack.entry(row).head).lower()


async def test_uploads_arrive_and_are_written_whole(odd, collection, ca) -> None:
    content = bytes(range(256)) * 8192  # 2 MiB

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 100_000):
            yield content[at : at + 100_000]

    async with recorded(collection, ca, odd.options) as (client, _):
        whole = await client.put("/digest", content=content, headers={"Expect": "100-continue"})
        in_chunks = await client.post("/digest", content=pieces())

    assert {whole.text, in_chunks.text} == {hashlib.sha256(content).hexdigest()}
    for capture in collection.captures():
        assert collection.read_capture(capture).request.raw_body == content
    assert {capture.method for capture in collection.captures()} == {"PUT", "POST"}
    assert b"expect:" not in odd.heads[0].lower()  # answered by the proxy
    assert check(collection) == []


async def test_a_long_upload_passes_and_is_reported(odd, collection, ca) -> None:
    async with recorded(collection, ca, replace(odd.options, max_body=1000)) as (client, recording):
        content = b"x" * 1001
        assert (await client.put("/digest", content=content)).text == hashlib.sha256(content).hexdigest()
        assert (await client.put("/digest", content=content[1:])).status_code == 200

    assert [len(collection.read_capture(c).request.raw_body) for c in collection.captures()] == [1000]
    assert recording.account.counts == {RequestOutcome.TOO_LONG.value: 1, RequestOutcome.RECORDED.value: 1}


async def test_an_endless_answer_is_let_go_with_its_client(odd, collection, ca) -> None:
    async with recorded(collection, ca, replace(odd.options, max_body=5000)) as (client, recording):
        async with client.stream("GET", "/endless") as answer:
            size = 0
            async for piece in answer.aiter_raw():
                size += len(piece)
                if size > 100_000:
                    break
        async with asyncio.timeout(10):
            await odd.left.wait()
            await recording.idle()

    assert recording.aborted == {ORIGIN + "/endless"}
    assert written(collection) == {}


async def test_what_is_not_over_at_the_end_is_reported(odd, collection, ca) -> None:
    records: list[RequestRecord] = []
    async with recorded(collection, ca, odd.options) as (client, recording):
        recording.on_request.append(records.append)
        asking = asyncio.ensure_future(client.get("/hang"))
        async with asyncio.timeout(10):
            while not odd.heads:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    with pytest.raises(httpx.HTTPError):
        await asking

    assert [(each.url, each.outcome) for each in records] == [(ORIGIN + "/hang", RequestOutcome.OPEN)]
    assert written(collection) == {}


async def test_quiet_is_when_nothing_was_under_way_for_so_long(odd, collection, ca) -> None:
    async with recorded(collection, ca, odd.options) as (client, recording):
        asking = asyncio.ensure_future(client.get("/hang"))
        async with asyncio.timeout(10):
            while not recording.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        quiet = asyncio.ensure_future(recording.quiet(0.05))
        done, _ = await asyncio.wait([quiet], timeout=0.3)
        assert not done  # a request is under way
        asking.cancel()
        async with asyncio.timeout(10):
            await quiet

"""SockJS and socket.io: a connection with another random session gets the recorded conversation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
import websockets

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.learn.transports import learn_transports, transport_rules
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import (
    CLOSE,
    TEXT,
    Chunk,
    Chunks,
    ConnectionEnd,
    Frame,
    Frames,
    chunks_beside,
    frames_beside,
)
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayClient, ReplayOptions, serve

SITE = "http://live.example"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.create(tmp_path, "live")
    fields = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
    with CollectionWriter(made) as writer:
        for number, path in enumerate(("/sockjs/512/xk3jq0ab/websocket", "/sockjs/007/b1c2d3e4/websocket")):
            url = f"ws://live.example{path}"
            talk = Frames((Frame(0, False, TEXT, f"hello {number}".encode()),), ConnectionEnd.OPEN)
            exchange = Exchange(
                Request("GET", url, fields), Response(101, "", fields), f"2026010100000{number}"
            )
            writer.write(exchange, frames_beside(url, talk))
        plain = (("Content-Type", "text/plain"),)
        for path, body in {
            "/sockjs/512/xk3jq0ab/xhr": b"o",
            "/socket.io/?EIO=4&transport=polling&t=PXyAbC1": b"0{sid}",
            "/catalog/512/xk3jq0ab/page": b"product",
        }.items():
            method = "POST" if path.endswith("/xhr") else "GET"
            writer.write(
                Exchange(Request(method, SITE + path), Response(200, "OK", plain, body), "20260101000005")
            )
        stream = f"{SITE}/sockjs/512/xk3jq0ab/eventsource"
        events = (("Content-Type", "text/event-stream"),)
        body = b"data: o\n\ndata: later\n\n"
        chunks = Chunks((Chunk(0, 9), Chunk(10, len(body) - 9)), ConnectionEnd.SITE, 20)
        exchange = Exchange(Request("GET", stream), Response(200, "OK", events, body), "20260101000006")
        writer.write(exchange, chunks_beside(stream, chunks))
    return made


async def connect(proxy: str, path: str) -> tuple[int, bytes]:
    """Open a WebSocket; return the status of the handshake and the first frame."""
    reader, writer = await asyncio.open_connection(*proxy.removeprefix("http://").split(":"))
    writer.write(
        f"GET {SITE}{path} HTTP/1.1\r\nHost: live.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    frame = b""
    if status == 101:
        size = (await reader.readexactly(2))[1]
        frame = await reader.readexactly(size)
    writer.close()
    return status, frame


async def test_a_random_session_is_no_part_of_a_connection(collection, tmp_path) -> None:
    learn_transports(collection)
    before = (collection.path / "rules.yaml").read_bytes()
    learn_transports(collection)
    assert (collection.path / "rules.yaml").read_bytes() == before
    seal(collection)
    ca = CertAuthority.init(tmp_path / "certs")

    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        assert await connect(server.url, "/sockjs/007/b1c2d3e4/websocket") == (101, b"hello 1")  # as recorded
        assert await connect(server.url, "/sockjs/333/zzzzzzzz/websocket") == (
            101,
            b"hello 1",
        )  # the next one
        assert (await connect(server.url, "/sockjs/333/zzzzzzzz/other"))[0] == 404
        assert (await connect(server.url, "/chat/333/zzzzzzzz/websocket"))[0] == 404
        async with httpx.AsyncClient(proxy=server.url) as client:
            posted = await client.post(f"{SITE}/sockjs/123/abcdabcd/xhr")
            polled = await client.get(f"{SITE}/socket.io/?EIO=4&transport=polling&t=QQQQQQQ")
            other = await client.get(f"{SITE}/socket.io/?EIO=4&transport=polling&t=QQQQQQQ&sid=x")
            stream = await client.get(f"{SITE}/sockjs/777/aaaaaaaa/eventsource")
            product = await client.get(f"{SITE}/catalog/513/xk3jq0ab/page")
    assert (posted.content, polled.content) == (b"o", b"0{sid}")
    assert stream.content == b"data: o\n\ndata: later\n\n"
    assert (other.status_code, product.status_code) == (404, 404)


async def test_a_conversation_that_was_cut_short_is_not_used_if_another_continues(tmp_path) -> None:
    made = Collection.create(tmp_path, "live")
    fields = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
    hello, subscribe = Frame(0, False, TEXT, b"o"), Frame(5, True, TEXT, b"subscribe")
    left = Frame(9, True, CLOSE, b"\x03\xe9")
    talks = {
        "/sockjs/001/aaaaaaaa/websocket": (hello, left),
        "/sockjs/002/bbbbbbbb/websocket": (hello, subscribe, Frame(6, False, TEXT, b"state"), left),
        "/sockjs/003/cccccccc/websocket": (hello, Frame(2, False, TEXT, b"news"), left),
    }
    with CollectionWriter(made) as writer:
        for number, (path, frames) in enumerate(talks.items()):
            url = f"ws://live.example{path}"
            exchange = Exchange(
                Request("GET", url, fields), Response(101, "", fields), f"2026010100000{number}"
            )
            writer.write(exchange, frames_beside(url, Frames(frames, ConnectionEnd.CLIENT)))
    learn_transports(made)
    seal(made)
    ca = CertAuthority.init(tmp_path / "certs")
    async with serve([made], ca, ReplayOptions(port=0, session_ports=None)) as server:
        for path in ("/sockjs/001/aaaaaaaa/websocket", "/sockjs/333/zzzzzzzz/websocket"):
            await connect(server.url, path)
        async with ReplayClient(server.url) as client:
            entries = (await client.ledger("default")).entries
    assert ["2 of the page" in each.reason for each in entries] == [True, True]


async def test_a_page_gets_the_state_of_the_visit_that_it_names(tmp_path) -> None:
    made = Collection.create(tmp_path, "live")
    url = "ws://live.example/sockjs/001/aaaaaaaa/websocket"
    upgrade = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
    with CollectionWriter(made) as writer:
        for visit in ("1", "2"):
            talk = Frames(
                (
                    Frame(0, False, TEXT, b"o"),
                    Frame(5, True, TEXT, f"I am {visit}".encode()),
                    Frame(6, False, TEXT, f"state {visit}".encode()),
                ),
                ConnectionEnd.OPEN,
            )
            request = Request("GET", url, (*upgrade, ("Cookie", f"visit={visit}")))
            exchange = Exchange(request, Response(101, "", upgrade), f"2026010100000{visit}")
            writer.write(exchange, frames_beside(url, talk))
    seal(made)
    ca = CertAuthority.init(tmp_path / "certs")
    cookie = {"Cookie": "visit=1"}
    async with (
        serve([made], ca, ReplayOptions(port=0, session_ports=None)) as server,
        websockets.connect(url, proxy=server.url, additional_headers=cookie) as socket,
    ):
        await socket.send("I am 2")
        assert [await asyncio.wait_for(socket.recv(), 10) for _ in range(2)] == ["o", "state 2"]


def test_only_urls_of_the_two_libraries_make_rules(collection) -> None:
    assert transport_rules([f"{SITE}/catalog/512/xk3jq0ab/page", f"{SITE}/a/12/xk3jq0ab/websocket"]) == ()
    assert transport_rules([f"{SITE}/socket.io/?page=1", f"{SITE}/socket.io/socket.io.js?EIO=4"]) == ()
    assert (
        transport_rules(["wss://live.example/websocket", "wss://live.example/*/512/xk3jq0ab/websocket"]) == ()
    )
    rules = transport_rules(["wss://live.example/deep/down/512/xk3jq0ab/websocket"])
    assert [(rule.where, rule.name, rule.path) for rule in rules] == [
        ("path", "3", "/deep/down/*/*/websocket"),
        ("path", "4", "/deep/down/*/*/websocket"),
        ("query", "t", "/deep/down/info"),
    ]
    assert read_rules(collection).own == ()


async def test_a_polling_connection_gets_the_conversation_that_its_messages_belong_to(tmp_path) -> None:
    made = Collection.create(tmp_path, "live")
    plain = (("Content-Type", "text/plain"),)
    number = iter(range(10, 60))

    def write(writer: CollectionWriter, sid: str, sent: bytes, answer: bytes) -> None:
        query = f"EIO=4&transport=polling&t=P{next(number)}{f'&sid={sid}' if sid else ''}"
        request = Request(
            "POST" if sent else "GET", f"{SITE}/socket.io/?{query}", plain if sent else (), sent
        )
        writer.write(Exchange(request, Response(200, "OK", plain, answer), f"202601010000{next(number)}"))

    with CollectionWriter(made) as writer:
        talks = (("AAA", b"a"), ("BBB", b"b"))  # two pages that were recorded at one time
        for sid, _ in talks:
            write(writer, "", b"", b'0{"sid":"%b","upgrades":[]}' % sid.encode())
        for sid, name in talks:
            write(writer, sid, b"40/%b," % name, b"ok")
        for sid, name in talks:
            write(writer, sid, b"", b'40/%b,{"sid":"x"}' % name)
        for sid, name in talks:
            write(writer, sid, b'42/%b,["go"]' % name, b"ok")
        for sid, name in talks:
            write(writer, sid, b"", b'42/%b,["done"]' % name)
            if sid == "AAA":
                write(writer, sid, b"", b"6")
    learn_transports(made)
    seal(made)
    ca = CertAuthority.init(tmp_path / "certs")

    async with (
        serve([made], ca, ReplayOptions(port=0, session_ports=None)) as server,
        httpx.AsyncClient(proxy=server.url) as client,
    ):

        async def talk(sid: str, sent: bytes = b"") -> bytes:
            url = f"{SITE}/socket.io/?EIO=4&transport=polling&t=Q{next(number)}"
            url += f"&sid={sid}" if sid else ""
            got = await (client.post(url, content=sent, headers=dict(plain)) if sent else client.get(url))
            return got.content if got.status_code == 200 else b"miss"

        assert b"AAA" in await talk("")
        assert await talk("AAA", b"40/b,") == b"ok"
        assert await talk("AAA") == b'40/b,{"sid":"x"}'
        assert await talk("AAA") == b"miss"  # the answer to a message that was not sent
        assert await talk("AAA", b'42/b,["stop"]') == b"miss"
        assert await talk("AAA", b'42/b,["go"]') == b"ok"
        assert await talk("AAA") == b'42/b,["done"]'
        assert await talk("AAA") == b"miss"  # once more would deliver the message twice
        assert b"BBB" in await talk("")
        assert await talk("BBB", b'42/a,["go"]') == b"ok"  # not the first message of that connection
        assert await talk("BBB") == b'40/a,{"sid":"x"}'
        assert await talk("BBB") == b"6"
        assert b"AAA" in await talk("")
        assert await talk("AAA", b"40/a,") == b"ok"
        assert b"BBB" in await talk("")
        assert await talk("BBB", b"40/b,") == b"ok"
        assert await talk("BBB") == b'40/b,{"sid":"x"}'
        assert b"AAA" in await talk("")  # past the end, from the beginning
        assert await talk("AAA", b"40/a,") == b"ok"
        assert await talk("AAA") == b'40/a,{"sid":"x"}'
        assert [await talk("AAA") for _ in range(2)] == [b"6"] * 2  # ends the poll, before a message was sent
        assert await talk("AAA", b'42/a,["go"]') == b"ok"
        assert await talk("AAA") == b'42/a,["done"]'
        assert await talk("CCC") == b"miss"
        ended = await client.post(f"{SITE}/socket.io/?EIO=4&transport=polling&t=Q&sid=AAA", content=b"1")
        assert ended.status_code == 204  # noise

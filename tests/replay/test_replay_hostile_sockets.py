"""Hostile clients of a recorded WebSocket: the next client is served all the same, and memory is bounded."""

from __future__ import annotations

import asyncio
import logging
import struct
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from stillweb.certs import CertAuthority
from stillweb.clock import seeded
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import TEXT, ConnectionEnd, Frame, Frames, frames_beside
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, ReplayServer, serve
from stillweb.replay.server.connection import Connection, ListenerTarget
from stillweb.replay.server.socketscript import SocketScript

LIVE = "ws://shop.example/live"
HANDSHAKE = (
    b"GET http://shop.example/live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(first: int, payload: bytes) -> bytes:
    """Return a frame of a client under the mask 0 (RFC 6455 §5.2)."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + struct.pack(">Q", size)
    return bytes([first]) + length + bytes(4) + payload


@pytest.fixture
async def served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[ReplayServer]:
    caplog.set_level(logging.INFO)
    collection = Collection.create(tmp_path, "shop")
    with CollectionWriter(collection) as writer:
        fields = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
        talk = Frames((Frame(0, True, TEXT, b"hi"), Frame(0, False, TEXT, b"hello")), ConnectionEnd.OPEN)
        handshake = Exchange(Request("GET", LIVE, fields), Response(101, "", fields), "20260101000001")
        writer.write(handshake, frames_beside(LIVE, talk))
    seal(collection)
    options = ReplayOptions(port=0, session_ports=None, drain=1)
    ca = CertAuthority.init(tmp_path / "certs")
    with Pack.open(collection.pack) as pack:
        async with serve({"shop": pack}, ca, options) as server, ReplayClient(server.url) as control_api:
            yield server
            reader, writer = await opened(server)
            writer.write(frame(0x81, b"hi"))
            assert await reader.readexactly(7) == b"\x81\x05hello"
            writer.transport.abort()
            async with asyncio.timeout(10):
                while (shown := await control_api.session("default"))["connections"] > 1:
                    pass
            assert shown["in_flight"] == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def opened(server: ReplayServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
    writer.write(HANDSHAKE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


@pytest.mark.parametrize(
    "sent",
    [
        b"\x81\x02hi",  # not masked
        b"\xf1\x80\0\0\0\0",  # reserved bits
        b"\x83\x80\0\0\0\0",  # a reserved opcode
        b"\x09\x80\0\0\0\0",  # a ping in pieces
        b"\x89\xff" + struct.pack(">Q", 1 << 20) + bytes(4),  # a ping of a megabyte
        b"\x81\xff" + struct.pack(">Q", 1 << 63) + bytes(4),  # a length beyond all
        frame(0x81, b"\xff\xfe"),  # no UTF-8
        frame(0x80, b"more of nothing"),
        frame(0x88, b"\x03"),  # half a reason to close
        frame(0x88, b"\x03\xe8bye") + frame(0x81, b"hi"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_frame_ends_the_connection(served: ReplayServer, sent: bytes) -> None:
    reader, writer = await opened(served)
    writer.write(sent)
    await asyncio.wait_for(reader.read(), 10)
    writer.transport.abort()


async def test_rubbish_frames(served: ReplayServer) -> None:
    draw = seeded("frames")
    for _ in range(60):
        _, writer = await opened(served)
        for _ in range(draw.randint(1, 6)):
            writer.write(frame(draw.randrange(256), draw.randbytes(draw.choice((0, 2, 130)))))
        writer.write(draw.randbytes(draw.randint(0, 20)))
        await writer.drain()
        writer.transport.abort()


class Watched(Connection):
    """A connection whose transport can be looked at."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)


async def test_pings_of_who_does_not_read_wait_in_the_network(served: ReplayServer) -> None:
    loop = asyncio.get_running_loop()
    made: list[Watched] = []
    entrance = ListenerTarget(loop.create_task, served.ca, served.public.session)
    listener = await loop.create_server(lambda: made.append(Watched(entrance)) or made[-1], "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(HANDSHAKE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    ping, pong = frame(0x89, b"p" * 125), b"\x8a\x7d" + b"p" * 125
    count = (12 << 20) // len(ping)

    writer.transport.pause_reading()
    writer.write(ping * count)
    sending = asyncio.create_task(writer.drain())
    writer.transport.set_write_buffer_limits(high=0)
    (seen,) = made
    assert await poll(lambda: sending.done() or not seen.transport.is_reading(), timeout=60)
    assert not seen.transport.is_reading()
    assert seen.transport.get_write_buffer_size() < 1 << 20

    writer.transport.resume_reading()
    for _ in range(count):
        assert await reader.readexactly(len(pong)) == pong
    assert seen.transport.is_reading()
    await sending
    writer.transport.abort()
    listener.close()
    await listener.wait_closed()
    await entrance.empty.wait()


def test_a_message_in_endless_empty_pieces_weighs_nothing() -> None:
    script = SocketScript(Frames((), ConnectionEnd.OPEN), lambda one, other: False, lambda *miss: None)
    script.receive(frame(0x01, b"") + frame(0x00, b"") * 500, 0)
    tracemalloc.start()
    try:
        for _ in range(16):
            script.receive(frame(0x00, b"") * 500, 0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not script.closed
    assert held < 32 * 1024

"""No effect before its cause: frames and events wait for the mutation that they were recorded after."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
from wsproto.events import Request as Handshake
from wsproto.events import TextMessage

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.frames import (
    TEXT,
    Chunk,
    Chunks,
    ConnectionEnd,
    Frame,
    Frames,
    MutationMark,
    chunks_beside,
    frames_beside,
    read_chunks,
    read_frames,
    write_chunks,
    write_frames,
)
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.resolver import SessionState
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve
from stillweb.replay.server.eventstream import StreamScript, TimedChunk
from stillweb.replay.server.gates import Gate, SessionGates
from stillweb.replay.server.socketscript import SocketScript

SITE = "http://jobs.example"
SOCKET, EVENTS, START = "ws://jobs.example/ws", f"{SITE}/events", f"{SITE}/start"
SSE = ("Accept", "text/event-stream")


def received(ms: int, text: str) -> Frame:
    return Frame(ms, False, TEXT, text.encode())


def sent(ms: int, text: str) -> Frame:
    return Frame(ms, True, TEXT, text.encode())


def _same(one: Frame, other: Frame) -> bool:
    return one.payload == other.payload


class Played:
    """A socket's script, and what was heard of it; `state` is that of the session."""

    def __init__(self, frames: Frames, *gates: Gate, paced: bool = False) -> None:
        self.state = SessionState()
        held = SessionGates(gates, lambda: self.state)
        self.script = SocketScript(frames, _same, lambda *_: None, paced=paced, gates=held)
        self.heard: list[str] = []
        self._client = Connection(ConnectionType.CLIENT)
        self.hear(self.script.due(0.0))

    def hear(self, data: bytes) -> list[str]:
        self._client.receive_data(data)
        self.heard += [each.data for each in self._client.events() if isinstance(each, TextMessage)]
        return self.heard

    def say(self, text: str) -> list[str]:
        return self.hear(self.script.receive(self._client.send(TextMessage(text)), 0.0))

    def mutate(self, epoch: int, now: float = 0.0) -> list[str]:
        self.state.epoch = epoch
        return self.hear(self.script.due(now))


STORY = Frames(
    (
        received(10, "idle"),
        received(5000, "running"),
        sent(6000, "ping"),
        received(6001, "pong"),
        received(9000, "done"),
    )
)


def test_frames_wait_for_the_mutation_before_them() -> None:
    page = Played(STORY, Gate(4000, 7, 0), Gate(8000, 9, 1))
    assert page.heard == ["idle"]
    assert page.say("ping") == ["idle"]  # it was answered when the job ran
    assert page.mutate(1) == ["idle", "running", "pong"]
    assert page.mutate(2) == ["idle", "running", "pong", "done"]


def test_a_later_mutation_opens_the_gates_before_it() -> None:
    page = Played(STORY, Gate(4000, 7, 0), Gate(8000, 9, 1))
    assert page.mutate(2) == ["idle", "running"]
    assert page.say("ping")[2:] == ["pong", "done"]


def test_a_beacon_counts_by_its_use() -> None:
    page = Played(STORY, Gate(4000, 7, 3))
    page.state.uses[7] = 1
    assert page.mutate(0) == ["idle", "running"]


def test_the_pause_is_counted_from_the_mutation() -> None:
    page = Played(STORY, Gate(4000, 7, 0), paced=True)
    assert page.mutate(0, now=60.0) == ["idle"]
    assert page.mutate(1, now=100.0) == ["idle"]
    assert page.script.next_due == 101.0
    assert page.hear(page.script.due(101.0)) == ["idle", "running"]


def test_what_came_after_the_page_had_settled_waits_for_the_next_cause() -> None:
    page = Played(
        Frames((received(1, "a"), received(900, "tick"), received(5000, "b")), rest_ms=500), Gate(4000, 7, 0)
    )
    assert page.heard == ["a"]
    assert page.mutate(1) == ["a", "tick", "b"]


@given(st.lists(st.sampled_from(["r", "s", "g"]), max_size=12), st.integers(0, 12))
def test_nothing_is_heard_before_its_cause(kinds: list[str], made: int) -> None:
    frames, gates, due, count = [], [], [], 0
    for ms, kind in enumerate(kinds):
        if kind == "g":
            gates.append(Gate(ms, 100 + count, count))
            count += 1
        else:
            frames.append(received(ms, str(ms)) if kind == "r" else sent(ms, str(ms)))
            if kind == "r" and count <= made:
                due.append(str(ms))
    page = Played(Frames(tuple(frames)), *gates)
    for frame in frames:
        if frame.sent:
            page.say(frame.payload.decode())
    assert page.mutate(min(made, count)) == due


def test_events_wait_for_the_mutation_before_them() -> None:
    state = SessionState()
    gate = Gate(10, 5, 0)
    script = StreamScript(
        [TimedChunk(0, b"a"), TimedChunk(0, b"b", gate), TimedChunk(0, b"end", gate)],
        ends=True,
        state=lambda: state,
    )
    assert (script.due(0.0), script.next_due, script.closed) == (b"a", None, False)
    state.epoch = 1
    assert (script.due(5.0), script.closed) == (b"bend", True)


def test_marks_are_written_and_read() -> None:
    marks = (MutationMark(5, "20260101000001", 0), MutationMark(9, "20260101000001", 1))
    for each in ((), marks, None):
        frames = Frames((received(1, "a"),), marks=each)
        assert read_frames(write_frames(frames)) == frames
        chunks = Chunks((Chunk(1, 2),), marks=each)
        assert read_chunks(write_chunks(chunks)) == chunks


# Over the wire.


def record(root: Path, marks: bool) -> Collection:
    """A page with a socket and a stream; a POST starts the job after 5 s."""
    mark = (MutationMark(5300, "20260101000005", 0),) if marks else None
    frames = Frames((received(30, "idle"), received(5400, "running"), received(7000, "done")), marks=mark)
    events = (b"data: idle\n\n", b"data: running\n\n")
    timing = Chunks(
        (Chunk(20, len(events[0])), Chunk(5500, len(events[1]))), ConnectionEnd.OPEN, 8000, marks=mark
    )
    collection = Collection.create(root, "jobs")
    text = (("Content-Type", "text/plain"),)
    with CollectionWriter(collection) as writer:
        switched = Response(
            101, "Switching Protocols", (("Upgrade", "websocket"), ("Connection", "Upgrade")), b""
        )
        writer.write(
            Exchange(Request("GET", SOCKET), switched, "20260101000000"), frames_beside(SOCKET, frames)
        )
        stream = Response(200, "OK", (("Content-Type", "text/event-stream"),), b"".join(events))
        writer.write(
            Exchange(Request("GET", EVENTS, (SSE,)), stream, "20260101000000"), chunks_beside(EVENTS, timing)
        )
        started = Exchange(
            Request("POST", START, text, b"go"), Response(200, "OK", text, b"started"), "20260101000005"
        )
        writer.write(started)
    reindex(collection)
    ensure_sealed(collection)
    return collection


async def until(reader: asyncio.StreamReader, wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(10):
        while wanted not in seen:
            piece = await reader.read(4096)
            assert piece, seen
            seen += piece
    return seen


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "timestamps"])
async def test_the_job_runs_once_it_was_started(tmp_path: Path, marks: bool) -> None:
    ca = CertAuthority.init(tmp_path / "certs")
    collection = record(tmp_path / "collections", marks)
    options = ReplayOptions(port=0, session_ports=None)
    async with serve([collection], ca, options) as server, ReplayClient(server.url) as client:
        session = await client.open_session()
        port = int(session.proxy.rpartition(":")[2])
        socket_in, socket_out = await asyncio.open_connection("127.0.0.1", port)
        socket = WSConnection(ConnectionType.CLIENT)
        socket_out.write(socket.send(Handshake(host="jobs.example", target="/ws")))
        stream_in, stream_out = await asyncio.open_connection("127.0.0.1", port)
        stream_out.write(b"GET /events HTTP/1.1\r\nHost: jobs.example\r\nAccept: text/event-stream\r\n\r\n")
        for reader in (stream_in, socket_in):
            assert b"running" not in await until(reader, b"idle")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.2)
        post_in, post_out = await asyncio.open_connection("127.0.0.1", port)
        post_out.write(
            b"POST /start HTTP/1.1\r\nHost: jobs.example\r\nContent-Type: text/plain\r\n"
            b"Content-Length: 2\r\n\r\ngo"
        )
        assert b"started" in await until(post_in, b"started")
        assert b"running" in await until(stream_in, b"running")
        assert b"done" in await until(socket_in, b"done")
        for writer in (post_out, stream_out, socket_out):
            writer.close()

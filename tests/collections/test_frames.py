"""WebSocket frames and event streams in the archive: exact round trips, and nothing that others trip over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.collections.check import check
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.pack.frames import open_chunks, open_frames, socket_key, stream_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import (
    BINARY,
    CLOSE,
    TEXT,
    Chunk,
    Chunks,
    ConnectionEnd,
    Frame,
    Frames,
    chunks_beside,
    frames_beside,
    read_chunks,
    read_frames,
    write_chunks,
    write_frames,
)
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import MalformedWarc
from stillweb.matching.keys import request_key
from stillweb.model import Exchange, Request, Response

SOCKET, STREAM, PAGE = "wss://site.example/live?a=1", "https://site.example/events", "https://site.example/"
MS = st.integers(0, 2**40)
ENDS = st.sampled_from(list(ConnectionEnd))
TEXTS = st.builds(Frame, MS, st.booleans(), st.just(TEXT), st.text().map(str.encode))
OTHERS = st.builds(Frame, MS, st.booleans(), st.sampled_from([BINARY, CLOSE]), st.binary())
FRAMES = st.builds(Frames, st.lists(TEXTS | OTHERS).map(tuple), ENDS, MS, st.none() | MS)
CHUNKS = st.builds(Chunks, st.lists(st.builds(Chunk, MS, MS)).map(tuple), ENDS, MS, st.none() | MS)

SCRIPT = Frames(
    (
        Frame(3, False, TEXT, "grüß\u2028 dich\n".encode()),
        Frame(10, True, TEXT, b'{"subscribe":"a"}'),
        Frame(12, False, BINARY, b"\x00\xff"),
        Frame(2012, False, CLOSE, b"\x03\xe8bye"),
    ),
    ConnectionEnd.SITE,
    2012,
)
TIMING = Chunks((Chunk(1, 11), Chunk(1000, 11)), ConnectionEnd.CLIENT, 1500)
EVENTS = b"data: one\n\ndata: two\n\n"


@given(FRAMES)
def test_frames_come_back_as_written(frames: Frames) -> None:
    block = write_frames(frames)
    assert read_frames(block) == frames
    assert block == write_frames(read_frames(block))
    assert all(isinstance(json.loads(line), dict) for line in block.splitlines())


@given(CHUNKS)
def test_timing_comes_back_as_written(chunks: Chunks) -> None:
    assert read_chunks(write_chunks(chunks)) == chunks


def test_what_is_not_known_is_passed_over() -> None:
    lines = write_frames(SCRIPT).splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"mask": False, "new": [1]}).encode()
    lines.insert(1, b'{"type": "note", "ts": "whatever"}')
    assert read_frames(b"\n\n".join(lines)) == SCRIPT
    fields = write_chunks(TIMING).replace(b"chunk: 1 ", b"via: x\r\nchunk:1   ")
    assert read_chunks(fields) == TIMING
    assert read_chunks(b"via: http://site.example/\r\n") is None


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[]",
        b'{"type": "sent", "ts": 1, "opcode": 1}',
        b'{"type": "sent", "ts": 1, "opcode": 9, "payloadData": ""}',
        b'{"type": "sent", "ts": 1, "opcode": true, "payloadData": ""}',
        b'{"type": "sent", "ts": -1, "opcode": 1, "payloadData": ""}',
        b'{"type": "sent", "ts": 1, "opcode": 1, "payloadData": "\\ud800"}',
        b'{"type": "received", "ts": 1, "opcode": 2, "payloadData": "*"}',
        b'{"type": "end", "ts": 1, "by": "nobody"}',
        b"[" * 100_000,
    ],
)
def test_a_bad_line_is_named_by_file_and_offset(line: bytes) -> None:
    good = write_frames(SCRIPT).splitlines()[0]
    with pytest.raises(MalformedWarc, match=r"a\.warc:17: line 2 of"):
        read_frames(good + b"\n" + line, path=Path("a.warc"), offset=17)


@pytest.mark.parametrize("line", ["chunk: 1", "chunk: x 2", "chunk: -1 2", "end: 1 nothing", "end: 1 \xe4"])
def test_bad_timing_is_named(line: str) -> None:
    with pytest.raises(MalformedWarc, match=r"a\.warc:17: line 2 of"):
        read_chunks(f"event-stream: 1\r\n{line}\r\n".encode("latin-1"), path=Path("a.warc"), offset=17)


def exchange(url: str, response: Response, *fields: tuple[str, str]) -> Exchange:
    return Exchange(Request("GET", url, (("Host", "site.example"), *fields)), response, "20260101000000")


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.create(tmp_path, "site")
    upgraded = Response(101, "Switching Protocols", (("Sec-WebSocket-Protocol", "chat"),))
    stream = Response(200, "OK", (("Content-Type", "text/event-stream"),), EVENTS)
    with CollectionWriter(made) as writer:
        writer.write(exchange(PAGE, Response(200, "OK", (("Content-Type", "text/html"),), b"<p>")))
        writer.write(exchange(SOCKET, upgraded), frames_beside(SOCKET, SCRIPT))
        writer.write(exchange(STREAM, stream), chunks_beside(STREAM, TIMING))
        writer.write(exchange(STREAM, stream, ("Last-Event-ID", "2")), chunks_beside(STREAM, TIMING))
        writer.write(exchange("wss://site.example/no", Response(403, "Forbidden")))
    return made


def test_index_and_check_hold_with_frames(collection: Collection) -> None:
    assert check(collection) == []
    lines = collection.index_file.read_bytes()
    assert reindex(collection) == 5
    assert collection.index_file.read_bytes() == lines
    keys = {line.split(b" ")[0] for line in lines.splitlines()}
    # Nothing but the page is to be found under the page's key.
    assert keys == {
        b"example,site)/",
        b"example,site)/events",
        b"wss://site.example/live?a=1",
        b"wss://site.example/no",
    }


def test_other_tools_pass_over_frames(collection: Collection) -> None:
    warc = str(next(collection.archive.glob("*.warc.gz")))
    tool = Path(sys.executable).with_name("warcio")
    checked = subprocess.run([tool, "check", warc], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "")
    listed = subprocess.run([tool, "index", "-f", "warc-type", warc], capture_output=True, text=True).stdout
    kinds = [json.loads(line)["warc-type"] for line in listed.splitlines()]
    pair = ["request", "response"]
    assert kinds == ["warcinfo", *pair, *pair, "resource", *pair, "metadata", *pair, "metadata", *pair]


def test_a_pack_holds_frames_and_timing(collection: Collection) -> None:
    info = seal(collection)
    assert info.warnings == ()
    with Pack.open(collection.pack) as pack:
        (row,) = pack.lookup(socket_key(SOCKET))
        held = pack.entry(row)
        assert open_frames(bytes(held.body)) == SCRIPT
        assert b"Sec-WebSocket-Protocol: chat\r\n" in bytes(held.head)
        (row,) = pack.lookup(socket_key("wss://site.example/no"))
        assert pack.entry(row).status == 403
        key = request_key("GET", STREAM)
        assert [bytes(pack.entry(row).body) for row in pack.lookup(key)] == [EVENTS, EVENTS]
        for last_event_id in ("", "2"):
            (row,) = pack.lookup(stream_key(STREAM, key, last_event_id))
            assert open_chunks(bytes(pack.entry(row).body)) == (TIMING, EVENTS)
    assert seal(collection).environment_id == info.environment_id


def test_damaged_frames_are_reported_and_left_out(collection: Collection) -> None:
    bad = frames_beside(SOCKET, SCRIPT)
    with CollectionWriter(collection) as writer:
        broken = type(bad)(bad.type, bad.uri, bad.content_type, b"{}\n")
        writer.write(exchange("wss://site.example/bad", Response(101)), broken)
        writer.write(exchange("wss://site.example/alone", Response(101)))
    (defect,) = check(collection)
    assert (defect.code, defect.offset > 0) == ("frames", True)
    assert "line 1 of the WebSocket's frames" in defect.what
    first, second = sorted(seal(collection).warnings)
    assert "alone are not behind its handshake" in first + second
    assert f":{defect.offset}: line 1 of" in first + second

"""WebSocket frames and the timing of event streams, and their WARC records.

A WebSocket is three records in one write (iipc/warc-specifications#115). Request and response (101) of its
handshake have the `ws:` or `wss:` URL as target. A `resource` record `urn:websocket:URL` with the frames as
JSON lines follows. An event stream is an ordinary exchange with its complete body. A `metadata` record of
`application/warc-fields` with the time of each piece of the body follows; other tools ignore it.
Both records name the response in WARC-Concurrent-To.

Only the handshake is in the index, under its unchanged URL: its SURT key would equal that of the page at the
same host and path. The record after it is found by its position.

Pure. docs/reference/recording.md documents the format and its open points. `write_*` and `read_*` are exact
inverses; readers ignore unknown members, fields and types of lines.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from stillweb.errors import MalformedWarc

TEXT, BINARY, CLOSE = 1, 2, 8
"""Opcodes (RFC 6455 §5.2). Pings and pongs concern the connection only and are not stored."""

EVENT_STREAM = "text/event-stream"
FRAMES_TYPE = "application/jsonl"
FIELDS_TYPE = "application/warc-fields"
URN = "urn:websocket:"

_HINT = "stillweb collections check NAME"
_TIMESTAMP = re.compile(r"[0-9]{14}")
_DIRECTIONS = {"sent": True, "received": False}


class ConnectionEnd(StrEnum):
    """Side that ended a connection."""

    CLIENT = "client"  # the page closed it, or was closed
    SITE = "site"
    OPEN = "open"  # still open when the recording stopped


@dataclass(frozen=True, slots=True)
class Frame:
    """A complete WebSocket message, or a close.

    Attributes:
        ms: milliseconds since the response to the handshake.
        sent: True if the page sent it, False if the page received it.
        opcode: TEXT, BINARY or CLOSE.
        payload: text as UTF-8; of a close, code and reason as on the wire (RFC 6455 §5.5.1).
    """

    ms: int
    sent: bool
    opcode: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class MutationMark:
    """A mutation that the recorder passed on while a connection was open.

    Attributes:
        ms: milliseconds since the response to the handshake or request.
        at: timestamp of the mutation's capture, 14 digits.
        number: of the mutation among those of its second, from 0.
    """

    ms: int
    at: str
    number: int


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a WebSocket in their order, and how the connection ended.

    Attributes:
        rest_ms: time at which its page had settled; None if unknown.
        marks: mutations while it was open; None if the recorder noted none.
    """

    frames: tuple[Frame, ...] = ()
    end: ConnectionEnd = ConnectionEnd.OPEN
    end_ms: int = 0
    rest_ms: int | None = None
    marks: tuple[MutationMark, ...] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a body: milliseconds since the response's head, and its size in bytes."""

    ms: int
    size: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """Times of the pieces of an event stream, and how it ended.

    Attributes:
        rest_ms: time at which its page had settled; None if unknown.
        marks: mutations while it was open; None if the recorder noted none.
    """

    chunks: tuple[Chunk, ...] = ()
    end: ConnectionEnd = ConnectionEnd.OPEN
    end_ms: int = 0
    rest_ms: int | None = None
    marks: tuple[MutationMark, ...] | None = None


@dataclass(frozen=True, slots=True)
class RecordFrames:
    """A record that follows the response of an exchange."""

    type: str
    uri: str
    content_type: str
    block: bytes


def is_socket_url(url: str) -> bool:
    return url[:6].lower().startswith(("ws://", "wss://"))


def frames_beside(url: str, frames: Frames) -> RecordFrames:
    """Return the record of a WebSocket's frames."""
    return RecordFrames("resource", URN + url, FRAMES_TYPE, write_frames(frames))


def chunks_beside(url: str, chunks: Chunks) -> RecordFrames:
    """Return the record of an event stream's timing."""
    return RecordFrames("metadata", url, FIELDS_TYPE, write_chunks(chunks))


def write_frames(frames: Frames) -> bytes:
    """Serialise frames as JSON lines; equal frames give equal bytes."""
    lines = [_frame_line(frame) for frame in frames.frames]
    if frames.rest_ms is not None:
        lines.append({"ts": frames.rest_ms, "type": "rest"})
    if frames.marks is not None:
        lines.append({"ts": 0, "type": "mutations"})
        lines += [{"ts": m.ms, "type": "mutation", "at": m.at, "number": m.number} for m in frames.marks]
    lines.append({"ts": frames.end_ms, "type": "end", "by": frames.end.value})
    return b"".join(
        json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n" for line in lines
    )


def _frame_line(frame: Frame) -> dict[str, Any]:
    text = frame.payload.decode("utf-8") if frame.opcode == TEXT else b64encode(frame.payload).decode()
    kind = "sent" if frame.sent else "received"
    return {"ts": frame.ms, "type": kind, "opcode": frame.opcode, "payloadData": text}


def read_frames(block: bytes, *, path: Path | None = None, offset: int | None = None) -> Frames:
    """Parse frames from JSON lines.

    Args:
        block: output of `write_frames`, or of another program that follows the proposal.
        path: file of the record, for the error.
        offset: of the record in that file.

    Raises:
        MalformedWarc: at the first invalid line.
    """
    frames: list[Frame] = []
    marks: list[MutationMark] | None = None
    made = Frames()
    for number, line in enumerate(block.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            kind = str(fields["type"])
            if kind in _DIRECTIONS:
                frames.append(_frame(fields))
            elif kind == "mutations":
                marks = marks or []
            elif kind == "mutation":
                marks = marks or []
                marks.append(_mark(**fields))
            elif kind == "rest":
                made = replace(made, rest_ms=_milliseconds(fields["ts"]))
            elif kind == "end":
                made = replace(made, end=ConnectionEnd(fields["by"]), end_ms=_milliseconds(fields["ts"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"line {number} of the WebSocket's frames is none ({error!r}): {line[:60]!r}"
            raise MalformedWarc(what, path=path, offset=offset, hint=_HINT) from None
    return replace(made, frames=tuple(frames), marks=None if marks is None else tuple(marks))


def _frame(fields: dict[str, Any]) -> Frame:
    opcode, text = fields["opcode"], fields["payloadData"]
    if opcode not in (TEXT, BINARY, CLOSE) or isinstance(opcode, bool | float) or not isinstance(text, str):
        raise ValueError(f"opcode {opcode!r} with {type(text).__name__}")
    payload = text.encode("utf-8") if opcode == TEXT else b64decode(text, validate=True)
    return Frame(_milliseconds(fields["ts"]), _DIRECTIONS[fields["type"]], opcode, payload)


def _mark(ts: object, at: object, number: object, **_: object) -> MutationMark:
    if not isinstance(at, str) or not _TIMESTAMP.fullmatch(at):
        raise ValueError(f"timestamp {at!r}")
    return MutationMark(_milliseconds(ts), at, _milliseconds(number))


def _milliseconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise ValueError(f"time {value!r}")
    return int(value)


def write_chunks(chunks: Chunks) -> bytes:
    """Serialise the timing of an event stream as WARC fields; equal timing gives equal bytes."""
    lines = ["event-stream: 1", *(f"chunk: {chunk.ms} {chunk.size}" for chunk in chunks.chunks)]
    if chunks.rest_ms is not None:
        lines.append(f"rest: {chunks.rest_ms}")
    if chunks.marks is not None:
        lines.append(f"mutations: {len(chunks.marks)}")
        lines += [f"mutation: {mark.ms} {mark.at} {mark.number}" for mark in chunks.marks]
    lines.append(f"end: {chunks.end_ms} {chunks.end.value}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def read_chunks(block: bytes, *, path: Path | None = None, offset: int | None = None) -> Chunks | None:
    """Parse the timing of an event stream; None if the fields describe something else.

    Raises:
        MalformedWarc: at the first invalid line.
    """
    lines = block.split(b"\n")
    if not lines[0].lower().startswith(b"event-stream:"):
        return None
    chunks: list[Chunk] = []
    marks: list[MutationMark] | None = None
    made = Chunks()
    for number, line in enumerate(lines, start=1):
        name, _, value = line.strip().partition(b":")
        try:
            match name.lower():
                case b"chunk":
                    ms, size = value.split()
                    chunks.append(Chunk(_milliseconds(int(ms)), _milliseconds(int(size))))
                case b"mutations":
                    marks = marks or []
                case b"mutation":
                    ms, at, place = value.split()
                    marks = marks or []
                    marks.append(_mark(int(ms), at.decode("ascii"), int(place)))
                case b"rest":
                    made = replace(made, rest_ms=_milliseconds(int(value)))
                case b"end":
                    ms, by = value.split()
                    made = replace(made, end=ConnectionEnd(by.decode("ascii")), end_ms=_milliseconds(int(ms)))
        except ValueError as error:
            what = f"line {number} of the event stream's timing is none ({error}): {line[:60]!r}"
            raise MalformedWarc(what, path=path, offset=offset, hint=_HINT) from None
    return replace(made, chunks=tuple(chunks), marks=None if marks is None else tuple(marks))


def problem(kind: str, uri: str, content_type: str, block: bytes) -> str:
    """Return the defect of a record of frames or timing; "" without one, and for other records."""
    try:
        if kind == "resource" and uri.lower().startswith(URN):
            read_frames(block)
        elif kind == "metadata" and content_type.lower().startswith(FIELDS_TYPE):
            read_chunks(block)
    except MalformedWarc as error:
        return str(error)
    return ""

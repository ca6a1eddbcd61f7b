"""WebSocket frames and event streams as entries of a pack.

Packs have no special form for them. They are ordinary entries under methods that no client can send:

`WEBSOCKET`, keyed by the socket's URL: status and head of the handshake's response (200 stands for 101, which
no pack holds); the body is the frames as JSON lines.

`EVENTSTREAM`, keyed by the request's own key and its Last-Event-ID: the body is the timing as WARC fields, an
empty line, and the stream. The exchange also has its ordinary entry, by which the request is found. Both keep
their exchange's position in recorded order. So the rows of one key are the connections in the order of their
opening, to the second.
"""

from __future__ import annotations

import mmap
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from stillweb.collections.limits import max_unpacked
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.warc.frames import (
    EVENT_STREAM,
    FIELDS_TYPE,
    FRAMES_TYPE,
    Chunks,
    Frames,
    is_socket_url,
    read_chunks,
    read_frames,
    write_chunks,
    write_frames,
)
from stillweb.collections.warc.reader import GZIP_MAGIC
from stillweb.collections.warc.records import WARC, Damage, WarcRecord
from stillweb.errors import MissingRecord
from stillweb.matching.captures import Entry, vary_digest
from stillweb.matching.keys import request_key
from stillweb.model import Capture, Exchange, Request, header

if TYPE_CHECKING:
    from stillweb.collections.layout import Collection


WEBSOCKET, EVENTSTREAM = "WEBSOCKET", "EVENTSTREAM"
_BLANK = b"\r\n\r\n"
_STEP = 1 << 16
_TIMESTAMP = re.compile(r"[0-9]{14}")


def socket_key(url: str) -> bytes:
    return request_key(WEBSOCKET, url)


def stream_key(url: str, key: bytes, last_event_id: str) -> bytes:
    """Return the key of an event stream's recordings.

    Args:
        url: of the request as recorded.
        key: its request key.
        last_event_id: as sent, "" on the first connection of an EventSource.
    """
    keyed = key + last_event_id.encode("utf-8", "surrogatepass")
    return request_key(EVENTSTREAM, url, "application/octet-stream", keyed)


def frame_entry(collection: Collection, capture: Capture) -> PackEntry | None:
    """Return the entry of a capture that is a WebSocket or an event stream with timing; None for others.

    Raises:
        MalformedWarc: if frames or timing cannot be read.
        MissingRecord: if no frames follow the handshake of a WebSocket.
    """
    socket = is_socket_url(capture.url)
    if not socket and (capture.mime.lower() != EVENT_STREAM or capture.status != HTTPStatus.OK):
        return None
    if not _TIMESTAMP.fullmatch(capture.timestamp):
        return None
    make = _socket_entry if socket else _stream_entry
    return make(collection.archive, capture, collection.read_capture(capture))


def _socket_entry(archive: Path, capture: Capture, exchange: Exchange) -> PackEntry:
    response = exchange.response
    if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
        record = _beside(archive, capture, FRAMES_TYPE)
        path = archive / capture.source
        if record is None:
            what = f"the frames of {capture.url} are not behind its handshake"
            raise MissingRecord(what, path=path, offset=capture.offset)
        frames = read_frames(record.block, path=path, offset=record.offset)
        response = replace(response, status=200, reason="OK", raw_body=write_frames(frames))
    return _entry(WEBSOCKET, socket_key(capture.url), capture, replace(exchange, response=response))


def _stream_entry(archive: Path, capture: Capture, exchange: Exchange) -> PackEntry | None:
    record = _beside(archive, capture, FIELDS_TYPE)
    if record is None:
        return None
    chunks = read_chunks(record.block, path=archive / capture.source, offset=record.offset)
    if chunks is None:
        return None
    request, response = exchange.request, exchange.response
    own_key = request_key(
        request.method, request.url, header(request.headers, "content-type"), request.raw_body
    )
    key = stream_key(request.url, own_key, header(request.headers, "last-event-id"))
    body = write_chunks(chunks) + b"\r\n" + response.raw_body
    return _entry(EVENTSTREAM, key, capture, replace(exchange, response=replace(response, raw_body=body)))


def _entry(method: str, key: bytes, capture: Capture, exchange: Exchange) -> PackEntry:
    return PackEntry(
        key=key,
        method=method,
        url=exchange.request.url,
        timestamp=capture.timestamp,
        response=exchange.response,
        source=capture.source,
        offset=capture.offset,
        varies=(("cookie", vary_digest(header(exchange.request.headers, "cookie"))),),
    )


def of_cookies(entries: Sequence[Entry], request: Request) -> list[Entry]:
    """Return the recordings made with a request's cookies; all if none was.

    On sites that set cookies, each page of a crawl has its own.
    """
    wanted = ("cookie", vary_digest(header(request.headers, "cookie")))
    return [entry for entry in entries if wanted in entry.varies] or list(entries)


def open_frames(body: bytes) -> Frames:
    return read_frames(body)


def open_chunks(body: bytes) -> tuple[Chunks, bytes]:
    """Return timing and stream of an `EVENTSTREAM` entry."""
    fields, _, stream = body.partition(_BLANK)
    return read_chunks(fields + b"\r\n") or Chunks(), stream


def _beside(archive: Path, capture: Capture, content_type: str) -> WarcRecord | None:
    """Return the record after a capture's if it has a type and belongs to the capture."""
    if (archive / capture.source).parent != archive:
        return None
    try:
        with (
            (archive / capture.source).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stored,
        ):
            at = capture.offset
            answer, behind = _record_at(stored, at), _record_at(stored, at + capture.length)
    except (OSError, ValueError):
        return None
    if answer is None or behind is None or answer.id not in behind.concurrent_to:
        return None
    found = behind.get("Content-Type").partition(";")[0].strip().lower()
    return replace(behind, offset=at + capture.length) if found == content_type else None


def _record_at(stored: mmap.mmap, at: int) -> WarcRecord | None:
    if stored[at : at + len(GZIP_MAGIC)] == GZIP_MAGIC:
        parsed = WARC.parse(_inflate(stored, at), 0)
    else:
        while stored[at : at + 1] in (b"\r", b"\n"):
            at += 1
        parsed = WARC.parse(stored, at)
    return None if isinstance(parsed, Damage) else parsed.record


def _inflate(stored: mmap.mmap, at: int) -> bytes:
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    pieces: list[bytes] = []
    left = max_unpacked(0)
    try:
        while not inflater.eof and at < len(stored):
            pieces.append(inflater.decompress(stored[at : at + _STEP], left + 1))
            left -= len(pieces[-1])
            if left < 0:
                return b""
            at += _STEP
    except zlib.error:
        return b""
    return b"".join(pieces)

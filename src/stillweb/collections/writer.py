"""Write exchanges into a collection, such that a kill at any moment leaves valid WARC files.

WARC 1.1, serialised by warcio (`members`). Every file starts with a warcinfo record. An exchange
is its request's record and its response's, in this order, and what stands beside it (`frames`), each a
gzip member, appended by a single write: what a kill can leave is one member that breaks off, and a
response is never there without the request that made it (a POST's answer must not pass for a GET's).
The index is written at close; after a kill it is older than the archive, and the next writer, or
`collections check --repair`, makes it anew.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from stillweb import __version__, clock
from stillweb.collections import methodquery
from stillweb.collections.cdxj import format_line, write_lines
from stillweb.collections.frames import Beside, is_socket_url
from stillweb.collections.httpblocks import payload_start, request_block, response_block
from stillweb.collections.indexing import key_of, key_text, media_type, reindex
from stillweb.collections.layout import Collection
from stillweb.collections.members import sha256_digest, warc_member
from stillweb.collections.records import clean_uri
from stillweb.collections.warcdates import iso_date
from stillweb.model import Capture, Exchange, header
from stillweb.urls import to_timestamp

ROTATE = 1_000_000_000
"""Bytes at which the next file is started, as browsertrix and warcprox do."""


class CollectionWriter:
    """Appends exchanges to new files of a collection's archive.

    Args:
        collection: made already; files that it has are left alone.
        prefix: of the file names.
        rotate: bytes at which the next file is started.
    """

    def __init__(self, collection: Collection, *, prefix: str = "rec", rotate: int = ROTATE) -> None:
        self.collection = collection
        self._prefix, self._rotate = prefix, rotate
        self._stale = not is_fresh(collection)
        self._lines: list[bytes] = []
        self._file: int | None = None
        self._path = Path()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, exchange: Exchange, beside: Beside | None = None) -> Capture:
        """Append an exchange, and the record that stands beside it; return its capture."""
        url = clean_uri(exchange.request.url)  # as it will be read back
        exchange = replace(exchange, request=replace(exchange.request, url=url))
        file = self._open()
        request, response = exchange.request, exchange.response
        request_id = _new_record_id()
        first = _member("request", request_id, exchange, request_block(request))
        answer = response_block(response)
        response_id = _new_record_id()
        second = _member("response", response_id, exchange, answer, concurrent_to=request_id)
        third = _other_member(beside, exchange.timestamp, concurrent_to=response_id) if beside else b""
        offset = self._size
        self._append(file, first + second + third)
        keyed_url, query = methodquery.appended(request)
        capture = Capture(
            urlkey=key_text(keyed_url),
            timestamp=exchange.timestamp,
            url=url,
            method=request.method,
            key=key_of(request),
            status=response.status,
            mime=media_type(header(response.headers, "content-type")),
            digest=sha256_digest(_payload(url, answer)),
            source=self._path.name,
            offset=offset + len(first),
            length=len(second),
            request_offset=offset,
            request_length=len(first),
        )
        self._lines.append(format_line(capture, query))
        return capture

    def write_resource(self, uri: str, timestamp: str, content_type: str, block: bytes) -> None:
        """Append a resource record that is no capture, such as `urn:text:URL`."""
        self._append(self._open(), _other_member(Beside("resource", uri, content_type, block), timestamp))

    def close(self) -> None:
        """Close the file and bring the index up to date. May be called twice."""
        if self._file is None and not self._lines:
            return
        self._close_file()
        index = self.collection.index_file
        if self._stale:
            reindex(self.collection)
        else:
            old = index.read_bytes().splitlines(keepends=True) if index.exists() else []
            write_lines(index, [*old, *self._lines])
        self._lines.clear()
        self._stale = False

    def _open(self) -> int:
        if self._file is not None and self._size < self._rotate:
            return self._file
        self._close_file()
        self.collection.archive.mkdir(parents=True, exist_ok=True)
        now = clock.now()
        stem = f"{self._prefix}-{self.collection.name}-{to_timestamp(now)}"
        number = 0
        while (path := self.collection.archive / f"{stem}-{number:05}.warc.gz").exists():
            number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file, self._path, self._size = os.open(path, flags, 0o644), path, 0
        text = f"software: stillweb/{__version__}\r\nformat: WARC File Format 1.1\r\n"
        text += f"isPartOf: {self.collection.name}\r\n"
        fields = (
            ("WARC-Type", "warcinfo"),
            ("WARC-Record-ID", _new_record_id()),
            ("WARC-Date", iso_date(to_timestamp(now))),
            ("WARC-Filename", path.name),
        )
        self._append(self._file, warc_member(fields, text.encode(), "application/warc-fields"))
        return self._file

    def _append(self, file: int, members: bytes) -> None:
        rest = memoryview(members)
        while rest:  # one write but for signals and a full disk
            rest = rest[os.write(file, rest) :]
        self._size += len(members)

    def _close_file(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None


def is_fresh(collection: Collection) -> bool:
    """Whether the index is younger than every file of the archive, or there is nothing to index."""
    files = collection.warc_files() if collection.archive.is_dir() else []
    if not files:
        return True
    if not collection.index_file.exists():
        return False
    made = collection.index_file.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= made for path in files)


def _member(kind: str, record_id: str, exchange: Exchange, block: bytes, *, concurrent_to: str = "") -> bytes:
    """Return the record of an exchange's request or response."""
    fields = [
        ("WARC-Type", kind),
        ("WARC-Record-ID", record_id),
        ("WARC-Target-URI", exchange.request.url),
        ("WARC-Date", iso_date(exchange.timestamp)),
    ]
    if concurrent_to:
        fields.append(("WARC-Concurrent-To", concurrent_to))
    if exchange.remote_ip:
        fields.append(("WARC-IP-Address", exchange.remote_ip))
    fields += [
        ("WARC-Protocol", exchange.protocol),
        ("WARC-Payload-Digest", sha256_digest(_payload(exchange.request.url, block))),
    ]
    return warc_member(fields, block, f"application/http; msgtype={kind}")


def _payload(url: str, block: bytes) -> bytes:
    """Return what WARC calls the payload: a body is one under http and https only (WARC 1.1 §6.3.2)."""
    return block if is_socket_url(url) else block[payload_start(block) :]


def _other_member(beside: Beside, timestamp: str, concurrent_to: str = "") -> bytes:
    fields = (
        ("WARC-Type", beside.type),
        ("WARC-Record-ID", _new_record_id()),
        ("WARC-Target-URI", beside.uri),
        ("WARC-Date", iso_date(timestamp)),
        *((("WARC-Concurrent-To", concurrent_to),) if concurrent_to else ()),
        ("WARC-Payload-Digest", sha256_digest(beside.block)),
    )
    return warc_member(fields, beside.block, beside.content_type)


def _new_record_id() -> str:
    return f"<urn:uuid:{clock.new_id()}>"

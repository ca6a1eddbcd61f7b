"""Write exchanges into a collection, such that a kill at any moment leaves valid WARC files.

WARC 1.1. Every file starts with a warcinfo record. An exchange is its request's record and its
response's, in this order, each a gzip member, appended by a single write: what a kill can leave
is one member that breaks off, and a response is never there without the request that made it
(a POST's answer must not pass for a GET's). The index is written at close; after a kill it is
older than the archive, and the next writer, or `collections check --repair`, makes it anew.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from stillweb import __version__, clock
from stillweb.collections import methodquery
from stillweb.collections.cdxj import format_line, write_lines
from stillweb.collections.httpblocks import payload_start, request_block, response_block
from stillweb.collections.indexing import key_of, key_text, media_type, reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warcdates import iso_date
from stillweb.collections.warcs import WarcRecord, gzip_member, serialise
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

    def write(self, exchange: Exchange) -> Capture:
        """Append an exchange; return its capture."""
        file = self._open()
        request, response = exchange.request, exchange.response
        asked = self._record("request", exchange, request_block(request))
        answer = self._record("response", exchange, response_block(response), concurrent_to=asked.id)
        first, second = gzip_member(serialise(asked)), gzip_member(serialise(answer))
        offset = self._size
        self._append(file, first + second)
        keyed_url, query = methodquery.appended(request)
        capture = Capture(
            urlkey=key_text(keyed_url),
            timestamp=exchange.timestamp,
            url=request.url,
            method=request.method,
            key=key_of(request),
            status=response.status,
            mime=media_type(header(response.headers, "content-type")),
            digest=answer.get("WARC-Payload-Digest"),
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
        file = self._open()
        headers = (
            ("WARC-Type", "resource"),
            ("WARC-Record-ID", f"<urn:uuid:{clock.new_id()}>"),
            ("WARC-Target-URI", uri),
            ("WARC-Date", iso_date(timestamp)),
            ("WARC-Block-Digest", _digest(block)),
            ("Content-Type", content_type),
            ("Content-Length", str(len(block))),
        )
        self._append(file, gzip_member(serialise(WarcRecord(headers, block))))

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

    def _record(self, kind: str, exchange: Exchange, block: bytes, *, concurrent_to: str = "") -> WarcRecord:
        headers = [
            ("WARC-Type", kind),
            ("WARC-Record-ID", f"<urn:uuid:{clock.new_id()}>"),
            ("WARC-Target-URI", exchange.request.url),
            ("WARC-Date", iso_date(exchange.timestamp)),
        ]
        if concurrent_to:
            headers.append(("WARC-Concurrent-To", f"<{concurrent_to}>"))
        if exchange.remote_ip:
            headers.append(("WARC-IP-Address", exchange.remote_ip))
        headers += [
            ("WARC-Protocol", exchange.protocol),
            ("WARC-Payload-Digest", _digest(block[payload_start(block) :])),
            ("WARC-Block-Digest", _digest(block)),
            ("Content-Type", f"application/http; msgtype={kind}"),
            ("Content-Length", str(len(block))),
        ]
        return WarcRecord(tuple(headers), block)

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
        headers = (
            ("WARC-Type", "warcinfo"),
            ("WARC-Record-ID", f"<urn:uuid:{clock.new_id()}>"),
            ("WARC-Date", iso_date(to_timestamp(now))),
            ("WARC-Filename", path.name),
            ("Content-Type", "application/warc-fields"),
            ("Content-Length", str(len(text))),
        )
        self._append(self._file, gzip_member(serialise(WarcRecord(headers, text.encode()))))
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


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

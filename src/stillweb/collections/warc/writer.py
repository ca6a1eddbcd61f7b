"""Writer of exchanges into a collection; a kill at any moment leaves valid WARC files.

WARC 1.1, serialised by warcio. Every file starts with a warcinfo record. A body that its URL returned before
becomes a revisit. An exchange is the records of its request and response, and the record that follows them
(`frames`). Each is a gzip member, and a single write appends all. After a kill at most one member is
truncated, and no response is stored without its request: the response to a POST must not pass for that to a
GET.

The index is written at close. After a kill it is older than the archive. The next command that writes, seals,
exports or searches the collection rebuilds it; so does `collections check --repair`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Self

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from stillweb import __version__, clock
from stillweb.collections.indexing import is_fresh, key_of, key_text, media_type, reindex
from stillweb.collections.layout import Collection
from stillweb.collections.redactions import Redaction, append_redactions
from stillweb.collections.warc import methodquery
from stillweb.collections.warc.cdxj import format_line, write_lines
from stillweb.collections.warc.frames import RecordFrames, is_socket_url
from stillweb.collections.warc.reader import read_records
from stillweb.collections.warc.records import WarcRecord, clean_uri, iso_date
from stillweb.http.messages import payload_start, request_block, response_block
from stillweb.model import Capture, Exchange, header
from stillweb.urls import to_timestamp

Fields = Iterable[tuple[str, str]]


def sha256_digest(content: bytes) -> str:
    """Return a digest in the spelling of our records: `sha256:` and hex."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def warc_member(fields: Fields, block: bytes, content_type: str) -> bytes:
    """Return a record as one gzip member.

    Args:
        fields: WARC header fields in order, WARC-Type first; characters without UTF-8 encoding become `?`.
        block: the content, stored byte by byte.
        content_type: of the block; it and Content-Length are the last fields.
    """
    named = [(name, value.encode("utf-8", "replace").decode("utf-8")) for name, value in fields]
    named.append(("WARC-Block-Digest", sha256_digest(block)))
    out = BytesIO()
    writer = WARCWriter(out, gzip=True, warc_version="1.1")
    record = writer.create_warc_record(
        "",  # with the URI, warcio would parse the block
        # For a revisit warcio would write the parsed HTTP head instead of the block, so it gets another type.
        "response" if named[0][1] == "revisit" else named[0][1],
        payload=BytesIO(block),
        length=len(block),
        warc_content_type=content_type,
        warc_headers=StatusAndHeaders("", named, protocol=writer.warc_version),
    )
    writer.write_record(record)
    return out.getvalue()


_IDENTICAL = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
REVISIT = "warc/revisit"
_SMALL = 1024


class Bodies:
    """Bodies of a collection by URL and digest, with the time of the first response that had them."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._first: dict[tuple[str, str], str] | None = None

    def original(self, exchange: Exchange, digest: str) -> str:
        """Return the time of the first response with this body, 14 digits; "" if it is new."""
        if not _repeats(exchange):
            return ""
        return self._known().get((exchange.request.url, digest), "")

    def add(self, capture: Capture) -> None:
        """Add a response that was written with its body."""
        if capture.method == "GET" and capture.status == HTTPStatus.OK and capture.mime != REVISIT:
            self._known().setdefault((capture.url, capture.digest), capture.timestamp)

    def _known(self) -> dict[tuple[str, str], str]:
        if self._first is None:
            self._first = {}
            for capture in self._collection.captures():
                self.add(capture)
        return self._first


def _repeats(exchange: Exchange) -> bool:
    request, response = exchange.request, exchange.response
    return request.method == "GET" and response.status == HTTPStatus.OK and len(response.raw_body) >= _SMALL


def revisit_fields(url: str, timestamp: str) -> tuple[tuple[str, str], ...]:
    """Return the WARC fields by which a revisit refers to its original."""
    return (
        ("WARC-Profile", _IDENTICAL),
        ("WARC-Refers-To-Target-URI", url),
        ("WARC-Refers-To-Date", iso_date(timestamp)),
    )


_MADE_ANEW = frozenset({"warc-block-digest", "content-type", "content-length"})


def rewrite_files(files: Iterable[Path], change: Callable[[WarcRecord], WarcRecord | None]) -> bool:
    """Rewrite the records that `change` changes; return True if it changed any.

    Args:
        files: WARC files without a writer, one gzip member per record.
        change: receives a record and returns it with other fields or another block; None to leave it.
    """
    files, payloads = list(files), dict[str, str]()
    changed = False
    for path in files:
        changed |= _rewrite(path, change, payloads)
    if payloads:
        for path in files:
            _rewrite(path, lambda record: record if record.type == "revisit" else None, payloads)
    return changed


def _rewrite(path: Path, change: Callable[[WarcRecord], WarcRecord | None], payloads: dict[str, str]) -> bool:
    """Rewrite one file; `payloads` maps old payload digests to new ones, and is extended."""
    part = path.with_name(path.name + ".part")
    changed = False
    try:
        with path.open("rb") as stored, part.open("wb") as file:
            for record in read_records(path):
                wanted = change(record)
                member = b"" if wanted is None else _member(record, wanted, payloads)
                if not member:
                    stored.seek(record.offset)
                    member = stored.read(record.length)
                else:
                    changed = True
                file.write(member)
            file.flush()
            os.fsync(file.fileno())
        if changed:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return changed


def _member(record: WarcRecord, wanted: WarcRecord, payloads: dict[str, str]) -> bytes:
    """Return the member that replaces a record; b"" if nothing changes."""
    stated, block = record.get("WARC-Payload-Digest"), wanted.block
    if record.type == "revisit":
        digest = payloads.get(stated, stated)
    elif record.get("Content-Type").startswith("application/http") and not is_socket_url(record.target_uri):
        digest = sha256_digest(block[payload_start(block) :])
    else:
        digest = sha256_digest(block)
    if digest == stated and wanted == record:
        return b""
    if record.type == "response":
        payloads[stated] = digest
    fields = [
        (name, digest if name.lower() == "warc-payload-digest" else value)
        for name, value in wanted.headers
        if name.lower() not in _MADE_ANEW
    ]
    return warc_member(fields, block, record.get("Content-Type"))


ROTATE = 1_000_000_000
"""File size in bytes at which the next file starts, as in browsertrix and warcprox."""

_SETTINGS = ("browser", "viewport", "locale", "timezone", "user_agent")


class CollectionWriter:
    """Appends exchanges to new files of a collection's archive.

    Args:
        collection: exists already; its files stay unchanged.
        prefix: of the file names.
        rotate: file size in bytes at which the next file starts.
        revisits: whether a body that its URL returned before becomes a revisit.
    """

    def __init__(
        self, collection: Collection, *, prefix: str = "rec", rotate: int = ROTATE, revisits: bool = True
    ) -> None:
        self.collection = collection
        self._prefix, self._rotate, self._operator = prefix, rotate, ""
        self._bodies = Bodies(collection) if revisits else None
        self._made: list[Path] = []
        self._stale = not is_fresh(collection)
        self._lines: list[bytes] = []
        self._file: int | None = None
        self._path = Path()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settle(self, *, rotate: int | None, operator: str) -> None:
        """Set options of the recording: the maximum file size, and the operator."""
        self._rotate, self._operator = rotate or self._rotate, operator

    def write(
        self, exchange: Exchange, beside: RecordFrames | None = None, redactions: Iterable[Redaction] = ()
    ) -> Capture:
        """Append an exchange, and the record that follows it; return its capture.

        Args:
            exchange: to be stored as it is.
            beside: record after the response.
            redactions: spans removed from the exchange.
        """
        url = clean_uri(exchange.request.url)  # as a reader returns it
        exchange = replace(exchange, request=replace(exchange.request, url=url))
        file = self._open()
        request, response = exchange.request, exchange.response
        request_id = _new_record_id()
        first = _gzip_member("request", request_id, exchange, request_block(request))
        answer = response_block(response)
        response_id = _new_record_id()
        digest = sha256_digest(_payload(url, answer))
        first_time = self._bodies.original(exchange, digest) if self._bodies and not beside else ""
        second = _answer_member(response_id, exchange, answer, concurrent_to=request_id, original=first_time)
        beside_id = _new_record_id()
        third = _other_member(beside, exchange.timestamp, beside_id, response_id) if beside else b""
        ids = {"request": request_id, "response": response_id, "beside": beside_id}
        # Before the exchange: a kill then leaves an extra line, never a span without one.
        lines = (each.line(ids[each.part.partition(" ")[0]]) for each in redactions)
        append_redactions(self.collection.redactions_file, lines)
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
            mime=REVISIT if first_time else media_type(header(response.headers, "content-type")),
            digest=digest,
            source=self._path.name,
            offset=offset + len(first),
            length=len(second),
            request_offset=offset,
            request_length=len(first),
        )
        self._lines.append(format_line(capture, query))
        if self._bodies and not beside:
            self._bodies.add(capture)
        return capture

    def rewrite(self, change: Callable[[WarcRecord], WarcRecord | None]) -> None:
        """Rewrite the records that `change` changes, in all files of this prefix.

        Files of earlier recordings stay as they are: versions may share them.
        """
        self._close_file()
        files = self._made
        if not (self.collection.path / "versions").is_dir():
            files = [path for path in self.collection.warc_files() if path.name.startswith(self._prefix)]
        if rewrite_files(files, change):
            self._stale, self._bodies = True, self._bodies and Bodies(self.collection)

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
        self._made.append(path)
        text = "".join(f"{name}: {value}\r\n" for name, value in self._warcinfo_fields().items() if value)
        fields = (
            ("WARC-Type", "warcinfo"),
            ("WARC-Record-ID", _new_record_id()),
            ("WARC-Date", iso_date(to_timestamp(now))),
            ("WARC-Filename", path.name),
        )
        self._append(self._file, warc_member(fields, text.encode(), "application/warc-fields"))
        return self._file

    def _warcinfo_fields(self) -> dict[str, str]:
        """Return the fields of a warcinfo record (WARC 1.1 §6.2)."""
        manifest = self.collection.manifest()
        settings = {name: manifest.profile[name] for name in _SETTINGS if manifest.profile.get(name)}
        settings |= {"recorded_at": manifest.recorded_at, "seed": manifest.seed}
        return {
            "software": f"stillweb/{__version__}",
            "format": "WARC File Format 1.1",
            "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
            "isPartOf": self.collection.name,
            "operator": " ".join(self._operator.split()),
            "settings": json.dumps(settings) if manifest.recorded_at else "",
        }

    def _append(self, file: int, members: bytes) -> None:
        rest = memoryview(members)
        try:
            while rest:  # a single write, except after signals and on a full disk
                rest = rest[os.write(file, rest) :]
        except OSError:
            os.ftruncate(file, self._size)  # a truncated member would hide the members after it
            raise
        self._size += len(members)

    def _close_file(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None


def _gzip_member(
    kind: str, record_id: str, exchange: Exchange, block: bytes, *fields: tuple[str, str]
) -> bytes:
    """Return the record of an exchange's request or response; `fields` follow its date."""
    named = [
        ("WARC-Type", kind),
        ("WARC-Record-ID", record_id),
        ("WARC-Target-URI", exchange.request.url),
        ("WARC-Date", iso_date(exchange.timestamp)),
        *fields,
    ]
    if exchange.remote_ip:
        named.append(("WARC-IP-Address", exchange.remote_ip))
    named.append(("WARC-Protocol", exchange.protocol))
    if kind != "revisit":
        named.append(("WARC-Payload-Digest", sha256_digest(_payload(exchange.request.url, block))))
    return warc_member(
        named, block, f"application/http; msgtype={'request' if kind == 'request' else 'response'}"
    )


def _answer_member(
    record_id: str, exchange: Exchange, block: bytes, *, concurrent_to: str, original: str
) -> bytes:
    """Return the record of a response; a revisit if its body was first returned at the time `original`."""
    concurrent = ("WARC-Concurrent-To", concurrent_to)
    if not original:
        return _gzip_member("response", record_id, exchange, block, concurrent)
    digest = ("WARC-Payload-Digest", sha256_digest(_payload(exchange.request.url, block)))
    refers = revisit_fields(exchange.request.url, original)
    return _gzip_member(
        "revisit", record_id, exchange, block[: payload_start(block)], concurrent, *refers, digest
    )


def _payload(url: str, block: bytes) -> bytes:
    """Return the WARC payload: under http and https the body, else the block (WARC 1.1 §6.3.2)."""
    return block if is_socket_url(url) else block[payload_start(block) :]


def _other_member(beside: RecordFrames, timestamp: str, record_id: str, concurrent_to: str = "") -> bytes:
    fields = (
        ("WARC-Type", beside.type),
        ("WARC-Record-ID", record_id),
        ("WARC-Target-URI", beside.uri),
        ("WARC-Date", iso_date(timestamp)),
        *((("WARC-Concurrent-To", concurrent_to),) if concurrent_to else ()),
        ("WARC-Payload-Digest", sha256_digest(beside.block)),
    )
    return warc_member(fields, beside.block, beside.content_type)


def _new_record_id() -> str:
    return f"<urn:uuid:{clock.new_id()}>"

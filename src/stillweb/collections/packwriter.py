"""Build a pack from plain entries, in one pass over them and within bounded memory.

Entries may come in any order: records and bodies are spooled to the new folder as they come, bodies
once per sha256; only what sorting needs stays in memory. At the end records are written in
recorded order, bodies in order of first use, and the index over them. No wall clock, no absolute
path and no order of arrival is in the result: same entries, same bytes.

The folder appears in one rename, and so does one that replaces another.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from http import HTTPStatus
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from stillweb.collections import packformat as form
from stillweb.collections.keys import request_key
from stillweb.collections.packformat import IndexPlan, Record, Varies
from stillweb.errors import UsageError
from stillweb.model import Headers, Response, header

MUTATIONS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# RFC 9110 §7.6.1 (hop by hop), the length that the server adds, and what would make a browser
# speak to another host or refuse our certificate.
_DROPPED = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"),
        *("alt-svc", "public-key-pins", "public-key-pins-report-only", "report-to", "nel"),
    }
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE_BREAKS = re.compile(r"[\r\n\0]+[ \t]*")
_COPY = 1 << 20


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One answer for a pack; recorded order is (timestamp, source, offset).

    Attributes:
        key: `request_key` of the request.
        method: of the request.
        url: of the request, as recorded.
        timestamp: 14 digits UTC.
        response: the whole answer; never a 304 or a revisit.
        source, offset: where it was archived.
        aliases: further keys of 16 bytes under which the entry is found.
        varies: lower-case names of the request fields that the answer depends on, each with
            `vary_digest` of the value that the recorded request had.
    """

    key: bytes
    method: str
    url: str
    timestamp: str
    response: Response
    source: str = ""
    offset: int = 0
    aliases: tuple[bytes, ...] = ()
    varies: Varies = ()

    @classmethod
    def of(cls, method: str, url: str, response: Response, timestamp: str = "20260101000000") -> PackEntry:
        """Return the entry of a request without body."""
        return cls(request_key(method, url), method, url, timestamp, response)


@dataclass(frozen=True, slots=True)
class PackInfo:
    """What `build_pack` or `seal` made; `bytes` is the size of all files of the pack."""

    environment_id: str
    entries: int
    bodies: int
    bytes: int
    warnings: tuple[str, ...] = ()


def build_pack(entries: Iterable[PackEntry], manifest: Mapping[str, Any], target: Path) -> PackInfo:
    """Write a pack of `entries` to the folder `target`, in one rename.

    Args:
        entries: in any order.
        manifest: what else the pack shall say of itself; JSON values only.
        target: the pack's folder; its parent exists.
    """
    with PackWriter(target) as writer:
        for entry in entries:
            writer.add(entry)
        return writer.finish(manifest)


def response_head(response: Response) -> bytes:
    """Return the head as replay sends it, up to and with the line break of the last field."""
    reason = response.reason or _phrase(response.status)
    lines = [f"HTTP/1.1 {response.status} {_one_line(reason)}"]
    for name, value in response.headers:
        lowered = name.lower()
        if lowered in _DROPPED or lowered.startswith("proxy-") or not _TOKEN.fullmatch(name):
            continue
        lines.append(f"{name}: {_one_line(value)}")
    return b"".join(_wire(line) + b"\r\n" for line in lines)


def _wire(line: str) -> bytes:
    try:
        return line.encode("latin-1")
    except UnicodeEncodeError:
        return line.encode("utf-8", "surrogateescape")


def _one_line(text: str) -> str:
    return _LINE_BREAKS.sub(" ", text).strip()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def content_encoding(headers: Headers) -> str:
    """Return the content codings of a response in lower case, "" if it has none."""
    encoding = header(headers, "content-encoding").strip().lower()
    return "" if encoding == "identity" else encoding


@dataclass(frozen=True, slots=True)
class _Spooled:
    """What sorting needs of an entry whose record lies in the spool."""

    order: tuple[
        str, str, int, bytes, bytes
    ]  # timestamp, source, offset; then the record's content breaks ties
    status: int
    body: bytes
    offset: int
    length: int
    aliases: tuple[bytes, ...]

    @property
    def key(self) -> bytes:
        return self.order[3]


@dataclass(frozen=True, slots=True)
class _Row:
    """What the index says of an entry."""

    keys: tuple[bytes, ...]
    offset: int
    url: tuple[bytes, bytes, bytes]  # site, scheme, method


class PackWriter:
    """Takes entries one by one; nothing is to be seen at the target before `finish`."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._files = ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        self._files.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._records = self._new("records.spool")
        self._bodies = self._new("bodies.spool")
        self._spooled: list[_Spooled] = []
        self._body_at: dict[bytes, tuple[int, int]] = {}  # sha256 -> offset, length in the spool
        self._whole: set[bytes] = set()

    def _new(self, name: str) -> BinaryIO:
        return self._files.enter_context((self._folder / name).open("w+b"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def add(self, entry: PackEntry) -> None:
        """Take an entry; its body is written to disk at once.

        Raises:
            UsageError: if the entry could not be served as HTTP.
        """
        response = entry.response
        if not (len(entry.timestamp) == 14 and entry.timestamp.isdigit() and 200 <= response.status <= 999):
            raise UsageError(
                f"{entry.url} ({entry.timestamp}, status {response.status}) is no entry of a pack"
            )
        body = sha256(response.raw_body).digest()
        if body not in self._body_at:
            self._body_at[body] = (self._bodies.tell(), len(response.raw_body))
            self._bodies.write(response.raw_body)
        if response.status == HTTPStatus.OK:
            self._whole.add(entry.key)
        record = Record(
            key=entry.key,
            method=entry.method.upper(),
            url=entry.url,
            timestamp=entry.timestamp,
            status=response.status,
            mime=response.mime,
            encoding=content_encoding(response.headers),
            head=response_head(response),
            body_sha256=body,
            body_length=len(response.raw_body),
            varies=entry.varies,
        )
        self._spool(record, entry)

    def _spool(self, record: Record, entry: PackEntry) -> None:
        packed = record.pack()
        aliases = tuple(sorted({*entry.aliases} - {entry.key}))
        content = sha256(b"".join((packed, *aliases))).digest()
        order = (entry.timestamp, entry.source, entry.offset, entry.key, content)
        at = self._records.seek(0, os.SEEK_END)
        self._spooled.append(_Spooled(order, record.status, record.body_sha256, at, len(packed), aliases))
        self._records.write(packed)

    def holds_whole(self, key: bytes) -> bool:
        """Whether a 200 was added for a key."""
        return key in self._whole

    def repeat(self, unmodified: Sequence[PackEntry]) -> list[PackEntry]:
        """Add, for each 304, the answer that it confirmed; return those of which none was added.

        That is the last one of its key before it in recorded order, or else the first one after
        it (the browser had it from before the recording). A 200 is preferred to others.
        """
        keys = {entry.key for entry in unmodified}
        answers: dict[bytes, list[_Spooled]] = {}
        for spooled in sorted(self._spooled, key=lambda spooled: spooled.order):
            if spooled.key in keys:
                answers.setdefault(spooled.key, []).append(spooled)
        unresolved = []
        for entry in unmodified:
            known = answers.get(entry.key, [])
            known = [answer for answer in known if answer.status == HTTPStatus.OK] or known
            if not known:
                unresolved.append(entry)
                continue
            place = (entry.timestamp, entry.source, entry.offset)
            before = [answer for answer in known if answer.order[:3] < place]
            record = self._read(before[-1] if before else known[0])
            self._spool(replace(record, timestamp=entry.timestamp), entry)
        return unresolved

    def _read(self, spooled: _Spooled) -> Record:
        self._records.seek(spooled.offset)
        return Record.unpack(self._records.read(spooled.length))

    def finish(self, manifest: Mapping[str, Any], sources: Mapping[str, int] | None = None) -> PackInfo:
        """Write the pack, with a note of what it is made from if told, and move it to its place."""
        self._spooled.sort(key=lambda spooled: spooled.order)
        placed = self._place_bodies()
        rows = self._write_entries(placed)
        keys = self._write_index(rows)
        files = {name: self._described(name) for name in (form.BODIES, form.ENTRIES, form.INDEX)}
        text = json.dumps(
            {
                **manifest,
                "format": "stillweb-pack",
                "version": form.VERSION,
                "entries": len(rows),
                "keys": keys,
                "bodies": len(placed),
                "files": files,
            },
            sort_keys=True,
            indent=1,
            ensure_ascii=True,
            allow_nan=False,
        ).encode()
        environment_id = sha256(text).hexdigest()
        self._write(form.MANIFEST, text)
        self._write(form.DIGEST, environment_id.encode() + b"\n")
        if sources is not None:
            self._write(form.SOURCES, json.dumps(sources, sort_keys=True, indent=1).encode())
        for name in ("records.spool", "bodies.spool"):
            (self._folder / name).unlink(missing_ok=True)
        self._appear()
        size = sum(file.stat().st_size for file in self._target.iterdir())
        return PackInfo(environment_id, len(rows), len(placed), size)

    def _place_bodies(self) -> dict[bytes, int]:
        """Write bodies.bin in order of first use and return where each body lies."""
        placed: dict[bytes, int] = {}
        with (self._folder / form.BODIES).open("wb") as out:
            out.write(form.MAGIC[form.BODIES])
            for spooled in self._spooled:
                if spooled.body in placed:
                    continue
                offset, length = self._body_at[spooled.body]
                placed[spooled.body] = out.tell()
                self._bodies.seek(offset)
                while length:
                    chunk = self._bodies.read(min(length, _COPY))
                    out.write(chunk)
                    length -= len(chunk)
            _sync(out)
        return placed

    def _write_entries(self, placed: dict[bytes, int]) -> list[_Row]:
        """Write entries.bin in recorded order; return key, offset, site and method of each."""
        rows = []
        epoch = 0
        with (self._folder / form.ENTRIES).open("wb") as out:
            out.write(form.MAGIC[form.ENTRIES])
            for order, spooled in enumerate(self._spooled):
                record = self._read(spooled)
                record = replace(record, body_offset=placed[spooled.body], order=order, epoch=epoch)
                url = (*form.site(record.url), record.method.encode())
                rows.append(_Row((record.key, *spooled.aliases), out.tell(), url))
                out.write(record.pack())
                epoch += record.method in MUTATIONS
            _sync(out)
        return rows

    def _write_index(self, rows: list[_Row]) -> int:
        """Write index.bin and return how many keys are in it."""
        keys = sorted((key, row) for row, each in enumerate(rows) for key in each.keys)
        plan = IndexPlan.of(len(rows), len(keys))
        numbers = array("Q")
        for key, row in keys:
            numbers.extend((*form.KEY_HALVES.unpack(key), row))
        fanout = array("I", [0]) * ((1 << plan.bits) + 1)
        for high in numbers[::3]:
            fanout[(high >> (64 - plan.bits)) + 1] += 1
        by_url = sorted(range(len(rows)), key=lambda row: (rows[row].url, row))
        with (self._folder / form.INDEX).open("wb") as out:
            out.write(form.INDEX_HEADER.pack(form.MAGIC[form.INDEX], len(rows), len(keys)))
            out.write(array("I", accumulate(fanout)).tobytes())
            out.write(bytes(plan.keys - out.tell()))
            for table in (numbers, array("Q", (row.offset for row in rows)), array("I", by_url)):
                out.write(table.tobytes())
            _sync(out)
        return len(keys)

    def _described(self, name: str) -> dict[str, Any]:
        blocks = []
        whole = sha256()
        size = 0
        with (self._folder / name).open("rb") as content:
            while block := content.read(form.BLOCK):
                size += len(block)
                whole.update(block)
                if name == form.INDEX:
                    blocks.append(sha256(block).hexdigest())
        described: dict[str, Any] = {"bytes": size, "sha256": whole.hexdigest()}
        return described | ({"blocks": blocks} if blocks else {})

    def _write(self, name: str, content: bytes) -> None:
        with (self._folder / name).open("wb") as out:
            out.write(content)
            _sync(out)

    def _appear(self) -> None:
        """Move the folder to its target; a crash on the way leaves the old pack, the new one or none."""
        self._folder.chmod(0o755)  # mkdtemp's 0700 would hide the pack from a server of another user
        _sync_folder(self._folder)
        if self._target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{self._target.name}-", dir=self._target.parent))
            self._files.callback(shutil.rmtree, old, ignore_errors=True)
            self._target.rename(old / "old")
        self._folder.rename(self._target)
        _sync_folder(self._target.parent)


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Reader of WARC and ARC files, record by record, with the stored position of each record.

Three containers: plain; gzip with one member per record, the only gzip that can be read by offset; and gzip
with other members. All use the parsers of `records` over bytes in memory or mapped; a gzip member is inflated
completely, to a file beyond 64 MiB. `unpack_zstd` unpacks a file that is compressed with Zstandard, as
ArchiveTeam and Zeno write them, to a plain one.

Invariants: `read_record(path, r.offset, r.length)` equals r if the file is sound. In a damaged file every
complete record is read, and each damage is one `Defect` at its stored offset. Nothing is printed. warcio's
iterator does not meet them: it prints defects, takes a truncated gzip member for the end of the file, and
returns negative lengths for gzip with other members. Tests compare this reader with warcio on sound files.
"""

from __future__ import annotations

import base64
import hashlib
import mmap
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import zstandard

from stillweb.collections.defects import Defect, Report, Severity
from stillweb.collections.limits import UnpackBudget, check_ratio, max_unpacked
from stillweb.collections.warc.frames import is_socket_url
from stillweb.collections.warc.records import ARC, WARC, Buffer, Damage, Grammar, Parsed, WarcRecord
from stillweb.errors import LimitExceeded, MalformedWarc
from stillweb.http.codec import decode
from stillweb.http.messages import dechunk, payload_start
from stillweb.model import header

_ALGORITHMS: dict[str, Callable[[bytes], hashlib._Hash]] = {
    "md5": hashlib.md5,
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "sha384": hashlib.sha384,
    "sha512": hashlib.sha512,
}


def matches(stated: str, content: bytes) -> bool | None:
    """Return True if a stated digest is that of the content; None for an unknown algorithm."""
    name, colon, value = stated.partition(":")
    make = _ALGORITHMS.get(name.lower().replace("-", ""))
    if not colon or not make:
        return None
    digest = make(content)
    base32 = base64.b32encode(digest.digest()).decode("ascii")
    return value.lower() == digest.hexdigest() or value.upper().rstrip("=") == base32.rstrip("=")


def problems(record: WarcRecord) -> Iterator[str]:
    """Yield what is wrong with a record's digests, one clause each."""
    if matches(record.get("WARC-Block-Digest"), record.block) is False:
        yield "WARC-Block-Digest does not fit the block"
    stated = record.get("WARC-Payload-Digest")
    # A revisit states the digest of its original's payload (WARC 1.1 §6.7.2).
    if not stated or record.type == "revisit" or matches(stated, b"") is None:
        return
    if not any(matches(stated, payload) for payload in _payloads(record)):
        whole = matches(stated, record.block)
        yield "WARC-Payload-Digest " + ("is the block's" if whole else "does not fit the payload")


def _payloads(record: WarcRecord) -> Iterator[bytes]:
    if record.type not in ("response", "request") or is_socket_url(record.target_uri):
        yield record.block
        return
    body = record.block[payload_start(record.block) :]
    yield body
    plain = dechunk(body)
    yield plain
    head = record.block[: len(record.block) - len(body)].decode("latin-1")
    fields = tuple(
        (k.strip(), v.strip()) for k, _, v in (line.partition(":") for line in head.splitlines()[1:])
    )
    encoding = header(fields, "content-encoding")
    with suppress(LimitExceeded):
        if encoding and (decoded := decode(plain, encoding, min_partial=None)) is not None:
            yield decoded


GZIP_MAGIC = b"\x1f\x8b\x08"
# Starts of a Zstandard frame (RFC 8878 §3.1.1) and of the dictionary that a WARC may begin with.
_FRAME, _DICTIONARY = b"\x28\xb5\x2f\xfd", b"\x5d\x2a\x4d\x18"
_SPOOL = 64 << 20
_RECORD = 2048  # bytes that the note of a record takes while a file is indexed
_STEP = 64 << 10  # at most this many bytes before a corrupt byte are lost
_REPAIR = "stillweb collections check NAME --repair"


def gzip_member(text: bytes) -> bytes:
    """Return a gzip member (RFC 1952) without name or time: equal input gives equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(text) + packer.flush()


def read_record(path: Path, offset: int, length: int) -> WarcRecord:
    """Read the record at an offset of a file.

    Raises:
        MalformedWarc: if no complete record starts there.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(min(offset, size))  # read() refuses places near 2^63
        text = file.read(min(length, size))  # a buffer of the stated length is made first
    if text.startswith(GZIP_MAGIC):
        packed = len(text)  # not the stated length, which an index makes up
        try:
            text = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(text, max_unpacked(packed) + 1)
        except zlib.error as error:
            raise MalformedWarc(f"gzip member is corrupt ({error})", path=path, offset=offset) from None
        check_ratio(len(text), packed, path, f"the gzip member at {offset}")
    grammar = WARC if text[:5].upper() == b"WARC/" else ARC
    parsed = grammar.parse(text, 0)
    if isinstance(parsed, Damage):
        raise MalformedWarc(parsed.what, path=path, offset=offset, hint="stillweb collections check NAME")
    return replace(parsed.record, offset=offset, length=length)


def read_records(path: Path, report: Report | None = None) -> Iterator[WarcRecord]:
    """Yield every complete record of a WARC or ARC file, plain or gzipped.

    Args:
        report: receives defects as they are found. Without it the first error is raised, after the complete
            records before it.

    Raises:
        MalformedWarc: if the file is damaged and `report` is None.
    """
    report_at = _Offsets(path, report)
    if not path.stat().st_size:
        report_at(0, Damage("truncated", "the file is empty"))
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stored:
        if stored[:3] == GZIP_MAGIC:
            yield from _Gzip(stored, report_at).records()
        else:
            grammar = _grammar(stored)
            if grammar is WARC:
                report_at(0, Damage("plain", "not compressed", Severity.NOTICE))
            yield from _RecordWalk(stored, grammar, report_at).records()


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, inflated if it is gzip; b"" if they cannot be inflated."""
    with path.open("rb") as file:
        head = file.read(4096)
    if not head.startswith(GZIP_MAGIC):
        return head
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, 4096)
    except zlib.error:
        return b""


def sniff(path: Path) -> str:
    """Return "warc", "arc" or "zstd" by the first bytes of a file, inflated if necessary; "" for others."""
    head = first_bytes(path)
    if head.startswith((_FRAME, _DICTIONARY)):
        return "zstd"
    if _grammar(head) is ARC:
        return "arc"
    return "warc" if WARC.start.match(head, _skip_blank(head, 0)) else ""


@dataclass(frozen=True, slots=True)
class _Offsets:
    """Converts a damage at a stored offset to a defect of the file, or to an exception."""

    path: Path
    report: Report | None

    def __call__(self, offset: int, damage: Damage) -> None:
        if self.report:
            repair = "" if damage.severity is Severity.NOTICE else _REPAIR
            self.report(Defect(damage.severity, damage.code, str(self.path), offset, damage.what, repair))
        elif damage.severity is Severity.ERROR:
            raise MalformedWarc(
                damage.what, path=self.path, offset=offset, hint="stillweb collections check NAME"
            )


def _grammar(text: Buffer) -> Grammar:
    at = _skip_blank(text, 0)
    return ARC if text[at : at + 11] == b"filedesc://" or ARC.start.match(text, at) else WARC


class _RecordWalk:
    """Iteration over the records of a text, which reports the damages between them.

    Attributes:
        place: offset and length of the gzip member that the text came from; None if the text is as stored.
        rest: where the text breaks off within a record, -1 if it does not.
        broken: how it breaks off.
    """

    def __init__(
        self, text: Buffer, grammar: Grammar, report_at: _Offsets, place: tuple[int, int] | None = None
    ) -> None:
        self.text, self.grammar, self.report_at, self.place = text, grammar, report_at, place
        self.rest = -1
        self.cut = False  # the text is known to be truncated: its last record may lack its end
        self.count = 0
        self.broken: Damage | None = None

    def records(self) -> Iterator[WarcRecord]:
        """Yield the complete records; report a truncated end if the text is as stored."""
        yield from self.walk()
        if self.broken and self.place is None:
            self.report_at(self.rest, self.broken)

    def walk(self) -> Iterator[WarcRecord]:
        """Yield the complete records; set `rest` and `broken` if the text breaks off."""
        at = _skip_blank(self.text, 0)
        while at < len(self.text):
            parsed = self.grammar.parse(self.text, at)
            if isinstance(parsed, Damage):
                at = self._resync(at, parsed)
                continue
            self.count += 1
            after, damage = self._gap(parsed.end)
            record, end = parsed.record, parsed.end
            if damage and damage.code == "junk" and (block := self._longer_block(parsed, after)):
                record, end = replace(record, block=block), end - len(record.block) + len(block)
                what = f"Content-Length is {end - parsed.end} bytes too small according to WARC-Block-Digest"
                damage = Damage("bad-length", what, Severity.WARNING)
            offset, length = self.place or (at, end - at)
            yield replace(record, offset=offset, length=length)
            for each in (parsed.flaw, damage):
                if each:
                    self.report_at(self._where(at), each)
            at = after

    def _longer_block(self, parsed: Parsed, after: int) -> bytes | None:
        """Return the block up to the next record, if it is the one that WARC-Block-Digest states."""
        record = parsed.record
        text = self.text[parsed.end - len(record.block) : after]
        block = text[:-4] if text.endswith(b"\r\n\r\n") else text.rstrip(b"\r\n")
        return block if matches(record.get("WARC-Block-Digest"), block) else None

    def _where(self, at: int) -> int:
        return self.place[0] if self.place else at

    def _resync(self, at: int, damage: Damage) -> int:
        found = self.grammar.start.search(self.text, at + 1)
        if found and not damage.at_end:
            self.report_at(self._where(at), damage)
            return found.start()
        self.rest, self.broken = at, damage
        return len(self.text)

    def _gap(self, end: int) -> tuple[int, Damage | None]:
        """Return the start of the next record and the damage before it; CRLF CRLF is right (WARC 1.1 §4)."""
        text = self.text
        at = _skip_blank(text, end)
        if at >= len(text):
            closed = self.grammar is not WARC or self.cut or text[end:at].count(b"\n") >= 2
            what = "the record does not end with two line ends"
            return at, None if closed else Damage("no-end", what, Severity.WARNING)
        if self.grammar.start.match(text, at):
            return at, None
        found = self.grammar.start.search(text, at)
        if not found:
            return at, None  # the next iteration reports it
        what = f"{found.start() - end} bytes after the block belong to no record: Content-Length is wrong"
        return found.start(), Damage("junk", what)


def _skip_blank(text: Buffer, at: int) -> int:
    while at < len(text) and text[at] in b"\r\n":
        at += 1
    return at


@dataclass(frozen=True, slots=True)
class _Member:
    """An inflated gzip member; `end` is the offset after it, `flaw` why it is not complete."""

    text: Buffer
    end: int
    flaw: Damage | None = None


class _Gzip:
    """Iteration over the members of a gzip file, which joins records that span members."""

    def __init__(self, stored: mmap.mmap, report_at: _Offsets) -> None:
        self.stored, self.report_at = stored, report_at
        self.grammar = WARC
        self.first_of_shared = True
        self.budget = UnpackBudget(len(stored), report_at.path)

    def records(self) -> Iterator[WarcRecord]:
        at = 0
        pending: bytes = b""  # of a record that is still incomplete after the members so far
        start = 0
        while at < len(self.stored):
            member = _inflate(self.stored, at, self.report_at.path)
            self.budget.charge(len(member.text))
            if at == 0:
                self.grammar = _grammar(member.text)
            elif pending and self.grammar.start.match(member.text):
                self.report_at(start, Damage("truncated", "the gzip member ends before the record does"))
                pending = b""
            text: Buffer = pending + member.text[:] if pending else member.text
            start = start if pending else at
            walk = _RecordWalk(text, self.grammar, self.report_at, (start, member.end - start))
            walk.cut = member.flaw is not None
            for record in walk.walk():
                self.budget.charge(_RECORD)
                yield record
            self._report_cut(start, walk, joined=bool(pending))
            pending = bytes(text[walk.rest :]) if walk.rest >= 0 else b""
            if member.flaw:
                self.report_at(start, member.flaw)
                pending = b""
            elif pending and walk.broken and not walk.broken.at_end:
                self.report_at(start, walk.broken)
                pending = b""
            at = member.end if not member.flaw else self._next_member(max(at + 1, member.end))
        if pending:
            self.report_at(start, Damage("truncated", "the file ends before the record does"))

    def _report_cut(self, start: int, walk: _RecordWalk, *, joined: bool) -> None:
        if joined and walk.count:
            self.report_at(start, Damage("split-record", "a record spans several gzip members"))
        elif walk.count > 1 and self.first_of_shared:
            self.first_of_shared = False
            what = f"a gzip member holds {walk.count} records: they cannot be read by offset"
            self.report_at(start, Damage("not-chunked", what))

    def _next_member(self, at: int) -> int:
        """Return the offset of the next member in which a record starts, or the file's end."""
        while (at := self.stored.find(GZIP_MAGIC, at)) >= 0:
            try:
                head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(self.stored[at : at + 4096], 512)
            except zlib.error:
                head = b""
            if self.grammar.start.match(head):
                return at
            at += 1
        return len(self.stored)


def _inflate(stored: mmap.mmap, at: int, path: Path) -> _Member:
    """Inflate the gzip member at an offset; a truncated or corrupt one yields the bytes before the fault."""
    if stored[at : at + 3] != GZIP_MAGIC[: len(stored) - at]:
        return _Member(b"", at, Damage("junk", f"no gzip member starts here but {stored[at : at + 8]!r}"))
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    parts: list[bytes] = []
    size, position, flaw = 0, at, None
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
        while not unpack.eof:
            piece = stored[position : position + _STEP]
            if not piece:
                flaw = Damage("truncated", "the file breaks off within this gzip member")
                break
            position += len(piece)
            try:
                out = unpack.decompress(piece)
            except zlib.error as error:
                flaw = Damage("corrupt", f"the gzip member is corrupt ({error})")
                break
            size += len(out)
            check_ratio(size, position - at, path, f"the gzip member at {at}")
            parts.append(out)
            if size > _SPOOL:
                spool.write(b"".join(parts))
                parts.clear()
        end = position - len(unpack.unused_data)
        if spool.tell():
            spool.write(b"".join(parts))
            spool.rollover()
            spool.flush()
            return _Member(mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ), end, flaw)
    return _Member(b"".join(parts), at + 1 if flaw and flaw.code == "corrupt" else end, flaw)


_SKIPPABLE = range(0x184D2A50, 0x184D2A60)  # RFC 8878 §3.1.2
_MAX_DICTIONARY = 16 << 20  # bytes; trained dictionaries have about 100 KiB
_MAX_WINDOW = 128 << 20  # bytes; the tools write windows of at most 8 MiB, `zstd --ultra -22` of 128 MiB
_ZSTD_STEP = 1 << 10  # bytes for each call: a block of 4 bytes yields 128 KiB


def unpack_zstd(path: Path, target: Path) -> str:
    """Unpack the frames of a file into a plain WARC; return why the rest could not be read, "" if all was.

    Each record is a frame. A skippable frame before the first one may hold the dictionary of all frames,
    which may be compressed itself (iipc/warc-specifications, warc-zstd).

    Raises:
        MalformedWarc: if not even the first frame can be read.
        LimitExceeded: if the file unpacks to too much.
    """
    size, packed_size = 0, path.stat().st_size
    with path.open("rb") as packed, target.open("wb") as out:
        try:
            for piece in _pieces(packed):
                size += len(piece)
                check_ratio(size, packed_size, path, "the file")
                out.write(piece)
        except zstandard.ZstdError as error:
            if not out.tell():
                raise MalformedWarc(f"not readable as Zstandard ({error})", path=path) from None
            return str(error)
    return ""


def _pieces(packed: IO[bytes]) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(dict_data=_dictionary(packed), max_window_size=_MAX_WINDOW)
    rest = packed.read(_ZSTD_STEP)
    while rest:
        if len(rest) < 8:
            rest += packed.read(_ZSTD_STEP)
        if int.from_bytes(rest[:4], "little") in _SKIPPABLE:
            rest = _skip(packed, rest)
            continue
        frame = decoder.decompressobj()
        while not frame.eof:
            if not rest:
                raise zstandard.ZstdError("the file ends within a frame")
            yield frame.decompress(rest)
            rest = b"" if frame.eof else packed.read(_ZSTD_STEP)
        rest = frame.unused_data or packed.read(_ZSTD_STEP)


def _skip(packed: IO[bytes], rest: bytes) -> bytes:
    """Return the bytes behind a skippable frame."""
    end = 8 + int.from_bytes(rest[4:8], "little")
    if end <= len(rest):
        return rest[end:] or packed.read(_ZSTD_STEP)
    packed.seek(end - len(rest), 1)
    return packed.read(_ZSTD_STEP)


def _dictionary(packed: IO[bytes]) -> zstandard.ZstdCompressionDict | None:
    """Return the dictionary before the first frame, and move to that frame."""
    head = packed.read(8)
    if head[:4] != _DICTIONARY:
        packed.seek(0)
        return None
    size = int.from_bytes(head[4:], "little")
    if size > _MAX_DICTIONARY:
        raise zstandard.ZstdError(f"a dictionary of {size} bytes, {_MAX_DICTIONARY} at most")
    stored = packed.read(size)
    if stored[:4] == _FRAME:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(stored)
        stored = reader.read(_MAX_DICTIONARY)
    return zstandard.ZstdCompressionDict(stored)

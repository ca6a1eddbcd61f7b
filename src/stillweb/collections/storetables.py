"""What the segments of a store hold, asked while a pack is sealed.

A Python mmap holds a descriptor as long as it lives, and a root may have thousands of segments. So all tables
are copied into one nameless file that is mapped, and of the segments themselves only those that were
asked last are open.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from mmap import ACCESS_READ, mmap
from pathlib import Path

from stillweb.collections import packformat as form
from stillweb.collections.packbodies import SegmentName, unmap
from stillweb.errors import CollectionError

__all__ = ["Table", "packed_table", "read_tables"]

_MAGIC = b"SWtab\0\0" + bytes([form.VERSION])
_HEADER = struct.Struct("<8sQ")
_ROW = struct.Struct("<Q24sQ")  # the first 8 bytes of the sha256 as a number, so that it is searched in C
_WORDS = _ROW.size // 8
_PREFIX = struct.Struct(">Q")
_SEGMENT_MAGIC = form.MAGIC[form.BODIES]
_OPEN = 16


def packed_table(places: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the table of bodies, of each its sha256 and offset, sorted."""
    words = array("Q")
    for digest, offset in places:
        words.frombytes(_ROW.pack(_PREFIX.unpack_from(digest)[0], digest[8:], offset))
    return _HEADER.pack(_MAGIC, len(words) // _WORDS) + words.tobytes()


class _Segments:
    """Segments to be read from, a few of them open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def read(self, file: Path, offset: int, length: int) -> bytes:
        """Return some bytes of a segment; less if it ends before."""
        try:
            if file not in self._open:
                if len(self._open) == _OPEN:
                    os.close(self._open.popitem(last=False)[1])
                self._open[file] = os.open(file, os.O_RDONLY)
            self._open.move_to_end(file)
            return os.pread(self._open[file], length, offset)
        except OSError as error:
            raise _unreadable(file, error) from error

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class Table:
    """The bodies of a segment.

    Args:
        file: the segment.
        size: of it.
        rows: its table without the header, to be released before what it lies in.
        segments: reads it.
    """

    def __init__(self, file: Path, size: int, rows: memoryview, segments: _Segments) -> None:
        self.segment = SegmentName(bytes.fromhex(file.stem), size)
        self._file = file
        self._rows = rows
        self._segments = segments
        self._words = rows.cast("Q")
        self._prefixes = self._words[::_WORDS]

    def release(self) -> None:
        """Let go of the rows."""
        for view in (self._prefixes, self._words, self._rows):
            view.release()

    def find(self, digest: bytes, body: bytes) -> int:
        """Return the offset of a body; -1 if it is not here, byte for byte.

        Raises:
            CollectionError: if the segment cannot be read.
        """
        prefix = _PREFIX.unpack_from(digest)[0]
        at = bisect_left(self._prefixes, prefix)
        while at < len(self._prefixes) and self._prefixes[at] == prefix:
            _, rest, offset = _ROW.unpack_from(self._rows, at * _ROW.size)
            if rest == digest[8:] and self.body(offset, len(body)) == body:
                return int(offset)
            at += 1
        return -1

    def body(self, offset: int, length: int) -> bytes:
        """Return what lies at an offset.

        Raises:
            CollectionError: if the segment cannot be read.
        """
        return self._segments.read(self._file, offset, length) if offset < self.segment.size else b""


def read_tables(store: Path, names: Sequence[str], files: ExitStack) -> list[Table]:
    """Return the tables of segments, the largest first: so a pack needs few; `files` closes what they need.

    One that is gone meanwhile or is broken is left out: what is broken is not built upon.

    Raises:
        CollectionError: if one cannot be read for another reason.
    """
    segments = _Segments()
    files.callback(segments.close)
    found: list[tuple[int, Path, int, int]] = []  # rows, segment and its size, where its rows end
    with tempfile.TemporaryFile(dir=store) as joined:
        for name in names:
            file = store / f"{name}.bodies"
            size, rows = _rows(file)
            if rows:
                joined.write(rows)
                found.append((-(len(rows) // _ROW.size), file, size, joined.tell()))
        if not found:
            return []
        joined.flush()
        mapped = mmap(joined.fileno(), 0, access=ACCESS_READ)
    files.callback(unmap, mapped)
    content = memoryview(mapped)
    files.callback(content.release)
    tables = []
    for count, file, size, end in sorted(found):
        tables.append(Table(file, size, content[end + count * _ROW.size : end], segments))
        files.callback(tables[-1].release)
    return tables


def _rows(file: Path) -> tuple[int, bytes]:
    """Return the size of a segment and the rows of its table; none if one of them is broken or gone."""
    try:
        table = file.with_suffix(".table").read_bytes()
        with file.open("rb") as segment:
            magic, size = segment.read(len(_SEGMENT_MAGIC)), os.fstat(segment.fileno()).st_size
    except FileNotFoundError:
        return 0, b""
    except OSError as error:
        raise _unreadable(file, error) from error
    rows, over = divmod(len(table) - _HEADER.size, _ROW.size)
    whole = not over and table.startswith(_HEADER.pack(_MAGIC, max(rows, 0)))
    return size, table[_HEADER.size :] if whole and magic == _SEGMENT_MAGIC else b""


def _unreadable(file: Path, error: OSError) -> CollectionError:
    # To go on without it would store its bodies a second time, and say nothing.
    hint = "free what is in the way (limits, rights, disk), then: stillweb collections seal NAME"
    return CollectionError(f"segment of the store cannot be read ({error.strerror})", path=file, hint=hint)

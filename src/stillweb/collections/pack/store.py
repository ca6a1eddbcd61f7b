"""`collections/.store/`: bodies by their sha256, shared by the packs of all collections of a root.

    NAME.bodies   a segment: magic, then bodies back to back. NAME is half the sha256 of its table
    NAME.table    magic, count; of each body, sorted: sha256 and offset. Asked at seal only (`storetables`)

A seal writes what no segment holds into one new segment, in the order in which it comes, and never
changes one that is there. What a table says is believed only after the bytes were compared, so a
broken segment costs space and is never built upon. A pack names `MOST_SEGMENTS` at most, since who has it
open holds a descriptor of each: bodies of those beyond are copied into the new segment.

`sharing` holds the store against `collect`, which removes segments that no pack names and what a
killed seal left; any number of seals may share. Both are locks of the folder, gone with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO, Self

from stillweb.collections.pack import format as form
from stillweb.collections.pack.bodies import MOST_SEGMENTS, OWN, SegmentName, segments_of, unmap
from stillweb.collections.pack.format import BODIES, MAGIC
from stillweb.collections.renames import sync_folder
from stillweb.errors import CollectionError
from stillweb.matching.redaction import key_file

__all__ = ["STORE", "BodyStore", "BodyWriter", "Table", "packed_table", "read_tables", "remove_collection"]

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


STORE = ".store"
_BUFFER = 1 << 20
SEGMENT = 1 << 48
"""A place is an offset, and this times the number of the segment."""


class BodyStore:
    """The store of a root of collections. Making one touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / STORE

    @classmethod
    def of(cls, pack: Path) -> BodyStore:
        """Return the store of a pack: beside its collection, wherever that really lies."""
        return cls(pack.parent.resolve().parent)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Hold the store against `collect`: segments that are there stay, so that a pack may name them."""
        self.path.mkdir(exist_ok=True)
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)  # releases the lock

    def collect(self) -> int:
        """Remove what no pack names; return how many bytes that freed. Nothing while a seal goes on.

        Raises:
            MalformedPack: if it cannot be told what a pack names; then nothing is removed.
        """
        freed = 0
        with suppress(BlockingIOError, FileNotFoundError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            kept = self._named()
            for file in sorted(self.path.iterdir()):
                if file.stem not in kept:
                    freed += file.stat().st_size
                    file.unlink()
            for folder in self.root.glob("*/.pack-*"):  # of a seal that was killed
                if not folder.parent.is_symlink():  # else another store's lock is over it
                    shutil.rmtree(folder, ignore_errors=True)
        return freed

    def _named(self) -> set[str]:
        """Return the names of the segments that some pack of the root needs."""
        named: set[str] = set()
        for places in self.root.glob(f"*/pack/{form.PLACES}"):
            named.update(each.name.hex() for each in segments_of(places.parent))
        return named

    def segments(self) -> list[str]:
        """Return the names of the segments, sorted."""
        if not self.path.is_dir():
            return []
        return sorted(file.stem for file in self.path.glob("*.bodies") if file.with_suffix(".table").exists())


def remove_collection(path: Path) -> None:
    """Remove the folder of a collection, and the bodies that only it had.

    Raises:
        MalformedPack: if it cannot be told what other packs need; then the bodies stay.
    """
    store = BodyStore(path.resolve().parent)
    if path.is_symlink():
        path.unlink()
        return
    shutil.rmtree(path)
    key_file(path.parent, path.name, of_version=False).unlink(missing_ok=True)
    store.collect()


class BodyWriter:
    """Takes the bodies of one pack; to be closed, and to be used within `Store.sharing` if there is a store.

    Args:
        folder: of the new pack, which gets the bodies if there is no store.
        store: to be shared with other packs.
    """

    def __init__(self, folder: Path, store: BodyStore | None) -> None:
        self._store = store
        self._files = ExitStack()
        self._tables: list[Table] = []
        self._numbers: dict[bytes, int] = {}
        self._places = array("Q")  # by order of arrival: offset, and above it 0 or 1 + number of the table
        self._lengths = array("Q")
        self.size = 0
        self._own = folder / BODIES
        self._path = self._own
        self._end = 0
        if store:
            self._tables = read_tables(store.path, store.segments(), self._files)
            descriptor, path = tempfile.mkstemp(prefix=".new-", dir=store.path)
            self._path = Path(path)
            self._out: BinaryIO = self._files.enter_context(os.fdopen(descriptor, "wb", _BUFFER))
        else:
            self._out = self._files.enter_context(self._own.open("wb", _BUFFER))
        self._write(MAGIC[BODIES])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
        if self._store:
            self._path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._places)

    def _write(self, content: bytes) -> int:
        at = self._end
        self._out.write(content)
        self._end += len(content)
        return at

    def add(self, digest: bytes, body: bytes) -> int:
        """Take a body and return its number, in order of arrival; the same for the same body."""
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._places)
            self._places.append(self._place(digest, body))
            self._lengths.append(len(body))
            self.size += len(body)
        return number

    def _place(self, digest: bytes, body: bytes) -> int:
        for number, table in enumerate(self._tables, start=1) if body else ():
            offset = table.find(digest, body)
            if offset >= 0:
                return number * SEGMENT + offset
        return self._write(body)

    def finish(self) -> tuple[list[SegmentName], array[int]]:
        """Make the segment permanent; return the segments in use, and the place of each body by arrival."""
        counts = Counter(place // SEGMENT for place in self._places if place >= SEGMENT)
        used = sorted(number for number, _ in counts.most_common(MOST_SEGMENTS - 1))
        self._copy_from(counts.keys() - {*used})
        segments = [self._tables[number - 1].segment for number in used]
        renumbered = {number: place for place, number in enumerate(used)}
        self._out.flush()
        os.fsync(self._out.fileno())
        if self._end > len(MAGIC[BODIES]):
            renumbered[0] = len(segments)
            segments.append(SegmentName(self._publish() if self._store else OWN, self._end))
        elif not self._store:
            self._own.unlink()
        self._numbers.clear()  # of no use any more, and the largest thing in memory
        places = (divmod(place, SEGMENT) for place in self._places)
        return segments, array("Q", (renumbered.get(number, 0) * SEGMENT + at for number, at in places))

    def _copy_from(self, tables: Set[int]) -> None:
        """Write the bodies that lie in some segments to the new one, segment by segment."""
        away = [at for at, place in enumerate(self._places) if place // SEGMENT in tables]
        for at in sorted(away, key=self._places.__getitem__):
            number, offset = divmod(self._places[at], SEGMENT)
            self._places[at] = self._write(self._tables[number - 1].body(offset, self._lengths[at]))

    def _publish(self) -> bytes:
        """Move the new segment into the store, behind its table: one without the other is none."""
        assert self._store
        table = packed_table(
            (digest, self._places[number])
            for digest, number in sorted(self._numbers.items())
            if self._places[number] < SEGMENT
        )
        name = sha256(table).digest()[: len(OWN)]
        descriptor, path = tempfile.mkstemp(prefix=".new-", dir=self._store.path)
        with os.fdopen(descriptor, "wb") as out:
            out.write(table)
            out.flush()
            os.fsync(out.fileno())
        for file, kind in ((Path(path), "table"), (self._path, "bodies")):
            file.chmod(0o644)  # mkstemp's 0600 would hide it from a server of another user
            file.rename(self._store.path / f"{name.hex()}.{kind}")
        sync_folder(self._store.path)
        return name

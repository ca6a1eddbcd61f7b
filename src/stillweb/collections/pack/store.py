"""`collections/.store/`: bodies by sha256, shared by the packs of all collections of a root.

    NAME.bodies   a segment: magic, then bodies back to back. NAME is half the sha256 of its table
    NAME.table    magic, count; sha256 and offset of each body, sorted. Used by seal only

A seal writes the bodies that no segment holds into one new segment, in order of arrival, and never changes
existing ones. It compares the bytes before it relies on a table, so a damaged segment costs space and is
never used for new packs. A pack names at most `MOST_SEGMENTS`, since each costs a descriptor while the pack
is open: bodies of further segments are copied into the new one.

`sharing` excludes `collect`, which removes segments that no pack names and files of killed seals; any number
of seals may share. Both lock the folder, and the locks end with the process.
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
from stillweb.matching.placeholders import key_file

_MAGIC = b"SWtab\0\0" + bytes([form.VERSION])
_HEADER = struct.Struct("<8sQ")
_ROW = struct.Struct("<Q24sQ")  # the first 8 bytes of the sha256 as a number, for a search in C
_WORDS = _ROW.size // 8
_PREFIX = struct.Struct(">Q")
_SEGMENT_MAGIC = form.MAGIC[form.BODIES]
_OPEN = 16


def packed_table(places: Iterable[tuple[bytes, int]]) -> bytes:
    """Return a table of bodies: sha256 and offset of each, sorted."""
    words = array("Q")
    for digest, offset in places:
        words.frombytes(_ROW.pack(_PREFIX.unpack_from(digest)[0], digest[8:], offset))
    return _HEADER.pack(_MAGIC, len(words) // _WORDS) + words.tobytes()


class _Segments:
    """Reads segments, with a few of them open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def read(self, file: Path, offset: int, length: int) -> bytes:
        """Return bytes of a segment; fewer if it ends before."""
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


class SegmentTable:
    """The bodies of a segment.

    Args:
        rows: its table without the header; release it before the memory it views.
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
        for view in (self._prefixes, self._words, self._rows):
            view.release()

    def find(self, digest: bytes, body: bytes) -> int:
        """Return the offset of a body that is equal byte for byte; -1 without one.

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
        """Return the bytes at an offset.

        Raises:
            CollectionError: if the segment cannot be read.
        """
        return self._segments.read(self._file, offset, length) if offset < self.segment.size else b""


def read_tables(store: Path, names: Sequence[str], files: ExitStack) -> list[SegmentTable]:
    """Return the tables of segments, largest first, so that a pack needs few; `files` closes their resources.

    Missing and damaged segments are left out: new packs must not use them.

    Raises:
        CollectionError: if one cannot be read for another reason.
    """
    segments = _Segments()
    files.callback(segments.close)
    found: list[tuple[int, Path, int, int]] = []  # rows, segment and its size, end of its rows
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
        tables.append(SegmentTable(file, size, content[end + count * _ROW.size : end], segments))
        files.callback(tables[-1].release)
    return tables


def _rows(file: Path) -> tuple[int, bytes]:
    """Return the size of a segment and the rows of its table; none if one of them is damaged or missing."""
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
    # Continuing without it would silently store its bodies a second time.
    hint = "free what is in the way (limits, rights, disk), then: stillweb collections seal NAME"
    return CollectionError(f"segment of the store cannot be read ({error.strerror})", path=file, hint=hint)


STORE = ".store"
_BUFFER = 1 << 20
SEGMENT = 1 << 48
"""A place is an offset plus this number times the number of the segment."""


class BodyStore:
    """The store of a root of collections. The constructor has no side effects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / STORE

    @classmethod
    def of(cls, pack: Path) -> BodyStore:
        """Return the store of a pack: beside its collection, with links resolved."""
        return cls(pack.parent.resolve().parent)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Exclude `collect`: existing segments stay, so that a new pack may name them."""
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
        """Remove segments that no pack names; return the number of freed bytes. Does nothing during a seal.

        Raises:
            MalformedPack: if a pack's segments cannot be determined; then nothing is removed.
        """
        freed = 0
        with suppress(BlockingIOError, FileNotFoundError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            named = self._named()
            for file in sorted(self.path.iterdir()):
                if file.stem not in named:
                    freed += file.stat().st_size
                    file.unlink()
            for folder in self.root.glob("*/.pack-*"):  # of a killed seal
                if not folder.parent.is_symlink():  # otherwise another store's lock covers it
                    shutil.rmtree(folder, ignore_errors=True)
        return freed

    def _named(self) -> set[str]:
        """Return the names of the segments that some pack of the root needs."""
        named: set[str] = set()
        for places in self.root.glob(f"*/pack/{form.PLACES}"):
            named.update(each.name.hex() for each in segments_of(places.parent))
        return named

    def segments(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(file.stem for file in self.path.glob("*.bodies") if file.with_suffix(".table").exists())


def remove_collection(path: Path) -> None:
    """Remove the folder of a collection, and the bodies that only it used.

    Raises:
        MalformedPack: if other packs' segments cannot be determined; then the bodies stay.
    """
    store = BodyStore(path.resolve().parent)
    if path.is_symlink():
        path.unlink()
        return
    shutil.rmtree(path)
    key_file(path.parent, path.name, of_version=False).unlink(missing_ok=True)
    store.collect()


class BodyWriter:
    """Collects the bodies of one pack. Close it, and use it within `BodyStore.sharing` if a store is given.

    Args:
        folder: of the new pack, which gets the bodies if there is no store.
        store: to share bodies with other packs.
    """

    def __init__(self, folder: Path, store: BodyStore | None) -> None:
        self._store = store
        self._files = ExitStack()
        self._tables: list[SegmentTable] = []
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
        try:
            self._files.close()  # writes what is left in the buffer, which a full disk refuses
        finally:
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
        """Add a body and return its number, in order of arrival; equal bodies have equal numbers."""
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
        """Make the segment durable; return the segments in use, and the place of each body by arrival."""
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
        self._numbers.clear()  # no longer needed, and the largest object in memory
        places = (divmod(place, SEGMENT) for place in self._places)
        return segments, array("Q", (renumbered.get(number, 0) * SEGMENT + at for number, at in places))

    def _copy_from(self, tables: Set[int]) -> None:
        """Copy the bodies of some segments to the new one, segment by segment."""
        away = [at for at, place in enumerate(self._places) if place // SEGMENT in tables]
        for at in sorted(away, key=self._places.__getitem__):
            number, offset = divmod(self._places[at], SEGMENT)
            self._places[at] = self._write(self._tables[number - 1].body(offset, self._lengths[at]))

    def _publish(self) -> bytes:
        """Move the new segment into the store after its table: a segment without a table does not count."""
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

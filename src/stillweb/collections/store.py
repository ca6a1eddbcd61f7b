"""`collections/.store/`: bodies by their sha256, shared by the packs of all collections of a root.

    NAME.bodies   a segment: magic, then bodies back to back. NAME is half the sha256 of its table
    NAME.table    magic, count; of each body, sorted: sha256 and offset. Asked at seal only

A seal writes what no segment holds into one new segment, in the order in which it comes, and never
changes one that is there. What a table says is believed only after the bytes were compared, so a
broken segment costs space and is never built upon.

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO, Self

from stillweb.collections import packformat as form
from stillweb.collections.packbodies import OWN, SegmentName, segments_of, unmap
from stillweb.collections.packformat import BODIES, MAGIC
from stillweb.collections.renames import sync_folder

__all__ = ["STORE", "BodyWriter", "Store", "remove_collection"]

STORE = ".store"
_TABLE_MAGIC = b"SWtab\0\0" + bytes([form.VERSION])
_TABLE_HEADER = struct.Struct("<8sQ")
_TABLE_ROW = struct.Struct(
    "<Q24sQ"
)  # the first 8 bytes of the sha256 as a number, so that it is searched in C
_WORDS = _TABLE_ROW.size // 8
_BUFFER = 1 << 20
_PREFIX = struct.Struct(">Q")
SEGMENT = 1 << 48
"""A place is an offset, and this times the number of the segment."""


class Store:
    """The store of a root of collections. Making one touches nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / STORE

    @classmethod
    def of(cls, pack: Path) -> Store:
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
    store = Store(path.resolve().parent)
    if path.is_symlink():
        path.unlink()
        return
    shutil.rmtree(path)
    store.collect()


class _Table:
    """The bodies of a segment, searched in its mmap."""

    def __init__(self, name: str, store: Path, files: ExitStack) -> None:
        with (store / f"{name}.bodies").open("rb") as content:
            self.bodies = mmap(content.fileno(), 0, access=ACCESS_READ)
        files.callback(unmap, self.bodies)
        with (store / f"{name}.table").open("rb") as content:
            self._table = mmap(content.fileno(), 0, access=ACCESS_READ)
        files.callback(unmap, self._table)
        self.segment = SegmentName(bytes.fromhex(name), len(self.bodies))
        head = _TABLE_HEADER.pack(_TABLE_MAGIC, (len(self._table) - _TABLE_HEADER.size) // _TABLE_ROW.size)
        if self._table[: len(head)] != head:
            raise ValueError(f"{name}.table is no table")
        self._words = memoryview(self._table)[_TABLE_HEADER.size :].cast("Q")
        self._prefixes = self._words[::_WORDS]
        files.callback(self._words.release)
        files.callback(self._prefixes.release)

    def find(self, digest: bytes, body: bytes) -> int:
        """Return the offset of a body; -1 if it is not here, byte for byte."""
        prefix = _PREFIX.unpack_from(digest)[0]
        at = bisect_left(self._prefixes, prefix)
        while at < len(self._prefixes) and self._prefixes[at] == prefix:
            place = _TABLE_HEADER.size + at * _TABLE_ROW.size
            _, rest, offset = _TABLE_ROW.unpack_from(self._table, place)
            if rest == digest[8:] and self.bodies[offset : offset + len(body)] == body:
                return int(offset)
            at += 1
        return -1


class BodyWriter:
    """Takes the bodies of one pack; to be closed, and to be used within `Store.sharing` if there is a store.

    Args:
        folder: of the new pack, which gets the bodies if there is no store.
        store: to be shared with other packs.
    """

    def __init__(self, folder: Path, store: Store | None) -> None:
        self._store = store
        self._files = ExitStack()
        self._tables: list[_Table] = []
        self._numbers: dict[bytes, int] = {}
        self._places = array("Q")  # by order of arrival: offset, and above it 0 or 1 + number of the table
        self.size = 0
        self._own = folder / BODIES
        self._path = self._own
        self._end = 0
        if store:
            for name in store.segments():
                with suppress(OSError, ValueError, TypeError):  # what is broken is not built upon
                    self._tables.append(_Table(name, store.path, self._files))
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
        used = sorted({place // SEGMENT for place in self._places if place >= SEGMENT})
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

    def _publish(self) -> bytes:
        """Move the new segment into the store, behind its table: one without the other is none."""
        assert self._store
        words = array("Q")
        for digest, number in sorted(self._numbers.items()):
            if self._places[number] < SEGMENT:
                words.frombytes(
                    _TABLE_ROW.pack(_PREFIX.unpack_from(digest)[0], digest[8:], self._places[number])
                )
        table = _TABLE_HEADER.pack(_TABLE_MAGIC, len(words) // _WORDS) + words.tobytes()
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

"""What a pack is made of, on disk until all of it is there: in memory stays what sorting needs.

That is some hundred bytes an entry, however large its head and its URL are.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from typing import BinaryIO

from stillweb.collections import packformat as form
from stillweb.collections.packformat import Record


class Spool:
    """Entries in order of arrival.

    Attributes:
        offsets: where the record of each lies.
        bodies: the number of the body of each, by order of arrival.
        aliases: by number of the entry.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._end = 0
        self._orders: list[bytes] = []
        self.offsets = array("Q")
        self.bodies = array("I")
        self.aliases: dict[int, tuple[bytes, ...]] = {}

    def add(self, record: Record, place: bytes, further: Iterable[bytes], body: int) -> None:
        """Take an entry.

        Args:
            record: without what depends on other entries.
            place: in recorded order, as bytes that sort so.
            further: its aliases.
            body: the number of its body by order of arrival.
        """
        packed = record.pack()
        aliases = tuple(sorted({*further} - {record.key}))
        if aliases:
            self.aliases[len(self._orders)] = aliases
        # Between entries of one place and key the content decides, since what came first must not tell.
        content = sha256(b"".join((packed, *aliases))).digest()[:16]
        self._orders.append(place + record.key + content)
        self.offsets.append(self._end)
        self.bodies.append(body)
        self._end += self._out.write(packed)

    def in_order(self) -> list[int]:
        """Return the numbers of the entries in recorded order; the last that is asked of it."""
        ordered = sorted(range(len(self._orders)), key=self._orders.__getitem__)
        self._orders.clear()
        return ordered

    def of(self, keys: Container[bytes]) -> list[tuple[bytes, bytes, int, int]]:
        """Return recorded order, key, status and number of the entries of some keys."""
        if not keys:
            return []
        found = []
        with self.mapped() as spool:
            for number, at in enumerate(self.offsets):
                if (key := form.key_at(spool, at)) in keys:
                    found.append((self._orders[number], key, form.status_at(spool, at), number))
        return found

    def record(self, number: int) -> Record:
        """Read an entry's record back."""
        with self.mapped() as spool:
            at = self.offsets[number]
            return Record.unpack(spool[at : at + form.record_size(spool, at)])

    @contextmanager
    def mapped(self) -> Iterator[mmap]:
        """Map what was written so far."""
        self._out.flush()
        with mmap(-1, 1) if not self._end else mmap(self._out.fileno(), 0, access=ACCESS_READ) as spool:
            yield spool

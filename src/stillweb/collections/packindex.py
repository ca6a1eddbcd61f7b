"""The index of a pack, searched where it lies in the mmap.

Nothing is read when it is opened. A block is compared with its digest when it is first touched, so that
neither the start nor a lookup depends on how many entries there are: a lookup touches the fan-out,
some ten keys that stand together, and nothing else. The layout is in `packformat`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from mmap import mmap
from pathlib import Path
from typing import Literal

from stillweb.collections.packformat import BLOCK, BLOCK_BITS, KEY_HALVES, IndexPlan, malformed

_KEY_SIZE = 24  # both halves of the key, and the row


class PackIndex:
    """The tables of an index.bin, to be closed before its mmap."""

    def __init__(self, content: mmap, file: Path, plan: IndexPlan, digests: Sequence[str]) -> None:
        self._content = content
        self._file = file
        self._plan = plan
        self._digests = digests
        self._seen = bytearray(len(digests))
        self._views = ExitStack()
        self._shift = 64 - plan.bits
        self._fanout = self._numbers(plan.fanout, plan.fanout + 4 * ((1 << plan.bits) + 1), "I")
        keys = self._numbers(plan.keys, plan.offsets, "Q")
        self._high, self._low, self._rows = (self._kept(keys[place::3]) for place in range(3))
        self._offsets = self._numbers(plan.offsets, plan.by_url, "Q")
        self._by_url = self._numbers(plan.by_url, plan.end, "I")

    def _numbers(self, at: int, end: int, kind: Literal["Q", "I"]) -> memoryview[int]:
        whole = memoryview(self._content)
        self._views.callback(whole.release)
        return self._kept(whole[at:end].cast(kind))

    def _kept(self, table: memoryview[int]) -> memoryview[int]:
        self._views.callback(table.release)
        return table

    def close(self) -> None:
        """Let go of the mmap."""
        self._views.close()

    def lookup(self, key: bytes) -> list[int]:
        """Return the rows of a key, in recorded order."""
        high, low = KEY_HALVES.unpack(key)
        bucket = high >> self._shift
        at = self._plan.fanout + 4 * bucket
        seen = self._seen
        if not (seen[at >> BLOCK_BITS] and seen[at + 7 >> BLOCK_BITS]):
            self._vouch(at, at + 8)
        first, last = self._fanout[bucket], self._fanout[bucket + 1]
        if first == last:
            return []
        at = self._plan.keys + _KEY_SIZE * first
        end = self._plan.keys + _KEY_SIZE * last
        if end - at > BLOCK or not (seen[at >> BLOCK_BITS] and seen[end - 1 >> BLOCK_BITS]):
            self._vouch(at, end)
        first = bisect_left(self._high, high, first, last)
        last = bisect_right(self._high, high, first, last)
        first = bisect_left(self._low, low, first, last)
        last = bisect_right(self._low, low, first, last)
        return self._rows[first:last].tolist()

    def offset(self, row: int) -> int:
        """Return where the record of a row lies in entries.bin."""
        at = self._plan.offsets + 8 * row
        self._vouch(at, at + 8)
        return self._offsets[row]

    def row_by_url(self, place: int) -> int:
        """Return the row at a place in the order of URLs."""
        at = self._plan.by_url + 4 * place
        self._vouch(at, at + 4)
        return self._by_url[place]

    def verify(self) -> None:
        """Compare every block with its digest, also those that were found right before.

        Raises:
            MalformedPack: at the first that differs.
        """
        for block in range(len(self._digests)):
            self._compare(block)

    def _vouch(self, at: int, end: int) -> None:
        """Compare the blocks that hold some bytes with their digests, if that was not done yet."""
        seen = self._seen
        for block in range(at >> BLOCK_BITS, (end - 1 >> BLOCK_BITS) + 1):
            if not seen[block]:
                self._compare(block)
                seen[block] = 1

    def _compare(self, block: int) -> None:
        at = block * BLOCK
        with memoryview(self._content)[at : at + BLOCK] as content:
            if sha256(content).hexdigest() == self._digests[block]:
                return
        raise malformed(f"differs from its digest within the {BLOCK} bytes from here", self._file, at)

"""Reader of sealed packs: mmapped, immutable, shared by all processes that open them.

Opening reads the manifest and maps the files. It makes no Python object per entry, and a lookup searches
about ten keys in the mmap. Rows are entries in recorded order: row and `Entry.order` are equal, whichever key
or alias leads to the entry.

Everything is verified. At open, the manifest is compared with its digest and files with their sizes. A block
of the index is verified on first use, an entry's record on each read, a body when it is first served.
`verify` reads everything. Bodies are in the store of the collection's root (`bodies`).

A pack may be replaced while it is open: open instances keep the old files, and `pack_stamp` shows the change.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from mmap import mmap
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from stillweb.collections.limits import load_json
from stillweb.collections.pack import format as form
from stillweb.collections.pack.bodies import PackBodies, map_file, unmap
from stillweb.collections.pack.format import BLOCK, BLOCK_BITS, KEY_HALVES, IndexPlan, Record, malformed
from stillweb.collections.pack.store import BodyStore
from stillweb.errors import MalformedPack
from stillweb.matching.captures import Entry, first_of_alike

_KEY_SIZE = 24  # both halves of the key, and the row


class PackIndex:
    """The tables of an index.bin; close it before its mmap."""

    def __init__(self, content: mmap, file: Path, plan: IndexPlan, digests: Sequence[str]) -> None:
        self._content = content
        self._file = file
        self._plan = plan
        self._digests = digests
        self._seen = bytearray(len(digests))
        self._views = ExitStack()
        self._entries = (plan.by_url - plan.offsets) // 8
        self._shift = 64 - plan.bits
        self._fanout = self._numbers(plan.fanout, plan.fanout + 4 * ((1 << plan.bits) + 1), "I")
        keys = self._numbers(plan.keys, plan.offsets, "Q")
        self._high, self._low, self._rows = (self._view(keys[place::3]) for place in range(3))
        self._offsets = self._numbers(plan.offsets, plan.by_url, "Q")
        self._by_url = self._numbers(plan.by_url, plan.end, "I")

    def _numbers(self, at: int, end: int, kind: Literal["Q", "I"]) -> memoryview[int]:
        whole = memoryview(self._content)
        self._views.callback(whole.release)
        return self._view(whole[at:end].cast(kind))

    def _view(self, table: memoryview[int]) -> memoryview[int]:
        self._views.callback(table.release)
        return table

    def close(self) -> None:
        self._views.close()

    def lookup(self, key: bytes) -> list[int]:
        """Return the rows of a key, in recorded order."""
        high, low = KEY_HALVES.unpack(key)
        bucket = high >> self._shift
        at = self._plan.fanout + 4 * bucket
        seen = self._seen
        if not (seen[at >> BLOCK_BITS] and seen[at + 7 >> BLOCK_BITS]):
            self._verify_range(at, at + 8)
        first, last = self._fanout[bucket], self._fanout[bucket + 1]
        if first == last:
            return []
        if not first < last <= len(self._rows):
            raise malformed("has a fan-out beyond its keys", self._file, at)
        at = self._plan.keys + _KEY_SIZE * first
        end = self._plan.keys + _KEY_SIZE * last
        if end - at > BLOCK or not (seen[at >> BLOCK_BITS] and seen[end - 1 >> BLOCK_BITS]):
            self._verify_range(at, end)
        first = bisect_left(self._high, high, first, last)
        last = bisect_right(self._high, high, first, last)
        first = bisect_left(self._low, low, first, last)
        last = bisect_right(self._low, low, first, last)
        rows = self._rows[first:last].tolist()
        if rows and max(rows) >= self._entries:
            raise malformed("names an entry that does not exist", self._file, at)
        return rows

    def offset(self, row: int) -> int:
        at = self._plan.offsets + 8 * row
        self._verify_range(at, at + 8)
        return self._offsets[row]

    def row_by_url(self, place: int) -> int:
        at = self._plan.by_url + 4 * place
        self._verify_range(at, at + 4)
        if (row := self._by_url[place]) >= self._entries:
            raise malformed("names an entry that does not exist", self._file, at)
        return row

    def keys_by_row(self) -> dict[int, list[bytes]]:
        self.verify()
        found: dict[int, list[bytes]] = {}
        for high, low, row in zip(self._high, self._low, self._rows, strict=True):
            found.setdefault(row, []).append(KEY_HALVES.pack(high, low))
        return found

    def verify(self) -> None:
        """Compare every block with its digest, including blocks verified before.

        Raises:
            MalformedPack: at the first that differs.
        """
        for block in range(len(self._digests)):
            self._compare(block)

    def _verify_range(self, at: int, end: int) -> None:
        """Compare the blocks that hold some bytes with their digests, if not done yet."""
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


@dataclass(frozen=True, slots=True)
class _Stated:
    """Numbers and digests of a pack's manifest, which fit each other."""

    entries: int
    bodies: int
    plan: IndexPlan
    index_bytes: int
    index_blocks: Sequence[str]
    entries_bytes: int
    entries_sha256: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any], path: Path) -> Self:
        """Read them.

        Raises:
            MalformedPack: if one is missing, or the sizes do not fit the counts.
        """
        try:
            index, entries = manifest["files"][form.INDEX], manifest["files"][form.ENTRIES]
            counts = [manifest[name] for name in ("entries", "keys", "bodies")]
            sizes = [index["bytes"], entries["bytes"]]
            blocks, digest = index["blocks"], entries["sha256"]
        except (KeyError, TypeError) as error:
            raise malformed(f"does not describe a pack ({error!r})", path) from error
        if not all(type(each) is int and 0 <= each < _MAX_COUNT for each in (*counts, *sizes)):
            raise malformed("states a count or size that is not a number", path)
        plan = IndexPlan.of(counts[0], counts[1])
        if plan.end != sizes[0] or not isinstance(blocks, list) or len(blocks) != -(-plan.end // BLOCK):
            raise malformed(f"states a size of {form.INDEX} that does not fit its counts", path)
        return cls(counts[0], counts[2], plan, sizes[0], blocks, sizes[1], str(digest))


_MAX_COUNT = 1 << 48
_T = TypeVar("_T")
_RECENT = 4096  # entries with cached fields; their heads and bodies stay in the mmap


class Pack:
    """A sealed collection, open for reading; a context manager.

    Attributes:
        path: the pack's folder.
        environment_id: sha256 of the manifest, hex.
        manifest: content of manifest.json.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], environment_id: str) -> None:
        self.path = path
        self.manifest = manifest
        self.environment_id = environment_id
        self._files = ExitStack()
        stated = _Stated.of(manifest, path / form.MANIFEST)
        self._count = stated.entries
        try:
            content = map_file(path / form.INDEX, stated.index_bytes, form.MAGIC[form.INDEX])
            self._files.callback(unmap, content)
            self._index = PackIndex(content, path / form.INDEX, stated.plan, stated.index_blocks)
            self._files.callback(self._index.close)
            self._entries = map_file(path / form.ENTRIES, stated.entries_bytes, form.MAGIC[form.ENTRIES])
            self._files.callback(unmap, self._entries)
            self._bodies = PackBodies(path, BodyStore.of(path).path, stated.bodies)
            self._files.callback(self._bodies.close)
        except MalformedPack:
            self.close()
            raise
        self._entries_sha256 = stated.entries_sha256
        self._entry = lru_cache(maxsize=_RECENT)(self._read_entry)
        self._distinct = lru_cache(maxsize=_RECENT)(self._find_distinct)
        self._files.callback(self._forget)

    @classmethod
    def open(cls, path: Path) -> Pack:
        """Open the pack in a folder.

        Raises:
            MalformedPack: if it is not a pack, of another version, or damaged.
        """
        while True:  # until all files are of one pack: it may be replaced at this moment
            stamp = pack_stamp(path)
            try:
                pack = cls(path, *_read_manifest(path))
            except MalformedPack:
                if pack_stamp(path) == stamp:
                    raise
                continue
            if pack_stamp(path) == stamp:
                return pack
            pack.close()

    def close(self) -> None:
        """Close the files; existing views of heads and bodies stay valid."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._count

    def lookup(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key or alias, in recorded order; none if it was not recorded.

        Raises:
            MalformedPack: if a block of the index differs from its digest; checked on first use.
        """
        return self._index.lookup(key)

    def distinct(self, key: bytes) -> Sequence[int]:
        """Return the rows of a request key or alias, without those that repeat an earlier response.

        Raises:
            MalformedPack: as `lookup` and `entry`.
        """
        return self._distinct(key)

    def entry(self, row: int) -> Entry:
        """Return the response in a row.

        Raises:
            MalformedPack: if its record differs from its check, or its body on first use from its digest.
            IndexError: if the row does not exist.
        """
        return self._entry(row)

    def _forget(self) -> None:
        # The caches refer to this object, and a server freezes the objects of its start (`gc.freeze`): the
        # reference cycle would stay forever.
        self._entry.cache_clear()
        self._entry = lru_cache(maxsize=0)(_closed)
        self._distinct.cache_clear()
        self._distinct = lru_cache(maxsize=0)(_none_found)

    def _find_distinct(self, key: bytes) -> Sequence[int]:
        return first_of_alike(self._index.lookup(key), self._entry)

    def _read_entry(self, row: int) -> Entry:
        record, end = self._record(row)
        return Entry(
            key=record.key,
            method=record.method,
            url=record.url,
            timestamp=record.timestamp,
            status=record.status,
            epoch=record.epoch,
            order=record.order,
            head=memoryview(self._entries)[end - len(record.head) : end],
            body=self._bodies.get(record),
            encoding=record.encoding,
            mime=record.mime,
            body_sha256=record.body_sha256,
            varies=record.varies,
            referer=record.referer,
        )

    def _record(self, row: int) -> tuple[Record, int]:
        """Return the record of a row and its end."""
        if not 0 <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        at = self._index.offset(row)
        file = self.path / form.ENTRIES
        try:
            end = at + form.record_size(self._entries, at)
            packed = self._entries[at:end]
            if packed[: form.CHECK_SIZE] != form.check_of(packed[form.CHECK_SIZE :]):
                raise malformed("entry differs from its check", file, at)
            return Record.unpack(packed), end
        except (struct.error, ValueError) as error:
            raise malformed(f"entry is damaged ({error})", file, at) from error

    def sealed(self, row: int) -> tuple[Record, memoryview]:
        """Return the record and the body in a row, outside the cache.

        Raises:
            MalformedPack, IndexError: as `entry`.
        """
        record, _ = self._record(row)
        return record, self._bodies.get(record)

    def keys_by_row(self) -> dict[int, list[bytes]]:
        """Return the keys that lead to each row, its own and its aliases.

        Raises:
            MalformedPack: as `lookup`.
        """
        return self._index.keys_by_row()

    def verify(self) -> None:
        """Read and verify everything.

        Raises:
            MalformedPack: at the first difference.
        """
        self._index.verify()
        self._bodies.forget()
        for row in range(self._count):
            self._bodies.get(self._record(row)[0]).release()
        with memoryview(self._entries) as content:
            if sha256(content).hexdigest() != self._entries_sha256:
                raise malformed("differs from its digest", self.path / form.ENTRIES, 0)

    # URL table: rows by host, path, query, scheme, method

    def urls(self) -> Iterator[str]:
        """Yield each recorded URL once, sorted by host, path and query."""
        last = None
        for place in range(self._count):
            url = self._record(self._index.row_by_url(place))[0].url
            if url != last:
                yield url
            last = url

    def rows_of(self, url: str) -> list[int]:
        """Return the rows of a URL under any scheme and method."""
        return [self._index.row_by_url(place) for place in self._at_site(form.site(url)[0])]

    def methods_of(self, url: str) -> tuple[str, ...]:
        """Return the methods with which a URL was recorded, sorted."""
        where, scheme = form.site(url)
        places = self._at_site(where)
        methods: list[str] = []
        at = bisect_left(places, (scheme, b""), key=self._scheme_and_method)
        while at < len(places):  # skip from method to method, since a poll may have thousands of rows
            found = self._scheme_and_method(places[at])
            if found[0] != scheme:
                break
            methods.append(found[1].decode("utf-8", "replace"))
            at = bisect_right(places, found, lo=at, key=self._scheme_and_method)
        return tuple(methods)

    def urls_like(self, url: str, *, limit: int = 100) -> list[str]:
        """Return at most `limit` recorded URLs of the same host and path, with any query."""
        found: dict[str, None] = {}
        for place in chain(*self._at_path(form.site(url)[0].partition(b"?")[0])):
            if len(found) >= limit:
                break
            found.setdefault(self._record(self._index.row_by_url(place))[0].url)
        return list(found)

    def explain(self, method: str, url: str) -> str:
        """Return why a request has no row: one clause for the ledger."""
        if methods := self.methods_of(url):
            if method.upper() in methods:
                return "other body recorded"
            return f"recorded with {', '.join(methods)} only"
        where, scheme = form.site(url)
        if places := self._at_site(where):
            recorded = self._scheme_and_method(places[0])[0].decode("utf-8", "replace")
            return f"recorded over {recorded} only, not {scheme.decode('utf-8', 'replace')}"
        if others := sum(map(len, self._at_path(where.partition(b"?")[0]))):
            return f"same path recorded with other query: {others}"
        host = where.partition(b"/")[0]
        if others := len(self._places(host + b"/", host + b"0")):  # "0" follows "/"
            return f"path not recorded, of its host: {others}"
        return "host not recorded"

    def _at_site(self, where: bytes) -> range:
        return self._places(where, where + b"\0")

    def _at_path(self, path: bytes) -> tuple[range, range]:
        """Return the positions of a path without query, and with any ("@" follows "?")."""
        return self._at_site(path), self._places(path + b"?", path + b"@")

    def _places(self, low: bytes, high: bytes) -> range:
        """Return the positions in the URL table from `low` to before `high`."""
        places = range(self._count)
        first = bisect_left(places, low, key=self._site)
        if first == self._count or self._site(first) >= high:
            return range(first, first)
        return range(first, bisect_left(places, high, lo=first, key=self._site))

    def _site(self, place: int) -> bytes:
        return self._search_field(form.site_at, place)

    def _scheme_and_method(self, place: int) -> tuple[bytes, bytes]:
        return self._search_field(form.scheme_and_method_at, place)

    def _search_field(self, read: Callable[[mmap, int], _T], place: int) -> _T:
        """Return a field of the entry at a position in the order of URLs, without comparing its check."""
        at = self._index.offset(self._index.row_by_url(place))
        try:
            return read(self._entries, at)
        except struct.error as error:
            raise malformed(f"entry is damaged ({error})", self.path / form.ENTRIES, at) from error


def _closed(row: int) -> Entry:
    raise ValueError(f"row {row} of a pack that is closed")


def _none_found(key: bytes) -> Sequence[int]:
    raise ValueError("lookup in a closed pack")


def pack_stamp(path: Path) -> tuple[int, int]:
    """Return a value that changes when the pack in a folder is replaced, zeros without a pack. Cheap."""
    try:
        found = (path / form.DIGEST).stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    file = path / form.MANIFEST
    try:
        text = file.read_bytes()
        digest = (path / form.DIGEST).read_bytes()
    except OSError as error:
        raise malformed(f"cannot be read ({error.strerror})", file) from error
    environment_id = sha256(text).hexdigest()
    if digest != environment_id.encode() + b"\n":
        raise malformed(f"does not match the sha256 in {form.DIGEST!r}", file, 0)
    try:
        manifest = load_json(text, path=file)
    except ValueError as error:
        raise malformed(f"is not JSON ({error})", file, 0) from error
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != form.VERSION:
        raise malformed(f"pack has version {version}, this program reads {form.VERSION}", file, 0)
    return manifest, environment_id

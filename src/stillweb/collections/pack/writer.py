"""Writer of packs from plain entries, in one pass and within bounded memory.

Entries arrive in any order. Records are spooled to the new folder, bodies go once per sha256 to the store (or
into the pack, if it has its own bodies); only sort keys stay in memory. At the end records are written in
recorded order, with the index over them. The digest covers no wall clock, absolute path, order of arrival or
store content: equal entries give equal bytes.

The folder appears in one rename, and is exchanged with one that it replaces.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from itertools import accumulate
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Self

from stillweb.collections.pack import format as form
from stillweb.collections.pack.bodies import packed_header, packed_place
from stillweb.collections.pack.entry import PackEntry, PackInfo
from stillweb.collections.pack.format import IndexPlan, Record
from stillweb.collections.pack.store import SEGMENT, BodyStore, BodyWriter
from stillweb.collections.renames import exchange, sync_folder
from stillweb.errors import UsageError
from stillweb.model import MUTATIONS, Headers, Response, header


class Spool:
    """Entries in order of arrival."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._end = 0
        self._orders: list[bytes] = []
        self.offsets = array("Q")
        self.bodies = array("I")
        self.origins = array("q")  # number of the archive file and offset, -1 twice without
        self.aliases: dict[int, tuple[bytes, ...]] = {}

    def add(
        self,
        record: Record,
        place: bytes,
        further: Iterable[bytes],
        body: int,
        origin: tuple[int, int] = (-1, -1),
    ) -> None:
        """Append an entry.

        Args:
            record: without the fields that depend on other entries.
            place: sort key of its position in recorded order.
            further: its aliases.
            body: the number of its body by order of arrival.
            origin: number of an archive file and offset in it, if the entry depends on that record alone.
        """
        packed = record.pack()
        aliases = tuple(sorted({*further} - {record.key}))
        if aliases:
            self.aliases[len(self._orders)] = aliases
        # Between entries of one position and key the content decides, since order of arrival must not matter.
        content = sha256(b"".join((packed, *aliases))).digest()[:16]
        self._orders.append(place + record.key + content)
        self.offsets.append(self._end)
        self.bodies.append(body)
        self.origins.extend(origin)
        self._end += self._out.write(packed)

    def in_order(self) -> list[int]:
        """Return the numbers of the entries in recorded order. Call it last: it frees the sort keys."""
        ordered = sorted(range(len(self._orders)), key=self._orders.__getitem__)
        self._orders.clear()
        return ordered

    def of(self, keys: Container[bytes]) -> list[tuple[bytes, bytes, int, int]]:
        """Return position, key, status and number of the entries of some keys."""
        if not keys:
            return []
        found = []
        with self.mapped() as spool:
            for number, at in enumerate(self.offsets):
                if (key := form.key_at(spool, at)) in keys:
                    found.append((self._orders[number], key, form.status_at(spool, at), number))
        return found

    def record(self, number: int) -> Record:
        with self.mapped() as spool:
            at = self.offsets[number]
            return Record.unpack(spool[at : at + form.record_size(spool, at)])

    @contextmanager
    def mapped(self) -> Iterator[mmap]:
        """Map the bytes written so far."""
        self._out.flush()
        with mmap(-1, 1) if not self._end else mmap(self._out.fileno(), 0, access=ACCESS_READ) as spool:
            yield spool


# RFC 9110 §7.6.1 (hop by hop), the length that the server adds, fields that make a browser use another host
# or reject our certificate, and the field that replay sends to the program in front of it (`--on-miss`).
_DROPPED = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"),
        *("alt-svc", "public-key-pins", "public-key-pins-report-only", "report-to", "nel"),
        "stillweb-miss",
    }
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE_BREAKS = re.compile(r"[\r\n\0]+[ \t]*")
_BUFFER = 1 << 20
_NONE = (1 << 32) - 1
_MEANWHILE = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)


def build_pack(entries: Iterable[PackEntry], manifest: Mapping[str, Any], target: Path) -> PackInfo:
    """Write a pack of `entries` to the folder `target`, in one rename; it contains its bodies.

    Args:
        entries: in any order.
        manifest: further members of the pack's manifest; JSON values only.
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


class PackWriter:
    """Builds a pack entry by entry; nothing appears at the target before `finish`.

    Args:
        target: the pack's folder; its parent exists.
        store: for the bodies; without it the pack contains them.
    """

    def __init__(self, target: Path, store: BodyStore | None = None) -> None:
        self._target = target
        self._files = ExitStack()
        if store:
            self._files.enter_context(store.sharing())
        self._folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        self._files.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._bodies = self._files.enter_context(BodyWriter(self._folder, store))
        self._spool = Spool(self._files.enter_context((self._folder / "spool").open("w+b")))
        self._archive: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, entry: PackEntry, *, alone: bool = False) -> None:
        """Add an entry; its body is written to disk immediately.

        Args:
            alone: whether it depends on its own record alone, so that the next seal may take it from here.

        Raises:
            UsageError: if the entry could not be served as HTTP.
        """
        response = entry.response
        if not (len(entry.timestamp) == 14 and entry.timestamp.isdigit() and 200 <= response.status <= 999):
            raise UsageError(
                f"{entry.url} ({entry.timestamp}, status {response.status}) is not an entry of a pack"
            )
        digest = sha256(response.raw_body).digest()
        record = Record(
            key=entry.key,
            method=entry.method.upper(),
            url=entry.url,
            timestamp=entry.timestamp,
            status=response.status,
            mime=response.mime,
            encoding=content_encoding(response.headers),
            head=response_head(response),
            body_sha256=digest,
            body_length=len(response.raw_body),
            varies=entry.varies,
            referer=entry.referer,
        )
        body = self._bodies.add(digest, response.raw_body)
        origin = self._origin(entry.source, entry.offset) if alone else (-1, -1)
        self._spool.add(record, _place(entry), entry.aliases, body, origin)

    def add_sealed(
        self, record: Record, aliases: Iterable[bytes], body: bytes, source: str, offset: int
    ) -> None:
        """Add an entry of another pack, which depends on its record in the archive alone."""
        number = self._bodies.add(record.body_sha256, body)
        neutral = replace(record, body=0, order=0, epoch=0)
        place = _place_of(record.timestamp, source, offset)
        self._spool.add(neutral, place, aliases, number, self._origin(source, offset))

    def _origin(self, source: str, offset: int) -> tuple[int, int]:
        return self._archive.setdefault(source, len(self._archive)), offset

    def answered_whole(self, keys: Container[bytes]) -> set[bytes]:
        """Return those of some keys for which a 200 was added."""
        found = self._spool.of(keys)
        return {key for _, key, status, _ in found if status == HTTPStatus.OK}

    def repeat(self, unmodified: Sequence[PackEntry]) -> list[PackEntry]:
        """Add, for each 304, the response that it confirmed; return those without one.

        A 304 confirmed the last response of its key before it in recorded order. Without one, it is the first
        after it: the browser had the response from before the recording. A 200 goes before others.
        """
        answers: dict[bytes, list[tuple[bytes, int, int]]] = {}
        for order, key, status, number in sorted(self._spool.of({entry.key for entry in unmodified})):
            answers.setdefault(key, []).append((order, status, number))
        unresolved = []
        for entry in unmodified:
            known = answers.get(entry.key, [])
            known = [answer for answer in known if answer[1] == HTTPStatus.OK] or known
            if not known:
                unresolved.append(entry)
                continue
            before = [answer for answer in known if answer[0] < _place(entry)]
            number = (before[-1] if before else known[0])[2]
            record = self._spool.record(number)
            record = replace(record, timestamp=entry.timestamp)
            self._spool.add(record, _place(entry), entry.aliases, self._spool.bodies[number])
        return unresolved

    def finish(self, manifest: Mapping[str, Any], sources: Mapping[str, int] | None = None) -> PackInfo:
        """Write the pack, with a list of its sources if given, and move it to its target."""
        with self._spool.mapped() as spool:
            order = self._spool.in_order()
            numbers = self._write_places(spool, order)
            entries = self._write_entries(spool, order, numbers)
            keys = self._write_index(entries, order)
        files = {name: self._described(name) for name in (form.ENTRIES, form.INDEX)}
        size = sum(int(each["bytes"]) for each in files.values()) + self._bodies.size
        text = json.dumps(
            {
                **manifest,
                "format": "stillweb-pack",
                "version": form.VERSION,
                "entries": len(order),
                "keys": keys,
                "bodies": len(self._bodies),
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
            self._write(form.ORIGINS, self._packed_origins(environment_id, order))
        (self._folder / "spool").unlink()
        self._appear()
        return PackInfo(environment_id, len(order), len(self._bodies), size + len(text))

    def _packed_origins(self, environment_id: str, order: list[int]) -> bytes:
        ordered = array("q")
        for entry in order:
            ordered.extend(self._spool.origins[2 * entry : 2 * entry + 2])
        return form.packed_origins(environment_id, list(self._archive), ordered)

    def _write_places(self, spool: mmap, order: list[int]) -> array[int]:
        """Write places.bin; return the number of each body by first use, in order of arrival."""
        segments, places = self._bodies.finish()
        numbers = array("I", [_NONE]) * len(places)
        count = 0
        with (self._folder / form.PLACES).open("wb") as out:
            out.write(packed_header(segments, len(places)))
            for entry in order:
                body = self._spool.bodies[entry]
                if numbers[body] == _NONE:
                    digest = form.body_sha256_at(spool, self._spool.offsets[entry])
                    out.write(packed_place(digest, *divmod(places[body], SEGMENT)))
                    numbers[body] = count
                    count += 1
            _sync(out)
        return numbers

    def _write_entries(self, spool: mmap, order: list[int], numbers: array[int]) -> array[int]:
        """Write entries.bin in recorded order; return the offset of each entry."""
        offsets = array("Q")
        epoch = 0
        with (self._folder / form.ENTRIES).open("wb", _BUFFER) as out:
            end = out.write(form.MAGIC[form.ENTRIES])
            for row, entry in enumerate(order):
                at = self._spool.offsets[entry]
                packed = spool[at : at + form.record_size(spool, at)]
                offsets.append(end)
                end += out.write(form.ordered(packed, row, epoch, numbers[self._spool.bodies[entry]]))
                epoch += form.scheme_and_method_at(spool, at)[1].decode("utf-8", "surrogatepass") in MUTATIONS
            _sync(out)
        return offsets

    def _write_index(self, offsets: array[int], order: list[int]) -> int:
        """Write index.bin and return its number of keys."""
        with _mapped(self._folder / form.ENTRIES) as entries:
            keys = _sorted_keys(entries, offsets, [self._spool.aliases.get(entry, ()) for entry in order])
            by_url = _by_url(entries, offsets)
        plan = IndexPlan.of(len(offsets), len(keys) // 3)
        fanout = array("I", [0]) * ((1 << plan.bits) + 1)
        for high in keys[::3]:
            fanout[(high >> (64 - plan.bits)) + 1] += 1
        with (self._folder / form.INDEX).open("wb") as out:
            out.write(form.INDEX_HEADER.pack(form.MAGIC[form.INDEX], len(offsets), len(keys) // 3))
            out.write(array("I", accumulate(fanout)).tobytes())
            out.write(bytes(plan.keys - out.tell()))
            for table in (keys, offsets, by_url):
                table.tofile(out)
            _sync(out)
        return len(keys) // 3

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
        return {"bytes": size, "blocks": blocks} if blocks else {"bytes": size, "sha256": whole.hexdigest()}

    def _write(self, name: str, content: bytes) -> None:
        with (self._folder / name).open("wb") as out:
            out.write(content)
            _sync(out)

    def _appear(self) -> None:
        """Move the folder to its target; at every moment the old or the new pack exists."""
        self._folder.chmod(0o755)  # mkdtemp's 0700 would hide the pack from a server of another user
        sync_folder(self._folder)
        while not self._moved():
            pass  # another seal replaced the pack between check and move
        sync_folder(self._target.parent)

    def _moved(self) -> bool:
        """Move the folder to its target; return False if the target changed since it was examined."""
        try:
            if self._target.exists():
                # The old pack gets the new one's name, and is then removed.
                exchange(self._folder, self._target)
            else:
                self._folder.rename(self._target)
        except OSError as error:
            if error.errno not in _MEANWHILE or not self._folder.exists():
                raise
            return False
        return True


def _sorted_keys(entries: mmap, offsets: array[int], aliases: Iterable[Iterable[bytes]]) -> array[int]:
    """Return both halves of each key and its row, sorted."""
    keys = []
    for row, (at, others) in enumerate(zip(offsets, aliases, strict=True)):
        packed = row.to_bytes(8, "big")
        keys.append(form.key_at(entries, at) + packed)
        keys.extend(alias + packed for alias in others)
    keys.sort()
    numbers = array("Q", b"".join(keys))
    numbers.byteswap()  # big-endian numbers sort as their bytes do
    return numbers


def _by_url(entries: mmap, offsets: array[int]) -> array[int]:
    """Return the rows sorted by site, scheme and method."""
    known: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}

    def url(row: int) -> tuple[bytes, tuple[bytes, bytes]]:
        pair = form.scheme_and_method_at(entries, offsets[row])
        return form.site_at(entries, offsets[row]), known.setdefault(pair, pair)

    return array("I", sorted(range(len(offsets)), key=url))


def _place(entry: PackEntry) -> bytes:
    return _place_of(entry.timestamp, entry.source, entry.offset)


def _place_of(timestamp: str, source: str, offset: int) -> bytes:
    """Return bytes that sort like timestamp, source and offset."""
    return timestamp.encode() + source.encode("utf-8", "surrogatepass") + b"\0" + offset.to_bytes(8, "big")


@contextmanager
def _mapped(file: Path) -> Iterator[mmap]:
    with file.open("rb") as content, mmap(content.fileno(), 0, access=ACCESS_READ) as mapped:
        yield mapped


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())

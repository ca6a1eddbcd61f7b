"""Compilation of a collection into its pack: every capture that replay can serve, in recorded order.

Entries are HTTP responses, resource records of http(s) URLs, and revisits with their original's body. A 304
becomes the response that it confirmed, since the browser at replay has no cached copy. A 206 stays only
without a 200: replay cuts ranges itself. If a page was visited again, the document of the abandoned visit is
left out, because the baseline shows the later one. Unservable and truncated captures are left out
with a warning each.

Captures are read one at a time and spooled to disk, so memory grows with their number (some hundred bytes
each), not with their bodies. The pack contains no name, import time or path: the same captures recorded under
the same settings are the same environment. Entries of files that have not changed since the last seal are
taken from its pack, if the rules are equal. The sizes of archive files are read first. So `what_changed`
sees later appends, even within one tick of the file system's clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from stillweb.collections.branches import stored_branches
from stillweb.collections.indexing import is_fresh, reindex
from stillweb.collections.layout import Collection
from stillweb.collections.limits import load_json
from stillweb.collections.pack.entry import PackEntry, PackInfo
from stillweb.collections.pack.format import DIGEST, ORIGINS, SOURCES, Record, unpack_origins
from stillweb.collections.pack.frames import frame_entry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.store import BodyStore
from stillweb.collections.pack.writer import PackWriter
from stillweb.collections.warc.cdxj import read_in_file_order
from stillweb.errors import (
    CollectionError,
    LimitExceeded,
    MalformedPack,
    MalformedWarc,
    MissingRecord,
    StaleIndex,
)
from stillweb.matching.captures import (
    MEANT,
    OTHER_RANGE,
    PREFERRED,
    Varies,
    browsers_own,
    excludes,
    is_navigation,
    noted_digest,
    other_parameters,
    page_set,
    vary_digest,
)
from stillweb.matching.keys import request_key
from stillweb.matching.parts import shape_key
from stillweb.matching.ranges import other_unit
from stillweb.matching.rules import Rules, default_rules_digest
from stillweb.model import MUTATIONS, VISITED_AGAIN, Capture, Exchange, Request, Response, header
from stillweb.urls import wire_url

SEALING = 3
"""Version of the sealing rules. Raise it with any change of keys, of the fields that responses vary by, and
of what becomes an entry, so that older packs are sealed again. `test_seal_golden` enforces this.
"""

# Members of a collection's manifest about its origin, which replay does not need.
_PROVENANCE = ("name", "created", "software", "sources", "notes", "version", "twice")

RULES = "rules.yaml"
# Packs contain aliases by the default rules, so a pack made with other default rules is stale.
_RULES_NAMES = {
    "rules": RULES,
    "default_rules": "stillweb's default rules",
    "branches": "what was recorded of its forms",
}

_CHANGED = "changed since it was sealed"

_LENGTH = re.compile(r"[0-9]{1,15}")
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_CODING_COSTS = 64  # bytes by which gzip or brotli lengthen a tiny body
_LAST_STATUS = 999  # beyond the 5xx of RFC 9110: some sites answer crawlers with 999


def seal(
    collection: Collection, *, on_progress: Callable[[int], None] | None = None, reuse: bool = True
) -> PackInfo:
    """Write the pack of a collection, replacing an older one in one rename.

    The rules are read once, so a pack's aliases match its stated rules even if the file is edited meanwhile.

    Args:
        collection: its index is rebuilt if it is missing, older than the archive, or contradicts a record.
        on_progress: called with the number of captures read so far.
        reuse: take the entries of files with an unchanged size and no later time from the last pack.

    Raises:
        CollectionError: if manifest or rules cannot be read, or the collection consists of a pack only.
        MalformedCdxj: if the index cannot be read.
    """
    collection.require_archive()
    sizes = _archive_sizes(collection)
    why = ""
    if not is_fresh(collection) or _index_lags(collection, sizes):
        why = f"{collection.index_file}: was missing or older than the archive"
        reindex(collection)
    store = BodyStore.of(collection.pack)
    try:
        info = _write_pack(collection, store, sizes, on_progress, reuse=reuse, strict=not why)
    except StaleIndex as error:
        why = f"{collection.index_file}: is of another state of the archive ({error})"
        reindex(collection)
        info = _write_pack(collection, store, sizes, on_progress, reuse=False, strict=False)
    warnings = [*([f"{why}, so it was rebuilt"] if why else []), *info.warnings]
    try:
        store.collect()
    except MalformedPack as error:
        warnings.append(f"{error}: bodies that no pack needs stay until it is sealed again")
    return replace(info, warnings=tuple(warnings))


def _write_pack(
    collection: Collection,
    store: BodyStore,
    sizes: Mapping[str, int],
    on_progress: Callable[[int], None] | None,
    *,
    reuse: bool,
    strict: bool,
) -> PackInfo:
    """Write the pack.

    Args:
        sizes: of the archive files, read before the index.
        strict: raise StaleIndex if the index contradicts a record, which is otherwise left out.
    """
    warnings: list[str] = []
    rules = rules_text(collection)
    sizes = {**sizes, **_index_size(collection)}
    with ExitStack() as stack:
        writer = stack.enter_context(PackWriter(collection.pack, store))
        before = SealedBefore(collection, rules, sizes, stack) if reuse else None
        sealing = _Sealing(collection, rules, writer, warnings, strict=strict)
        for number, capture in enumerate(_captures(collection), start=1):
            sealing.take(capture, before.find(capture) if before else None)
            if on_progress:
                on_progress(number)
        sealing.take_partial()
        info = writer.finish(_manifest(collection, rules, sealing.first), sizes)
    return replace(info, warnings=tuple(warnings))


def _captures(collection: Collection) -> Iterator[Capture]:
    if collection.index_file.exists():
        yield from read_in_file_order(collection.index_file)


def what_changed(collection: Collection, pack: Pack) -> str:
    """Return what changed since a collection's pack was sealed, as a clause; "" if nothing did.

    Raises:
        CollectionError: if manifest or rules cannot be read.
    """
    archive, stated = _archive_sizes(collection), _stated_sizes(pack.path)
    if not archive:
        return ""  # the pack is all that exists; sealing would empty it
    if pack.manifest.get("sealing") != SEALING:
        return "it was sealed by other rules than this program's"
    if stated:
        now = archive | _index_size(collection)
        for name in sorted(stated.keys() | now.keys()):
            if stated.get(name) != now.get(name):
                return f"{Path(name).name} {_CHANGED}"
    first = pack.manifest.get("recorded_at", "")
    for name, value in _manifest(collection, rules_text(collection), first).items():
        if pack.manifest.get(name) != value:
            return f"{_RULES_NAMES.get(name, f'manifest.json ({name})')} {_CHANGED}"
    return ""


def _index_lags(collection: Collection, archive: dict[str, int]) -> bool:
    """Return True if the archive grew since the last seal and the index did not, whatever their times."""
    stated = _stated_sizes(collection.pack)
    old = {name: size for name, size in stated.items() if name.startswith("archive/")}
    return bool(stated) and archive != old and stated == old | _index_size(collection)


def _stated_sizes(pack: Path) -> dict[str, int]:
    """Return the source sizes that a pack states; empty if it states none."""
    try:
        stated = load_json((pack / SOURCES).read_bytes())
    except (FileNotFoundError, ValueError, LimitExceeded):
        return {}
    return stated if isinstance(stated, dict) else {}


def _archive_sizes(collection: Collection) -> dict[str, int]:
    return {f"archive/{path.name}": path.stat().st_size for path in collection.warc_files()}


def _index_size(collection: Collection) -> dict[str, int]:
    if not collection.index_file.exists():
        return {}
    return {f"indexes/{collection.index_file.name}": collection.index_file.stat().st_size}


_MeaningfulKey = tuple[bytes, frozenset[tuple[str, bytes]]]
"""A request's key, and its meaningful fields."""


def _visited_again(collection: Collection) -> dict[str, str]:
    """Return the time of the last visit of each page that was visited again, by wire URL."""
    pages = [(wire_url(page.url), page) for page in collection.each_page() if len(page.timestamp) == 14]
    again = {url for url, page in pages if page.extra.get(VISITED_AGAIN)}
    # Merged collections may list a page twice, and both entries count.
    return {
        url: page.timestamp
        for url, page in sorted(pages, key=lambda each: each[1].timestamp, reverse=True)
        if url in again
    }


class SealedBefore:
    """Entries of the last pack whose records are in files that have not changed since.

    Args:
        sizes: of the archive files now.
        opened: closes the pack.
    """

    def __init__(
        self, collection: Collection, rules: str, sizes: Mapping[str, int], opened: ExitStack
    ) -> None:
        self._rows: dict[str, dict[int, int]] = {}
        self._keys: dict[int, list[bytes]] = {}
        try:
            sealed_at = (collection.pack / DIGEST).stat().st_mtime_ns
            self._pack = opened.enter_context(Pack.open(collection.pack))
            packed = (collection.pack / ORIGINS).read_bytes()
            stated = {name: self._pack.manifest.get(name) for name in ("sealing", "rules", "default_rules")}
            if stated != {"sealing": SEALING, "rules": rules, "default_rules": default_rules_digest()}:
                return
            self._keys = self._pack.keys_by_row()
        except (FileNotFoundError, MalformedPack):  # sealed by an earlier version, or damaged
            return
        before = _stated_sizes(collection.pack)
        archive = {path.name: path for path in collection.warc_files()}
        files, origins = unpack_origins(packed, self._pack.environment_id)
        same = [
            before.get(f"archive/{name}") == sizes.get(f"archive/{name}", -1)
            and archive[name].stat().st_mtime_ns <= sealed_at
            for name in files
        ]
        for row, number in enumerate(origins[::2]):
            if number >= 0 and same[number]:
                self._rows.setdefault(files[number], {})[origins[2 * row + 1]] = row

    def find(self, capture: Capture) -> tuple[Record, list[bytes], bytes] | None:
        """Return record, keys and body of a capture's entry, None if its record must be read."""
        row = self._rows.get(capture.source, {}).get(capture.offset)
        if row is None:
            return None
        try:
            record, body = self._pack.sealed(row)
        except MalformedPack:
            return None
        indexed = capture.timestamp, capture.method.upper(), capture.key
        if indexed != (record.timestamp, record.method, record.key.hex()):
            return None
        return record, self._keys[row], bytes(body)


class _Sealing:
    """The captures on their way into a pack.

    Attributes:
        first: earliest timestamp of an entry.
    """

    def __init__(
        self, collection: Collection, rules: str, writer: PackWriter, warnings: list[str], *, strict: bool
    ) -> None:
        self._strict = strict
        self._rules = Rules.parse(rules, file=collection.path / RULES)
        self._collection = collection
        self._writer = writer
        self._unmodified: list[PackEntry] = []
        self._parts: list[tuple[Capture, bytes]] = []  # without bodies: videos are recorded in parts
        self._again = _visited_again(collection)
        self._given_up: list[tuple[Capture, _MeaningfulKey]] = []
        self._repeated: set[_MeaningfulKey] = set()
        self.first = ""
        self._warnings = warnings

    def take(self, capture: Capture, sealed: tuple[Record, list[bytes], bytes] | None = None) -> None:
        """Add a capture, or defer it to `take_partial`.

        Args:
            sealed: record, keys and body of its entry in the last pack.
        """
        if sealed and wire_url(sealed[0].url) not in self._again:
            self._writer.add_sealed(*sealed, capture.source, capture.offset)
            self.first = min(self.first or sealed[0].timestamp, sealed[0].timestamp)
            return
        has_frames = self._take_frames(capture)
        entry = self._entry(capture)
        if entry is None:
            return
        if entry.response.status == HTTPStatus.NOT_MODIFIED:
            self._unmodified.append(replace(entry, response=replace(entry.response, raw_body=b"")))
        elif entry.response.status == HTTPStatus.PARTIAL_CONTENT:
            self._parts.append((capture, entry.key))
        elif not self._is_given_up(capture, entry):
            # A revisit has the body of another record.
            self._add(entry, alone=not has_frames and capture.mime != "warc/revisit")

    def _is_given_up(self, capture: Capture, entry: PackEntry) -> bool:
        """Defer a capture that may belong to an abandoned visit; return True if deferred."""
        since = self._again.get(wire_url(entry.url)) if entry.method == "GET" else None
        if since is None:
            return False
        meaningful = entry.key, frozenset(field for field in entry.varies if not browsers_own(field[0]))
        if entry.timestamp < since:
            self._given_up.append((capture, meaningful))
            return True
        self._repeated.add(meaningful)
        return False

    def take_partial(self) -> None:
        """Add the captures that depend on which complete responses exist."""
        for capture, meaningful in self._given_up:
            if meaningful in self._repeated:
                self._warn(capture.source, capture.offset, f"{capture.url}, which was visited again later")
            elif earlier := self._entry(capture):
                self._add(earlier)
        for entry in self._writer.repeat(self._unmodified):
            self._warn(entry.source, entry.offset, f"304 of {entry.url}, which has no complete response")
        whole = self._writer.answered_whole({key for _, key in self._parts})
        for capture, key in self._parts:
            if key not in whole and (part := self._entry(capture)):
                self._add(part)

    def _take_frames(self, capture: Capture) -> bool:
        """Add the frames of a WebSocket, or the timing of an event stream; return whether they exist."""
        try:
            entry = frame_entry(self._collection, capture)
        except (MalformedWarc, MissingRecord) as error:
            self._warnings.append(str(error))
            return True
        if entry:
            self._add(entry)
        return entry is not None

    def _add(self, entry: PackEntry, *, alone: bool = False) -> None:
        self._writer.add(entry, alone=alone)
        self.first = min(self.first or entry.timestamp, entry.timestamp)

    def _entry(self, capture: Capture) -> PackEntry | None:
        """Return a capture as an entry; None, with a warning, if it cannot be served."""
        if not capture.url.lower().startswith(("http://", "https://")):
            return None  # dns:, urn:pageinfo:, screenshots: browsers never request them
        try:
            exchange = self._collection.read_capture(capture)
            request = exchange.request
            content_type = header(request.headers, "content-type")
            key = request_key(request.method, request.url, content_type, request.raw_body)
            if self._strict and key.hex() != capture.key:
                what = f"the index has another request for {capture.url} here"
                raise StaleIndex(what, path=self._collection.archive / capture.source, offset=capture.offset)
        except (MalformedWarc, MissingRecord) as error:
            if self._strict and isinstance(error, StaleIndex):
                raise
            self._warnings.append(str(error))
            return None
        except UnicodeEncodeError as error:
            self._warn(capture.source, capture.offset, f"URL {capture.url!r} is not text ({error.reason})")
            return None
        status = exchange.response.status
        if not HTTPStatus.OK <= status <= _LAST_STATUS:
            self._warn(capture.source, capture.offset, f"status {status} of {capture.url}")
            return None
        if request.method != "HEAD" and (cut := _cut(exchange.response)):
            self._warn(capture.source, capture.offset, f"{capture.url} broke off: {cut}")
            return None
        if len(capture.timestamp) != 14 or not capture.timestamp.isdigit():
            self._warn(capture.source, capture.offset, f"time {capture.timestamp!r} of {capture.url}")
            return None
        return PackEntry(
            key=key,
            method=request.method,
            url=request.url,
            timestamp=capture.timestamp,
            response=exchange.response,
            source=capture.source,
            offset=capture.offset,
            aliases=self._aliases(request),
            varies=_varies(exchange) if capture.request_length else (),
            referer=_referer(request),
        )

    def _aliases(self, request: Request) -> tuple[bytes, ...]:
        aliases = tuple(alias.key for alias in self._rules.aliases(request))
        clock = self._rules.clock_alias(request)
        aliases += (clock.key,) if clock else ()
        return (*aliases, shape_key(request)) if request.method in MUTATIONS else aliases

    def _warn(self, source: str, offset: int, what: str) -> None:
        self._warnings.append(f"{self._collection.archive / source}:{offset}: left out: {what}")


def _varies(exchange: Exchange) -> Varies:
    """Return the fields that a response depends on: by its `Vary` (RFC 9110 §12.5.5), and by their meaning.

    Other page-set fields are added as preferences, so that each of several captures answers its own request.
    Replay itself selects content codings. A `Vary` of "*" names no field that could distinguish requests.
    """
    fields = exchange.request.headers
    stated = ",".join(value for name, value in exchange.response.headers if name.lower() == "vary")
    names = {name.strip().lower() for name in stated.split(",")} - {"", "*", "accept-encoding"}
    names = {name for name in names if _FIELD_NAME.fullmatch(name)}
    sent = {name.lower() for name, value in fields if value.strip()}
    names |= MEANT & sent
    if other_unit(header(fields, "range")):
        names.add(OTHER_RANGE)
    accept, content_type = header(fields, "accept"), header(exchange.response.headers, "content-type")
    if excludes(accept, exchange.response.mime) or other_parameters(accept, content_type):
        names.add("accept")  # the server ignored it; a request with this value gets this response
    preferred = {name for name in sent - names if page_set(name) and _FIELD_NAME.fullmatch(name)}
    named = [(name, name) for name in names] + [(PREFERRED + name, name) for name in preferred]
    return tuple((noted_as, noted_digest(name, fields)) for noted_as, name in sorted(named))


def _referer(request: Request) -> bytes:
    """Return the digest of the page that sent a read, b"" if it is unknown."""
    page = header(request.headers, "referer")
    return vary_digest(page) if page and request.method == "GET" and not is_navigation(request) else b""


def _cut(response: Response) -> str:
    """Return how much of a truncated page exists; "" for a complete one.

    Recorders that store decoded bodies keep the length of the encoded body, which is longer by some bytes at
    most. Redirects and errors are often stored without their bodies, which no page needs.
    """
    stated = header(response.headers, "content-length")
    if response.status != HTTPStatus.OK or not _LENGTH.fullmatch(stated):
        return ""
    there = len(response.raw_body)
    return f"{there} of {stated} bytes" if there + _CODING_COSTS < int(stated) else ""


def _manifest(collection: Collection, rules: str, first: str) -> dict[str, Any]:
    """Return the pack's copy of the collection's manifest.

    Imported archives have no recording time of their own: their pinned clock starts with their first capture.
    """
    members = collection.manifest().to_dict()
    recorded = {name: value for name, value in members.items() if name not in _PROVENANCE}
    return {
        **recorded,
        "recorded_at": members["recorded_at"] or first,
        "rules": rules,
        "default_rules": default_rules_digest(),
        "sealing": SEALING,
        **stored_branches(collection),
    }


def rules_text(collection: Collection) -> str:
    """Return the text of the collection's rules, "" if it has none."""
    path = collection.path / RULES
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise CollectionError("rules are not UTF-8 text", path=path, offset=error.start) from None

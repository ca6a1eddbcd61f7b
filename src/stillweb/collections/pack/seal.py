"""Compile a collection into its pack: every capture that replay can serve, in recorded order.

What becomes an entry: HTTP answers, resource records of http(s) URLs, and revisits with their
original's body. A 304 becomes the answer that it confirmed, since the browser that gets it at replay holds
nothing to be confirmed. A 206 stays only where no 200 is: replay cuts ranges itself. Of a page that was
visited again, the document of the visit that was given up is left out, since what the page looked like is
known of the later one. What cannot be served is left out with a warning, and so is what broke off; a record
that cannot be read costs itself alone.

Captures are read one at a time and spooled to disk, so memory grows with their number (some hundred
bytes each), not with their bodies. The pack holds no name, time of import or path: the same
captures recorded under the same settings are the same environment, wherever they lie.

Sizes of archive files are noted before anything is read, so `what_changed` sees what is appended
later, be it in the same tick of the file system's clock or while the sealing goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.pack.format import SOURCES
from stillweb.collections.pack.frames import frame_entry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.store import BodyStore
from stillweb.collections.pack.writer import PackEntry, PackInfo, PackWriter
from stillweb.collections.warc.cdxj import read_in_file_order
from stillweb.errors import CollectionError, MalformedPack, MalformedWarc, MissingRecord
from stillweb.matching.captures import MEANT, PREFERRED, Varies, browsers_own, excludes, page_set, vary_digest
from stillweb.matching.keys import request_key
from stillweb.matching.rules import Rules, default_rules_digest
from stillweb.model import VISITED_AGAIN, Capture, Exchange, Response, header
from stillweb.urls import wire_url

__all__ = ["SEALING", "PackInfo", "seal", "what_changed"]

SEALING = 1
"""Of which rules a pack is: to be raised with any change of the keys, of what answers vary by and of what
becomes an entry, so that packs sealed before are sealed again. `test_seal_golden` holds it to that."""

# Members of a collection's manifest that say where it came from, not what replay must repeat.
_PROVENANCE = ("name", "created", "software", "sources", "notes", "version", "twice")

RULES = "rules.yaml"
# Default rules are compiled into packs too, so a pack made by another version of them is not this one's.
_RULES_SAID = {"rules": RULES, "default_rules": "stillweb's default rules"}

_CHANGED = "changed since it was sealed"

_LENGTH = re.compile(r"[0-9]{1,15}")
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_CODING_COSTS = 64  # bytes by which gzip or brotli make a tiny body longer
_LAST_STATUS = 999  # beyond the 5xx of RFC 9110 there are sites that answer 999 to crawlers


def seal(collection: Collection, *, on_progress: Callable[[int], None] | None = None) -> PackInfo:
    """Write the pack of a collection, replacing an older one in one rename.

    Its rules are read once: the aliases in a pack are of the rules that it says, whoever edits them then.

    Args:
        collection: whose index is made anew where it is missing or older than the archive.
        on_progress: called with the number of captures read so far.

    Raises:
        CollectionError: if manifest or rules cannot be read, or it is a pack alone.
        MalformedCdxj: if the index cannot be read.
    """
    collection.require_archive()
    from stillweb.collections.warc.writer import (
        is_fresh,  # brings warcio, which who only serves does not need
    )

    warnings: list[str] = []
    rules = _rules_text(collection)
    sizes = _archive_sizes(collection)
    if not is_fresh(collection) or _index_lags(collection, sizes):
        reindex(collection)
        warnings.append(
            f"{collection.index_file}: was missing or older than the archive, so it was made anew"
        )
    sizes |= _index_size(collection)
    store = BodyStore.of(collection.pack)
    with PackWriter(collection.pack, store) as writer:
        sealing = _Sealing(collection, rules, writer, warnings)
        for number, capture in enumerate(_captures(collection), start=1):
            sealing.take(capture)
            if on_progress:
                on_progress(number)
        sealing.take_partial()
        info = writer.finish(_manifest(collection, rules, sealing.first), sizes)
    try:
        store.collect()
    except MalformedPack as error:
        warnings.append(f"{error}: bodies that no pack needs are kept until it is sealed again")
    return replace(info, warnings=tuple(warnings))


def _captures(collection: Collection) -> Iterator[Capture]:
    if collection.index_file.exists():
        yield from read_in_file_order(collection.index_file)


def what_changed(collection: Collection, pack: Pack) -> str:
    """Return what is not as it was when a collection's pack was sealed, as a clause; "" if nothing is.

    Raises:
        CollectionError: if manifest or rules cannot be read.
    """
    archive, noted = _archive_sizes(collection), _noted(pack.path)
    if not archive:
        return ""  # the pack is all there is; sealing would make it empty
    if pack.manifest.get("sealing") != SEALING:
        return "it was sealed by other rules than this program's"
    if noted:
        now = archive | _index_size(collection)
        for name in sorted(noted.keys() | now.keys()):
            if noted.get(name) != now.get(name):
                return f"{Path(name).name} {_CHANGED}"
    first = pack.manifest.get("recorded_at", "")
    for name, value in _manifest(collection, _rules_text(collection), first).items():
        if pack.manifest.get(name) != value:
            return f"{_RULES_SAID.get(name, f'manifest.json ({name})')} {_CHANGED}"
    return ""


def _index_lags(collection: Collection, archive: dict[str, int]) -> bool:
    """Whether the archive grew since it was last sealed and the index did not, whatever their times say."""
    noted = _noted(collection.pack)
    old = {name: size for name, size in noted.items() if name.startswith("archive/")}
    return bool(noted) and archive != old and noted == old | _index_size(collection)


def _noted(pack: Path) -> dict[str, int]:
    """Return the sizes that a pack was sealed from; nothing if it says nothing of them."""
    try:
        noted = json.loads((pack / SOURCES).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _archive_sizes(collection: Collection) -> dict[str, int]:
    return {f"archive/{path.name}": path.stat().st_size for path in collection.warc_files()}


def _index_size(collection: Collection) -> dict[str, int]:
    if not collection.index_file.exists():
        return {}
    return {f"indexes/{collection.index_file.name}": collection.index_file.stat().st_size}


_Asked = tuple[bytes, frozenset[tuple[str, bytes]]]
"""A request's key, and the fields of it that bear meaning."""


def _visited_again(collection: Collection) -> dict[str, str]:
    """Return since when the pages count that were visited again, by URL in wire spelling."""
    pages = [(wire_url(page.url), page) for page in collection.each_page() if len(page.timestamp) == 14]
    again = {url for url, page in pages if page.extra.get(VISITED_AGAIN)}
    # Merged collections may list a page twice: both are there for good.
    return {
        url: page.timestamp
        for url, page in sorted(pages, key=lambda each: each[1].timestamp, reverse=True)
        if url in again
    }


class _Sealing:
    """The captures on their way into a pack.

    Attributes:
        first: earliest timestamp of an entry.
    """

    def __init__(self, collection: Collection, rules: str, writer: PackWriter, warnings: list[str]) -> None:
        self._rules = Rules.parse(rules, file=collection.path / RULES)
        self._collection = collection
        self._writer = writer
        self._unmodified: list[PackEntry] = []
        self._parts: list[tuple[Capture, bytes]] = []  # without bodies: videos come in parts
        self._again = _visited_again(collection)
        self._given_up: list[tuple[Capture, _Asked]] = []
        self._asked_again: set[_Asked] = set()
        self.first = ""
        self._warnings = warnings

    def take(self, capture: Capture) -> None:
        """Add a capture, or keep it for `take_partial`."""
        self._take_frames(capture)
        entry = self._entry(capture)
        if entry is None:
            return
        if entry.response.status == HTTPStatus.NOT_MODIFIED:
            self._unmodified.append(replace(entry, response=replace(entry.response, raw_body=b"")))
        elif entry.response.status == HTTPStatus.PARTIAL_CONTENT:
            self._parts.append((capture, entry.key))
        elif not self._is_given_up(capture, entry):
            self._add(entry)

    def _is_given_up(self, capture: Capture, entry: PackEntry) -> bool:
        """Keep for `take_partial` what may be of a visit that was given up."""
        since = self._again.get(wire_url(entry.url)) if entry.method == "GET" else None
        if since is None:
            return False
        asked = entry.key, frozenset(field for field in entry.varies if not browsers_own(field[0]))
        if entry.timestamp < since:
            self._given_up.append((capture, asked))
            return True
        self._asked_again.add(asked)
        return False

    def take_partial(self) -> None:
        """Add what depends on which whole answers there are."""
        for capture, asked in self._given_up:
            if asked in self._asked_again:
                self._warn(capture.source, capture.offset, f"{capture.url}, which was visited again later")
            elif earlier := self._entry(capture):
                self._add(earlier)
        for entry in self._writer.repeat(self._unmodified):
            self._warn(entry.source, entry.offset, f"304 of {entry.url}, which was never recorded whole")
        whole = self._writer.answered_whole({key for _, key in self._parts})
        for capture, key in self._parts:
            if key not in whole and (part := self._entry(capture)):
                self._add(part)

    def _take_frames(self, capture: Capture) -> None:
        """Add what stands beside a capture: a WebSocket's frames, an event stream's timing."""
        try:
            if entry := frame_entry(self._collection, capture):
                self._add(entry)
        except (MalformedWarc, MissingRecord) as error:
            self._warnings.append(str(error))

    def _add(self, entry: PackEntry) -> None:
        self._writer.add(entry)
        self.first = min(self.first or entry.timestamp, entry.timestamp)

    def _entry(self, capture: Capture) -> PackEntry | None:
        """Return a capture as an entry; None, and a warning, if it cannot be served."""
        if not capture.url.lower().startswith(("http://", "https://")):
            return None  # dns:, urn:pageinfo:, screenshots: never asked for by a browser
        try:
            exchange = self._collection.read_capture(capture)
            request = exchange.request
            content_type = header(request.headers, "content-type")
            key = request_key(request.method, request.url, content_type, request.raw_body)
        except (MalformedWarc, MissingRecord) as error:
            self._warnings.append(str(error))
            return None
        except UnicodeEncodeError as error:
            self._warn(capture.source, capture.offset, f"URL {capture.url!r} is no text ({error.reason})")
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
            aliases=tuple(alias.key for alias in self._rules.aliases(request)),
            varies=_varies(exchange) if capture.request_length else (),
        )

    def _warn(self, source: str, offset: int, what: str) -> None:
        self._warnings.append(f"{self._collection.archive / source}:{offset}: left out: {what}")


def _varies(exchange: Exchange) -> Varies:
    """Return what an answer depends on by its own word (RFC 9110 §12.5.5), and by what always bears meaning.

    Further, as preferences, what else the page has set: of several captures, each is to answer its own
    request. Content codings are replay's to choose. "*" tells no field to tell requests apart by.
    """
    fields = exchange.request.headers
    stated = ",".join(value for name, value in exchange.response.headers if name.lower() == "vary")
    names = {name.strip().lower() for name in stated.split(",")} - {"", "*", "accept-encoding"}
    names = {name for name in names if _FIELD_NAME.fullmatch(name)}
    sent = {name.lower() for name, value in fields if value.strip()}
    names |= MEANT & sent
    if excludes(header(fields, "accept"), exchange.response.mime):
        names.add("accept")  # the server did not look at it; who asks so again is to get this answer
    preferred = {name for name in sent - names if page_set(name) and _FIELD_NAME.fullmatch(name)}
    noted = [(name, name) for name in names] + [(PREFERRED + name, name) for name in preferred]
    return tuple((noted_as, vary_digest(header(fields, name))) for noted_as, name in sorted(noted))


def _cut(response: Response) -> str:
    """Return how much of a page is there if it broke off on the way; "" for a whole one.

    Recorders that store bodies decoded keep the length of the coded body, which is longer by some bytes
    at most; redirects and errors are often stored without theirs, and no page misses it.
    """
    stated = header(response.headers, "content-length")
    if response.status != HTTPStatus.OK or not _LENGTH.fullmatch(stated):
        return ""
    there = len(response.raw_body)
    return f"{there} of {stated} bytes" if there + _CODING_COSTS < int(stated) else ""


def _manifest(collection: Collection, rules: str, first: str) -> dict[str, Any]:
    """Return what the pack says of the recording.

    Imported archives know no time of their own: their pinned clock starts with their first capture.
    """
    members = collection.manifest().to_dict()
    kept = {name: value for name, value in members.items() if name not in _PROVENANCE}
    return {
        **kept,
        "recorded_at": members["recorded_at"] or first,
        "rules": rules,
        "default_rules": default_rules_digest(),
        "sealing": SEALING,
    }


def _rules_text(collection: Collection) -> str:
    """Return the collection's rules as they are written, "" if it has none; replay reads them."""
    path = collection.path / RULES
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise CollectionError("rules are not UTF-8 text", path=path, offset=error.start) from None

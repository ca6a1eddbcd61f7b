"""Check a collection: every defect by file and offset as stored, and the command that repairs it.

Four layers: the WARC files themselves, record by record with their digests; the index against
what an index made now would hold; what refers to something else (revisits to originals,
pages to captures); and the pack, read whole. Nothing is changed; `repair` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from stillweb.collections import digests, frames
from stillweb.collections.cdxj import format_line, parse_line
from stillweb.collections.defects import Defect, Report, Severity
from stillweb.collections.exchanges import REVISIT, Originals
from stillweb.collections.indexing import index_file
from stillweb.collections.layout import Collection
from stillweb.collections.pack import Pack
from stillweb.collections.warcs import WarcRecord, read_record, sniff
from stillweb.errors import CollectionError, MalformedCdxj, MalformedPack
from stillweb.model import Capture
from stillweb.urls import wire_url

__all__ = ["Defect", "Severity", "check", "check_file"]

Progress = Callable[[str, int, int], None]


def check(collection: Collection, on_progress: Progress | None = None) -> list[Defect]:
    """Return the defects of a collection, by file and offset."""
    found: list[Defect] = []
    lines: set[bytes] = set()
    captures: list[Capture] = []
    for path in collection.warc_files():
        for capture, query in _check_file(path, found.append, on_progress):
            captures.append(capture)
            lines.add(format_line(capture, query))
    found += _index_defects(collection, lines)
    found += _dangling(collection, captures)
    found += _reference_defects(collection, captures)
    repair = f"stillweb collections check {collection.name} --repair"
    found = [replace(each, repair=repair) if each.repair else each for each in found]
    return [*found, *_pack_defects(collection)]


def _pack_defects(collection: Collection) -> Iterator[Defect]:
    """Yield what is wrong with the pack; no error if replay sees it at open, and seals by itself."""
    if not collection.pack.is_dir():
        return
    severity = Severity.WARNING
    try:
        with Pack.open(collection.pack) as pack:
            severity = Severity.ERROR
            pack.verify()
    except MalformedPack as error:
        at = -1 if error.offset is None else error.offset
        command = "pull NAME URL" if collection.is_only_pack else f"seal {collection.name}"
        repair = f"stillweb collections {command}"
        yield Defect(severity, "pack", str(error.path), at, error.what, repair)


def check_file(path: Path) -> list[Defect]:
    """Return the defects of a WARC or ARC file, by offset."""
    found: list[Defect] = []
    _check_file(path, found.append, None)
    return sorted(found, key=lambda each: each.offset)


def _check_file(path: Path, report: Report, on_progress: Progress | None) -> list[tuple[Capture, str]]:
    size = path.stat().st_size
    if size and not sniff(path):
        what = "neither WARC nor ARC by its first bytes"
        report(Defect(Severity.ERROR, "not-warc", str(path), 0, what))

    def seen(record: WarcRecord) -> None:
        for what in _record_problems(record):
            report(Defect(Severity.WARNING, "digest", str(path), record.offset, what))
        if what := frames.problem(record.type, record.target_uri, record.get("Content-Type"), record.block):
            report(Defect(Severity.ERROR, "frames", str(path), record.offset, what))
        if on_progress:
            on_progress(path.name, record.offset + record.length, size)

    return index_file(path, report, seen)


def _record_problems(record: WarcRecord) -> Iterator[str]:
    kind = record.type or "record without WARC-Type"
    for name in ("WARC-Type", "WARC-Record-ID", "WARC-Date"):
        if not record.get(name):
            yield f"{kind} lacks {name}, which WARC 1.1 demands"
    for problem in digests.problems(record):
        yield f"{kind} of {record.target_uri}: {problem}" if record.target_uri else f"{kind}: {problem}"


def _index_defects(collection: Collection, wanted: set[bytes]) -> Iterator[Defect]:
    index, repair = collection.index_file, "repair"
    if not index.exists():
        if wanted:
            what = f"there is no index, but {len(wanted)} captures to index: pywb would serve none"
            yield Defect(Severity.ERROR, "no-index", str(index), -1, what, repair)
        return
    lines = index.read_bytes().splitlines(keepends=True)
    offset, previous = 0, b""
    for line in lines:
        if line < previous:
            what = "lines are not sorted bytewise from here on: bisection misses captures"
            yield Defect(Severity.ERROR, "index-order", str(index), offset, what, repair)
            break
        offset, previous = offset + len(line), line
    yield from _index_lines(index, lines)
    known = set(map(_place, filter(None, map(_parse, lines))))
    made = set(map(_place, map(parse_line, wanted)))
    if missing := len(made - known):
        what = f"{missing} of {len(made)} captures are not in the index: it is older than the archive"
        yield Defect(Severity.ERROR, "index-stale", str(index), -1, what, repair)
    elif set(lines) != wanted and not known - made:
        what = "the index is another than we would make: keys, digests or requests differ"
        yield Defect(Severity.WARNING, "index-differs", str(index), -1, what, repair)
    if foreign := len(known - made):
        what = f"{foreign} lines name records that are not there"
        yield Defect(Severity.ERROR, "index-foreign", str(index), -1, what, repair)


def _index_lines(index: Path, lines: list[bytes]) -> Iterator[Defect]:
    offset = 0
    for line in lines:
        if line.strip() and not line.startswith(b"!") and _parse(line) is None:
            what = f"not a CDXJ line: {line[:60]!r}"
            yield Defect(Severity.ERROR, "index-line", str(index), offset, what, "repair")
        offset += len(line)


def _parse(line: bytes) -> Capture | None:
    try:
        return parse_line(line)
    except MalformedCdxj:
        return None


def _place(capture: Capture) -> tuple[str, int]:
    return capture.source, capture.offset


def _dangling(collection: Collection, captures: list[Capture]) -> Iterator[Defect]:
    originals = Originals(captures)
    for capture in captures:
        if capture.mime != REVISIT:
            continue
        path = collection.archive / capture.source
        try:
            record = read_record(path, capture.offset, capture.length)
        except CollectionError:
            continue  # was reported as a defect of the file
        if originals.find(capture, record) is None:
            refers = record.get("WARC-Refers-To-Target-URI") or capture.digest
            what = f"the revisit of {capture.url} refers to {refers}, which is not in the collection"
            yield Defect(Severity.ERROR, "no-original", str(path), capture.offset, what)


def _reference_defects(collection: Collection, captures: list[Capture]) -> Iterator[Defect]:
    try:
        collection.manifest()
    except CollectionError as error:
        yield Defect(Severity.ERROR, "manifest", str(collection.manifest_file), -1, str(error))
    answered = {wire_url(each.url) for each in captures if each.method == "GET"}
    for page in collection.page_list():
        if page.url.startswith(("http:", "https:")) and wire_url(page.url) not in answered:
            what = f"page {page.url} has no capture"
            yield Defect(Severity.WARNING, "no-capture", str(collection.pages), -1, what)

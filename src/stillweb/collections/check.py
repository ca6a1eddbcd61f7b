"""Check of a collection: every defect by file and stored offset, with the command that repairs it.

Five layers: the WARC files, record by record with their digests; the index, compared with a new one;
references (revisits to originals, pages to captures); `rules.yaml`; and the complete pack. A check changes
nothing; `repair` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from stillweb.collections.defects import NEEDS_REWRITE, Defect, Report, Severity
from stillweb.collections.indexing import index_file, reindex, rewrite_records
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import RULES, rules_text
from stillweb.collections.versions import link_or_copy
from stillweb.collections.warc import frames
from stillweb.collections.warc import reader as digests
from stillweb.collections.warc.cdxj import format_line, parse_line
from stillweb.collections.warc.exchanges import without_original
from stillweb.collections.warc.reader import sniff
from stillweb.collections.warc.records import WarcRecord
from stillweb.errors import CollectionError, MalformedCdxj, MalformedPack
from stillweb.matching.rules import Rules
from stillweb.model import Capture
from stillweb.urls import wire_url


def repair(collection: Collection) -> list[str]:
    """Repair all repairable defects; return a line for each change."""
    collection.require_archive()
    lines = [line for path in collection.warc_files() for line in _repair_file(collection, path)]
    before = collection.index_file.read_bytes() if collection.index_file.exists() else b""
    count = reindex(collection)
    if collection.index_file.read_bytes() != before:
        lines.append(f"indexes/index.cdxj: rebuilt, {count} captures")
    return lines


def _repair_file(collection: Collection, path: Path) -> list[str]:
    defects: list[Defect] = []
    starts: list[int] = []

    def seen(record: WarcRecord) -> None:
        starts.append(record.offset)

    index_file(path, defects.append, seen)
    broken = [each for each in defects if each.code in NEEDS_REWRITE]
    if not broken:
        return []
    damaged = collection.path / "damaged"
    damaged.mkdir(exist_ok=True)
    cut = broken[0].offset
    whole = path.name.endswith(".gz") and all(start < cut for start in starts)
    if len(broken) == 1 and broken[0].code == "truncated" and whole and cut:
        return [_cut_tail(path, cut, damaged)]
    moved = _free(damaged / path.name)
    target = (
        path
        if path.name.endswith(".warc.gz")
        else _free(path.parent / f"{path.name.partition('.')[0]}.warc.gz")
    )
    part = target.with_name(target.name + ".part")
    count = rewrite_records(path, part)
    link_or_copy(path, moved)
    if count:
        part.replace(target)  # before the old file goes: a repair that is killed here loses no record
    else:
        part.unlink()
    if target != path or not count:
        path.unlink()
    if not count:
        return [f"archive/{path.name}: has no complete record; moved to damaged/{moved.name}"]
    return [f"archive/{target.name}: {count} records rewritten; the old file is damaged/{moved.name}"]


def _cut_tail(path: Path, cut: int, damaged: Path) -> str:
    """Move the bytes after an offset to a file of their own, which is on disk before the cut."""
    tail = _free(damaged / f"{path.name}.tail-{cut}")
    with path.open("r+b") as file, tail.open("wb") as out:
        file.seek(cut)
        rest = file.read()
        out.write(rest)
        out.flush()
        os.fsync(out.fileno())
        file.truncate(cut)
    return f"archive/{path.name}: {len(rest)} bytes of a record that breaks off moved to damaged/{tail.name}"


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


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
    found += _rules_defects(collection)
    repair = f"stillweb collections check {collection.name} --repair"
    found = [replace(each, repair=repair) if each.repair else each for each in found]
    return [*found, *_pack_defects(collection)]


def _rules_defects(collection: Collection) -> Iterator[Defect]:
    try:
        Rules.parse(rules_text(collection), file=collection.path / RULES)
    except CollectionError as error:
        yield Defect(Severity.ERROR, "rules", str(collection.path / RULES), -1, str(error))


def _pack_defects(collection: Collection) -> Iterator[Defect]:
    """Yield the defects of the pack; not as errors if replay notices them at open and seals again."""
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
            what = f"the index is missing: pywb would serve none of {len(wanted)} captures"
            yield Defect(Severity.ERROR, "no-index", str(index), -1, what, repair)
        return
    lines = index.read_bytes().splitlines(keepends=True)
    offset, previous = 0, b""
    for line in lines:
        if line < previous:
            what = "lines from here on are not sorted bytewise: bisection misses captures"
            yield Defect(Severity.ERROR, "index-order", str(index), offset, what, repair)
            break
        offset, previous = offset + len(line), line
    yield from _index_lines(index, lines)
    known = set(map(_place, filter(None, map(_parse, lines))))
    made = set(map(_place, map(parse_line, wanted)))
    if missing := len(made - known):
        what = f"{missing} of {len(made)} captures are missing from the index: it is older than the archive"
        yield Defect(Severity.ERROR, "index-stale", str(index), -1, what, repair)
    elif set(lines) != wanted and not known - made:
        what = "the index differs from a rebuilt one in keys, digests or requests"
        yield Defect(Severity.WARNING, "index-differs", str(index), -1, what, repair)
    if foreign := len(known - made):
        what = f"{foreign} lines name missing records"
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
    for capture, refers in without_original(collection.archive, captures):
        path = collection.archive / capture.source
        what = f"the revisit of {capture.url} refers to {refers}, which the collection does not have"
        yield Defect(Severity.ERROR, "no-original", str(path), capture.offset, what)


def _reference_defects(collection: Collection, captures: list[Capture]) -> Iterator[Defect]:
    try:
        collection.manifest()
    except CollectionError as error:
        yield Defect(Severity.ERROR, "manifest", str(collection.manifest_file), -1, str(error))
    if collection.is_only_pack:
        return  # its index is in the pack
    answered = {wire_url(each.url) for each in captures if each.method == "GET"}
    for page in collection.page_list():
        if page.url.startswith(("http:", "https:")) and wire_url(page.url) not in answered:
            what = f"page {page.url} has no capture"
            yield Defect(Severity.WARNING, "no-capture", str(collection.pages), -1, what)

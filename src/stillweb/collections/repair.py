"""Repair a collection without losing a byte: what is taken out of `archive/` is kept in `damaged/`.

A tail that breaks off is cut into a file of its own; a file damaged otherwise is written anew from
its whole records, and the damaged one moved aside. Then the index is made anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from stillweb.collections.defects import NEEDS_REWRITE, Defect
from stillweb.collections.importer import rewrite_records
from stillweb.collections.indexing import index_file, reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warcs import WarcRecord


def repair(collection: Collection) -> list[str]:
    """Repair what can be repaired; return a line for each thing that was changed."""
    collection.require_archive()
    lines = [line for path in collection.warc_files() for line in _repair_file(collection, path)]
    before = collection.index_file.read_bytes() if collection.index_file.exists() else b""
    count = reindex(collection)
    if collection.index_file.read_bytes() != before:
        lines.append(f"indexes/index.cdxj: made anew, {count} captures")
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
    kept = _free(damaged / path.name)
    target = (
        path
        if path.name.endswith(".warc.gz")
        else _free(path.parent / f"{path.name.partition('.')[0]}.warc.gz")
    )
    part = target.with_name(target.name + ".part")
    count = rewrite_records(path, part)
    path.rename(kept)
    if not count:
        part.unlink()
        return [f"archive/{path.name}: no whole record in it; moved to damaged/{kept.name}"]
    part.rename(target)
    return [f"archive/{target.name}: {count} records written anew; the old file is damaged/{kept.name}"]


def _cut_tail(path: Path, cut: int, damaged: Path) -> str:
    """Move what follows an offset to a file of its own, which is safe on disk before the cut is made."""
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

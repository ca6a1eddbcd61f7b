"""Write records of WARC files anew: what was written before something was known to be secret.

A file is replaced as a whole or not at all. Records that stay are copied as they are stored; what changes
gets new digests, and revisits that name a payload by its old digest get the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from stillweb.collections.frames import is_socket_url
from stillweb.collections.httpblocks import payload_start
from stillweb.collections.members import sha256_digest, warc_member
from stillweb.collections.records import WarcRecord
from stillweb.collections.warcs import read_records

__all__ = ["rewrite_files"]

_MADE_ANEW = frozenset({"warc-block-digest", "content-type", "content-length"})


def rewrite_files(files: Iterable[Path], change: Callable[[WarcRecord], WarcRecord | None]) -> bool:
    """Write anew the records that `change` returns changed; return whether there were any.

    Args:
        files: WARC files that nobody writes to, gzipped a record each.
        change: is given a record and returns it with other fields or another block; None to leave it.
    """
    files, payloads = list(files), dict[str, str]()
    changed = False
    for path in files:
        changed |= _rewrite(path, change, payloads)
    if payloads:
        for path in files:
            _rewrite(path, lambda record: record if record.type == "revisit" else None, payloads)
    return changed


def _rewrite(path: Path, change: Callable[[WarcRecord], WarcRecord | None], payloads: dict[str, str]) -> bool:
    """Rewrite one file; `payloads` has the digests of payloads as they were, and takes those that change."""
    part = path.with_name(path.name + ".part")
    changed = False
    with path.open("rb") as stored, part.open("wb") as file:
        for record in read_records(path):
            wanted = change(record)
            member = b"" if wanted is None else _member(record, wanted, payloads)
            if not member:
                stored.seek(record.offset)
                member = stored.read(record.length)
            else:
                changed = True
            file.write(member)
        file.flush()
        os.fsync(file.fileno())
    if changed:
        part.replace(path)
    else:
        part.unlink()
    return changed


def _member(record: WarcRecord, wanted: WarcRecord, payloads: dict[str, str]) -> bytes:
    """Return the record that takes another's place; b"" if nothing about it changes."""
    stated, block = record.get("WARC-Payload-Digest"), wanted.block
    if record.type == "revisit":
        digest = payloads.get(stated, stated)
    elif record.get("Content-Type").startswith("application/http") and not is_socket_url(record.target_uri):
        digest = sha256_digest(block[payload_start(block) :])
    else:
        digest = sha256_digest(block)
    if digest == stated and wanted == record:
        return b""
    if record.type == "response":
        payloads[stated] = digest
    fields = [
        (name, digest if name.lower() == "warc-payload-digest" else value)
        for name, value in wanted.headers
        if name.lower() not in _MADE_ANEW
    ]
    return warc_member(fields, block, record.get("Content-Type"))

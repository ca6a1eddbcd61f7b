"""Seal collections that are not sealed, or were changed since.

A pack is stale if its sources have other sizes, settings or rules than at sealing, or are younger than its
digest. It is also stale if stillweb seals by other rules now (`SEALING`). Times alone miss data that is
appended within one clock tick, or copied in with its old time; sizes alone miss an edit in place. Copying a
collection may make a good pack look stale. Sealing again then gives the same bytes and the same environment
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from stillweb.certs.keyfiles import folder_lock
from stillweb.collections.layout import Collection
from stillweb.collections.pack.entry import PackInfo
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal, what_changed
from stillweb.errors import MalformedPack


def why_unsealed(collection: Collection) -> str:
    """Return why a collection must be sealed before it is replayed; "" if it need not be."""
    digest = collection.pack / "digest"
    if not digest.exists():
        return "not sealed yet"
    sealed_at = digest.stat().st_mtime_ns
    for source in _sources(collection):
        with suppress(FileNotFoundError):
            if source.stat().st_mtime_ns > sealed_at:
                return f"{source.name} changed since it was sealed"
    try:
        with Pack.open(collection.pack) as pack:
            return what_changed(collection, pack)
    except MalformedPack as error:
        return str(error)


def ensure_sealed(
    collection: Collection, *, on_progress: Callable[[int], None] | None = None
) -> PackInfo | None:
    """Seal a collection if necessary; return the new pack, or None.

    Raises:
        CollectionError: if it cannot be sealed.
        MalformedPack: if its pack cannot be read and its archive is missing.
    """
    if not why_unsealed(collection):
        return None
    with folder_lock(collection.path):  # two servers may start on one folder simultaneously
        if not why_unsealed(collection):
            return None
        if (collection.pack / "digest").exists() and not collection.warc_files():
            Pack.open(collection.pack).close()  # only the pack exists: it opens, or raises
            return None
        return seal(collection, on_progress=on_progress)


def _sources(collection: Collection) -> Iterator[Path]:
    yield from (collection.index_file, collection.manifest_file, collection.path / "rules.yaml")
    yield from collection.warc_files()

"""Seal what is about to be replayed and is not sealed, or was changed since.

A pack is stale when what it is made from has other sizes, settings or rules than it was sealed with, or is
younger than its digest, or if stillweb seals by other rules now (`SEALING`). Times alone miss what is
appended in the same tick of the clock, or copied in with its old time; sizes alone miss an edit in
place. Copying a collection may make a good pack look stale; that costs a new seal, which gives the
same bytes and the same environment id.
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

__all__ = ["ensure_sealed", "why_unsealed"]


def why_unsealed(collection: Collection) -> str:
    """Return why a collection has to be sealed before it is replayed; "" if it has not."""
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
    """Seal a collection if it has to be; return what was made, None if nothing was.

    Raises:
        CollectionError: if it cannot be sealed.
        MalformedPack: if its pack cannot be read and its archive is not there.
    """
    if not why_unsealed(collection):
        return None
    with folder_lock(collection.path):  # two servers may start on one folder at the same time
        if not why_unsealed(collection):
            return None
        if (collection.pack / "digest").exists() and not collection.warc_files():
            Pack.open(collection.pack).close()  # the pack is all there is: it serves, or says why not
            return None
        return seal(collection, on_progress=on_progress)


def _sources(collection: Collection) -> Iterator[Path]:
    yield from (collection.index_file, collection.manifest_file, collection.path / "rules.yaml")
    yield from collection.warc_files()

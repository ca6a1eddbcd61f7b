"""Seal what is about to be replayed and is not sealed, or was changed since.

A pack is stale when a file that it is made from is younger than its digest. Copying a collection
may make a good pack look stale; that costs a new seal, which gives the same bytes and the same
environment id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from stillweb.certs.keyfiles import folder_lock
from stillweb.collections.layout import Collection
from stillweb.collections.pack import Pack
from stillweb.collections.seal import PackInfo, seal
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
        Pack.open(collection.pack).close()
    except MalformedPack as error:
        return str(error)
    return ""


def ensure_sealed(
    collection: Collection, *, on_progress: Callable[[int], None] | None = None
) -> PackInfo | None:
    """Seal a collection if it has to be; return what was made, None if nothing was.

    Raises:
        CollectionError: if it cannot be sealed.
    """
    if not why_unsealed(collection):
        return None
    with folder_lock(collection.path):  # two servers may start on one folder at the same time
        if not why_unsealed(collection):
            return None
        info = seal(collection, on_progress=on_progress)
        # An equal pack is left in place by `seal`; it is as good as new, so it must not look stale.
        (collection.pack / "digest").touch()
    return info


def _sources(collection: Collection) -> Iterator[Path]:
    yield from (collection.index_file, collection.manifest_file, collection.path / "rules.yaml")
    yield from collection.warc_files()

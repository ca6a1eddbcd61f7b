"""Steps that all recordings share: creating the collection, its manifest, repair, crawl state.

A recording that fails before it writes anything leaves nothing behind: `collection_to_fill` removes the
collection that it created. A stopped recording keeps what it has.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.clock import now
from stillweb.collections.check import repair
from stillweb.collections.indexing import is_fresh
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.errors import CollectionError, UpstreamUnreachable
from stillweb.files import write_atomically
from stillweb.record.crawl.frontier import CrawlState, Visit
from stillweb.record.defaults import remove_defaults
from stillweb.urls import from_timestamp, to_timestamp

STATE_FILE = "crawl.json"
STOPPED = "stopped"  # member of the manifest: why a crawl ended before its queue was empty
PAGE_LIMIT = "--limit"


@contextmanager
def collection_to_fill(root: Path, name: str, *, append: bool = False) -> Iterator[Collection]:
    """Create a collection for a recording, or open one to add to.

    A created collection is removed if the recording fails without a page or ends without a capture. It stays
    if its index could not be written, as on a full disk.

    Raises:
        CollectionExists: if it exists and `append` is false.
    """
    if append and (root / name).is_dir():
        collection = Collection.open(root, name)
        collection.require_archive()
        yield collection
        return
    collection = Collection.create(root, name)
    try:
        yield collection
    except UpstreamUnreachable:
        _discard(collection)
        raise
    finally:
        if collection.path.is_dir() and next(collection.captures(), None) is None and is_fresh(collection):
            _discard(collection)


def _discard(collection: Collection) -> None:
    shutil.rmtree(collection.path)
    remove_defaults(collection)


def repair_archive(collection: Collection, before: Manifest) -> list[str]:
    """Truncate what a killed recording left incomplete and rebuild the index; return what was repaired.

    Args:
        before: its manifest before `begin`. A killed recording leaves state `partial` there. The state counts
            even if a replay has rebuilt the index since, because that does not touch the archive.
    """
    return [] if before.state == "complete" and is_fresh(collection) else repair(collection)


def start_of_pages(at: datetime) -> datetime:
    """Return the virtual start time of the pages of a recording that begins at `at`.

    The time is never a whole minute. A page that requests its start time would seem to request that very
    minute, and the rules for volatile values could not learn otherwise (`stillweb.matching.values`).
    """
    return at if at.second else at + timedelta(seconds=1)


def begin(collection: Collection, *, seed: int = 0, profile: dict[str, object] | None = None) -> Manifest:
    """Write and return the manifest at the start of a recording, with state `partial`.

    An earlier recording of the collection determines clock, seed and profile.
    """
    manifest = collection.manifest()
    if not manifest.recorded_at:
        started = start_of_pages(now())
        manifest = replace(
            manifest,
            name=collection.name,
            created=started.isoformat(timespec="seconds"),
            recorded_at=to_timestamp(started),
            seed=seed,
            profile=profile or {},
        )
    manifest = replace(manifest, state="partial")
    collection.write_manifest(manifest)
    return manifest


def begin_addition(collection: Collection) -> Manifest:
    """Begin a recording that adds to a collection; its state stays: it says whether the crawl is complete."""
    state = collection.manifest().state
    manifest = replace(begin(collection), state=state)
    collection.write_manifest(manifest)
    return manifest


def read_state(collection: Collection) -> CrawlState:
    """Return the state of an unfinished crawl, an empty state if there is none.

    Raises:
        CollectionError: if the file is malformed.
    """
    path = collection.path / STATE_FILE
    try:
        stored = json.loads(path.read_bytes())
        queue = tuple(Visit(i, url, depth, seed) for i, (url, depth, seed) in enumerate(stored["queue"]))
        return CrawlState(queue, int(stored["through"]))
    except FileNotFoundError:
        return CrawlState()
    except (ValueError, TypeError, KeyError) as error:
        raise CollectionError(
            f"malformed crawl state: {error!r}", path=path, hint=f"rm {path}, to crawl from the seeds again"
        ) from error


def write_state(collection: Collection, state: CrawlState) -> None:
    """Write the state from which a later crawl continues."""
    queue = [[visit.url, visit.depth, visit.seed] for visit in state.queue]
    content = json.dumps({"version": 1, "through": state.through, "queue": queue}, ensure_ascii=False)
    write_atomically(collection.path / STATE_FILE, content.encode("utf-8"))


def pinning_of(manifest: Manifest) -> tuple[Profile, Pinning]:
    """Return the profile and pinning with which a collection's pages are recorded, replayed and compared."""
    start = from_timestamp(manifest.recorded_at)
    return Profile.from_dict(manifest.profile), Pinning(Level.CLOCK, manifest.seed, start)

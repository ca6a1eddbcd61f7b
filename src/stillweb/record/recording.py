"""What every recording begins and ends with.

A recording that fails before anything was written leaves nothing behind: `collection_to_fill`
removes the collection that it made. One that was stopped keeps what it has.
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
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest, write_atomically
from stillweb.collections.warc.writer import is_fresh
from stillweb.errors import CollectionError, UpstreamUnreachable
from stillweb.record.crawl.frontier import CrawlState, Visit
from stillweb.urls import from_timestamp, to_timestamp

STATE_FILE = "crawl.json"
STOPPED = "stopped"  # member of the manifest: why a crawl is partial


@contextmanager
def collection_to_fill(root: Path, name: str, *, append: bool = False) -> Iterator[Collection]:
    """Make a collection for a recording, or open one to add to.

    One that was made here is removed when the recording fails without a page, or ends or is
    stopped without a capture; not if its index could not be written, as on a full disk.

    Raises:
        CollectionExists: if there is one and it is not to be added to.
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
        shutil.rmtree(collection.path)
        raise
    finally:
        if collection.path.is_dir() and next(collection.captures(), None) is None and is_fresh(collection):
            shutil.rmtree(collection.path)


def mend(collection: Collection, before: Manifest) -> list[str]:
    """Cut off what a kill left broken, and make the index anew; return what was mended.

    Args:
        collection: to be added to.
        before: its manifest before `begin`. A recording that was killed says `partial` there, though a replay
            may have made the index anew since, which leaves the archive as it is.
    """
    return [] if before.state == "complete" and is_fresh(collection) else repair(collection)


def start_of_pages(at: datetime) -> datetime:
    """Return when the pages of a recording begin, that is made now or a moment before.

    Not on a whole minute: a page that tells its time at once would seem to ask for that very minute, and
    nobody could learn that it does not (`stillweb.matching.values`).
    """
    return at if at.second else at + timedelta(seconds=1)


def begin(collection: Collection, *, seed: int = 0, profile: dict[str, object] | None = None) -> Manifest:
    """Write and return the manifest that a recording starts with, state `partial`.

    Clock, seed and profile are those of the recording before, if there was one.
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


def read_state(collection: Collection) -> CrawlState:
    """Return where the crawl before left off; an empty state where there was none.

    Raises:
        CollectionError: if the file is none of ours.
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
            f"not the state of a crawl ({error!r})",
            path=path,
            hint=f"rm {path}, to crawl from the seeds anew",
        ) from error


def write_state(collection: Collection, state: CrawlState) -> None:
    """Write where a crawl is, for one that goes on from there."""
    queue = [[visit.url, visit.depth, visit.seed] for visit in state.queue]
    content = json.dumps({"version": 1, "through": state.through, "queue": queue}, ensure_ascii=False)
    write_atomically(collection.path / STATE_FILE, content.encode("utf-8"))


def pinning_of(manifest: Manifest) -> tuple[Profile, Pinning]:
    """Return what the pages of a collection are recorded, replayed and compared with."""
    start = from_timestamp(manifest.recorded_at)
    return Profile.from_dict(manifest.profile), Pinning(Level.CLOCK, manifest.seed, start)

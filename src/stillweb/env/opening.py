"""What a reset decides before it opens anything, and what it checks of the page that it opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stillweb.browser.profile import Level, Pinning
from stillweb.env.taskvalue import Task
from stillweb.errors import CollectionNotFound, TaskError
from stillweb.urls import from_timestamp, wire_url

__all__ = ["check_start", "collection_of", "pinning_of"]

_NO_TIME = "20250101"  # where a manifest does not tell when it was recorded


def collection_of(chosen: str | None, task: Task | None, served: Sequence[str]) -> str:
    """Return the collection of an episode: as chosen, else the task's, else the only one.

    Raises:
        CollectionNotFound: if that leaves several.
    """
    if name := chosen or (task.collection if task else ""):
        return name
    if len(served) == 1:
        return served[0]
    raise CollectionNotFound(
        f"the server has {len(served)} collections, none was chosen",
        hint=f"choose (collection=..., on the command line -c ...) one of: {', '.join(served)}",
    )


def pinning_of(level: Level, manifest: Mapping[str, Any], task: Task | None, seed: int | None) -> Pinning:
    """Return what an episode is pinned to: as asked for, else the task's, else the recording's."""
    if seed is None and task:
        seed = task.seed
    if seed is None:
        seed = int(manifest.get("seed", 0))
    start = task.start if task and task.start else from_timestamp(manifest.get("recorded_at") or _NO_TIME)
    return Pinning(level, seed, start)


def check_start(url: str, landed: str, info: Mapping[str, Any]) -> None:
    """Check that the collection holds the start page, by what the ledger says.

    Raises:
        TaskError: if it does not.
    """
    traffic = info["traffic"]
    missed = {f"GET {wire_url(address)}" for address in (url, landed)} & set(traffic["missed"])
    if traffic["source"] == "ledger" and missed:
        to = "" if landed == url else f", which leads to {landed}"
        raise TaskError(
            f"collection {info['collection']!r} does not hold the start page {url}{to}",
            hint=f"stillweb collections show {info['collection']}",
        )

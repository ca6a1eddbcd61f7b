"""The start of an episode: read from a row of a dataset, or checked before it is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stillweb.errors import UsageError

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task


_STARTS = ("task", "task_id", "url")


def start_of_row(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return one of `task`, `task_id` and `url`, and `seed` if the row has one.

    A task may be JSON text, since Parquet tables change nested values. None counts as absent, since tables
    fill missing columns with it. Other fields are ignored.

    Raises:
        UsageError: if the row has none of the three, or several.
    """
    start = {name: given[name] for name in _STARTS if given.get(name) is not None}
    if len(start) != 1:
        raise UsageError(
            f"{where} needs one of task, task_id and url, it has {' and '.join(start) or 'none'}",
            hint='{"task_id": "..."} names a task of the server (stillweb serve --tasks FILE)',
        )
    if isinstance(start.get("task"), str):
        try:
            start["task"] = json.loads(start["task"])
        except ValueError as error:
            raise UsageError(f"{where}: task is not JSON: {error}") from error
    seed = given.get("seed")
    return start if seed is None else {**start, "seed": int(seed)}


def request_start(task: Task | Mapping[str, Any] | None, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the start of an episode as the server takes it; `rest` holds `task_id`, `url` or `seed`.

    Raises:
        UsageError: unless there is exactly one of task, task_id and url.
    """
    given = {name: value for name, value in {**rest, "task": task}.items() if value is not None}
    if unknown := [name for name in given if name not in (*_STARTS, "seed")]:
        raise UsageError(
            f"an episode starts with {', '.join(_STARTS)} or seed, not with {', '.join(unknown)}"
        )
    if len(given.keys() - {"seed"}) != 1:
        raise UsageError(f"an episode needs one of task, task_id and url, not {sorted(given)}")
    if task is not None and not isinstance(task, Mapping):
        from stillweb.env.tasks.task import task_to_dict

        given["task"] = task_to_dict(task)
    return given

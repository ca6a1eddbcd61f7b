"""Which episode a row of a trainer's dataset asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stillweb.errors import UsageError

__all__ = ["name_of", "start_in"]


def start_in(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what an episode begins with: one of `task`, `task_id` and `url`, and perhaps `seed`.

    A task may be the text of its JSON, since tables (Parquet) bend nested values; what is None, as tables
    fill up, is absent. Other names are not ours.

    Raises:
        UsageError: if there is none of them, or several.
    """
    named = {name: given[name] for name in ("task", "task_id", "url") if given.get(name) is not None}
    if len(named) != 1:
        raise UsageError(
            f"{where} needs one of task, task_id and url, it has {' and '.join(named) or 'none'}",
            hint='{"task_id": "..."} for a task that the server knows (stillweb serve --tasks FILE)',
        )
    if isinstance(named.get("task"), str):
        try:
            named["task"] = json.loads(named["task"])
        except ValueError as error:
            raise UsageError(f"{where}: task is not JSON: {error}") from error
    seed = given.get("seed")
    return named if seed is None else {**named, "seed": int(seed)}


def name_of(task_id: str) -> str:
    """Return a task's identifier as Gymnasium's registry takes it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", task_id)

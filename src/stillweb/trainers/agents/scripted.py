"""The agent `scripted`: plays a trace, then terminates.

The path is a trace or trajectory for all tasks, or a folder with one for each task: `ID.jsonl`, a
trajectory's folder `ID/`, or the folder of a batch with one for each episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stillweb.env import Observation, Task, Trace
from stillweb.env.trajectories.trajectory import FILE
from stillweb.env.vector.rollout import Policy
from stillweb.errors import UsageError
from stillweb.trainers.batch.folder import folder_name

__all__ = ["ScriptedAgent"]


class ScriptedAgent:
    """The agent `scripted`.

    Args:
        path: a trace, or a folder of traces.

    Raises:
        UsageError: if the path does not exist.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UsageError(f"{path}: no trace and no folder of traces")
        self._path = path

    def __call__(self, task: Task) -> Policy:
        actions: Iterator[Mapping[str, Any]] | None = None

        def policy(observation: Observation, info: dict[str, Any]) -> Mapping[str, Any]:
            nonlocal actions
            if actions is None:
                actions = iter(Trace.load(self._of(task, info.get("episode_number", 0))).actions)
            return next(actions, {"action": "terminate"})

        return policy

    def _of(self, task: Task, number: int) -> Path:
        if self._path.is_file() or (self._path / FILE).is_file():
            return self._path
        name = folder_name(task.id)
        candidates = (
            f"{name}.jsonl",
            f"{name}/{FILE}",
            f"tasks/{name}/{number}/{FILE}",
            f"tasks/{name}/0/{FILE}",
        )
        for candidate in candidates:
            if (self._path / candidate).is_file():
                return self._path / candidate
        raise UsageError(f"{self._path} has no trace of {task.id}", hint=f"record it as {name}.jsonl")

"""Score trajectories again without a browser, from their stored evidence.

Evidence is in the trajectory (`tasks/evidence.py`), and judging it is pure. Answers, URLs, requests,
downloads and page texts are judged again, by the trajectory's own task or by a task file's. Values of scripts
and verdicts of a judge are stored values: only their comparison is repeated, and the row says so. A task that
needs evidence that the trajectory lacks cannot be scored again, and the row says that, too. A damaged file
affects only its own row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillweb.env.tasks.task import Task, task_from_dict
from stillweb.env.trajectories.trajectory import Trajectory, evidence_from_dict
from stillweb.errors import TaskError


@dataclass(frozen=True, slots=True)
class Rescored:
    """A trajectory's stored reward and its new one.

    Attributes:
        outcome: "same"; "other", if the reward differs; "unscored", if the episode ended without one;
            "unknown", if the trajectory lacks the evidence; "unreadable", if the file is damaged.
        stored: kinds of evidence that were not computed again: "js", "locator", "site", "judge".
    """

    path: Path
    task: str
    outcome: str
    reward: float | None = None
    rescored: float | None = None
    stored: tuple[str, ...] = ()
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {
            "path": str(self.path),
            "stored": list(self.stored),
        }


def rescore(trajectory: Trajectory, task: Task | None = None) -> Rescored:
    """Score a trajectory again, by its own task or by the given one.

    Raises:
        TaskError: if the trajectory cannot be read.
    """
    header, end = trajectory.header, trajectory.end
    if task is None and header.get("task"):
        task = task_from_dict(header["task"], f"{trajectory.path}:1")
    name = task.id if task else str(header.get("name", ""))
    if end is None:
        return Rescored(trajectory.path, name, "unscored", detail="cut short")
    reward = _reward(end, trajectory.path)
    if "evidence" not in end or reward is None:
        return _without_evidence(trajectory, name, reward, end)
    evidence = evidence_from_dict(end["evidence"], trajectory.store)
    if task is None or task.evaluation is None:
        if reward:
            return Rescored(trajectory.path, name, "unknown", reward, detail="there is no task that gave it")
        return Rescored(trajectory.path, name, "same", reward, 0.0, detail="nothing is scored")
    stored = tuple(dict.fromkeys(task.evaluation.stored))
    try:
        score = task.evaluation.score(evidence)
    except TaskError as error:
        return Rescored(trajectory.path, name, "unknown", reward, None, stored, str(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # values of wrong types
        raise TaskError(f"{trajectory.path}: task or evidence is damaged: {error!r}") from error
    outcome = "same" if score.reward == reward else "other"
    return Rescored(trajectory.path, name, outcome, reward, score.reward, stored, "; ".join(score.reasons))


def _reward(end: Mapping[str, Any], path: Path) -> float | None:
    reward = end.get("reward")
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise TaskError(f"{path}: the reward is {reward!r}, which is not a number")
    return float(reward)


def _without_evidence(
    trajectory: Trajectory, name: str, reward: float | None, end: Mapping[str, Any]
) -> Rescored:
    """Distinguish an end that was never scored, such as a truncation, from one whose evidence is missing."""
    if reward or end["end"] == "terminated":
        return Rescored(trajectory.path, name, "unknown", reward, detail="its evidence is missing")
    return Rescored(trajectory.path, name, "unscored", reward, detail=str(end.get("error") or end["end"]))


def rescore_all(paths: Iterable[Path], tasks: Iterable[Task] = ()) -> list[Rescored]:
    """Score trajectory files again, each by the given task with its id, otherwise by its own task."""
    by_id: Mapping[str, Task] = {task.id: task for task in tasks}
    return [_row(path, by_id) for path in paths]


def _row(path: Path, by_id: Mapping[str, Task]) -> Rescored:
    try:
        trajectory = Trajectory.load(path)
        task = trajectory.header.get("task")
        return rescore(trajectory, by_id.get(task["id"]) if isinstance(task, dict) and "id" in task else None)
    except TaskError as error:
        return Rescored(path, "", "unreadable", detail=str(error))

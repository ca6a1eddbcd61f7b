"""Score trajectories again, without a browser: from what their evaluators read at the time.

What was read is in the trajectory (`env/evidence.py`); judging it is pure. So answers, addresses, requests,
downloads and texts in pages are judged anew, by the task that the trajectory carries or by the one
that a task file has now. What a script gave in the page, and what a judge said, is taken as it was then:
only its comparison with what is expected is made anew, and the row says so. A changed task that asks
for something that nobody read then cannot be scored: that is said, too, and is no reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillweb.env.taskvalue import Task, task_from_dict
from stillweb.env.trajectory import Trajectory, evidence_from_dict
from stillweb.errors import TaskError

__all__ = ["Rescored", "rescore", "rescore_all"]


@dataclass(frozen=True, slots=True)
class Rescored:
    """A trajectory and its reward, then and now.

    Attributes:
        outcome: "same"; "other", if the reward differs; "unscored", if the episode ended without one;
            "unknown", if the trajectory does not hold what the evaluator asks for.
        stored: what was not computed anew: of "js", "locator", "site", "judge".
    """

    path: Path
    task: str
    outcome: str
    reward: float | None = None
    rescored: float | None = None
    stored: tuple[str, ...] = ()
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "path": str(self.path),
            "stored": list(self.stored),
        }


def rescore(trajectory: Trajectory, task: Task | None = None) -> Rescored:
    """Score a trajectory again, by its own task or by another.

    Raises:
        TaskError: if the trajectory cannot be read.
    """
    header, end = trajectory.header, trajectory.end
    if task is None and header.get("task"):
        task = task_from_dict(header["task"], f"{trajectory.path}:1")
    name = task.id if task else str(header.get("name", ""))
    if end is None or "evidence" not in end:
        why = end["error"] or end["end"] if end else "cut short"
        reward = end["reward"] if end else None
        return Rescored(trajectory.path, name, "unscored", reward, detail=why)
    evidence = evidence_from_dict(end["evidence"], trajectory.store)
    reward = float(end["reward"])
    if task is None or task.evaluation is None:
        return Rescored(trajectory.path, name, "same", reward, 0.0, detail="nothing is scored")
    stored = tuple(dict.fromkeys(task.evaluation.stored))
    try:
        score = task.evaluation.score(evidence)
    except TaskError as error:
        return Rescored(trajectory.path, name, "unknown", reward, None, stored, str(error))
    outcome = "same" if score.reward == reward else "other"
    return Rescored(trajectory.path, name, outcome, reward, score.reward, stored, "; ".join(score.reasons))


def rescore_all(paths: Iterable[Path], tasks: Iterable[Task] = ()) -> list[Rescored]:
    """Score trajectory files again, by the tasks of these that bear their id; the others by their own.

    Raises:
        TaskError: if a trajectory cannot be read.
    """
    by_id: Mapping[str, Task] = {task.id: task for task in tasks}
    rows = []
    for path in paths:
        trajectory = Trajectory.load(path)
        rows.append(rescore(trajectory, by_id.get((trajectory.header.get("task") or {}).get("id", ""))))
    return rows

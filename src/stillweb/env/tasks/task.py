"""A task: what an episode starts from and what it is scored by.

A frozen value. What it leaves open (seed, time, time zone, viewport) the collection's manifest
decides when the episode is reset. Loaders make tasks from the files of others (`env/task.py`) and judge
every entry, so that a bad one is a `TaskError` that names file and place, not a reward of 0
hours later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stillweb.env.tasks.evaluators import Evaluator, evaluator_from_dict, evaluator_to_dict
from stillweb.errors import TaskError

__all__ = ["Task", "task_from_dict", "task_to_dict"]


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be achieved on a replayed page.

    Attributes:
        id: unique among the tasks loaded together.
        goal: in words, for the agent.
        start_url: where the episode begins.
        collection: name of the collection that holds the page; "" leaves it to the env.
        evaluation: None where nothing is scored (the reward is then always 0).
        start: what the page's clock says at the start; None means the recording's time.
        timezone: IANA name; "" means the recording's.
        viewport: CSS pixels; None means the recording's.
        seed: of the page's randomness; None means the recording's.
        max_steps: steps until the episode is truncated; 0 leaves it to the env.
        source: "file#index" or "file:line" of the entry.
        tabs: addresses opened beside the start page, which stays the active one.
        setup: scripts run in the start page before the first observation; functions get `{seed}`.
        goal_script: a script that gives the goal once the page is set up; "" leaves it at `goal`.
    """

    id: str
    goal: str
    start_url: str
    collection: str = ""
    evaluation: Evaluator | None = None
    start: datetime | None = None
    timezone: str = ""
    viewport: tuple[int, int] | None = None
    seed: int | None = None
    max_steps: int = 0
    source: str = ""
    tabs: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    goal_script: str = ""

    @property
    def needs(self) -> frozenset[str]:
        """What scoring needs beyond the page.

        "judge" (`EnvOptions.judge`), "site_url" (`load_tasks(sites=...)`), "site_api" (not to be had).
        """
        return (self.evaluation.needs if self.evaluation else frozenset()) - {"requests"}


def task_to_dict(task: Task) -> dict[str, Any]:
    """Return a task as JSON, for traces and trajectories."""
    told = {name: getattr(task, name) for name in task.__slots__}
    told["start"] = task.start.isoformat() if task.start else None
    if task.evaluation:
        told["evaluation"] = evaluator_to_dict(task.evaluation)
    return told


def task_from_dict(loaded: Mapping[str, Any], where: str) -> Task:
    """Read what `task_to_dict` made.

    Raises:
        TaskError: naming `where` it was read from, if it is nothing of the kind.
    """
    try:
        told = dict(loaded)
        if told.get("start"):
            told["start"] = datetime.fromisoformat(told["start"])
        for name in ("viewport", "tabs", "setup"):
            if told.get(name) is not None:
                told[name] = tuple(told[name])
        if told.get("evaluation") is not None:
            told["evaluation"] = evaluator_from_dict(told["evaluation"])
        return Task(**told)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: no task: {error}") from error

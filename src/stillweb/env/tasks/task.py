"""Task: the start of an episode and its evaluator.

Seed, time, time zone and viewport that a task leaves open come from the collection's manifest at reset.
Loaders (`tasks/load.py`) check every entry, so that a bad one is a `TaskError` that names file and place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, PlainSerializer, TypeAdapter, ValidationError

from stillweb.env.tasks.evaluators import TaskEvaluator
from stillweb.errors import TaskError

__all__ = ["Task", "problem_of", "task_from_dict", "task_to_dict"]


@dataclass(frozen=True, slots=True)
class Task:
    """A goal on a replayed page.

    Attributes:
        id: unique among the tasks loaded together.
        goal: text for the agent.
        start_url: URL of the episode's first page.
        collection: collection that holds the page; "" leaves the choice to the env.
        evaluation: None for a task that is not scored (its reward is always 0).
        start: initial time of the page's clock; None is the time of the recording.
        timezone: IANA name; "" is the time zone of the recording.
        viewport: CSS pixels; None is the viewport of the recording.
        seed: seed of the page's randomness; None is the seed of the recording.
        max_steps: steps until the episode is truncated; 0 leaves the limit to the env.
        source: "file#index" or "file:line" of the entry.
        tabs: URLs opened beside the start page, which stays the active one.
        setup: scripts run in the start page before the first observation; functions get `{seed}`.
        goal_script: script that returns the goal after the setup; "" leaves `goal` as it is.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str
    goal: str
    start_url: str
    collection: str = ""
    evaluation: TaskEvaluator | None = None
    start: Annotated[datetime, PlainSerializer(datetime.isoformat)] | None = None
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
        """Prerequisites of scoring beyond the page.

        "judge" (`EnvOptions.judge`), "site_url" (`load_tasks(sites=...)`), "site_api" (never available).
        """
        return (self.evaluation.needs if self.evaluation else frozenset()) - {"requests", "request_bodies"}


_TASK = TypeAdapter(Task)


def task_to_dict(task: Task) -> dict[str, Any]:
    """Return a task as JSON, for traces and trajectories."""
    dumped: dict[str, Any] = _TASK.dump_python(task, mode="json")
    return dumped


def task_from_dict(loaded: Mapping[str, Any], where: str) -> Task:
    """Read the result of `task_to_dict`.

    Raises:
        TaskError: naming `where` it was read from, if it is no task.
    """
    try:
        return _TASK.validate_python(loaded)
    except ValidationError as error:
        raise TaskError(f"{where}: no task: {problem_of(error.errors()[0])}") from error


def problem_of(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as "place: message"."""
    place = ".".join(str(step) for step in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message

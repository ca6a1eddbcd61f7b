"""Task: the start of an episode and its evaluator.

Seed, time, time zone and viewport that a task leaves open come from the collection's manifest at reset.
Loaders (`tasks/load.py`) check every entry, so that a bad one is a `TaskError` that names file and place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, PlainSerializer, TypeAdapter, ValidationError

from stillweb.env.tasks.evaluators import TaskEvaluator
from stillweb.errors import TaskError


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """How a task was made, for reports, audits and splits (docs/how-to/make-tasks.md).

    Attributes:
        family: kind of task, such as "report" or "form".
        length: steps of the oracle, `terminate` included.
        pages: pages that the oracle opens.
        oracle: actions that solve the task; a control is named by `role`, `name` and `nth` instead of a bid.
        first_goal: goal before it was paraphrased; "" if it was not.
        shows: texts that the oracle's pages must show, because the answer depends on them.
        wrong: answers that are near the right one and must score 0.
        proofs: result of each proof, by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    family: str = ""
    template: str = ""
    split: Literal["", "train", "test"] = ""
    length: int = 0
    pages: tuple[str, ...] = ()
    oracle: tuple[Mapping[str, str | int | bool], ...] = ()
    wrong: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    first_goal: str = ""
    proofs: Mapping[str, str | int | float] = field(default_factory=dict)


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
        on_write: "accept" to answer unrecorded writes by guesses (`UnrecordedAnswers.on_write`).
        origin: how the task was made; None for a task that a person wrote.
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
    origin: TaskOrigin | None = None
    on_write: Literal["miss", "accept"] = "miss"

    @property
    def needs(self) -> frozenset[str]:
        """Prerequisites of scoring beyond the page.

        "judge" (`EnvOptions.judge`), "site_url" (`load_tasks(sites=...)`); never available are "site_api",
        "agent_report" and "request_pattern".
        """
        return (self.evaluation.needs if self.evaluation else frozenset()) - {"requests", "request_bodies"}


_TASK = TypeAdapter(Task)


def task_to_dict(task: Task) -> dict[str, Any]:
    """Return a task as JSON, for traces and trajectories."""
    dumped: dict[str, Any] = _TASK.dump_python(task, mode="json")
    if task.origin is None:
        del dumped["origin"]  # as in trajectories of earlier versions
    if task.on_write == "miss":
        del dumped["on_write"]
    return dumped


def task_from_dict(loaded: Mapping[str, Any], where: str) -> Task:
    """Read the result of `task_to_dict`.

    Raises:
        TaskError: naming `where` it was read from, if it is not a task.
    """
    try:
        return _TASK.validate_python(loaded)
    except ValidationError as error:
        raise TaskError(f"{where}: no task: {problem_of(error.errors()[0])}") from error


def problem_of(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as "place: message"."""
    place = ".".join(str(step) for step in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "there is no such field"
    elif error["type"] == "union_tag_invalid":
        message = f"unknown type {error['ctx']['tag']!r}; use one of {error['ctx']['expected_tags']}"
    return f"{place}: {message}" if place else message

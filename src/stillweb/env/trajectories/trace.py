"""Traces: a start and a list of actions, to be run again and compared step by step.

    trace = await propose_trace(env, "https://shop.example/", seed=7)   # or Trace.load(path)
    run = await run_trace(env, trace)
    run.steps[3].digests

A trace holds actions and no observations. A `TraceRun` holds the digests of the observations: two runs are
equal if their `stream()` is. A failure of the environment or of the task ends a run and is recorded in it
with its type.

On disk a trace is JSON lines: a header, then one action per line. A trajectory can be read as a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.task import Task, task_from_dict, task_to_dict
from stillweb.env.trajectories.trajectory import json_lines, line
from stillweb.errors import InfraError, TaskError, UsageError

if TYPE_CHECKING:
    from stillweb.env.env import Env


FORMAT = "stillweb-trace"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """A task or a URL to start from, and actions as an agent sends them.

    Attributes:
        name: label in tables and file names.
        actions: JSON objects in order; invalid actions are kept.
        url: start page of a trace without a task.
        seed: seed of the page's randomness; None is the task's or the recording's.
    """

    name: str
    actions: tuple[Mapping[str, Any], ...]
    url: str = ""
    task: Task | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError unless exactly one of task and URL is given."""
        if (self.task is None) == (not self.url):
            raise UsageError(f"trace {self.name!r} needs either a task or a URL to begin with")

    @property
    def start_url(self) -> str:
        """Where it begins."""
        return self.task.start_url if self.task else self.url

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a trace, or what was done in a trajectory (its file or folder).

        Raises:
            TaskError: naming file and line, if it is neither.
        """
        path = path / "trajectory.jsonl" if path.is_dir() else path
        lines = list(json_lines(path))
        header, rest = (lines[0], lines[1:]) if lines else ({}, [])
        if header.get("version") != VERSION or header.get("format") not in (FORMAT, "stillweb-trajectory"):
            raise TaskError(
                f"{path}:1: no header of a trace or trajectory of version {VERSION}",
                hint='it begins with {"format": "stillweb-trace", "version": 1, "name": ..., "url": ...}',
            )
        if header["format"] == FORMAT:
            actions = tuple(rest)
        else:
            actions = tuple(each["raw"] for each in rest if "raw" in each)
        task = task_from_dict(header["task"], f"{path}:1") if header.get("task") else None
        url = "" if task else str(header.get("url", ""))
        try:
            return cls(str(header.get("name") or path.stem), actions, url, task, header.get("seed"))
        except UsageError as error:
            raise TaskError(f"{path}:1: {error}") from error

    def dump(self, path: Path) -> None:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "url": self.url,
            "task": task_to_dict(self.task) if self.task else None,
            "seed": self.seed,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(line(value) for value in (header, *self.actions))
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # lone surrogates as JSON escapes


@dataclass(frozen=True, slots=True)
class TraceStep:
    """Result of one action; `action` is None for the reset.

    Attributes:
        digests: SHA-256 of each form of the observation.
        settled: True if the page came to rest, or nothing had to be awaited.
        flags: reasons for which the environment does not guarantee determinism.
        observation, info: results of `step`, if `run_trace` was called with `keep=True`.
    """

    index: int
    action: Mapping[str, Any] | None
    digests: Mapping[str, str]
    status: str
    url: str
    settled: bool
    flags: tuple[str, ...] = ()
    reward: float = 0.0
    terminated: bool = False
    requests: int = 0
    misses: int = 0
    derived: int = 0
    error: str = ""
    observation: Observation | None = field(default=None, repr=False)
    info: Mapping[str, Any] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except `observation` and `info` as JSON."""
        names = [name for name in self.__slots__ if name not in ("observation", "info")]
        return {name: getattr(self, name) for name in names} | {
            "flags": list(self.flags),
            "digests": dict(self.digests),
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """Error that ended a run before the end of its trace.

    Attributes:
        kind: "infra_error" (browser or proxy failed) or "task_error" (the task or its collection is wrong).
        step: index of the action that failed; 0 is the reset.
    """

    kind: str
    message: str
    step: int

    @classmethod
    def of(cls, error: InfraError | TaskError, step: int) -> Failure:
        return cls("infra_error" if isinstance(error, InfraError) else "task_error", str(error), step)


@dataclass(frozen=True, slots=True)
class TraceRun:
    """One run of a trace: the reset and one step for each action, up to a failure."""

    trace: Trace
    steps: tuple[TraceStep, ...]
    failure: Failure | None = None

    @property
    def reward(self) -> float | None:
        """Reward of the episode; None if it was not scored."""
        return next((step.reward for step in self.steps if step.terminated), None)

    def stream(self, form: str) -> tuple[str, ...]:
        """Return the digests of one form of observation, one for each step; "" for a step without it."""
        return tuple(step.digests.get(form, "") for step in self.steps)


async def run_trace(env: Env, trace: Trace, *, keep: bool = False) -> TraceRun:
    """Run a trace in a new episode.

    Args:
        env: environment whose forms of observation are compared.
        keep: keep observations and infos in the steps.
    """
    steps: list[TraceStep] = []
    try:
        observation, info = await env.reset(task=trace.task, url=trace.url or None, seed=trace.seed)
        steps.append(_step(None, observation, info, keep=keep))
        for action in trace.actions:
            observation, reward, terminated, truncated, info = await env.step(action)
            step = _step(action, observation, info, keep=keep)
            steps.append(replace(step, reward=reward, terminated=terminated))
            if terminated or truncated:
                break
    except (InfraError, TaskError) as error:
        return TraceRun(trace, tuple(steps), Failure.of(error, len(steps)))
    return TraceRun(trace, tuple(steps))


def _step(
    action: Mapping[str, Any] | None, observation: Observation, info: Mapping[str, Any], *, keep: bool
) -> TraceStep:
    settle, traffic = info["settle"], info["traffic"]
    return TraceStep(
        index=info["step"],
        action=action,
        digests=dict(observation.digests),
        status=info["action"]["status"],
        url=observation.url,
        settled=settle is None or settle["settled"],
        flags=tuple(info["determinism"].get("flags", ())),
        requests=traffic["requests"],
        misses=traffic["misses"],
        derived=traffic["derived"],
        error=info["action"]["error"],
        observation=observation if keep else None,
        info=info if keep else None,
    )

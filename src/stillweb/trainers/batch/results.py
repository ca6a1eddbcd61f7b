"""The result of an episode of a batch (a line of `results.jsonl`), and the summary of many results."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from stillweb import clock
from stillweb.diff.certify.rates import rate
from stillweb.env import Outcome, Rollout
from stillweb.errors import TaskError
from stillweb.text import first_line
from stillweb.trainers.batch.groups import groups_of, variance_of

TRAFFIC = ("requests", "hits", "misses", "noise", "guesses", "derived")
"""Counts of a summary's `traffic`."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of an episode.

    Attributes:
        task, number: the task, and the number of its episode, from 0.
        outcome: one of `Outcome`.
        reward: None unless the outcome is `ok`.
        steps: steps of the last attempt.
        attempts, errors: number of attempts, and the first line of each failure.
        traffic: requests, hits, misses, noise, guesses and derived answers of the last attempt.
        episodes: identifiers of the attempts, as in their trajectories.
        seconds: duration of the last attempt.
        ended: end time in UTC.
        family, length, split: of a task that was made (`TaskOrigin`); "" and 0 otherwise.
        actions, observed: SHA-256 of the actions, and of the digests of all observations; "" in results of
            earlier versions.
    """

    task: str
    number: int
    outcome: str
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    steps: int = 0
    attempts: int = 1
    errors: tuple[str, ...] = ()
    traffic: Mapping[str, int] = field(default_factory=dict)
    collection: str = ""
    environment_id: str = ""
    level: str = ""
    seed: int | None = None
    episodes: tuple[str, ...] = ()
    seconds: float = 0.0
    ended: str = ""
    family: str = ""
    length: int = 0
    split: str = ""
    actions: str = ""
    observed: str = ""

    def __post_init__(self) -> None:
        """Raise a TaskError if a failed episode has a reward, or a finished one has none."""
        if (self.reward is None) == (self.outcome == Outcome.OK):
            raise TaskError(f"{self.task} #{self.number} ended as {self.outcome!r} with reward {self.reward}")

    @property
    def key(self) -> tuple[str, int]:
        """Task and number: unique in a batch."""
        return self.task, self.number

    @property
    def failed(self) -> bool:
        return self.reward is None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        info, origin = rollout.info or {}, rollout.task.origin
        return cls(
            task=rollout.task.id,
            number=rollout.number,
            outcome=rollout.outcome.value,
            reward=rollout.reward,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            steps=len(rollout.steps),
            attempts=rollout.attempts,
            errors=tuple(first_line(error) for error in rollout.errors),  # without the browser's log
            traffic=dict(rollout.traffic),
            **{name: info[name] for name in ("collection", "environment_id", "level", "seed") if info},
            episodes=rollout.episodes,
            seconds=round(rollout.seconds, 3),
            ended=clock.now().isoformat(timespec="milliseconds"),
            **{name: getattr(origin, name) for name in ("family", "length", "split") if origin},
            actions=_digest([step.action for step in rollout.steps]),
            observed=_digest([rollout.start, *(step.digests for step in rollout.steps)]),
        )

    @classmethod
    def parse(cls, value: Mapping[str, Any], where: str) -> Self:
        """Validate a line of `results.jsonl`; unknown fields, of later versions, are ignored.

        Raises:
            TaskError: naming `where` the line is.
        """
        try:
            result: Self = _adapter().validate_python(value)  # type: ignore[assignment]
            return result
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise TaskError(f"{where}: not a result of an episode: {name}: {first['msg']}") from error
        except TaskError as error:
            raise TaskError(f"{where}: not a result of an episode: {error}") from error

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return values


def _digest(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


@cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def summary_of(results: Iterable[Result], *, success: float = 1.0) -> dict[str, Any]:
    """Return the summary of results; only episodes with a reward count for rewards and successes.

    Args:
        results: one for each episode.
        success: minimum reward of a success.
    """
    rows = sorted(results, key=lambda row: row.key)
    scored = [row for row in rows if row.reward is not None]
    outcomes = Counter(row.outcome for row in rows)
    traffic: Counter[str] = Counter()
    for row in rows:
        traffic.update(row.traffic)
    return {
        "episodes": len(rows),
        "outcomes": {outcome.value: outcomes[outcome.value] for outcome in Outcome},
        "truncated": sum(row.truncated for row in rows),
        "attempts": sum(row.attempts for row in rows),
        "success": _rate([row for row in scored if _reward(row) >= success], scored) | {"from": success},
        "reward": round(fmean(map(_reward, scored)), 6) if scored else None,
        "steps": sum(row.steps for row in rows),
        "traffic": {kind: traffic[kind] for kind in TRAFFIC},
        "groups": groups_of(rows, success),
        "variance": variance_of(rows),
        "tasks": _by_task(rows),
    }


def _reward(row: Result) -> float:
    return row.reward if row.reward is not None else float("nan")


def _rate(good: list[Result], scored: list[Result]) -> dict[str, Any]:
    """Return count and share of the successes, with the 95 % bounds of the share."""
    found = rate(len(good), len(scored))
    share = round(found.share, 6) if scored else None
    return {
        "count": len(good),
        "of": len(scored),
        "share": share,
        "low": round(found.low, 6),
        "high": round(found.high, 6),
    }


def _by_task(rows: list[Result]) -> dict[str, dict[str, Any]]:
    """Return the rewards of each task's episodes in order; None for failed episodes."""
    tasks: dict[str, dict[str, Any]] = {}
    for row in rows:
        task = tasks.setdefault(row.task, {"rewards": [], "steps": [], "failed": {}})
        task["rewards"].append(row.reward)
        task["steps"].append(row.steps)
        if row.failed:
            task["failed"][row.outcome] = task["failed"].get(row.outcome, 0) + 1
    return tasks

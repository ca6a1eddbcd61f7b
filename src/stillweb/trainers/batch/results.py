"""What is kept of an episode of a batch, a line of `results.jsonl`; and what many of them come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import fmean
from typing import Any, Self

from stillweb import clock
from stillweb.diff.certify.rates import rate
from stillweb.env.vector.rollout import Outcome, Rollout
from stillweb.errors import TaskError

__all__ = ["Result", "summary_of"]


@dataclass(frozen=True, slots=True)
class Result:
    """How an episode ended.

    Attributes:
        task, number: which it was: of this task the so-manieth, from 0.
        outcome: one of `Outcome`.
        reward: None unless the outcome is `ok`.
        steps: of the last attempt.
        attempts, errors: how many there were, and the first line of what failed in each but a good last one.
        traffic: requests, hits, misses and noise of the last attempt.
        episodes: identifiers of the attempts, whose trajectories name them.
        seconds: for the last attempt.
        ended: when, in UTC.
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

    def __post_init__(self) -> None:
        """Check that a failure is no reward.

        Raises:
            TaskError: if it is one, or a good end has none.
        """
        if (self.reward is None) == (self.outcome == Outcome.OK):
            raise TaskError(f"{self.task} #{self.number} ended as {self.outcome!r} with reward {self.reward}")

    @property
    def key(self) -> tuple[str, int]:
        """Task and number, which tell it from all others of its batch."""
        return self.task, self.number

    @property
    def failed(self) -> bool:
        """Whether it has no reward."""
        return self.reward is None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        """Return what is kept of an episode that has just ended."""
        info = rollout.info or {}
        return cls(
            task=rollout.task.id,
            number=rollout.number,
            outcome=rollout.outcome.value,
            reward=rollout.reward,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            steps=len(rollout.steps),
            attempts=rollout.attempts,
            errors=tuple(error.partition("\n")[0] for error in rollout.errors),  # not the browser's own log
            traffic=dict(rollout.traffic),
            **{name: info[name] for name in ("collection", "environment_id", "level", "seed") if info},
            episodes=rollout.episodes,
            seconds=round(rollout.seconds, 3),
            ended=clock.now().isoformat(timespec="milliseconds"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"errors": list(self.errors), "episodes": list(self.episodes)}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any], where: str) -> Self:
        """Read what `to_dict` made; fields that later versions add are passed over.

        Raises:
            TaskError: naming `where` it was read from, if it is nothing of the kind.
        """
        known = {each.name for each in fields(cls)}
        given: dict[str, Any] = {name: value for name, value in told.items() if name in known}
        try:
            for name in ("errors", "episodes"):
                given[name] = tuple(given.get(name, ()))
            return cls(**given)
        except (TypeError, TaskError) as error:
            raise TaskError(f"{where}: no result of an episode: {error}") from error


def summary_of(results: Iterable[Result], *, success: float = 1.0) -> dict[str, Any]:
    """Return what results come to; only episodes with a reward count for rewards and successes.

    Args:
        results: one for each episode.
        success: the reward from which on an episode is one.
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
        "traffic": {kind: traffic[kind] for kind in ("requests", "hits", "misses", "noise")},
        "tasks": _by_task(rows),
    }


def _reward(row: Result) -> float:
    return row.reward if row.reward is not None else float("nan")


def _rate(good: list[Result], scored: list[Result]) -> dict[str, Any]:
    """Return how many of the episodes with a reward are successes, with the 95 % bounds of their share."""
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
    """Return the rewards of each task's episodes, in their order; null where one has none."""
    told: dict[str, dict[str, Any]] = {}
    for row in rows:
        task = told.setdefault(row.task, {"rewards": [], "steps": [], "failed": {}})
        task["rewards"].append(row.reward)
        task["steps"].append(row.steps)
        if row.failed:
            task["failed"][row.outcome] = task["failed"].get(row.outcome, 0) + 1
    return told

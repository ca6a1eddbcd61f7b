"""The agent `random`: takes what a page offers, drawn by seed, task and episode.

Equal draws from equal pages: the same episode is played the same way again, also when it is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stillweb import clock
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.propose import RandomWalk
from stillweb.env.vector.rollout import Policy
from stillweb.errors import UsageError

__all__ = ["RandomAgent", "RandomOptions"]


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """What the agent `random` does.

    Attributes:
        end: probability of `terminate` in each step.
    """

    end: float = 0.1


class RandomAgent:
    """The agent.

    Args:
        seed: of the batch.
        options: see `DrawnOptions`.
    """

    def __init__(self, seed: int = 0, options: RandomOptions | None = None) -> None:
        self._seed = seed
        self._end = (options or RandomOptions()).end

    def __call__(self, task: Task) -> Policy:
        """Return the policy of an episode."""
        course: _EpisodeDraws | None = None

        def policy(observation: Observation, info: dict[str, Any]) -> Mapping[str, Any]:
            nonlocal course
            if course is None:
                seed = f"{self._seed} {task.id} {info.get('episode_number', 0)}"
                course = _EpisodeDraws(task.start_url, seed, self._end)
            return course.choose(observation, info)

        return policy


class _EpisodeDraws:
    """An episode's draws."""

    def __init__(self, start: str, seed: str, end: float) -> None:
        self._walk = RandomWalk(start, seed)
        self._rng = clock.seeded("end", seed)
        self._end = end

    def choose(self, observation: Observation, info: dict[str, Any]) -> Mapping[str, Any]:
        if observation.axtree is None:
            raise UsageError("the agent random needs the accessibility tree", hint="--observe axtree")
        if self._rng.random() < self._end:
            return {"action": "terminate"}
        action = self._walk.choose(observation, info)
        self._walk.actions.append(action)
        return action

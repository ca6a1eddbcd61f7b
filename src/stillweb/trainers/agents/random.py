"""The agent `random`: draws actions that the page offers, by seed, task and number of the episode.

Equal pages give equal draws: a repeated episode takes the same actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stillweb import clock
from stillweb.env import Observation, Task
from stillweb.env.trajectories.propose import RandomWalk
from stillweb.env.vector.rollout import Policy
from stillweb.errors import UsageError

__all__ = ["RandomAgent", "RandomOptions"]


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Options of the agent; `end` is the probability of `terminate` in each step."""

    end: float = 0.1


class RandomAgent:
    """The agent `random`, with the seed of the batch."""

    def __init__(self, seed: int = 0, options: RandomOptions | None = None) -> None:
        self._seed = seed
        self._end = (options or RandomOptions()).end

    def __call__(self, task: Task) -> Policy:
        draws: _EpisodeDraws | None = None

        def policy(observation: Observation, info: dict[str, Any]) -> Mapping[str, Any]:
            nonlocal draws
            if draws is None:
                seed = f"{self._seed} {task.id} {info.get('episode_number', 0)}"
                draws = _EpisodeDraws(task.start_url, seed, self._end)
            return draws.choose(observation, info)

        return policy


class _EpisodeDraws:
    def __init__(self, start: str, seed: str, end: float) -> None:
        self._walk = RandomWalk(start, seed)
        self._rng = clock.seeded("end", seed)
        self._end = end

    def choose(self, observation: Observation, info: dict[str, Any]) -> Mapping[str, Any]:
        if observation.axtree is None:
            raise UsageError("the agent random needs the accessibility tree", hint="add --observe axtree")
        if self._rng.random() < self._end:
            return {"action": "terminate"}
        action = self._walk.choose(observation, info)
        self._walk.actions.append(action)
        return action

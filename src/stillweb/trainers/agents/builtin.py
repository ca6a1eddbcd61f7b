"""The agents that need no model: `random` and `scripted`.

`random` draws actions that the page offers, by seed, task and number of the episode. Equal pages give equal
draws: a repeated episode takes the same actions.

`scripted` plays a trace, then terminates. Its path is a trace or trajectory for all tasks, or a folder with
one for each task: `ID.jsonl`, a trajectory's folder `ID/`, or the folder of a batch with one per episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.env import Observation, Task, Trace, parse
from stillweb.env.trajectories.propose import RandomWalk
from stillweb.env.trajectories.trajectory import FILE
from stillweb.env.vector.rollout import Policy
from stillweb.errors import UsageError
from stillweb.trainers.agents import PastStep
from stillweb.trainers.batch.folder import folder_name


class ScriptedAgent:
    """The agent `scripted`.

    Args:
        path: a trace, or a folder of traces.

    Raises:
        UsageError: if the path does not exist.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UsageError(f"{path}: no trace and no folder of traces")
        self._path = path

    def __call__(self, task: Task) -> Policy:
        return self.resume(task, ())

    def resume(self, task: Task, past: Sequence[PastStep]) -> Policy:
        """Return a policy that plays the trace from the first action in which the past differs from it."""
        actions: Iterator[Mapping[str, Any]] | None = None

        def policy(observation: Observation, info: dict[str, Any]) -> Mapping[str, Any]:
            nonlocal actions
            if actions is None:
                trace = Trace.load(self._of(task, info.get("episode_number", 0))).actions
                actions = iter(trace[_in_common(trace, [each.action for each in past]) :])
            return next(actions, {"action": "terminate"})

        return policy

    def _of(self, task: Task, number: int) -> Path:
        if self._path.is_file() or (self._path / FILE).is_file():
            return self._path
        name = folder_name(task.id)
        candidates = (
            f"{name}.jsonl",
            f"{name}/{FILE}",
            f"tasks/{name}/{number}/{FILE}",
            f"tasks/{name}/0/{FILE}",
        )
        for candidate in candidates:
            if (self._path / candidate).is_file():
                return self._path / candidate
        raise UsageError(f"{self._path} has no trace of {task.id}", hint=f"record it as {name}.jsonl")


def _in_common(trace: Sequence[Any], past: Sequence[Any]) -> int:
    """Return the number of actions that both begin with."""
    pairs = zip(trace, past, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if parse(a) != parse(b)), min(len(trace), len(past)))


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

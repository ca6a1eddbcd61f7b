"""The tree of several episodes of one task: where their actions part, and how each branch ends.

Episodes share a node while their actions are equal. On replay, equal actions from an equal start see equal
pages; a node whose episodes observed different digests has `differ` set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.env.trajectories.trajectory import Trajectory

__all__ = ["EpisodeNode", "trees_of"]

_START = ("environment_id", "level", "seed", "perturbation", "off_path")


@dataclass(slots=True)
class EpisodeNode:
    """A run of steps that the same episodes took, up to the step at which they part or end.

    Attributes:
        step: number of the first of these steps; 0 for the start.
        actions: actions in order; empty only for the start.
        url: page after the last step.
        episodes: names of the episodes, in the order given.
        rewards: reward of each; None if it has none.
        ended: names of the episodes that end here.
        differ: number of the first step at which the episodes observed different pages; None if none did.
        children: continuations, those of most episodes first.
    """

    step: int
    actions: list[Any] = field(default_factory=list)
    url: str = ""
    episodes: list[str] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    differ: int | None = None
    children: list[EpisodeNode] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree below this node as JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"children": [child.to_dict() for child in self.children]}

    def nodes(self) -> Iterator[EpisodeNode]:
        """Yield this node and all nodes below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children


@dataclass(frozen=True, slots=True)
class _Path:
    name: str
    steps: Sequence[Mapping[str, Any]]
    reward: float | None


def trees_of(episodes: Iterable[tuple[str, Trajectory]]) -> list[EpisodeNode]:
    """Return a tree for each distinct start (pack, level, seed, perturbation) of a task's episodes."""
    starts: dict[str, list[_Path]] = {}
    for name, trajectory in episodes:
        if trajectory.steps:
            start = json.dumps([trajectory.header.get(each) for each in _START], sort_keys=True)
            path = _Path(name, trajectory.steps, (trajectory.end or {}).get("reward"))
            starts.setdefault(start, []).append(path)
    return [_grown(paths, 0) for paths in starts.values()]


def _grown(paths: Sequence[_Path], step: int) -> EpisodeNode:
    """Return the node of paths that are equal up to and including a step."""
    node = EpisodeNode(step, episodes=[path.name for path in paths], rewards=[path.reward for path in paths])
    while True:
        first = paths[0].steps[step]
        if "raw" in first:
            node.actions.append(first["raw"])
        node.url = first.get("url", "")
        if node.differ is None and len({_seen(path.steps[step]) for path in paths}) > 1:
            node.differ = step
        step += 1
        branches: dict[str, list[_Path]] = {}
        for path in paths:
            if step < len(path.steps):
                branches.setdefault(json.dumps(path.steps[step].get("raw"), sort_keys=True), []).append(path)
            else:
                node.ended.append(path.name)
        if len(branches) != 1 or node.ended:
            ordered = sorted(branches.values(), key=len, reverse=True)
            node.children = [_grown(each, step) for each in ordered]
            return node


def _seen(step: Mapping[str, Any]) -> str:
    return json.dumps([step.get("url"), step.get("status"), step.get("digests")], sort_keys=True)

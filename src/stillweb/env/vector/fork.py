"""Forks of an episode: new episodes that repeat its actions and verify every observation by digest.

A page cannot be copied, but with equal level, seed and start the same actions lead to the same state. A fork
is a new episode with a session of its own. After each repeated action the observation must have the digests
of the original; otherwise `ForkDiverged` is raised and no fork exists. Only observed forms are compared, so
an env that observes nothing cannot fork.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stillweb.env.observations.observation import Observation
from stillweb.errors import ForkDiverged, StillwebError, UsageError, first_error

if TYPE_CHECKING:
    from stillweb.env.env import Env
    from stillweb.env.tasks.task import Task


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """Result of a reset or an action.

    Attributes:
        action: None for the reset.
        seen: values that a repetition must reproduce, by kind: digests, URL, status of the action.
    """

    action: Mapping[str, Any] | str | None
    seen: Mapping[str, str]

    @classmethod
    def of(
        cls, action: Mapping[str, Any] | str | None, observation: Observation, info: Mapping[str, Any]
    ) -> HistoryStep:
        copied = dict(action) if isinstance(action, Mapping) else action
        status = {"action": str(info["action"]["status"])}
        return cls(copied, {"url": observation.url, **status, **observation.digests})


@dataclass(frozen=True, slots=True)
class EpisodeHistory:
    """Start and steps of an episode so far, sufficient to repeat it."""

    task: Task | None
    url: str
    seed: int
    environment_id: str
    steps: list[HistoryStep] = field(default_factory=list)

    def add(
        self,
        action: Mapping[str, Any] | str | None,
        observation: Observation,
        info: Mapping[str, Any],
    ) -> None:
        self.steps.append(HistoryStep.of(action, observation, info))


async def retrace(env: Env, past: EpisodeHistory) -> None:
    """Repeat an episode's history in an env.

    Raises:
        ForkDiverged: if an observation differs.
        InfraError: if browser or proxy fail.
    """
    if past.task is not None:
        observation, info = await env.reset(task=past.task, seed=past.seed)
    else:
        observation, info = await env.reset(url=past.url, seed=past.seed)
    _compare(0, {"environment_id": past.environment_id}, {"environment_id": info["environment_id"]})
    _compare(0, past.steps[0].seen, HistoryStep.of(None, observation, info).seen)
    for number, step in enumerate(past.steps[1:], 1):
        assert step.action is not None
        observation, _, terminated, truncated, info = await env.step(step.action)
        _compare(number, step.seen, HistoryStep.of(step.action, observation, info).seen)
        if terminated or truncated:
            raise ForkDiverged(
                step=number, kind="end", expected="the episode continues", found="the episode is over"
            )


def check_past(past: EpisodeHistory | None, over: bool) -> EpisodeHistory:
    """Return the history of an episode that can be forked.

    Raises:
        UsageError: if no episode is running, or its env observes nothing.
    """
    if past is None or over or not past.steps:
        raise UsageError("there is no running episode to fork", hint="await env.reset(task=...)")
    if not set(past.steps[-1].seen) - {"url", "action"}:
        raise UsageError(
            "an env that observes nothing cannot be forked: nothing can be compared",
            hint='Env(..., observe=("axtree",))',
        )
    return past


async def fork(sibling: Any, past: EpisodeHistory, n: int) -> list[Env]:
    """Make n envs and repeat a history in each, concurrently; if one fails, all are closed.

    Args:
        sibling: factory of an env like the original.

    Raises:
        UsageError: if n is less than 1.
        ForkDiverged, InfraError: the error of the first env that fails.
    """
    if not isinstance(n, int) or n < 1:
        raise UsageError(f"a fork makes at least one env, not {n!r}")
    envs: list[Env] = [sibling() for _ in range(n)]
    # A copy, since the original may continue meanwhile.
    now = EpisodeHistory(past.task, past.url, past.seed, past.environment_id, list(past.steps))
    try:
        async with asyncio.TaskGroup() as group:
            for env in envs:
                group.create_task(retrace(env, now))
    except BaseException as error:
        await asyncio.gather(*(env.close() for env in envs))
        if isinstance(error, BaseExceptionGroup) and error.subgroup(StillwebError):
            # The other errors may result from a divergence.
            raise first_error(error.subgroup(ForkDiverged) or error) from error
        raise
    return envs


def _compare(step: int, wanted: Mapping[str, str], found: Mapping[str, str]) -> None:
    for kind, digest in wanted.items():
        if found.get(kind) != digest:
            raise ForkDiverged(step=step, kind=kind, expected=digest, found=found.get(kind, ""))

"""Several continuations of one episode: the way to its present state is gone again, and checked by digests.

A page cannot be copied, but at equal level, seed and start the same actions lead to the same state.
So a fork is a new episode on a session of its own in which the actions so far are taken again; after
each of them what is observed must have the digests that it had in the original. A way that does not
lead there is `ForkDiverged`, and no fork exists: a continuation is never of another state than the one
asked for. As much is checked as was observed, so an env that observes nothing cannot fork.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stillweb.env.observations.observation import Observation
from stillweb.errors import ForkDiverged, StillwebError, UsageError

if TYPE_CHECKING:
    from stillweb.env.env import Env
    from stillweb.env.tasks.load import Task

__all__ = ["EpisodeHistory", "HistoryStep", "check_past", "fork", "retrace"]


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """What came of a reset or an action.

    Attributes:
        action: None for the reset.
        seen: by kind, what must be equal when it is done again: digests, address, the action's status.
    """

    action: Mapping[str, Any] | str | None
    seen: Mapping[str, str]

    @classmethod
    def of(
        cls, action: Mapping[str, Any] | str | None, observation: Observation, info: Mapping[str, Any]
    ) -> HistoryStep:
        """Take down what an observation shows."""
        kept = dict(action) if isinstance(action, Mapping) else action
        status = {"action": str(info["action"]["status"])}
        return cls(kept, {"url": observation.url, **status, **observation.digests})


@dataclass(frozen=True, slots=True)
class EpisodeHistory:
    """An episode so far: all it takes to be there again."""

    task: Task | None
    url: str
    seed: int
    environment_id: str
    moments: list[HistoryStep] = field(default_factory=list)

    def add(
        self,
        action: Mapping[str, Any] | str | None,
        observation: Observation,
        info: Mapping[str, Any],
    ) -> None:
        """Take down a reset or step."""
        self.moments.append(HistoryStep.of(action, observation, info))


async def retrace(env: Env, past: EpisodeHistory) -> None:
    """Bring an env to where a past has led to.

    Raises:
        ForkDiverged: if it comes to another state.
        InfraError: if browser or proxy fail.
    """
    if past.task is not None:
        observation, info = await env.reset(task=past.task, seed=past.seed)
    else:
        observation, info = await env.reset(url=past.url, seed=past.seed)
    _compare(0, {"environment_id": past.environment_id}, {"environment_id": info["environment_id"]})
    _compare(0, past.moments[0].seen, HistoryStep.of(None, observation, info).seen)
    for number, moment in enumerate(past.moments[1:], 1):
        assert moment.action is not None
        observation, _, terminated, truncated, info = await env.step(moment.action)
        _compare(number, moment.seen, HistoryStep.of(moment.action, observation, info).seen)
        if terminated or truncated:
            raise ForkDiverged(
                step=number, kind="end", expected="the episode goes on", found="the episode is over"
            )


def check_past(past: EpisodeHistory | None, over: bool) -> EpisodeHistory:
    """Return the past of an episode that can be forked.

    Raises:
        UsageError: if none is under way, or nothing of it was observed.
    """
    if past is None or over or not past.moments:
        raise UsageError("there is no episode under way to fork", hint="await env.reset(task=...)")
    if not set(past.moments[-1].seen) - {"url", "action"}:
        raise UsageError(
            "an env that observes nothing cannot be forked: nothing could be compared",
            hint='Env(..., observe=("axtree",))',
        )
    return past


async def fork(sibling: Any, past: EpisodeHistory, n: int) -> list[Env]:
    """Make n envs and bring each to where a past has led to, all at once; none is left if one fails.

    Args:
        sibling: makes an env like the original.
        past: of the original.
        n: how many.

    Raises:
        UsageError: if none are asked for.
        ForkDiverged, InfraError: of the first that fails.
    """
    if not isinstance(n, int) or n < 1:
        raise UsageError(f"a fork makes at least one env, not {n!r}")
    envs: list[Env] = [sibling() for _ in range(n)]
    # The moments as they are now: the original may go on meanwhile.
    now = EpisodeHistory(past.task, past.url, past.seed, past.environment_id, list(past.moments))
    try:
        async with asyncio.TaskGroup() as group:
            for env in envs:
                group.create_task(retrace(env, now))
    except BaseException as error:
        await asyncio.gather(*(env.close() for env in envs))
        if isinstance(error, BaseExceptionGroup) and (ours := error.subgroup(StillwebError)):
            raise _first(ours) from error
        raise
    return envs


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return a divergence, if there is one among the errors: others may come of ending the rest."""
    flat = [each for each in group.exceptions if isinstance(each, StillwebError)]
    return next((each for each in flat if isinstance(each, ForkDiverged)), flat[0])


def _compare(step: int, wanted: Mapping[str, str], found: Mapping[str, str]) -> None:
    for kind, digest in wanted.items():
        if found.get(kind) != digest:
            raise ForkDiverged(step=step, kind=kind, expected=digest, found=found.get(kind, ""))

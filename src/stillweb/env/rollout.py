"""Tasks played by an agent in the sessions of a `VectorEnv`, each told as it ends.

What ends an episode is kept apart, because only one of them is a reward: `ok` has one; `infra_error`
(browser or proxy failed, and so did every further attempt with the same seed), `task_error` (the
collection does not hold the start page) and `agent_error` (the agent raised) have none. Nothing
that happens in one session is seen by another, and episodes that ended stay as they are.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stillweb import clock
from stillweb.env.observation import Observation
from stillweb.env.task import Task
from stillweb.errors import InfraError, TaskError, UsageError

if TYPE_CHECKING:
    from stillweb.env.vector import VectorEnv

__all__ = ["Agent", "Outcome", "Played", "Policy", "Rollout", "RolloutOptions", "play"]

Action = Mapping[str, Any] | str

Policy = Callable[[Observation, dict[str, Any]], Action | Awaitable[Action]]
"""Chooses the next action from what is seen; may be a coroutine function."""

Agent = Callable[[Task], Policy]
"""Makes the policy of one episode, so that what it remembers is that episode's; anew for each attempt."""


class Outcome(StrEnum):
    """How an episode ended."""

    OK = "ok"
    INFRA_ERROR = "infra_error"
    TASK_ERROR = "task_error"
    AGENT_ERROR = "agent_error"


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How tasks are played.

    Attributes:
        max_concurrent: episodes at once; 0 for as many as there are sessions.
        attempts: that an episode is given while browser or proxy fail; each with the same seed.
        seed: of all episodes, instead of the task's or the recording's.
    """

    max_concurrent: int = 0
    attempts: int = 1
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """A step of an episode: what was done, and the digests of what was seen then."""

    action: Action
    status: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rollout:
    """An episode that has ended.

    Attributes:
        task: that was played.
        outcome: how it ended.
        reward: None unless the outcome is `ok`.
        steps: of the last attempt.
        attempts: how many there were.
        errors: what failed in each attempt but a good last one.
        start: digests of the first observation.
        info: of the last step; {} where there was none.
        seconds: for the last attempt.
    """

    task: Task
    outcome: Outcome
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    steps: tuple[Played, ...] = ()
    attempts: int = 1
    errors: tuple[str, ...] = ()
    start: Mapping[str, str] | None = None
    info: Mapping[str, Any] | None = None
    seconds: float = 0.0


class _AgentFailed(Exception):
    """Raised within this module when the agent's own code has raised."""


async def play(
    vector: VectorEnv, agent: Agent, tasks: Iterable[Task], options: RolloutOptions
) -> AsyncGenerator[Rollout]:
    """Play tasks and yield the episodes as they end; when the caller leaves off, what runs is left.

    Raises:
        UsageError: if tasks or options are wrong, at the first that is.
    """
    jobs = min(len(vector), options.max_concurrent or len(vector))
    if options.attempts < 1 or jobs < 1:
        raise UsageError("attempts and max_concurrent must be at least 1")
    ended: asyncio.Queue[Rollout] = asyncio.Queue()
    todo = iter(tasks)
    workers = [asyncio.ensure_future(_work(vector, i, agent, todo, options, ended)) for i in range(jobs)]
    work = asyncio.gather(*workers)
    try:
        while not (work.done() and ended.empty()):
            next_one = asyncio.ensure_future(ended.get())
            waited: list[asyncio.Future[Any]] = [next_one, work]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if next_one.done():
                yield next_one.result()
            else:
                next_one.cancel()
        await work
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


async def _work(
    vector: VectorEnv,
    i: int,
    agent: Agent,
    todo: Iterator[Task],
    options: RolloutOptions,
    ended: asyncio.Queue[Rollout],
) -> None:
    try:
        for task in todo:
            ended.put_nowait(await _play_one(vector, i, agent, task, options))
    finally:
        await vector.leave(i)


async def _play_one(vector: VectorEnv, i: int, agent: Agent, task: Task, options: RolloutOptions) -> Rollout:
    errors: list[str] = []
    for attempt in range(1, options.attempts + 1):
        told = {"attempts": attempt, "errors": errors}
        began = clock.perf()
        try:
            return await _attempt(vector, i, agent, task, options.seed, told)
        except InfraError as error:
            outcome = Outcome.INFRA_ERROR
            errors.append(str(error))
            if attempt < options.attempts:
                await vector.proxy_ready()  # a worker that died comes back within seconds
        except TaskError as error:
            outcome = Outcome.TASK_ERROR
            errors.append(str(error))
            break
        except _AgentFailed as error:
            outcome = Outcome.AGENT_ERROR
            errors.append(str(error))
            break
    return Rollout(task, outcome, attempts=attempt, errors=tuple(errors), seconds=clock.perf() - began)


async def _attempt(
    vector: VectorEnv, i: int, agent: Agent, task: Task, seed: int | None, told: Mapping[str, Any]
) -> Rollout:
    began = clock.perf()
    observation, info = await vector.reset(i, task=task, seed=seed)
    start = dict(observation.digests)
    policy = await _asked(lambda: agent(task))
    steps: list[Played] = []
    terminated = truncated = False
    reward = 0.0
    while not (terminated or truncated):
        seen, known = observation, info
        action = await _asked(lambda: policy(seen, known))  # noqa: B023 - asked at once
        observation, reward, terminated, truncated, info = await vector.step(i, action)
        steps.append(Played(action, info["action"]["status"], dict(observation.digests)))
    return Rollout(
        task=task,
        outcome=Outcome.OK,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        steps=tuple(steps),
        attempts=told["attempts"],
        errors=tuple(told["errors"]),
        start=start,
        info=info,
        seconds=clock.perf() - began,
    )


async def _asked(call: Callable[[], Any]) -> Any:
    """Return what the agent's code gives; in a task of its own, so that its errors are told from ours."""

    async def run() -> Any:
        given = call()
        return await given if inspect.isawaitable(given) else given

    asking = asyncio.ensure_future(run())
    try:
        await asyncio.wait([asking])
    finally:
        asking.cancel()
    if asking.cancelled():
        raise _AgentFailed("the agent was cancelled")
    if error := asking.exception():
        raise _AgentFailed(f"{type(error).__name__}: {error}") from error
    return asking.result()

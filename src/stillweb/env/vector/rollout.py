"""Rollouts: an agent plays tasks in the sessions of a `VectorEnv`; each episode is yielded when it ends.

Only the outcome `ok` has a reward. `infra_error` (browser or proxy failed in every attempt), `task_error`
(the start page or its collection is not served) and `agent_error` (the agent raised) have none. Sessions do
not affect each other. An episode is yielded after its trajectory has been written. Any other exception is a
bug: its session stops, the others continue, and it is raised at the end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from stillweb import clock
from stillweb.errors import CollectionNotFound, EnvError, InfraError, StillwebError, TaskError, UsageError

if TYPE_CHECKING:
    from stillweb.env.observations.observation import Observation
    from stillweb.env.tasks.task import Task
    from stillweb.env.vector.vector import VectorEnv

_TRAFFIC = ("requests", "hits", "misses", "noise", "guesses", "derived")

T = TypeVar("T")
Action = Mapping[str, Any] | str

Policy = Callable[["Observation", dict[str, Any]], Action | Awaitable[Action]]
"""Function from observation and info to the next action; it may be a coroutine function."""

Agent = Callable[["Task"], Policy | Awaitable[Policy]]
"""Factory of the policy of one episode; it is called for each attempt, and may be a coroutine function."""


class Outcome(StrEnum):
    """End of an episode; only `ok` has a reward."""

    OK = "ok"
    INFRA_ERROR = "infra_error"
    TASK_ERROR = "task_error"
    AGENT_ERROR = "agent_error"


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Options of a rollout.

    Attributes:
        max_concurrent: concurrent episodes; 0 is the number of sessions.
        max_resets: concurrent resets, with the browser starts that they cause; 0 is no limit.
        attempts: attempts for an episode while browser or proxy fail; all use the same seed.
        seed: seed of all episodes, instead of the task's or the recording's.
    """

    max_concurrent: int = 0
    max_resets: int = 0
    attempts: int = 1
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """An episode to be played, for tasks that are played more than once.

    Attributes:
        number: index among the task's episodes, from 0; policies find it in `info["episode_number"]`.
        seed: seed of the pages' randomness, instead of that of the options.
    """

    task: Task
    number: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """A step of an episode: the action and the digests of the observation after it."""

    action: Action
    status: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rollout:
    """An episode that has ended.

    Attributes:
        reward: None unless the outcome is `ok`.
        steps: steps of the last attempt.
        errors: error of each failed attempt.
        start: digests of the first observation; None if there was none.
        info: info of the last step; None if there was none.
        seconds: duration of the last attempt.
        number: index among the task's episodes, see `Planned`.
        episodes: identifiers of the attempts in order; "" for one that did not begin.
        traffic: requests, hits, misses, noise, guesses and derived answers of the last attempt.
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
    number: int = 0
    episodes: tuple[str, ...] = ()
    traffic: Mapping[str, int] = field(default_factory=dict)


class _AgentFailed(Exception):
    """The agent's code raised."""


@dataclass(slots=True)
class _Attempt:
    steps: list[Played] = field(default_factory=list)
    start: Mapping[str, str] | None = None
    info: Mapping[str, Any] | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    traffic: Counter[str] = field(default_factory=Counter)

    def note(self, info: Mapping[str, Any]) -> None:
        self.info = info
        self.traffic.update({kind: info["traffic"].get(kind, 0) for kind in _TRAFFIC})


async def play(
    vector: VectorEnv, agent: Agent, tasks: Iterable[Task | Planned], options: RolloutOptions
) -> AsyncGenerator[Rollout]:
    """Play tasks and yield the episodes as they end; closing the generator leaves running episodes.

    Raises:
        UsageError: if the options are wrong, or the server cannot play the tasks.
        EnvError: after the others have ended, if an episode failed by a bug; the message names its task.
    """
    workers = min(len(vector), options.max_concurrent or len(vector))
    if options.attempts < 1 or workers < 1 or options.max_resets < 0:
        raise UsageError("attempts and max_concurrent must be at least 1, max_resets at least 0")
    ended: asyncio.Queue[Rollout] = asyncio.Queue()
    player = _Player(vector, agent, options, asyncio.Semaphore(options.max_resets or workers))
    todo = iter(tasks)
    async with aclosing(ended_by([player.work(i, todo, ended) for i in range(workers)], ended)) as rollouts:
        async for rollout in rollouts:
            yield rollout


async def ended_by(
    players: Iterable[Coroutine[Any, Any, None]], ended: asyncio.Queue[T]
) -> AsyncGenerator[T]:
    """Yield the items that players put into a queue until all have finished; closing cancels them.

    An exception of one player does not affect the others and is raised at the end.
    """
    workers = [asyncio.ensure_future(player) for player in players]
    work = asyncio.gather(*workers, return_exceptions=True)
    try:
        while not (work.done() and ended.empty()):
            next_one = asyncio.ensure_future(ended.get())
            waited: list[asyncio.Future[Any]] = [next_one, work]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if next_one.done():
                yield next_one.result()
            else:
                next_one.cancel()
        for error in await work:
            if error is not None:
                raise error
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


async def play_one(
    vector: VectorEnv, i: int, agent: Agent, planned: Planned, *, resets: asyncio.Semaphore
) -> Rollout:
    """Play one attempt of an episode in a session that is used by no other caller, and leave it.

    Args:
        i: number of the session.
        resets: limits concurrent resets.

    Raises:
        UsageError: if the server cannot play the task.
    """
    player = _Player(vector, agent, RolloutOptions(), resets)
    try:
        return await player.play(i, planned)
    finally:
        await vector.leave(i)


@dataclass(frozen=True, slots=True)
class _Player:
    """Player of episodes: each worker uses one session of the vector."""

    vector: VectorEnv
    agent: Agent
    options: RolloutOptions
    resets: asyncio.Semaphore

    async def work(self, i: int, todo: Iterator[Task | Planned], ended: asyncio.Queue[Rollout]) -> None:
        try:
            for each in todo:
                planned = each if isinstance(each, Planned) else Planned(each)
                ended.put_nowait(await self._played(i, planned))
        finally:
            await self.vector.leave(i)

    async def _played(self, i: int, planned: Planned) -> Rollout:
        (played,) = await asyncio.gather(self.play(i, planned), return_exceptions=True)
        if isinstance(played, Rollout):
            return played
        if isinstance(played, StillwebError) or not isinstance(played, Exception):
            raise played
        what = f"task {planned.task.id!r} failed: {type(played).__name__}: {played}"
        raise EnvError(
            what, hint="this is a bug of stillweb: report it with the output of STILLWEB_TRACEBACK=1"
        ) from played

    async def play(self, i: int, planned: Planned) -> Rollout:
        errors: list[str] = []
        episodes: list[str] = []
        while True:
            attempt, began = _Attempt(), clock.perf()
            outcome = await self._outcome(i, planned, attempt, errors)
            episodes.append(attempt.info["episode"] if attempt.info else "")
            if outcome is not Outcome.OK:
                await self.vector.leave(i)  # this writes the end of the trajectory
            if outcome is not Outcome.INFRA_ERROR or len(episodes) >= self.options.attempts:
                break
            await self.vector.proxy_ready()  # a dead worker is restarted within seconds
        return Rollout(
            task=planned.task,
            outcome=outcome,
            reward=attempt.reward if outcome is Outcome.OK else None,
            terminated=attempt.terminated,
            truncated=attempt.truncated,
            steps=tuple(attempt.steps),
            attempts=len(episodes),
            errors=tuple(errors),
            start=attempt.start,
            info=attempt.info,
            seconds=clock.perf() - began,
            number=planned.number,
            episodes=tuple(episodes),
            traffic=dict(attempt.traffic),
        )

    async def _outcome(self, i: int, planned: Planned, attempt: _Attempt, errors: list[str]) -> Outcome:
        try:
            await self._attempt(i, planned, attempt)
        except InfraError as error:
            outcome, failure = Outcome.INFRA_ERROR, str(error)
        except (TaskError, CollectionNotFound) as error:
            outcome, failure = Outcome.TASK_ERROR, str(error)
        except _AgentFailed as error:
            outcome, failure = Outcome.AGENT_ERROR, str(error)
        else:
            return Outcome.OK
        errors.append(failure)
        return outcome

    async def _attempt(self, i: int, planned: Planned, attempt: _Attempt) -> None:
        seed = self.options.seed if planned.seed is None else planned.seed
        async with self.resets:
            observation, info = await self.vector.reset(i, task=planned.task, seed=seed)
        attempt.start = dict(observation.digests)
        attempt.note(info)
        policy = await _call_agent(lambda: self.agent(planned.task))
        while not (attempt.terminated or attempt.truncated):
            current, known = observation, {**info, "episode_number": planned.number}
            action = await _call_agent(lambda: policy(current, known))  # noqa: B023 - called now
            observation, reward, terminated, truncated, info = await self.vector.step(i, action)
            attempt.steps.append(Played(action, info["action"]["status"], dict(observation.digests)))
            attempt.note(info)
            attempt.reward, attempt.terminated, attempt.truncated = reward, terminated, truncated


async def _call_agent(call: Callable[[], Any]) -> Any:
    """Call the agent's code in a task of its own, which separates its errors and cancellation from ours."""

    async def run() -> Any:
        result = call()
        return await result if inspect.isawaitable(result) else result

    calling = asyncio.ensure_future(run())
    try:
        await asyncio.wait([calling])
    finally:
        calling.cancel()
    if calling.cancelled():
        raise _AgentFailed("the agent was cancelled")
    if error := calling.exception():
        raise _AgentFailed(f"{type(error).__name__}: {error}") from error
    return calling.result()

"""Tasks played by an agent in the sessions of a `VectorEnv`, each told as it ends.

What ends an episode is kept apart, because only one of them is a reward: `ok` has one; `infra_error`
(browser or proxy failed, and so did every further attempt with the same seed), `task_error` (the
start page or its collection is not served) and `agent_error` (the agent raised) have none. Nothing
that happens in one session is seen by another, and episodes that ended stay as they are. An episode is
told once its trajectory is written to the end. An error that is none of these is a bug: its session plays no
more, the others go on, and it is raised at the end.
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

__all__ = [
    "Agent",
    "Outcome",
    "Planned",
    "Played",
    "Policy",
    "Rollout",
    "RolloutOptions",
    "ended_by",
    "play",
    "play_one",
]

_TRAFFIC = ("requests", "hits", "misses", "noise")

T = TypeVar("T")
Action = Mapping[str, Any] | str

Policy = Callable[["Observation", dict[str, Any]], Action | Awaitable[Action]]
"""Chooses the next action from what is seen; may be a coroutine function."""

Agent = Callable[["Task"], Policy | Awaitable[Policy]]
"""Makes the policy of one episode, so that what it remembers is that episode's; anew for each attempt. May be
a coroutine function."""


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
        max_resets: of these, how many may begin at once, with the browsers that start for them; 0 for all.
        attempts: that an episode is given while browser or proxy fail; each with the same seed.
        seed: of all episodes, instead of the task's or the recording's.
    """

    max_concurrent: int = 0
    max_resets: int = 0
    attempts: int = 1
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """An episode to be played, where a task is played more than once.

    Attributes:
        number: of the task's episodes, from 0; policies find it in `info["episode_number"]`.
        seed: of the pages' randomness, instead of that of the options.
    """

    task: Task
    number: int = 0
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
        steps: of the last attempt, as far as it came.
        attempts: how many there were.
        errors: what failed in each attempt but a good last one.
        start: digests of the first observation; None where there was none.
        info: of the last step; None where nothing was seen.
        seconds: for the last attempt.
        number: of the task's episodes, see `Planned`.
        episodes: identifiers of the attempts in their order; "" for one that did not begin.
        traffic: requests, hits, misses and noise of the last attempt.
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
    """Raised within this module when the agent's own code has raised."""


@dataclass(slots=True)
class _Attempt:
    """What came of one attempt so far."""

    steps: list[Played] = field(default_factory=list)
    start: Mapping[str, str] | None = None
    info: Mapping[str, Any] | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    traffic: Counter[str] = field(default_factory=Counter)

    def note(self, info: Mapping[str, Any]) -> None:
        self.info = info
        self.traffic.update({kind: info["traffic"][kind] for kind in _TRAFFIC})


async def play(
    vector: VectorEnv, agent: Agent, tasks: Iterable[Task | Planned], options: RolloutOptions
) -> AsyncGenerator[Rollout]:
    """Play tasks and yield the episodes as they end; when the caller leaves off, what runs is left.

    Raises:
        UsageError: if options are wrong, or nothing can be played as things are.
        EnvError: once the others have ended, if an episode broke by a bug; names its task.
    """
    jobs = min(len(vector), options.max_concurrent or len(vector))
    if options.attempts < 1 or jobs < 1 or options.max_resets < 0:
        raise UsageError("attempts and max_concurrent must be at least 1, max_resets at least 0")
    ended: asyncio.Queue[Rollout] = asyncio.Queue()
    player = _Player(vector, agent, options, asyncio.Semaphore(options.max_resets or jobs))
    todo = iter(tasks)
    async with aclosing(ended_by([player.work(i, todo, ended) for i in range(jobs)], ended)) as rollouts:
        async for rollout in rollouts:
            yield rollout


async def ended_by(
    players: Iterable[Coroutine[Any, Any, None]], ended: asyncio.Queue[T]
) -> AsyncGenerator[T]:
    """Yield what players put into a queue until all are through; who leaves off before ends them.

    What a player raises ends no other one, and is raised at the end.
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
    """Play one attempt of an episode in a session that nobody else uses, and leave it.

    Args:
        vector: has the session.
        i: its number.
        agent: see `Agent`.
        planned: the episode.
        resets: lets so many begin at once.

    Raises:
        UsageError: if the task is wrong for what is served.
    """
    player = _Player(vector, agent, RolloutOptions(), resets)
    try:
        return await player.play(i, planned)
    finally:
        await vector.leave(i)


@dataclass(frozen=True, slots=True)
class _Player:
    """Plays episodes in the sessions of a vector, each worker in a session of its own."""

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
        told = f"task {planned.task.id!r} broke: {type(played).__name__}: {played}"
        raise EnvError(told, hint="this is a bug of stillweb; the others are as they ended") from played

    async def play(self, i: int, planned: Planned) -> Rollout:
        errors: list[str] = []
        episodes: list[str] = []
        while True:
            course, began = _Attempt(), clock.perf()
            outcome = await self._outcome(i, planned, course, errors)
            episodes.append(course.info["episode"] if course.info else "")
            if outcome is not Outcome.OK:
                await self.vector.leave(i)  # so that what is written of the episode has its end
            if outcome is not Outcome.INFRA_ERROR or len(episodes) >= self.options.attempts:
                break
            await self.vector.proxy_ready()  # a worker that died comes back within seconds
        return Rollout(
            task=planned.task,
            outcome=outcome,
            reward=course.reward if outcome is Outcome.OK else None,
            terminated=course.terminated,
            truncated=course.truncated,
            steps=tuple(course.steps),
            attempts=len(episodes),
            errors=tuple(errors),
            start=course.start,
            info=course.info,
            seconds=clock.perf() - began,
            number=planned.number,
            episodes=tuple(episodes),
            traffic=dict(course.traffic),
        )

    async def _outcome(self, i: int, planned: Planned, course: _Attempt, errors: list[str]) -> Outcome:
        try:
            await self._attempt(i, planned, course)
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

    async def _attempt(self, i: int, planned: Planned, course: _Attempt) -> None:
        seed = self.options.seed if planned.seed is None else planned.seed
        async with self.resets:
            observation, info = await self.vector.reset(i, task=planned.task, seed=seed)
        course.start = dict(observation.digests)
        course.note(info)
        policy = await _asked(lambda: self.agent(planned.task))
        while not (course.terminated or course.truncated):
            seen, known = observation, {**info, "episode_number": planned.number}
            action = await _asked(lambda: policy(seen, known))  # noqa: B023 - asked at once
            observation, reward, terminated, truncated, info = await self.vector.step(i, action)
            course.steps.append(Played(action, info["action"]["status"], dict(observation.digests)))
            course.note(info)
            course.reward, course.terminated, course.truncated = reward, terminated, truncated


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

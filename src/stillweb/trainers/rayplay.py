"""Tasks played on the workers of a pool: attempts, what their loss costs, and the two kinds of iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from stillweb import clock
from stillweb.env.rollout import Agent, Outcome, Planned, Rollout, RolloutOptions, ended_by
from stillweb.env.taskvalue import Task
from stillweb.errors import InfraError, UsageError
from stillweb.trainers.rayepisode import Kept, RayEpisode
from stillweb.trainers.rayerrors import RayError, cause_of, is_lost, ray
from stillweb.trainers.raypool import Pool, Seat
from stillweb.trainers.rayworker import OBJECTS, Cast

__all__ = ["Playing"]


class Playing:
    """Episodes that are being played; an iterator of either kind, to be used once.

    Leaving off before the end leaves what goes on. Between two items of a `for` the episodes under way
    go on, but no others begin, since nobody hears that they have ended: `async for` has no such pause.
    """

    def __init__(
        self, pool: Pool, agent: Agent | str, tasks: Iterable[Task | Planned], options: RolloutOptions
    ) -> None:
        if options.attempts < 1 or min(options.max_concurrent, options.max_resets) < 0:
            raise UsageError("attempts must be at least 1, max_concurrent and max_resets at least 0")
        pool.choose()  # or they were not started
        self._pool = pool
        self._options = options
        self._cast = Cast(clock.new_id(), _shared(agent), options.max_resets)
        self._todo = iter(tasks)
        self._generator = self._play()

    def __aiter__(self) -> AsyncIterator[RayEpisode]:
        return self._generator

    def __iter__(self) -> Iterator[RayEpisode]:
        loop = asyncio.new_event_loop()
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(self._generator))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(self.aclose())
            loop.close()

    async def aclose(self) -> None:
        """Leave what goes on."""
        await self._generator.aclose()

    async def _play(self) -> AsyncGenerator[RayEpisode]:
        room = len(self._pool.seats) * self._pool.sessions
        jobs = min(room, self._options.max_concurrent or room)
        ended: asyncio.Queue[RayEpisode] = asyncio.Queue()
        try:
            async with aclosing(ended_by([self._work(ended) for _ in range(jobs)], ended)) as episodes:
                async for episode in episodes:
                    yield episode
        finally:
            for seat in self._pool.seats:
                seat.handle.forget.remote(self._cast.name)

    async def _work(self, ended: asyncio.Queue[RayEpisode]) -> None:
        for each in self._todo:
            planned = each if isinstance(each, Planned) else Planned(each)
            if planned.seed is None:
                planned = replace(planned, seed=self._options.seed)
            ended.put_nowait(await self._episode(planned))

    async def _episode(self, planned: Planned) -> RayEpisode:
        attempts: list[Rollout] = []
        workers: list[int] = []
        seat: Seat | None = None
        while True:
            seat = self._pool.choose(avoid=seat)
            rollout, objects = await self._attempt(seat, planned, again=bool(attempts))
            attempts.append(rollout)
            workers.append(seat.number)
            if rollout.outcome is not Outcome.INFRA_ERROR or len(attempts) >= self._options.attempts:
                break
        episodes = tuple(each for attempt in attempts for each in attempt.episodes)
        errors = tuple(each for attempt in attempts for each in attempt.errors)
        told = replace(rollout, attempts=len(attempts), errors=errors, episodes=episodes)
        return RayEpisode(told, tuple(workers), self._kept(episodes[-1], objects))

    async def _attempt(self, seat: Seat, planned: Planned, *, again: bool) -> tuple[Rollout, Any]:
        """Play an attempt on a worker; its loss, or that it does not start, is a failed attempt."""
        handle, playing = seat.handle, None
        seat.under_way += 1
        try:
            await _begun(seat)
            playing, objects = handle.play.options(num_returns=2).remote(self._cast, planned, again)
            return await playing, objects
        except RayError as error:
            ours = cause_of(error)
            if not is_lost(error):
                raise ours from None
            failure = str(ours)
        except InfraError as error:
            failure = str(error)
        except asyncio.CancelledError:
            if playing is not None:
                ray.cancel(playing)
            raise
        finally:
            seat.under_way -= 1
        self._pool.replace(seat, handle)
        lost = Rollout(planned.task, Outcome.INFRA_ERROR, number=planned.number, errors=(failure,))
        return replace(lost, episodes=("",)), None

    def _kept(self, episode: str, objects: Any) -> Kept | None:
        keep = self._pool.config.keep
        if not keep or not episode:
            return None
        return Kept(episode, objects=objects) if keep == OBJECTS else Kept(episode, folder=keep)


async def _begun(seat: Seat) -> None:
    """Wait until the worker of a seat has started.

    Raises:
        InfraError: if it does not, whatever the reason: the first ones did.
    """
    try:
        await seat.started
    except RayError as error:
        raise InfraError(f"a worker did not start: {cause_of(error)}") from error


def _shared(agent: Agent | str) -> Any:
    """Return a reference to an agent, which each worker fetches once.

    Raises:
        UsageError: if it cannot be pickled.
    """
    try:
        return ray.put(agent)
    except TypeError as error:
        raise UsageError(
            f"the agent cannot be pickled: {error}", hint="name it, as MODULE:NAME: each worker makes its own"
        ) from error

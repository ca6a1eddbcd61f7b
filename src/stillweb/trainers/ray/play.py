"""Tasks played on the workers of a pool: attempts, what their loss costs, and the two kinds of iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from stillweb import clock
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.trajectory import ContentFiles, Trajectory
from stillweb.env.vector.rollout import Agent, Outcome, Planned, Rollout, RolloutOptions, ended_by
from stillweb.errors import InfraError, TaskError, UsageError
from stillweb.trainers.ray.pool import Pool, RayError, WorkerSlot, cause_of, is_lost, ray
from stillweb.trainers.ray.worker import OBJECTS, Cast

__all__ = ["Playing", "RayEpisode", "StoredEpisode"]


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """Trajectory and pictures of an episode, fetched when they are asked for.

    Attributes:
        episode: identifier of the attempt that counts.
        folder: that all machines share; "" where they are objects of Ray's.
        objects: reference to them in Ray's object store, as bytes by path; held by who holds this.
    """

    episode: str
    folder: str = ""
    objects: Any = None

    def picture(self, sha256: str) -> bytes:
        """Return a picture by the digest that a step of the record has (`Played.digests`).

        Raises:
            TaskError: if there is none of it.
            InfraError: if it was lost.
        """
        if self.folder:
            return ContentFiles(Path(self.folder)).get(sha256, "png")
        path = ContentFiles(Path()).path(sha256, "png")
        try:
            return self._bodies()[str(path)]
        except KeyError:
            raise TaskError(f"episode {self.episode} kept no picture {sha256}") from None

    def trajectory(self, into: Path | None = None) -> Trajectory:
        """Return the trajectory, to be read or scored again.

        Args:
            into: folder of trajectories to which it is brought first if it is not in a shared one.

        Raises:
            TaskError: if it cannot be read, or there is nowhere to bring it.
            InfraError: if it was lost.
        """
        if self.folder:
            return Trajectory.load(Path(self.folder) / self.episode)
        if into is None:
            raise TaskError(f"the trajectory of {self.episode} is in no folder", hint="trajectory(FOLDER)")
        for name, body in self._bodies().items():
            path = into / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return Trajectory.load(into / self.episode)

    def _bodies(self) -> dict[str, bytes]:
        try:
            bodies: dict[str, bytes] = ray.get(self.objects)
        except RayError as error:
            raise InfraError(
                f"what episode {self.episode} left was lost with its machine: {error}",
                hint="keep=FOLDER, which all machines share",
            ) from error
        return bodies


@dataclass(frozen=True, slots=True)
class RayEpisode:
    """An episode that has ended.

    Attributes:
        rollout: how; its digests are the keys of `kept`.
        workers: number of the worker of each attempt, in their order.
        kept: trajectory and pictures; None where none are kept, or the last attempt did not begin.
    """

    rollout: Rollout
    workers: tuple[int, ...]
    kept: StoredEpisode | None = None


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
        seat: WorkerSlot | None = None
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

    async def _attempt(self, seat: WorkerSlot, planned: Planned, *, again: bool) -> tuple[Rollout, Any]:
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

    def _kept(self, episode: str, objects: Any) -> StoredEpisode | None:
        keep = self._pool.config.keep
        if not keep or not episode:
            return None
        return (
            StoredEpisode(episode, objects=objects)
            if keep == OBJECTS
            else StoredEpisode(episode, folder=keep)
        )


async def _begun(seat: WorkerSlot) -> None:
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

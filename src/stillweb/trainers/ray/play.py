"""Plays tasks on the workers of a pool: attempts, lost workers, and the iterator over episodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from stillweb import clock
from stillweb.env import Outcome, Planned, Rollout, RolloutOptions, Task, Trajectory
from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.env.vector.rollout import Agent, ended_by
from stillweb.errors import InfraError, TaskError, UsageError
from stillweb.trainers.ray.pool import RayError, WorkerPool, WorkerSlot, cause_of, is_lost, ray
from stillweb.trainers.ray.worker import OBJECTS, AgentReference


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """Trajectory and pictures of an episode, fetched on demand.

    Attributes:
        episode: identifier of the last attempt.
        folder: folder that all machines share; "" if the files are in Ray's object store.
        objects: reference to the files in Ray's object store, bytes by path; lives as long as this object.
    """

    episode: str
    folder: str = ""
    objects: Any = None

    def picture(self, sha256: str) -> bytes:
        """Return a picture by a digest of the rollout's steps.

        Raises:
            TaskError: if the episode has no such picture.
            InfraError: if it was lost with its machine.
        """
        if self.folder:
            return ContentFiles(Path(self.folder)).get(sha256, "png")
        path = ContentFiles(Path()).path(sha256, "png")
        try:
            return self._bodies()[str(path)]
        except KeyError:
            raise TaskError(f"episode {self.episode} has no picture {sha256}") from None

    def trajectory(self, into: Path | None = None) -> Trajectory:
        """Return the trajectory.

        Args:
            into: folder that the files are written to if they are in Ray's object store.

        Raises:
            TaskError: if the trajectory cannot be read, or `into` is missing.
            InfraError: if it was lost with its machine.
        """
        if self.folder:
            return Trajectory.load(Path(self.folder) / self.episode)
        if into is None:
            raise TaskError(
                f"the trajectory of {self.episode} is in no folder", hint="call trajectory(FOLDER)"
            )
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
                f"the files of episode {self.episode} were lost with their machine: {error}",
                hint="set keep=FOLDER to a folder that all machines share",
            ) from error
        return bodies


@dataclass(frozen=True, slots=True)
class RayEpisode:
    """A finished episode.

    Attributes:
        rollout: its result; the digests are the keys of `stored`.
        workers: number of the worker of each attempt, in order.
        stored: trajectory and pictures; None if none are stored, or the last attempt did not start.
    """

    rollout: Rollout
    workers: tuple[int, ...]
    stored: StoredEpisode | None = None


class RolloutIterator:
    """An iterator over episodes as they end, for one `for` or `async for`.

    Closing it early leaves the running episodes. Between two items of a `for`, running episodes continue but
    no new ones start, since no event loop runs; `async for` has no such pause.
    """

    def __init__(
        self, pool: WorkerPool, agent: Agent | str, tasks: Iterable[Task | Planned], options: RolloutOptions
    ) -> None:
        if options.attempts < 1 or min(options.max_concurrent, options.max_resets) < 0:
            raise UsageError("attempts must be at least 1, max_concurrent and max_resets at least 0")
        pool.choose()  # raises if the workers were not started
        self._pool = pool
        self._options = options
        self._agent = AgentReference(clock.new_id(), _shared(agent), options.max_resets)
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
        """Leave the running episodes."""
        await self._generator.aclose()

    async def _play(self) -> AsyncGenerator[RayEpisode]:
        sessions = len(self._pool.slots) * self._pool.sessions
        jobs = min(sessions, self._options.max_concurrent or sessions)
        ended: asyncio.Queue[RayEpisode] = asyncio.Queue()
        try:
            async with aclosing(ended_by([self._work(ended) for _ in range(jobs)], ended)) as episodes:
                async for episode in episodes:
                    yield episode
        finally:
            for slot in self._pool.slots:
                slot.handle.forget.remote(self._agent.name)

    async def _work(self, ended: asyncio.Queue[RayEpisode]) -> None:
        for each in self._todo:
            planned = each if isinstance(each, Planned) else Planned(each)
            if planned.seed is None:
                planned = replace(planned, seed=self._options.seed)
            ended.put_nowait(await self._episode(planned))

    async def _episode(self, planned: Planned) -> RayEpisode:
        attempts: list[Rollout] = []
        workers: list[int] = []
        slot: WorkerSlot | None = None
        while True:
            slot = self._pool.choose(avoid=slot)
            rollout, objects = await self._attempt(slot, planned, again=bool(attempts))
            attempts.append(rollout)
            workers.append(slot.number)
            if rollout.outcome is not Outcome.INFRA_ERROR or len(attempts) >= self._options.attempts:
                break
        episodes = tuple(each for attempt in attempts for each in attempt.episodes)
        errors = tuple(each for attempt in attempts for each in attempt.errors)
        merged = replace(rollout, attempts=len(attempts), errors=errors, episodes=episodes)
        return RayEpisode(merged, tuple(workers), self._stored(episodes[-1], objects))

    async def _attempt(self, slot: WorkerSlot, planned: Planned, *, again: bool) -> tuple[Rollout, Any]:
        """Play an attempt on a worker; a lost worker, or one that does not start, gives a failed attempt."""
        handle, playing = slot.handle, None
        slot.under_way += 1
        try:
            await _started(slot)
            playing, objects = handle.play.options(num_returns=2).remote(self._agent, planned, again)
            return await playing, objects
        except RayError as error:
            cause = cause_of(error)
            if not is_lost(error):
                raise cause from None
            failure = str(cause)
        except InfraError as error:
            failure = str(error)
        except asyncio.CancelledError:
            if playing is not None:
                ray.cancel(playing)
            raise
        finally:
            slot.under_way -= 1
        self._pool.replace(slot, handle)
        lost = Rollout(planned.task, Outcome.INFRA_ERROR, number=planned.number, errors=(failure,))
        return replace(lost, episodes=("",)), None

    def _stored(self, episode: str, objects: Any) -> StoredEpisode | None:
        keep = self._pool.config.keep
        if not keep or not episode:
            return None
        return (
            StoredEpisode(episode, objects=objects)
            if keep == OBJECTS
            else StoredEpisode(episode, folder=keep)
        )


async def _started(slot: WorkerSlot) -> None:
    """Wait until the worker of a slot has started.

    Raises:
        InfraError: if it does not start; the first workers did, so the configuration is valid.
    """
    try:
        await slot.started
    except RayError as error:
        raise InfraError(f"a worker did not start: {cause_of(error)}") from error


def _shared(agent: Agent | str) -> Any:
    """Put an agent into Ray's object store and return its reference; each worker fetches it once.

    Raises:
        UsageError: if it cannot be pickled.
    """
    try:
        return ray.put(agent)
    except TypeError as error:
        raise UsageError(
            f"the agent cannot be pickled: {error}",
            hint="pass its name MODULE:NAME; each worker creates its own",
        ) from error

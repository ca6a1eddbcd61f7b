"""Episodes on many machines with Ray: each worker actor runs a browser with several sessions.

    async with RayRollouts(8, 16, packs={"shop": "shop"}, remote="s3://bucket/packs") as rollouts:
        async for episode in rollouts.rollout("agents.mine:solver", tasks, RolloutOptions(attempts=3)):
            print(episode.rollout.task.id, episode.rollout.reward)

Without an event loop, use `with` and `for`. A worker fetches its packs by digest (`stillweb collections
push`), keeps them in its machine's store and replays them; or all workers use one replay server (`proxy`). A
worker plays at most as many episodes as it has sessions; tasks are read as sessions become free.

A lost worker (killed, out of memory, machine gone) gives `infra_error` for its own episodes only: they are
tried again with the same seed on other workers, up to `RolloutOptions.attempts` times, and a new worker
replaces the lost one. Pictures and trajectories stay where they are stored until they are read
(`StoredEpisode`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self

from stillweb import clock
from stillweb.browser.profile import BEST_LEVEL
from stillweb.collections.pack.publish import PackRemote, is_identifier
from stillweb.env import Outcome, Planned, Rollout, RolloutOptions, Task, Trajectory, VectorOptions
from stillweb.env.observations.observation import observe_kinds
from stillweb.env.tasks.task import task_from_dict
from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.env.vector.rollout import Agent, ended_by
from stillweb.errors import InfraError, ResetNeeded, TaskError, UsageError
from stillweb.trainers.episodes.turn import Turn
from stillweb.trainers.ray.pool import (
    RayError,
    WorkerPlacement,
    WorkerPool,
    WorkerSlot,
    cause_of,
    is_lost,
    ray,
)
from stillweb.trainers.ray.worker import OBJECTS, AgentReference, RayWorkerConfig


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


class RaySession(AbstractAsyncContextManager["RaySession"]):
    """One episode after the other, see `EpisodeLease`; `RayRollouts.lease` creates it.

    If its worker is lost, calls raise `InfraError`; the next reset takes a session of another worker.
    """

    def __init__(self, pool: WorkerPool, wait: float) -> None:
        self._pool = pool
        self._wait = wait
        self._slot: WorkerSlot | None = None
        self._handle: Any = None
        self._i = -1
        self._pictures: dict[str, Any] = {}

    @classmethod
    async def take(cls, pool: WorkerPool, wait: float) -> Self:
        """Wait for a free session.

        Raises:
            InfraError: if no session became free in time, or its worker was lost.
        """
        session = cls(pool, wait)
        await session._acquire()
        return session

    @property
    def id(self) -> str:
        return f"worker {self._slot.number}, session {self._i}" if self._slot else "no worker"

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Start an episode of a task or a `url`, optionally with a `seed`.

        Raises:
            UsageError, TaskError, InfraError: see `Env.reset`.
        """
        if unknown := sorted(start.keys() - {"url", "seed"}):
            raise UsageError(f"an episode starts with a task or a url, not with {', '.join(unknown)}")
        if self._slot is None:
            await self._acquire()
        self._pictures.clear()
        given = task_from_dict(task, "task") if isinstance(task, Mapping) else task
        return Turn(**await self._call("reset", given, **start))

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action, see `Env.step`."""
        return Turn(**await self._call("step", action))

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        seen: Mapping[str, Any] = await self._call("observe", kinds)
        return seen

    async def picture(self, sha256: str) -> bytes:
        """Return a picture that a turn of this episode refers to.

        Raises:
            InfraError: if the episode has no such picture, or it was lost with its machine.
        """
        if sha256 not in self._pictures:
            raise InfraError(f"this episode has no picture {sha256}")
        try:
            body: bytes = (await self._pictures[sha256])[sha256]
        except RayError as error:
            raise cause_of(error) from None
        return body

    async def release(self) -> None:
        """Leave the episode and release the session. Idempotent."""
        slot, self._slot = self._slot, None
        if slot is None:
            return
        slot.under_way -= 1
        try:
            await self._handle.give_back.remote(self._i)
        except RayError as error:
            if not is_lost(error):
                raise cause_of(error) from None

    async def _acquire(self) -> None:
        slot = self._pool.choose()
        slot.under_way += 1
        handle, taking = slot.handle, None
        try:
            async with asyncio.timeout(self._wait):
                await slot.started
                taking = handle.take.remote()
                self._i = await taking
        except BaseException as error:
            slot.under_way -= 1
            if isinstance(error, RayError):
                self._pool.replace(slot, handle)
                raise cause_of(error) from None
            if taking is not None:
                ray.cancel(taking)
            if isinstance(error, TimeoutError):
                raise InfraError(f"no session became free within {self._wait:g} s") from error
            raise
        self._slot, self._handle = slot, handle

    async def _call(self, method: str, *given: Any, **named: Any) -> Any:
        slot = self._slot
        if slot is None:
            raise ResetNeeded(
                "the session was released, or its worker was lost", hint="reset starts another one"
            )
        call = getattr(self._handle, method).options(num_returns=2)
        result, pictures = call.remote(self._i, *given, **named)
        try:
            value = await result
        except RayError as error:
            if is_lost(error):
                self._slot = None
                slot.under_way -= 1
                self._pool.replace(slot, self._handle)
            raise cause_of(error) from None
        for reference in value.get("observation", value)["pictures"].values():
            self._pictures[reference["sha256"]] = pictures
        return value


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Options of the workers.

    Attributes:
        level: determinism level, see `Env`.
        observe: forms of the observations, see `Env`.
        placement: requirements on the workers' machines.
        keep: storage of trajectories and pictures: a folder that all machines share, `OBJECTS` for Ray's
            object store, or None for none.
        store: folder of the packs on each machine [default: in the user's cache folder].
        store_gib: maximum size of that folder.
        collection: collection of tasks that name none, see `Env`.
        vector: browsers, step limit, ... of each worker.
    """

    level: str = BEST_LEVEL
    observe: tuple[str, ...] = ("axtree",)
    placement: WorkerPlacement = field(default_factory=WorkerPlacement)
    keep: Path | str | None = None
    store: Path | None = None
    store_gib: float = 50.0
    collection: str = ""
    vector: VectorOptions = field(default_factory=VectorOptions)


class RayRollouts:
    """Workers on a Ray cluster; `with` or `async with` starts and ends them.

    Args:
        num_workers: number of actors.
        sessions_per_worker: sessions of each actor, in one browser.
        packs: identifier or name of a pack, by the name of its collection.
        remote: URL of the pushed packs.
        proxy: control URL of a replay server that all machines reach, instead of packs.

    Raises:
        UsageError: unless there is exactly one of packs and proxy, or if a number or name is invalid.
    """

    def __init__(
        self,
        num_workers: int,
        sessions_per_worker: int,
        *,
        packs: Mapping[str, str] | None = None,
        remote: str = "",
        proxy: str = "",
        options: RayOptions | None = None,
    ) -> None:
        if min(num_workers, sessions_per_worker) < 1:
            raise UsageError("num_workers and sessions_per_worker must be at least 1")
        if bool(packs) == bool(proxy):
            raise UsageError("workers replay packs or use a replay server: name one of packs and proxy")
        chosen = options or RayOptions()
        observe_kinds(chosen.observe)
        self._config = RayWorkerConfig(
            sessions=sessions_per_worker,
            packs=dict(packs or {}),
            remote=remote,
            proxy=proxy,
            store=str(chosen.store or ""),
            store_gib=chosen.store_gib,
            collection=chosen.collection,
            level=chosen.level,
            observe=tuple(chosen.observe),
            keep=str(chosen.keep or ""),
            vector=chosen.vector,
        )
        self._pool = WorkerPool(num_workers, chosen.placement)

    def __enter__(self) -> Self:
        """Start the workers and wait for them.

        Raises:
            CollectionNotFound: if a pack is missing.
            InfraError: if Ray cannot schedule a worker, or it does not start.
        """
        packs = _identifiers(self._config.packs, self._config.remote)
        self._config = replace(self._config, packs=packs)
        try:
            self._pool.start(self._config)
        except BaseException:
            self._pool.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await asyncio.to_thread(self._pool.close)

    @property
    def packs(self) -> Mapping[str, str]:
        """Identifier of each pack, by the name of its collection."""
        return self._config.packs

    def workers(self) -> list[dict[str, Any]]:
        return self._pool.status()

    def rollout(
        self, agent: Agent | str, tasks: Iterable[Task | Planned], options: RolloutOptions | None = None
    ) -> RolloutIterator:
        """Play tasks with an agent; iterate over the episodes with `async for` or `for` as they end.

        Args:
            agent: a picklable agent, see `VectorEnv.rollout`; or a name (`stillweb.trainers.agents`), which
                each worker resolves.
            tasks: read one by one as sessions become free.
            options: see `RolloutOptions`; `max_resets` counts for each worker.

        Raises:
            UsageError: if an option is invalid, or the workers were not started.
        """
        return RolloutIterator(self._pool, agent, tasks, options or RolloutOptions())

    async def lease(
        self, owner: str = "", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> RaySession:
        """Return a free session for a loop of your own; release it afterwards.

        So an `EpisodeSource` can use this object as its provider. Owner, ttl and beat have no effect: Ray
        ends what a process leaves behind.

        Raises:
            InfraError: if no session became free within `wait` seconds, or its worker was lost.
        """
        return await RaySession.take(self._pool, wait)


def _identifiers(packs: Mapping[str, str], remote: str) -> dict[str, str]:
    """Return the identifiers of packs, resolved once so that all workers use the same."""
    names = {pack for pack in packs.values() if not is_identifier(pack)}
    if not names:
        return dict(packs)
    if not remote:
        raise UsageError(
            f"the pack name {min(names)!r} needs a remote",
            hint="set remote=URL of the pushed packs, or use its identifier",
        )
    found = {pack: PackRemote(remote).find(pack) for pack in names}
    return {name: found.get(pack, pack) for name, pack in packs.items()}

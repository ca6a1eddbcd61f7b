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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stillweb.collections.pack.publish import PackRemote, is_identifier
from stillweb.env import Planned, RolloutOptions, Task, VectorOptions
from stillweb.env.observations.observation import observe_kinds
from stillweb.env.vector.rollout import Agent
from stillweb.errors import UsageError
from stillweb.trainers.ray.play import RayEpisode, RolloutIterator
from stillweb.trainers.ray.pool import WorkerPlacement, WorkerPool
from stillweb.trainers.ray.session import RaySession
from stillweb.trainers.ray.worker import OBJECTS, RayWorkerConfig

__all__ = [
    "OBJECTS",
    "RayEpisode",
    "RayOptions",
    "RayRollouts",
    "RaySession",
    "RolloutIterator",
    "WorkerPlacement",
]


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

    level: str = "clock"
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
        options: see `RayOptions`.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the workers."""
        await asyncio.to_thread(self._pool.close)

    @property
    def packs(self) -> Mapping[str, str]:
        """Identifier of each pack, by the name of its collection."""
        return self._config.packs

    def workers(self) -> list[dict[str, Any]]:
        """Return the status of each worker, see `WorkerPool.status`."""
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

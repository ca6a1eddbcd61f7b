"""Episodes on many machines, by Ray: actors with a browser and sessions each, and tasks played on them.

    async with RayRollouts(8, 16, packs={"shop": "shop"}, depot="s3://bucket/packs") as rollouts:
        async for episode in rollouts.rollout("agents.mine:solver", tasks, RolloutOptions(attempts=3)):
            print(episode.rollout.task.id, episode.rollout.reward)

Without an event loop: `with` and `for`. A worker finds its packs by digest (`stillweb collections push`),
keeps them in its machine's store and serves them itself; or all ask a replay server that runs (`proxy`). It
is given no more episodes than it has sessions, and tasks are read as these become free.

A worker that is lost (killed, out of memory, its machine gone) is an `infra_error` of the episodes on it and
of no others: they are tried again with the same seed on other workers, as often as `RolloutOptions.attempts`
says, and another worker comes in its place. Pictures and trajectories do not travel with results (`Kept`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stillweb.collections.pack.publish import PackRemote, is_identifier
from stillweb.env.observations.observation import observe_kinds
from stillweb.env.tasks.task import Task
from stillweb.env.vector.rollout import Agent, Planned, RolloutOptions
from stillweb.env.vector.vector import VectorOptions
from stillweb.errors import UsageError
from stillweb.trainers.ray.play import Playing, RayEpisode
from stillweb.trainers.ray.pool import Placing, Pool
from stillweb.trainers.ray.session import RaySession
from stillweb.trainers.ray.worker import OBJECTS, RayWorkerConfig

__all__ = [
    "OBJECTS",
    "Placing",
    "Playing",
    "RayEpisode",
    "RayOptions",
    "RayRollouts",
    "RaySession",
]


@dataclass(frozen=True, slots=True)
class RayOptions:
    """What seldom needs saying.

    Attributes:
        level: how much is pinned, see `Env`.
        observe: what observations hold, see `Env`.
        placing: what a worker asks of a machine.
        keep: where trajectories and pictures go: a folder that all machines share, `OBJECTS` for Ray's object
            store, None for nowhere.
        store: folder of the packs on each worker's machine; its user's for caches otherwise.
        store_gib: how much may lie there.
        collection: of tasks that name none, see `Env`.
        vector: of each worker: browsers, steps of an episode, ...
    """

    level: str = "clock"
    observe: tuple[str, ...] = ("axtree",)
    placing: Placing = field(default_factory=Placing)
    keep: Path | str | None = None
    store: Path | None = None
    store_gib: float = 50.0
    collection: str = ""
    vector: VectorOptions = field(default_factory=VectorOptions)


class RayRollouts:
    """Workers on a Ray cluster; start them by `with` or `async with`.

    Args:
        num_workers: how many actors.
        sessions_per_worker: of each, in one browser.
        packs: identifier or name of the pack that is served under each name of a collection.
        depot: URL where the packs are.
        proxy: control URL of a replay server that all machines reach, instead of packs.
        options: see `RayOptions`.

    Raises:
        UsageError: if there are neither packs nor a proxy, or both, or numbers or names are wrong.
    """

    def __init__(
        self,
        num_workers: int,
        sessions_per_worker: int,
        *,
        packs: Mapping[str, str] | None = None,
        depot: str = "",
        proxy: str = "",
        options: RayOptions | None = None,
    ) -> None:
        if min(num_workers, sessions_per_worker) < 1:
            raise UsageError("num_workers and sessions_per_worker must be at least 1")
        if bool(packs) == bool(proxy):
            raise UsageError("workers serve packs or ask a replay server: name one of packs and proxy")
        chosen = options or RayOptions()
        observe_kinds(chosen.observe)
        self._config = RayWorkerConfig(
            sessions=sessions_per_worker,
            packs=dict(packs or {}),
            depot=depot,
            proxy=proxy,
            store=str(chosen.store or ""),
            store_gib=chosen.store_gib,
            collection=chosen.collection,
            level=chosen.level,
            observe=tuple(chosen.observe),
            keep=str(chosen.keep or ""),
            vector=chosen.vector,
        )
        self._pool = Pool(num_workers, chosen.placing)

    def __enter__(self) -> Self:
        """Start the workers, and wait for them.

        Raises:
            CollectionNotFound: if a pack is not there.
            InfraError: if Ray finds no place for a worker, or it does not start.
        """
        packs = _identified(self._config.packs, self._config.depot)
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
        """Identifier of the pack that is served under each name."""
        return self._config.packs

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers: number, how many were lost in that place, and what is known of it."""
        return self._pool.told()

    def rollout(
        self, agent: Agent | str, tasks: Iterable[Task | Planned], options: RolloutOptions | None = None
    ) -> Playing:
        """Play tasks with an agent; iterate over the episodes as they end, with `async for` or `for`.

        Args:
            agent: as for `VectorEnv.rollout`, to be pickled; or a name (`stillweb.trainers.agents`), which
                is looked up by each worker.
            tasks: read one by one, as sessions become free.
            options: see `RolloutOptions`; `max_resets` is of each worker.

        Raises:
            UsageError: if the options are wrong, or the workers were not started.
        """
        return Playing(self._pool, agent, tasks, options or RolloutOptions())

    async def lease(
        self, owner: str = "", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> RaySession:
        """Return a session for one's own loop, when one is free; release it.

        With this, `stillweb.trainers.place.Place` takes leases from an object of this class; owner, ttl and
        beat are of no use here, since Ray ends what a program leaves behind.

        Raises:
            InfraError: if none became free within `wait` seconds, or its worker was lost.
        """
        return await RaySession.take(self._pool, wait)


def _identified(packs: Mapping[str, str], depot: str) -> dict[str, str]:
    """Return the identifiers of packs: looked up once, so that all workers serve the same."""
    names = {which for which in packs.values() if not is_identifier(which)}
    if not names:
        return dict(packs)
    if not depot:
        raise UsageError(
            f"where is the pack {min(names)!r}?", hint="depot=URL, to which it was pushed; or its identifier"
        )
    found = {which: PackRemote(depot).find(which) for which in names}
    return {name: found.get(which, which) for name, which in packs.items()}

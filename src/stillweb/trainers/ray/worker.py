"""A Ray worker: a browser, its sessions, and a replay server for its packs.

An asynchronous actor. It gives out no more sessions than it has: whoever asks for another one waits.
What it keeps for its own (the CA of its replay server, episodes on their way into Ray's object store) lies in
a folder that ends with it. If its process dies, drivers and browsers end with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.collections.pack.cache import PackStore
from stillweb.collections.pack.publish import PackRemote
from stillweb.collections.pack.reader import Pack
from stillweb.env.env import Env
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.load import Task
from stillweb.env.vector.pool import BrowserLease
from stillweb.env.vector.rollout import Agent, Planned, Rollout, play_one
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.trainers.agents import load_agent

__all__ = ["OBJECTS", "Cast", "EnvWorker", "RayWorkerConfig"]

OBJECTS = "objects"
"""Value of `WorkerConfig.keep`: what an episode leaves goes into Ray's object store."""

Bodies = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class RayWorkerConfig:
    """What a worker is; pickled.

    Attributes:
        packs: identifier of the pack that is served under each name.
        depot: URL where packs are to be had from.
        proxy: control URL of a replay server that runs, instead of packs.
        store: folder of the packs on the worker's machine; its user's for caches otherwise.
        store_gib: how much may lie there.
        keep: folder that all machines share, for trajectories and pictures; or `OBJECTS`; or "" for neither.
    """

    sessions: int
    packs: Mapping[str, str] = field(default_factory=dict)
    depot: str = ""
    proxy: str = ""
    store: str = ""
    store_gib: float = 50.0
    collection: str = ""
    level: str = "clock"
    observe: tuple[str, ...] = ("axtree",)
    keep: str = ""
    vector: VectorOptions = field(default_factory=VectorOptions)


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays a rollout; pickled with each call.

    Attributes:
        name: of the rollout.
        agent: reference to the agent, or to its name, fetched once by each worker.
        max_resets: episodes that may begin at once on a worker; 0 for all.
    """

    name: str
    agent: Any
    max_resets: int = 0


class EnvWorker:
    """A worker; made into an actor by `RayRollouts`.

    Args:
        config: see `WorkerConfig`.
    """

    def __init__(self, config: RayWorkerConfig) -> None:
        self._config = config
        self._open = AsyncExitStack()
        self._work = Path()
        self._vector: VectorEnv | None = None
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._casts: dict[str, tuple[asyncio.Future[Agent], asyncio.Semaphore]] = {}
        self._episodes: dict[int, list[str]] = {}

    async def start(self) -> dict[str, Any]:
        """Have packs, replay server and browser; return what is to be known of them.

        Raises:
            CollectionNotFound, MalformedPack, CollectionError, PeerError: as `PackStore.hold`.
            ReplayUnreachable, ProgramNotFound, InfraError: as `VectorEnv.start`.
        """
        import ray

        config = self._config
        self._work = Path(self._open.enter_context(TemporaryDirectory(prefix="stillweb-ray-")))
        proxy = config.proxy or await self._open.enter_async_context(self._replayed())
        env = config.vector.env
        if config.keep:
            env = replace(env, trajectories=self._work if config.keep == OBJECTS else Path(config.keep))
        vector = _Apart if config.keep == OBJECTS else VectorEnv
        self._vector = await self._open.enter_async_context(
            vector(
                proxy,
                config.sessions,
                collection=config.collection or None,
                level=config.level,
                observe=config.observe,
                options=replace(config.vector, env=env),
            )
        )
        for i in range(config.sessions):
            self._free.put_nowait(i)
        node = ray.get_runtime_context().get_node_id()
        return {"pid": os.getpid(), "node": node, "proxy": proxy, "browsers": self._vector.browsers()}

    async def close(self) -> None:
        """Leave all episodes, end browser and replay server, let go of the packs."""
        await self._open.aclose()

    @asynccontextmanager
    async def _replayed(self) -> AsyncIterator[str]:
        """Serve the packs on free ports of this machine."""
        with ExitStack() as stack:
            packs = await asyncio.to_thread(self._held, stack)
            ca = await asyncio.to_thread(CertAuthority.init, self._work / "ca")
            async with serve(packs, ca, ReplayOptions(port=0, session_ports=None)) as server:
                yield server.url

    def _held(self, stack: ExitStack) -> dict[str, Pack]:
        config = self._config
        store = PackStore(Path(config.store) if config.store else None, gib=config.store_gib)
        depot = PackRemote(config.depot) if config.depot else None
        return {
            name: stack.enter_context(Pack.open(stack.enter_context(store.hold(environment_id, depot))))
            for name, environment_id in config.packs.items()
        }

    @property
    def vector(self) -> VectorEnv:
        """Its sessions."""
        assert self._vector is not None, "start was not awaited"
        return self._vector

    # --- whole episodes -----------------------------------------------------------------------------

    async def play(self, cast: Cast, planned: Planned, again: bool) -> tuple[Rollout, Bodies]:
        """Play one attempt of an episode; return how it ended, and what it left, if that is kept as objects.

        Args:
            cast: see `Cast`.
            planned: the episode.
            again: whether an attempt has failed before.
        """
        i = await self._free.get()
        try:
            if again:
                await self.vector.proxy_ready()
            loading, resets = self._cast(cast)
            rollout = await play_one(self.vector, i, await loading, planned, resets=resets)
        finally:
            self._free.put_nowait(i)
        return rollout, await asyncio.to_thread(self._taken, rollout.episodes)

    async def forget(self, name: str) -> None:
        """Close the agent of a rollout that is over."""
        loading, _ = self._casts.pop(name, (None, None))
        if loading and (close := getattr(await loading, "aclose", None)):
            await close()

    def _cast(self, cast: Cast) -> tuple[asyncio.Future[Agent], asyncio.Semaphore]:
        if cast.name not in self._casts:
            loading = asyncio.ensure_future(_loaded(cast.agent))
            resets = asyncio.Semaphore(cast.max_resets or self._config.sessions)
            self._casts[cast.name] = loading, resets
        return self._casts[cast.name]

    def _taken(self, episodes: Sequence[str]) -> Bodies:
        """Take what episodes left out of our folder: bytes by path, as below a folder of trajectories."""
        taken: Bodies = {}
        if self._config.keep != OBJECTS:
            return taken
        for episode in filter(None, episodes):
            for home in self._work.glob(f"*/{episode}"):
                root = home.parent
                taken |= {
                    str(path.relative_to(root)): path.read_bytes()
                    for path in sorted(root.rglob("*"))
                    if path.is_file()
                }
                shutil.rmtree(root)
        return taken

    # --- single sessions ----------------------------------------------------------------------------

    async def take(self) -> int:
        """Return a session that is nobody else's, when there is one."""
        i = await self._free.get()
        self._episodes[i] = []
        return i

    async def reset(self, i: int, task: Task | None, **start: Any) -> tuple[dict[str, Any], Bodies]:
        """Begin an episode in a session; return it as of `Turn`, and its pictures by SHA-256."""
        observation, info = await self.vector.reset(i, task=task, **start)
        self._episodes[i].append(info["episode"])
        seen, pictures = _told(observation)
        return {"observation": seen, "info": info}, pictures

    async def step(self, i: int, action: Mapping[str, Any] | str) -> tuple[dict[str, Any], Bodies]:
        """Take an action in a session; return as `reset`."""
        observation, reward, terminated, truncated, info = await self.vector.step(i, action)
        seen, pictures = _told(observation)
        ended = {"reward": reward, "terminated": terminated, "truncated": truncated}
        return {"observation": seen, "info": info, **ended}, pictures

    async def observe(self, i: int, kinds: Sequence[str]) -> tuple[dict[str, Any], Bodies]:
        """Look at the page of a session."""
        return _told(await self.vector.observe(i, *kinds))

    async def give_back(self, i: int) -> None:
        """Leave a session's episode; others may have the session."""
        try:
            await self.vector.leave(i)
        finally:
            await asyncio.to_thread(self._taken, self._episodes.pop(i))
            self._free.put_nowait(i)


class _Apart(VectorEnv):
    """Sessions that write what they play into folders of their own, so that each can be taken as a whole."""

    def env_on(self, lease: BrowserLease) -> Env:
        """Return an env, which has one episode after the other until its session is left."""
        usual = self._options
        root = usual.env.trajectories
        assert root is not None
        self._options = replace(usual, env=replace(usual.env, trajectories=root / clock.new_id()))
        try:
            return super().env_on(lease)
        finally:
            self._options = usual


async def _loaded(reference: Any) -> Agent:
    agent = await reference
    return await asyncio.to_thread(load_agent, agent) if isinstance(agent, str) else agent


def _told(observation: Observation) -> tuple[dict[str, Any], Bodies]:
    """Return an observation as JSON with references to its pictures, and these."""
    pictures = {name: body for name in ("screenshot", "som") if (body := getattr(observation, name))}
    digests = observation.digests
    references = {name: {"sha256": digests[name]} for name in pictures}
    return (
        {**observation.to_dict(), "pictures": references},
        {digests[name]: body for name, body in pictures.items()},
    )

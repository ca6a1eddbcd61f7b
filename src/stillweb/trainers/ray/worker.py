"""A Ray worker: a browser, its sessions, and a replay server for its packs.

The worker is an asynchronous actor. A caller waits if no session is free. A temporary folder holds the CA of
the replay server and the episodes on their way into Ray's object store. If the process dies, its drivers and
browsers end, too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.browser.profile import BEST_LEVEL
from stillweb.certs import CertAuthority
from stillweb.collections.pack.cache import PackStore
from stillweb.collections.pack.publish import PackRemote
from stillweb.collections.pack.reader import Pack
from stillweb.env import Env, Observation, Planned, Rollout, Task, VectorEnv, VectorOptions
from stillweb.env.vector.pool import BrowserLease
from stillweb.env.vector.rollout import Agent, play_one
from stillweb.replay import ReplayOptions, serve
from stillweb.scratch import scratch_folder
from stillweb.trainers.agents import load_agent

OBJECTS = "objects"
"""Value of `RayWorkerConfig.keep`: store the files of episodes in Ray's object store."""

Bodies = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class RayWorkerConfig:
    """Configuration of a worker; pickled.

    Attributes:
        packs: identifier of each pack, by the name of its collection.
        remote: URL of the pushed packs.
        proxy: control URL of a running replay server, instead of packs.
        store: folder of the packs on the worker's machine; "" for the user's cache folder.
        store_gib: maximum size of that folder.
        keep: shared folder for trajectories and pictures, or `OBJECTS`, or "" for none.
    """

    sessions: int
    packs: Mapping[str, str] = field(default_factory=dict)
    remote: str = ""
    proxy: str = ""
    store: str = ""
    store_gib: float = 50.0
    collection: str = ""
    level: str = BEST_LEVEL
    observe: tuple[str, ...] = ("axtree",)
    keep: str = ""
    vector: VectorOptions = field(default_factory=VectorOptions)


@dataclass(frozen=True, slots=True)
class AgentReference:
    """The agent of a rollout; pickled with each call.

    Attributes:
        agent: reference to the agent or its name; each worker fetches it once.
        max_resets: episodes that may start simultaneously on a worker; 0 for all.
    """

    name: str
    agent: Any
    max_resets: int = 0


class EnvWorker:
    """A worker; `WorkerPool` turns it into an actor."""

    def __init__(self, config: RayWorkerConfig) -> None:
        self._config = config
        self._open = AsyncExitStack()
        self._work = Path()
        self._vector: VectorEnv | None = None
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._agents: dict[str, tuple[asyncio.Future[Agent], asyncio.Semaphore]] = {}
        self._episodes: dict[int, list[str]] = {}

    async def start(self) -> dict[str, Any]:
        """Fetch packs, start replay server and browser; return process, node and browsers.

        Raises:
            CollectionNotFound, MalformedPack, CollectionError, PeerError: see `PackStore.hold`.
            ReplayUnreachable, ProgramNotFound, InfraError: see `VectorEnv.start`.
        """
        import ray

        config = self._config
        self._work = self._open.enter_context(scratch_folder())
        proxy = config.proxy or await self._open.enter_async_context(self._replay())
        env = config.vector.env
        if config.keep:
            env = replace(env, trajectories=self._work if config.keep == OBJECTS else Path(config.keep))
        vector = _SeparateFolders if config.keep == OBJECTS else VectorEnv
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
        """Leave all episodes, end browser and replay server, release the packs."""
        await self._open.aclose()

    @asynccontextmanager
    async def _replay(self) -> AsyncIterator[str]:
        """Replay the packs on free ports of this machine."""
        with ExitStack() as stack:
            packs = await asyncio.to_thread(self._packs, stack)
            ca = await asyncio.to_thread(CertAuthority.init, self._work / "ca")
            async with serve(packs, ca, ReplayOptions(port=0, session_ports=None)) as server:
                yield server.url

    def _packs(self, stack: ExitStack) -> dict[str, Pack]:
        config = self._config
        store = PackStore(Path(config.store) if config.store else None, gib=config.store_gib)
        remote = PackRemote(config.remote) if config.remote else None
        return {
            name: stack.enter_context(Pack.open(stack.enter_context(store.hold(environment_id, remote))))
            for name, environment_id in config.packs.items()
        }

    @property
    def vector(self) -> VectorEnv:
        assert self._vector is not None, "start was not awaited"
        return self._vector

    # --- whole episodes -----------------------------------------------------------------------------

    async def play(self, reference: AgentReference, planned: Planned, again: bool) -> tuple[Rollout, Bodies]:
        """Play one attempt of an episode; return its result and, with `OBJECTS`, its files.

        Args:
            again: whether an earlier attempt failed.
        """
        i = await self._free.get()
        try:
            if again:
                await self.vector.proxy_ready()
            loading, resets = self._agent_of(reference)
            rollout = await play_one(self.vector, i, await loading, planned, resets=resets)
        finally:
            self._free.put_nowait(i)
        return rollout, await asyncio.to_thread(self._collect, rollout.episodes)

    async def forget(self, name: str) -> None:
        loading, _ = self._agents.pop(name, (None, None))
        if loading and (close := getattr(await loading, "aclose", None)):
            await close()

    def _agent_of(self, reference: AgentReference) -> tuple[asyncio.Future[Agent], asyncio.Semaphore]:
        if reference.name not in self._agents:
            loading = asyncio.ensure_future(_loaded(reference.agent))
            resets = asyncio.Semaphore(reference.max_resets or self._config.sessions)
            self._agents[reference.name] = loading, resets
        return self._agents[reference.name]

    def _collect(self, episodes: Sequence[str]) -> Bodies:
        """Remove the files of episodes from the work folder and return them by relative path."""
        files: Bodies = {}
        if self._config.keep != OBJECTS:
            return files
        for episode in filter(None, episodes):
            for home in self._work.glob(f"*/{episode}"):
                root = home.parent
                files |= {
                    str(path.relative_to(root)): path.read_bytes()
                    for path in sorted(root.rglob("*"))
                    if path.is_file()
                }
                shutil.rmtree(root)
        return files

    # --- single sessions ----------------------------------------------------------------------------

    async def take(self) -> int:
        i = await self._free.get()
        self._episodes[i] = []
        return i

    async def reset(self, i: int, task: Task | None, **start: Any) -> tuple[dict[str, Any], Bodies]:
        """Start an episode in a session; return the fields of `Turn`, and its pictures by SHA-256."""
        observation, info = await self.vector.reset(i, task=task, **start)
        self._episodes[i].append(info["episode"])
        seen, pictures = _with_references(observation)
        return {"observation": seen, "info": info}, pictures

    async def step(self, i: int, action: Mapping[str, Any] | str) -> tuple[dict[str, Any], Bodies]:
        """Take an action in a session; return the same as `reset`."""
        observation, reward, terminated, truncated, info = await self.vector.step(i, action)
        seen, pictures = _with_references(observation)
        ended = {"reward": reward, "terminated": terminated, "truncated": truncated}
        return {"observation": seen, "info": info, **ended}, pictures

    async def observe(self, i: int, kinds: Sequence[str]) -> tuple[dict[str, Any], Bodies]:
        return _with_references(await self.vector.observe(i, *kinds))

    async def give_back(self, i: int) -> None:
        try:
            await self.vector.leave(i)
        finally:
            await asyncio.to_thread(self._collect, self._episodes.pop(i))
            self._free.put_nowait(i)


class _SeparateFolders(VectorEnv):
    """Writes the trajectories of each session into its own folder, to be collected as a whole."""

    def env_on(self, lease: BrowserLease) -> Env:
        shared = self._options
        root = shared.env.trajectories
        assert root is not None
        self._options = replace(shared, env=replace(shared.env, trajectories=root / clock.new_id()))
        try:
            return super().env_on(lease)
        finally:
            self._options = shared


async def _loaded(reference: Any) -> Agent:
    agent = await reference
    return await asyncio.to_thread(load_agent, agent) if isinstance(agent, str) else agent


def _with_references(observation: Observation) -> tuple[dict[str, Any], Bodies]:
    """Return an observation as JSON with references to its pictures, and the pictures."""
    pictures = {name: body for name in ("screenshot", "som") if (body := getattr(observation, name))}
    digests = observation.digests
    references = {name: {"sha256": digests[name]} for name in pictures}
    return (
        {**observation.to_dict(), "pictures": references},
        {digests[name]: body for name, body in pictures.items()},
    )

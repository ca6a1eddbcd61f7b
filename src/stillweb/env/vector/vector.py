"""Vector of concurrent sessions on one or several browsers, without a barrier.

    async with VectorEnv(url, 16) as vector:
        observation, info = await vector.reset(3, task=task)
        observation, reward, terminated, truncated, info = await vector.step(3, action)

A session is an `Env` with a number. Each session is reset and stepped independently. A failure of one session
is an `InfraError` in that session only, never a reward; the next reset finds a working browser. Browsers come
from a `BrowserPool`: new episodes go to the newest browser, running ones end where they began. `rollout`
plays tasks with an agent and yields episodes as they end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from playwright.async_api import Browser

from stillweb.browser.profile import BEST_LEVEL, Level
from stillweb.env.aio import Started
from stillweb.env.env import Env, Info
from stillweb.env.episode.determinism import level_of, probe_level
from stillweb.env.episode.episode import as_infra_error
from stillweb.env.episode.live import is_live
from stillweb.env.observations.observation import Observation
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.task import Task
from stillweb.env.vector.fork import EpisodeHistory, retrace
from stillweb.env.vector.pool import BrowserLease, BrowserPool, BrowserState, PoolOptions
from stillweb.env.vector.rollout import Agent, Planned, Rollout, RolloutOptions, play
from stillweb.errors import (
    EnvClosed,
    InfraError,
    PeerError,
    PortInUse,
    ReplayError,
    ResetNeeded,
    UsageError,
    first_error,
)
from stillweb.polling import poll
from stillweb.replay import ReplayClient

_CONCURRENT_CLOSES = 8


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """Further options of a `VectorEnv`.

    Attributes:
        pool: number and lifetime of the browsers. `env.executable` overrides `pool.executable`.
        at_once: concurrent resets and steps; others wait in order of arrival. 0 is twice the number of cores,
            at least 4. A higher number makes each call slower, until limits in real seconds expire that have
            nothing to do with the page. A quarter as many starts are prefetched (`EnvOptions.prefetch`).
        browsers: pool of several vectors in turn, which its owner closes; None for a pool of its own.
    """

    pool: PoolOptions = field(default_factory=PoolOptions)
    env: EnvOptions = field(default_factory=EnvOptions)
    at_once: int = 0
    browsers: BrowserPool | None = None


class _Slot:
    """One session: an env on a leased browser."""

    def __init__(self, vector: VectorEnv) -> None:
        self._vector = vector
        self.env: Env | None = None
        self.lease: BrowserLease | None = None
        self.busy = False

    async def ready(self) -> Env:
        """Return an env on a browser that takes a new episode; its last episode may still be open."""
        if self.env and self.lease and self.lease.renew():
            return self.env
        await self.leave()
        self.lease = await self._vector.lease()
        self.env = self._vector.env_on(self.lease)
        return self.env

    async def leave(self) -> None:
        """Close the env, and release the browser."""
        env, self.env = self.env, None
        lease, self.lease = self.lease, None
        try:
            if env:
                await env.close()
        finally:
            if lease:
                lease.release()

    async def leave_drained(self) -> None:
        """Leave the episode if its browser is draining or lost."""
        if self.lease and self.lease.state is not BrowserState.SERVING:
            await self.leave()


class VectorEnv(Started):
    """N sessions on a replay server.

    Args:
        proxy: control URL of the replay server (`stillweb replay` prints it).
        n: number of sessions; they are numbered from 0.
        collection: name of the collection; the default is the task's, or the only one served.
    """

    def __init__(
        self,
        proxy: str,
        n: int,
        *,
        collection: str | None = None,
        level: str = BEST_LEVEL,
        observe: Sequence[str] = ("axtree",),
        options: VectorOptions | None = None,
    ) -> None:
        if n < 1:
            raise UsageError(f"a VectorEnv needs at least one session, not {n}")
        self._options = chosen = options or VectorOptions()
        self._is_best = level == BEST_LEVEL
        self._level = level_of(
            level,
            executable=chosen.env.executable or chosen.pool.executable,
            headless=chosen.env.headless and chosen.pool.headless,
        )
        self._proxy = proxy
        self._named: dict[str, Any] = {"collection": collection, "observe": tuple(observe)}
        self._pool: BrowserPool | None = None
        self._slots = [_Slot(self) for _ in range(n)]
        self._starting = asyncio.Lock()
        at_once = self._options.at_once or max(4, 2 * (os.cpu_count() or 1))
        self._turns = asyncio.Semaphore(at_once)
        self._prefetches = asyncio.Semaphore(max(1, at_once // 4))  # steps have priority
        self._closed = False

    @property
    def level(self) -> Level:
        """The level in use; final once a browser has started."""
        return self._level

    def __len__(self) -> int:
        return len(self._slots)

    async def start(self) -> None:
        """Connect to the replay server and start a browser; `reset` does so if necessary.

        Raises:
            ReplayUnreachable: if no replay server answers.
            ProgramNotFound: if there is no browser.
            InfraError: if the browser does not start or does not keep the level.
        """
        (await self.lease()).release()

    async def reset(
        self, i: int, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in session i, see `Env.reset`.

        Raises:
            UsageError, TaskError: as `Env.reset`.
            InfraError: if browser or proxy fail, the replay server included; reset again.
        """
        slot = self._slot(i)
        async with self._turn(slot, "reset"):
            env = await slot.ready()
            observation, info = await env.reset(task=task, url=url, seed=seed)
        return observation, self._placed(i, slot, info)

    async def step(
        self, i: int, action: Mapping[str, Any] | str
    ) -> tuple[Observation, float, bool, bool, Info]:
        """Perform an action in session i, see `Env.step`."""
        slot = self._slot(i)
        env = slot.env  # `leave` may clear the slot while this call waits for its turn
        if env is None:
            raise ResetNeeded(f"session {i} has no episode", hint=f"await vector.reset({i}, task=...)")
        async with self._turn(slot, "step"):
            observation, reward, terminated, truncated, info = await env.step(action)
        info = self._placed(i, slot, info)
        if terminated or truncated:
            await slot.leave_drained()
        return observation, reward, terminated, truncated, info

    def prepare(
        self, i: int, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> None:
        """Announce the next reset of session i, see `Env.prepare`."""
        slot = self._slot(i)
        if slot.env is None:
            raise ResetNeeded(f"session {i} has no episode", hint=f"await vector.reset({i}, task=...)")
        slot.env.prepare(task=task, url=url, seed=seed)

    async def observe(self, i: int, *kinds: str) -> Observation:
        """Observe the page of session i without a step, see `Env.observe`."""
        slot = self._slot(i)
        env = slot.env  # see `step`
        if env is None:
            raise ResetNeeded(f"session {i} has no episode", hint=f"await vector.reset({i}, task=...)")
        async with self._turn(slot, "observe"):
            return await env.observe(*kinds)

    async def fork(self, i: int, into: Sequence[int]) -> None:
        """Bring other sessions to the state of session i; their own episodes are left.

        Raises:
            UsageError: if session i has no running episode, or observes nothing.
            ForkDiverged: if the repeated actions lead to another state.
            InfraError: if browser or proxy fail. The sessions in `into` then have no episode.
        """
        slot, others = self._slot(i), [self._slot(j) for j in into]
        if i in into or len({*into}) < len(into):
            raise UsageError(f"session {i} forks into others, each named once, not into {list(into)}")
        if slot.env is None:
            raise UsageError(f"session {i} has no episode to fork", hint=f"await vector.reset({i}, task=...)")
        past = slot.env.past
        past = replace(past, steps=list(past.steps))
        try:
            async with asyncio.TaskGroup() as group:
                for other in others:
                    group.create_task(self._retrace(other, past))
        except BaseExceptionGroup as errors:
            await asyncio.gather(*(other.leave() for other in others))
            raise first_error(errors) from errors

    async def leave(self, i: int) -> None:
        """Leave the episode of session i and release its browser; `close` does so for all."""
        await self._slots[i].leave()

    def rollout(
        self, agent: Agent, tasks: Iterable[Task | Planned], options: RolloutOptions | None = None
    ) -> AsyncGenerator[Rollout]:
        """Play tasks with an agent and yield the episodes in the order in which they end.

        Use `contextlib.aclosing` if the loop may end early.

        Args:
            tasks: read one by one, as sessions become free.
        """
        return play(self, agent, tasks, options or RolloutOptions())

    async def proxy_ready(self, seconds: float = 30.0) -> bool:
        """Wait until the replay server is ready; return False on timeout."""
        async with ReplayClient(self._proxy) as client:
            return await poll(partial(_ready, client), timeout=seconds, interval=0.1)

    def browsers(self) -> list[dict[str, Any]]:
        return self._pool.browsers() if self._pool else []

    async def close(self) -> None:
        """Leave all episodes and end all browsers; a second call has no effect."""
        self._closed = True
        # Limited, since each close has a timeout; apart from the turns of steps, which this call ends.
        turns = asyncio.Semaphore(_CONCURRENT_CLOSES)

        async def leave(slot: _Slot) -> None:
            async with turns:
                await slot.leave()

        await asyncio.gather(*(leave(slot) for slot in self._slots))
        if self._pool and self._pool is not self._options.browsers:
            await self._pool.close()

    # --- for the sessions --------------------------------------------------------------------------

    async def lease(self) -> BrowserLease:
        async with self._starting:
            if self._closed:
                raise EnvClosed("this VectorEnv is closed")
            if self._pool is None:
                async with ReplayClient(self._proxy) as client:
                    info = await client.info()
                if self._is_best and is_live(info):
                    self._level = Level.CLOCK
                chosen = self._options
                if chosen.browsers is not None:
                    self._pool = chosen.browsers
                    return await self._pool.lease()
                pool = replace(
                    chosen.pool,
                    executable=chosen.env.executable or chosen.pool.executable,
                    headless=chosen.env.headless and chosen.pool.headless,
                    exact=self._level is Level.EXACT,
                )
                self._pool = BrowserPool(info.spki, pool, replay=self._proxy, prepare=self._probe)
        return await self._pool.lease()

    def env_on(self, lease: BrowserLease) -> Env:
        env = Env(
            self._proxy,
            **self._named,
            level=self._level.value,
            browser=lease.browser,
            options=self._options.env,
        )
        env.prefetcher.turns = self._prefetches
        return env

    async def _probe(self, browser: Browser) -> None:
        await probe_level(browser, self._level)

    async def _trust_replay(self) -> None:
        """Have the browsers replaced if the replay server has other certificates, as a new pod has."""
        if self._pool is None or self._pool is self._options.browsers:
            return
        with suppress(PeerError, ReplayError):  # it does not respond
            async with ReplayClient(self._proxy) as client:
                self._pool.trust((await client.info()).spki)

    async def _retrace(self, slot: _Slot, past: EpisodeHistory) -> None:
        async with self._turn(slot, "fork"):
            await retrace(await slot.ready(), past)

    def _slot(self, i: int) -> _Slot:
        if self._closed:
            raise EnvClosed("this VectorEnv is closed")
        if not 0 <= i < len(self._slots):
            raise UsageError(f"no session {i}: they are numbered 0 to {len(self._slots) - 1}")
        return self._slots[i]

    @asynccontextmanager
    async def _turn(self, slot: _Slot, what: str) -> AsyncGenerator[None]:
        """Run a call of a session in its turn; raise failures as InfraError, and then examine the browser."""
        if slot.busy:
            raise UsageError(f"{what} was called during another call of the session")
        slot.busy = True
        try:
            try:
                async with self._turns:
                    yield
            finally:
                slot.busy = False
        except BaseException as error:
            ours = as_infra_error(what, error)
            if isinstance(ours, InfraError):
                await self._trust_replay()
                if slot.lease:
                    await slot.lease.examine()
                await slot.leave_drained()
            if ours is error:
                raise
            raise ours from error

    def _placed(self, i: int, slot: _Slot, info: Info) -> Info:
        return {**info, "session_index": i, "browser": slot.lease.number if slot.lease else -1}


async def _ready(client: ReplayClient) -> bool:
    try:
        await client.ask("GET", "/ready")
    except (PeerError, ReplayError, PortInUse):
        return False
    except UsageError:  # a back-end without this endpoint
        return True
    return True

"""Many sessions at once, in one browser or a few, none of them waiting for another.

    async with VectorEnv(url, 16) as vector:
        observation, info = await vector.reset(3, task=task)
        observation, reward, terminated, truncated, info = await vector.step(3, action)

A session is an `Env` with a number. Each is reset and stepped by itself; there is no barrier, and what
breaks one session is told to that session alone: an `InfraError`, never a reward. The next reset finds
a browser that works. Browsers come from a `BrowserPool`: new episodes go to the newest, running
ones end on the one they began on. `rollout` plays tasks with an agent and yields episodes as they end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any

from playwright.async_api import Browser

from stillweb.browser.profile import Level
from stillweb.env.aio import Started
from stillweb.env.env import Env, Info
from stillweb.env.episode.determinism import level_of, probe_level
from stillweb.env.episode.episode import told_as_ours
from stillweb.env.observations.observation import Observation
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.load import Task
from stillweb.env.vector.fork import EpisodeHistory, retrace
from stillweb.env.vector.pool import BrowserLease, BrowserPool, BrowserState, PoolOptions
from stillweb.env.vector.rollout import Agent, Planned, Rollout, RolloutOptions, play
from stillweb.errors import EnvClosed, InfraError, PeerError, PortInUse, ReplayError, ResetNeeded, UsageError
from stillweb.polling import poll
from stillweb.replay.client import ReplayClient

__all__ = ["VectorEnv", "VectorOptions"]

_CLOSE_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """What seldom needs saying.

    Attributes:
        pool: how many browsers, and for how many episodes each. Its browser is that of `env` if that says.
        env: of each session.
        at_once: resets and steps that are worked on at once, the others wait for their turn in order of
            arrival; 0 for twice the machine's cores, at least 4. More do not make a machine faster, but each
            of them slower, until limits in real seconds are met that say nothing of the page. Beside them a
            quarter as many starts are prepared ahead (`EnvOptions.ahead`).
    """

    pool: PoolOptions = field(default_factory=PoolOptions)
    env: EnvOptions = field(default_factory=EnvOptions)
    at_once: int = 0


class _Slot:
    """A session: an env on a leased browser, one episode after the other."""

    def __init__(self, vector: VectorEnv) -> None:
        self._vector = vector
        self.env: Env | None = None
        self.lease: BrowserLease | None = None
        self.busy = False

    async def ready(self) -> Env:
        """Return an env on a browser that takes a new episode; the last episode may still stand in it."""
        if self.env and self.lease and self.lease.renew():
            return self.env
        await self.leave()
        self.lease = await self._vector.lease()
        self.env = self._vector.env_on(self.lease)
        return self.env

    async def leave(self) -> None:
        """Leave the episode, and give the browser back."""
        env, self.env = self.env, None
        lease, self.lease = self.lease, None
        try:
            if env:
                await env.close()
        finally:
            if lease:
                lease.release()

    async def leave_drained(self) -> None:
        """Leave an episode that is over, if its browser waits for that."""
        if self.lease and self.lease.state is not BrowserState.SERVING:
            await self.leave()


class VectorEnv(Started):
    """N sessions on a replay server.

    Args:
        proxy: control URL of the replay server (`stillweb replay` prints it).
        n: how many sessions, numbered from 0.
        collection: name of the collection; otherwise the task's, or the only one served.
        level: how much is pinned, see `Env`.
        observe: what observations hold, see `Env`.
        options: see `VectorOptions`.
    """

    def __init__(
        self,
        proxy: str,
        n: int,
        *,
        collection: str | None = None,
        level: str = "clock",
        observe: Sequence[str] = ("axtree",),
        options: VectorOptions | None = None,
    ) -> None:
        if n < 1:
            raise UsageError(f"a VectorEnv needs at least one session, not {n}")
        self._level = level_of(level)
        self._proxy = proxy
        self._named: dict[str, Any] = {"collection": collection, "level": level, "observe": tuple(observe)}
        self._options = options or VectorOptions()
        self._pool: BrowserPool | None = None
        self._seats = [_Slot(self) for _ in range(n)]
        self._starting = asyncio.Lock()
        at_once = self._options.at_once or max(4, 2 * (os.cpu_count() or 1))
        self._gate = asyncio.Semaphore(at_once)
        self._preparing = asyncio.Semaphore(max(1, at_once // 4))  # whoever waits for a step comes first
        self._closed = False

    def __len__(self) -> int:
        return len(self._seats)

    async def start(self) -> None:
        """Reach the replay server and have a browser that keeps the level. `reset` does so where needed.

        Raises:
            ReplayUnreachable: if no replay server answers.
            ProgramNotFound: if there is no browser.
            InfraError: if the browser does not start or does not keep the level.
        """
        (await self.lease()).release()

    async def reset(
        self, i: int, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in session i, as `Env.reset` does. Waits for no other session.

        Raises:
            UsageError, TaskError: as `Env.reset`.
            InfraError: if browser or proxy fail, the replay server included; reset again.
        """
        seat = self._seat(i)
        async with self._reported(seat, "reset"):
            env = await seat.ready()
            observation, info = await env.reset(task=task, url=url, seed=seed)
        return observation, self._placed(i, seat, info)

    async def step(
        self, i: int, action: Mapping[str, Any] | str
    ) -> tuple[Observation, float, bool, bool, Info]:
        """Take an action in session i, as `Env.step` does. Waits for no other session."""
        seat = self._seat(i)
        if seat.env is None:
            raise ResetNeeded(f"session {i} has no episode", hint=f"await vector.reset({i}, task=...)")
        async with self._reported(seat, "step"):
            observation, reward, terminated, truncated, info = await seat.env.step(action)
        info = self._placed(i, seat, info)
        if terminated or truncated:
            await seat.leave_drained()
        return observation, reward, terminated, truncated, info

    def prepare(
        self, i: int, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> None:
        """Say what the next reset of session i will ask for, as `Env.prepare` does."""
        seat = self._seat(i)
        if seat.env is None:
            raise ResetNeeded(f"session {i} has no episode", hint=f"await vector.reset({i}, task=...)")
        seat.env.prepare(task=task, url=url, seed=seed)

    async def observe(self, i: int, *kinds: str) -> Observation:
        """Look at the page of session i without a step, as `Env.observe` does."""
        seat = self._seat(i)
        if seat.env is None:
            raise ResetNeeded(f"session {i} has no episode", hint=f"await vector.reset({i}, task=...)")
        async with self._reported(seat, "observe"):
            return await seat.env.observe(*kinds)

    async def fork(self, i: int, into: Sequence[int]) -> None:
        """Bring other sessions to where session i stands; what they did before is left.

        Raises:
            UsageError: if session i has no episode under way, or nothing of it was observed.
            ForkDiverged: if the actions so far, taken again, lead to another state.
            InfraError: if browser or proxy fail. The sessions in `into` have no episode then.
        """
        seat, others = self._seat(i), [self._seat(j) for j in into]
        if i in into or len({*into}) < len(into):
            raise UsageError(f"session {i} forks into others, each named once, not into {list(into)}")
        if seat.env is None:
            raise UsageError(f"session {i} has no episode to fork", hint=f"await vector.reset({i}, task=...)")
        past = seat.env.past
        past = replace(past, moments=list(past.moments))
        try:
            async with asyncio.TaskGroup() as group:
                for other in others:
                    group.create_task(self._retrace(other, past))
        except BaseExceptionGroup as errors:
            await asyncio.gather(*(other.leave() for other in others))
            raise errors.exceptions[0] from errors

    async def leave(self, i: int) -> None:
        """Leave the episode of session i and give its browser back; close does so for all."""
        await self._seats[i].leave()

    def rollout(
        self, agent: Agent, tasks: Iterable[Task | Planned], options: RolloutOptions | None = None
    ) -> AsyncGenerator[Rollout]:
        """Play tasks with an agent and yield the episodes as they end, in whatever order that is.

        Who may leave off before the end uses `contextlib.aclosing`.

        Args:
            agent: makes the policy of one episode, see `Agent`.
            tasks: read one by one, as sessions become free.
            options: see `RolloutOptions`.
        """
        return play(self, agent, tasks, options or RolloutOptions())

    async def proxy_ready(self, seconds: float = 30.0) -> bool:
        """Wait until the replay server can take episodes again; return whether it came to that."""
        async with ReplayClient(self._proxy) as client:
            return await poll(partial(_ready, client), timeout=seconds, interval=0.1)

    def browsers(self) -> list[dict[str, Any]]:
        """Return the browsers that have not ended, see `BrowserPool.browsers`."""
        return self._pool.browsers() if self._pool else []

    async def close(self) -> None:
        """Leave all episodes and end all browsers. Twice is once."""
        self._closed = True
        # In turns, since each has only so many seconds; and not in those of steps, which this ends.
        turns = asyncio.Semaphore(_CLOSE_AT_ONCE)

        async def leave(seat: _Slot) -> None:
            async with turns:
                await seat.leave()

        await asyncio.gather(*(leave(seat) for seat in self._seats))
        if self._pool:
            await self._pool.close()

    # --- for the sessions --------------------------------------------------------------------------

    async def lease(self) -> BrowserLease:
        """Return a browser for the next episode."""
        async with self._starting:
            if self._closed:
                raise EnvClosed("this VectorEnv is closed")
            if self._pool is None:
                async with ReplayClient(self._proxy) as client:
                    spki = (await client.info()).spki
                chosen = self._options
                pool = replace(
                    chosen.pool,
                    executable=chosen.env.executable or chosen.pool.executable,
                    headless=chosen.env.headless and chosen.pool.headless,
                    exact=self._level is Level.EXACT,
                )
                self._pool = BrowserPool(spki, pool, prepare=self._probe)
        return await self._pool.lease()

    def env_on(self, lease: BrowserLease) -> Env:
        """Return an env on a leased browser."""
        env = Env(self._proxy, **self._named, browser=lease.browser, options=self._options.env)
        env.ahead.gate = self._preparing
        return env

    async def _probe(self, browser: Browser) -> None:
        await probe_level(browser, self._level)

    async def _retrace(self, seat: _Slot, past: EpisodeHistory) -> None:
        async with self._reported(seat, "fork"):
            await retrace(await seat.ready(), past)

    def _seat(self, i: int) -> _Slot:
        if self._closed:
            raise EnvClosed("this VectorEnv is closed")
        if not 0 <= i < len(self._seats):
            raise UsageError(f"no session {i}: they are numbered 0 to {len(self._seats) - 1}")
        return self._seats[i]

    def _reported(self, seat: _Slot, what: str) -> _Reported:
        return _Reported(seat, what, self._gate)

    def _placed(self, i: int, seat: _Slot, info: Info) -> Info:
        return {**info, "session_index": i, "browser": seat.lease.number if seat.lease else -1}


async def _ready(client: ReplayClient) -> bool:
    try:
        await client.ask("GET", "/ready")
    except (PeerError, ReplayError, PortInUse):
        return False
    except UsageError:  # a back-end that has no such question
        return True
    return True


class _Reported:
    """Lets a session work when it is its turn, tells failures as ours, has its browser looked at then."""

    def __init__(self, seat: _Slot, what: str, gate: asyncio.Semaphore) -> None:
        self._seat = seat
        self._what = what
        self._gate = gate

    async def __aenter__(self) -> None:
        if self._seat.busy:
            raise UsageError(f"{self._what} was called while another call of the session was under way")
        self._seat.busy = True
        try:
            await self._gate.acquire()
        except BaseException:
            self._seat.busy = False
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.release()
        self._seat.busy = False
        if error is None:
            return
        ours = told_as_ours(self._what, error)
        if isinstance(ours, InfraError) and self._seat.lease:
            await self._seat.lease.examine()
        if isinstance(ours, InfraError):
            await self._seat.leave_drained()
        if ours is not error:
            raise ours from error

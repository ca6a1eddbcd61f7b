"""Episodes for many clients in one `VectorEnv`: a lease has a session of it, and none waits for another.

A call of a lease stands in two lines: behind earlier calls of the same lease, and in that of its kind of
operation (`ServeOptions.queues`). It runs in a task of its own, so that a client that hangs up in the middle
changes nothing: what was begun is ended, its answer is kept for a retry, and the lease runs out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from stillweb import clock
from stillweb.env.aio import Started
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.load import Task
from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.env.vector.vector import VectorEnv
from stillweb.errors import EnvClosed, InfraError, ResetNeeded, StillwebError
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease, IdempotencyCache
from stillweb.server.leases.leases import Lease
from stillweb.server.leases.manager import LeaseManager
from stillweb.server.leases.queue import Semaphore
from stillweb.server.monitor.counters import ServerCounters
from stillweb.server.options import ServeOptions
from stillweb.server.pictures import PictureStore

__all__ = ["Engine", "Start", "Stepped"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
_REPLAY_SECONDS = 5.0  # no longer, since meanwhile the lease of a client that has gone is not taken back
_LEASINGS = 256  # requests for leases whose answers are kept for retries
Action = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Start:
    """What an episode begins with: a task or a URL, and a seed unless it is theirs."""

    task: Task | None = None
    url: str | None = None
    seed: int | None = None

    @property
    def label(self) -> str:
        """By which the monitor shows it."""
        return self.task.id if self.task else ""

    @property
    def opens(self) -> str:
        """The page that it opens."""
        return self.task.start_url if self.task else self.url or ""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a reset or step gave, as JSON; `reward` is None for a reset."""

    observation: dict[str, Any]
    reward: float | None
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


class Engine(Started):
    """The rollout server without HTTP.

    Args:
        proxy: control URL of the replay server.
        options: see `ServeOptions`.
    """

    def __init__(self, proxy: str, options: ServeOptions | None = None) -> None:
        self.options = chosen = options or ServeOptions()
        self.proxy = proxy
        self.began = clock.monotonic()
        self.tally = ServerCounters(self.began)
        self.vector = VectorEnv(
            proxy,
            chosen.sessions,
            collection=chosen.collection,
            level=chosen.level,
            observe=chosen.observe,
            options=chosen.vector,
        )
        room = max(chosen.room, chosen.sessions)
        self.queues = {name: Semaphore(name, limit, room) for name, limit in chosen.queues.items()}
        trajectories = chosen.vector.env.trajectories
        self.pictures = PictureStore(
            chosen.picture_bytes, ContentFiles(trajectories) if trajectories else None
        )
        self.desk = LeaseManager(chosen, self.vector.leave, self.queues["release"], self.tally, self._changed)
        self._whose = f"?node={chosen.node}" if chosen.node else ""  # a master finds the picture by it
        self.leasing: IdempotencyCache[dict[str, Any]] = IdempotencyCache(kept=_LEASINGS)
        self.closing = asyncio.Event()
        self.changes = 0
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Reach the replay server, have a browser, begin to count the seconds of leases."""
        await self.vector.start()
        self.desk.start()

    async def drain(self) -> None:
        """Give no new leases; wait until those there are have ended, or `drain_seconds` are over."""
        await self.desk.drain(self.options.drain_seconds)

    async def close(self) -> None:
        """End all leases, leave their sessions, end the browsers."""
        self.end_streams()
        await self.desk.close()
        await self.vector.close()

    def end_streams(self) -> None:
        """End the streams of events, which never end by themselves."""
        self.closing.set()
        self._changed()

    async def changed(self, seen: int, seconds: float) -> int:
        """Wait until there are other `changes`, or the server closes; return how many there are."""
        if self.changes == seen and not self.closing.is_set():
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait([news], timeout=seconds)
            news.cancel()
        return self.changes

    def _changed(self) -> None:
        self.changes += 1
        self._news.set()
        self._news = asyncio.Event()

    # --- what clients do ----------------------------------------------------------------------------

    async def reset(self, held: HeldLease, start: Start, *, request_id: str = "") -> Stepped:
        """Begin an episode.

        Raises:
            Refused: if the server ends, the lease has ended, or too many wait.
            UsageError, TaskError, InfraError: as `Env.reset`.
        """
        if self.desk.draining:
            raise RequestRefused(
                FailureKind.DRAINING, "this server ends: running episodes go on, none begins"
            )

        async def reset() -> Stepped:
            return await self._call(held, "reset", lambda: self._reset(held, start))

        # No failure lasts: a reset begins anew anyway, so that the same one may be tried again.
        told: Stepped = await held.once.do(request_id, ["reset", start.label, start.opens, start.seed], reset)
        return told

    async def step(self, held: HeldLease, action: Action, *, request_id: str = "") -> Stepped:
        """Take an action; a request identifier that was used for it already gives its answer again.

        Raises:
            Refused: as `reset`; or if the identifier was another request's.
            ResetNeeded: if no episode is under way.
            InfraError: if browser or proxy fail.
        """

        async def step() -> Stepped:
            return await self._call(held, "execute", lambda: self._step(held, action))

        told: Stepped = await held.once.do(request_id, ["step", action], step, (InfraError,))
        return told

    async def observe(
        self, held: HeldLease, kinds: Sequence[str], *, queue: str = "observe"
    ) -> dict[str, Any]:
        """Look at the page without a step; as `Stepped.observation`."""

        async def observe() -> dict[str, Any]:
            return await self._call(held, queue, lambda: self._observe(held, kinds))

        told: dict[str, Any] = await held.once.do("", None, observe)
        return told

    # --- calls --------------------------------------------------------------------------------------

    async def _call(self, held: HeldLease, queue: str, work: Callable[[], Awaitable[T]]) -> T:
        self.desk.heard(held, calls=1)
        held.doing = held.doing or f"queued:{queue}"
        try:
            async with held.gate.turn(), held.lock, self.queues[queue].turn():
                if held.ended:
                    raise RequestRefused(
                        FailureKind.OVER, f"lease {held.lease.id} ended while the call waited"
                    )
                async with self._doing(held, queue):
                    return await work()
        except StillwebError as error:
            self._failed(held, error)
            raise
        finally:
            held.doing = ""
            self.desk.heard(held, calls=-1)
            self._changed()

    @asynccontextmanager
    async def _doing(self, held: HeldLease, queue: str) -> AsyncIterator[None]:
        held.doing = queue
        self._changed()
        try:
            yield
        except (EnvClosed, InfraError) as error:
            if held.ended:  # what we took away under it is no failure of anything
                raise RequestRefused(
                    FailureKind.OVER, f"lease {held.lease.id} ended in the middle of it"
                ) from error
            raise

    def _failed(self, held: HeldLease, error: StillwebError) -> None:
        self.tally.failures[fault_of(error).kind] += 1
        if isinstance(error, InfraError):
            logger.warning("an episode failed", extra={"lease": held.lease.id, "error": str(error)})

    async def _reset(self, held: HeldLease, start: Start) -> Stepped:
        held.begins(start.label, start.opens)
        try:
            try:
                observation, info = await self._open(held.lease, start)
            except InfraError:
                # A replay worker that died is started again, within seconds: nothing its clients need count.
                if held.ended or not await self._replay_back():
                    raise
                observation, info = await self._open(held.lease, start)
        except StillwebError as error:
            held.fails(error)
            raise
        self.tally.resets.count(clock.monotonic())
        return Stepped(self._saw(held, observation, info), None, False, False, info)

    async def _open(self, lease: Lease, start: Start) -> tuple[Observation, Mapping[str, Any]]:
        url = None if start.task else start.url
        return await self.vector.reset(lease.session, task=start.task, url=url, seed=start.seed)

    async def _replay_back(self) -> bool:
        """Return whether the replay server was not ready, and is now."""
        return not await self.vector.proxy_ready(0) and await self.vector.proxy_ready(_REPLAY_SECONDS)

    async def _step(self, held: HeldLease, action: Action) -> Stepped:
        if not held.playing:
            raise ResetNeeded(_why_not(held), hint="reset the lease")
        try:
            observation, reward, terminated, truncated, info = await self.vector.step(
                held.lease.session, action
            )
        except StillwebError as error:
            held.fails(error)
            raise
        self.tally.steps.count(clock.monotonic())
        if terminated or truncated:
            held.ends(reward)
            self.tally.episodes["terminated" if terminated else "truncated"] += 1
        return Stepped(self._saw(held, observation, info), reward, terminated, truncated, info)

    async def _observe(self, held: HeldLease, kinds: Sequence[str]) -> dict[str, Any]:
        return self._shown(held, await self.vector.observe(held.lease.session, *kinds))

    def _saw(self, held: HeldLease, observation: Observation, info: Mapping[str, Any]) -> dict[str, Any]:
        held.saw(observation, info)
        self.tally.met(info["traffic"], held.task, clock.monotonic())
        return self._shown(held, observation)

    def _shown(self, held: HeldLease, observation: Observation) -> dict[str, Any]:
        """Return an observation as JSON, its pictures as references."""
        pictures = {}
        for name in ("screenshot", "som"):
            if picture := getattr(observation, name):
                held.picture = digest = self.pictures.put(picture)
                pictures[name] = {"sha256": digest, "href": f"/v1/pictures/{digest}{self._whose}"}
        return {**observation.to_dict(), "pictures": pictures}


def _why_not(held: HeldLease) -> str:
    if held.error:
        return f"the episode failed: {held.error}"
    if held.over:
        return f"the episode is over, with reward {held.reward:g}"
    return "no episode has begun"

"""The rollout server without HTTP: leases of the sessions of one `VectorEnv`, for many clients.

A call waits in two queues: behind earlier calls of its lease, and in the queue of its operation
(`ServeOptions.queues`). It runs in a task of its own: when a client disconnects, the call still completes,
its response stays available for a retry, and the lease expires if the client does not return.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from stillweb import clock
from stillweb.env import Observation, Task, VectorEnv
from stillweb.env.aio import Started
from stillweb.env.tasks.task import task_from_dict
from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.errors import EnvClosed, InfraError, ResetNeeded, StillwebError, UsageError
from stillweb.polling import wait_event
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease, IdempotencyCache
from stillweb.server.leases.manager import LeaseManager
from stillweb.server.leases.queue import OperationQueue
from stillweb.server.leases.table import Lease
from stillweb.server.monitor.counters import ServerCounters
from stillweb.server.options import ServeOptions
from stillweb.server.pictures import PictureStore, thumbnail_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
_REPLAY_SECONDS = 5.0  # short: during this wait the lease of a client that has gone does not expire
_THUMBNAILS = 64  # that may wait
_THUMBNAIL_SECONDS = 2.0  # for which one is reused
_LEASE_RESPONSES = 256  # stored responses to lease requests
STARTS = ("task", "task_id", "url")  # an episode starts with exactly one of them
Action = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Start:
    """The start of an episode: a task or a URL, and a seed that overrides theirs."""

    task: Task | None = None
    url: str | None = None
    seed: int | None = None

    @classmethod
    def of(cls, tasks: Mapping[str, Task], given: Mapping[str, Any], where: str = "the request") -> Start:
        """Return the start that the fields `task`, `task_id`, `url` and `seed` describe.

        Raises:
            UsageError: if not exactly one of the first three is set, or the task is unknown.
            TaskError: if the task is malformed.
        """
        named = [name for name in STARTS if given.get(name) is not None]
        if len(named) != 1:
            message = f"{where} needs one of task, task_id and url, not {' and '.join(named) or 'none'}"
            raise UsageError(message)
        seed = given.get("seed")
        if named == ["url"]:
            return cls(url=str(given["url"]), seed=seed)
        if named == ["task"]:
            return cls(task=task_from_dict(given["task"], where), seed=seed)
        task = tasks.get(given["task_id"])
        if task is None:
            raise UsageError(
                f"no task {given['task_id']!r} among the {len(tasks)} tasks of this server",
                hint="start it with stillweb serve --tasks FILE, or send the task itself",
            )
        return cls(task=task, seed=seed)

    @property
    def label(self) -> str:
        """Name that the monitor shows."""
        return self.task.id if self.task else ""

    @property
    def start_url(self) -> str:
        return self.task.start_url if self.task else self.url or ""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a reset or step, as JSON; `reward` is None after a reset."""

    observation: dict[str, Any]
    reward: float | None
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


class Engine(Started):
    """The rollout server without HTTP.

    Args:
        proxy: control URL of the replay server.
    """

    def __init__(self, proxy: str, options: ServeOptions | None = None) -> None:
        self.options = chosen = options or ServeOptions()
        self.proxy = proxy
        self.started_at = clock.monotonic()
        self.counters = ServerCounters(self.started_at)
        self.vector = VectorEnv(
            proxy,
            chosen.sessions,
            collection=chosen.collection,
            level=chosen.level,
            observe=chosen.observe,
            options=chosen.vector,
        )
        capacity = max(chosen.queue_capacity, chosen.sessions)
        self.queues = {name: OperationQueue(name, limit, capacity) for name, limit in chosen.queues.items()}
        trajectories = chosen.vector.env.trajectories
        self.pictures = PictureStore(
            chosen.picture_bytes, ContentFiles(trajectories) if trajectories else None
        )
        self.leases = LeaseManager(
            chosen, self.vector.leave, self.queues["release"], self.counters, self._changed
        )
        self._picture_query = f"?node={chosen.node}" if chosen.node else ""  # for a master
        self.lease_requests: IdempotencyCache[dict[str, Any]] = IdempotencyCache(_LEASE_RESPONSES)
        self.memory: dict[str, int] = {}  # of the last sample of the monitor
        self._thumbnails = OperationQueue("thumbnail", 1, _THUMBNAILS)
        self._replay_check: asyncio.Future[bool] | None = None
        self.closing = asyncio.Event()
        self.changes = 0
        self._change = asyncio.Event()

    async def start(self) -> None:
        await self.vector.start()
        self.leases.start()

    async def drain(self) -> None:
        """Refuse new leases and wait until the running ones have ended, at most `drain_seconds`."""
        await self.leases.drain(self.options.drain_seconds)

    async def close(self) -> None:
        self.end_streams()
        await self.leases.close()
        await self.vector.close()

    def end_streams(self) -> None:
        """End the event streams, which otherwise run forever."""
        self.closing.set()
        self._changed()

    async def changed(self, seen: int, seconds: float) -> int:
        """Wait until `changes` differs from `seen` or the server closes; return `changes`."""
        if self.changes == seen and not self.closing.is_set():
            await wait_event(self._change, seconds)
        return self.changes

    def _changed(self) -> None:
        self.changes += 1
        self._change.set()
        self._change = asyncio.Event()

    # --- operations of clients ----------------------------------------------------------------------

    async def reset(self, held: HeldLease, start: Start, *, request_id: str = "") -> Stepped:
        """Start an episode.

        Raises:
            RequestRefused: if the server shuts down, the lease has ended, or too many calls wait.
            UsageError, TaskError, InfraError: see `Env.reset`.
        """
        if self.leases.draining:
            raise RequestRefused(
                FailureKind.DRAINING, "the server is shutting down: running episodes continue, none starts"
            )

        async def reset() -> Stepped:
            return await self._call(held, "reset", lambda: self._reset(held, start))

        # No failure is stored: a repeated reset starts a new episode anyway.
        body = ["reset", start.label, start.start_url, start.seed]
        stepped: Stepped = await held.responses.do(request_id, body, reset)
        return stepped

    async def step(self, held: HeldLease, action: Action, *, request_id: str = "") -> Stepped:
        """Take an action. A repeated request with the same `request_id` gets the stored response.

        Raises:
            RequestRefused: see `reset`; or if the identifier belongs to another request.
            ResetNeeded: if no episode is under way.
            InfraError: if browser or proxy fail.
        """

        async def step() -> Stepped:
            return await self._call(held, "execute", lambda: self._step(held, action))

        stepped: Stepped = await held.responses.do(request_id, ["step", action], step, (InfraError,))
        return stepped

    async def observe(
        self, held: HeldLease, kinds: Sequence[str], *, queue: str = "observe"
    ) -> dict[str, Any]:
        """Observe the page without a step; return the same as `Stepped.observation`."""

        async def observe() -> dict[str, Any]:
            return await self._call(held, queue, lambda: self._observe(held, kinds))

        observation: dict[str, Any] = await held.responses.do("", None, observe)
        return observation

    async def thumbnail(self, held: HeldLease) -> bytes:
        """Return a small JPEG of the current page for the monitor; empty if a call runs or no page is open.

        It neither renews the lease nor waits for its calls, and the server takes one at a time. A call that
        arrives meanwhile waits for it, about as long as for a screenshot.

        Raises:
            RequestRefused: if too many thumbnails wait.
            InfraError: if the browser fails.
        """
        now = clock.monotonic()
        if held.thumbnail and (held.calls.active or now - held.thumbnail_at < _THUMBNAIL_SECONDS):
            return held.thumbnail
        async with self._thumbnails.slot():
            if held.calls.active or held.ended or not (held.playing or held.finished):
                return held.thumbnail
            try:
                async with held.calls.slot(), held.lock:
                    observation = await self.vector.observe(held.lease.session, "screenshot")
            except (EnvClosed, InfraError, ResetNeeded):
                if held.ended:  # the session was left meanwhile
                    return b""
                raise
        held.thumbnail = await asyncio.to_thread(thumbnail_of, observation.screenshot)
        held.thumbnail_at = now
        return held.thumbnail

    # --- calls --------------------------------------------------------------------------------------

    async def _call(self, held: HeldLease, queue: str, work: Callable[[], Awaitable[T]]) -> T:
        arrived = clock.monotonic()
        self.leases.renew(held, calls=1)
        held.operation = held.operation or f"queued:{queue}"
        try:
            async with held.calls.slot(), held.lock, self.queues[queue].slot():
                if held.ended:
                    raise RequestRefused(
                        FailureKind.LEASE_OVER, f"lease {held.lease.id} ended while the call waited"
                    )
                async with self._running(held, queue):
                    return await work()
        except StillwebError as error:
            self._count_failure(held, error)
            raise
        finally:
            held.operation = ""
            self.counters.latency[queue].add(clock.monotonic() - arrived)
            self.leases.renew(held, calls=-1)
            self._changed()

    @asynccontextmanager
    async def _running(self, held: HeldLease, operation: str) -> AsyncIterator[None]:
        held.operation = operation
        self._changed()
        try:
            yield
        except (EnvClosed, InfraError) as error:
            if held.ended:  # the server closed the page under the call: not a failure of the browser
                raise RequestRefused(
                    FailureKind.LEASE_OVER, f"lease {held.lease.id} ended during the call"
                ) from error
            raise

    def _count_failure(self, held: HeldLease, error: StillwebError) -> None:
        self.counters.failures[fault_of(error).kind] += 1
        if isinstance(error, InfraError):
            logger.warning("an episode failed", extra={"lease": held.lease.id, "error": str(error)})

    async def _reset(self, held: HeldLease, start: Start) -> Stepped:
        held.start_episode(start.label, start.start_url)
        try:
            try:
                observation, info = await self._open(held.lease, start)
            except InfraError:
                # The supervisor restarts a dead replay worker within seconds; the retry hides that from
                # clients.
                if held.ended or not await self._replay_restarted():
                    raise
                observation, info = await self._open(held.lease, start)
        except StillwebError as error:
            held.fail(error)
            raise
        self.counters.resets.count(clock.monotonic())
        return Stepped(self._record(held, observation, info), None, False, False, info)

    async def _open(self, lease: Lease, start: Start) -> tuple[Observation, Mapping[str, Any]]:
        url = None if start.task else start.url
        return await self.vector.reset(lease.session, task=start.task, url=url, seed=start.seed)

    async def replay_ready(self) -> bool:
        """Return True if the replay server is ready; simultaneous calls share one request to it."""
        if self._replay_check is None or self._replay_check.done():
            self._replay_check = asyncio.ensure_future(self.vector.proxy_ready(0))
        return await asyncio.shield(self._replay_check)

    async def _replay_restarted(self) -> bool:
        """Return True if the replay server was not ready and has become ready."""
        return not await self.vector.proxy_ready(0) and await self.vector.proxy_ready(_REPLAY_SECONDS)

    async def _step(self, held: HeldLease, action: Action) -> Stepped:
        if not held.playing:
            raise ResetNeeded(_no_episode(held), hint="reset the lease")
        try:
            observation, reward, terminated, truncated, info = await self.vector.step(
                held.lease.session, action
            )
        except StillwebError as error:
            held.fail(error)
            raise
        self.counters.steps.count(clock.monotonic())
        if terminated or truncated:
            held.finish(reward)
            self.counters.episodes["terminated" if terminated else "truncated"] += 1
        return Stepped(self._record(held, observation, info), reward, terminated, truncated, info)

    async def _observe(self, held: HeldLease, kinds: Sequence[str]) -> dict[str, Any]:
        return self._with_references(held, await self.vector.observe(held.lease.session, *kinds))

    def _record(self, held: HeldLease, observation: Observation, info: Mapping[str, Any]) -> dict[str, Any]:
        held.record(observation, info)
        self.counters.add_traffic(info["traffic"], held.task, clock.monotonic())
        return self._with_references(held, observation)

    def _with_references(self, held: HeldLease, observation: Observation) -> dict[str, Any]:
        """Return an observation as JSON with references to its pictures."""
        pictures = {}
        for name in ("screenshot", "som"):
            if picture := getattr(observation, name):
                held.picture = digest = self.pictures.put(picture)
                pictures[name] = {"sha256": digest, "href": f"/v1/pictures/{digest}{self._picture_query}"}
        return {**observation.to_dict(), "pictures": pictures}


def _no_episode(held: HeldLease) -> str:
    if held.error:
        return f"the episode failed: {held.error}"
    if held.finished:
        return f"the episode is over, with reward {held.reward:g}"
    return "no episode is under way"

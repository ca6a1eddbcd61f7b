"""A granted lease with the state of its episode, and the response cache for repeated requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stillweb.env import Observation
from stillweb.errors import StillwebError
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.leases.queue import OperationQueue
from stillweb.server.leases.table import Lease
from stillweb.server.monitor.status import SessionStatus, letter_of

T = TypeVar("T")

_RESPONSES = 4  # of one lease, whose calls run one after the other
_CALLS = 16  # of one lease that may wait for each other


def digest_of(body: Any) -> str:
    """Return the SHA-256 of a request body as canonical JSON."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


class ResponseHistory(Generic[T]):
    """The responses to the last few requests, by request identifier."""

    def __init__(self, limit: int = _RESPONSES) -> None:
        self._limit = limit
        self._known: OrderedDict[str, tuple[str, T]] = OrderedDict()

    def get(self, request_id: str, digest: str) -> T | None:
        """Return the response to a request, or None.

        Raises:
            RequestRefused: if the identifier belongs to a request with another body.
        """
        known = self._known.get(request_id)
        if known is None:
            return None
        if known[0] != digest:
            raise RequestRefused(
                FailureKind.CONFLICT,
                f"request_id {request_id!r} was used for another request",
                hint="use a new request_id for each new request",
            )
        return known[1]

    def put(self, request_id: str, digest: str, response: T) -> None:
        self._known[request_id] = (digest, response)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def forget(self, request_id: str) -> None:
        self._known.pop(request_id, None)


class IdempotencyCache(Generic[T]):
    """Runs the work of each request identifier once.

    Args:
        limit: number of stored responses.
    """

    def __init__(self, limit: int = _RESPONSES) -> None:
        self._responses: ResponseHistory[asyncio.Future[T]] = ResponseHistory(limit)
        self._running: set[asyncio.Future[T]] = set()

    async def do(
        self,
        request_id: str,
        body: Any,
        work: Callable[[], Awaitable[T]],
        lasting: tuple[type[Exception], ...] = (),
    ) -> T:
        """Return the result of the work, or the stored result of the same request.

        The work runs in a task of its own: a client that disconnects does not cancel it.

        Args:
            request_id: of the client; with "" the work always runs.
            body: must be equal for equal identifiers.
            work: runs if no response is stored.
            lasting: exceptions that are stored as responses; after others the request may be repeated.

        Raises:
            RequestRefused: if the identifier belongs to a request with another body.
        """
        digest = digest_of(body) if request_id else ""
        running = self._responses.get(request_id, digest) if request_id else None
        if running is None:
            running = asyncio.ensure_future(work())
            self._running.add(running)  # the loop holds tasks weakly
            running.add_done_callback(lambda done: self._finished(request_id, done, lasting))
            if request_id:
                self._responses.put(request_id, digest, running)
        return await asyncio.shield(running)

    def _finished(
        self, request_id: str, done: asyncio.Future[T], lasting: tuple[type[Exception], ...]
    ) -> None:
        self._running.discard(done)
        failure = None if done.cancelled() else done.exception()  # read: asyncio warns of unread exceptions
        if done.cancelled() or (failure and not isinstance(failure, lasting)):
            self._responses.forget(request_id)


@dataclass(slots=True)
class HeldLease:
    """A lease and its episode.

    Attributes:
        calls: runs the calls of the lease one after the other, and refuses more than 16 waiting ones.
        lock: held by the running call, and while the session is cleared.
        responses: stored responses of the lease's requests.
        operation: the operation under way.
        playing: whether an episode is under way.
        finished: whether the episode ended normally; then `reward` is set.
        error: why the episode failed.
        traffic: hits, misses and noise of the episode.
        goal: of the task, as the last reset reported it.
        info: of the last reset or step.
        picture: SHA-256 of the last picture.
        thumbnail, thumbnail_at: last JPEG for the monitor, and its time.
    """

    lease: Lease
    calls: OperationQueue = field(default_factory=lambda: OperationQueue("this lease", 1, _CALLS))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    responses: IdempotencyCache[Any] = field(default_factory=IdempotencyCache)
    operation: str = ""
    task: str = ""
    url: str = ""
    step: int = 0
    playing: bool = False
    finished: bool = False
    reward: float | None = None
    error: str = ""
    traffic: dict[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    goal: str = ""
    title: str = ""
    picture: str = ""
    thumbnail: bytes = b""
    thumbnail_at: float = 0.0
    ended: bool = False

    def start_episode(self, task: str, url: str) -> None:
        self.task, self.url = task, url
        self.step, self.playing, self.finished, self.reward, self.error = 0, False, False, None, ""
        self.traffic, self.info, self.goal, self.title = {}, {}, "", ""
        self.picture, self.thumbnail = "", b""

    def record(self, observation: Observation, info: Mapping[str, Any]) -> None:
        self.playing = not self.finished
        self.url, self.title = observation.url, observation.title
        self.info, self.step = info, info["step"]
        self.goal = str(info.get("goal", self.goal))
        for name in ("hits", "misses", "noise"):
            self.traffic[name] = self.traffic.get(name, 0) + info["traffic"][name]

    def finish(self, reward: float) -> None:
        self.playing, self.finished, self.reward = False, True, reward

    def fail(self, error: StillwebError) -> None:
        """Mark the episode as failed: it has no reward."""
        self.playing, self.finished, self.reward, self.error = False, False, None, str(error)

    def to_status(self, now: float) -> SessionStatus:
        """Return the lease as the monitor shows it."""
        lease = self.lease
        return SessionStatus(
            index=lease.session,
            letter=letter_of(
                leased=True,
                playing=self.playing,
                finished=self.finished,
                failed=bool(self.error),
                step=self.step,
            ),
            doing=self.operation,
            step=self.step,
            age=round(now - lease.since, 3),
            silent=0.0 if lease.calls else round(now - lease.last_heard, 3),
            lease=lease.id,
            owner=lease.terms.owner,
            client=lease.terms.client,
            task=self.task,
            url=self.url,
            picture=self.picture,
            reward=self.reward,
            error=self.error,
            browser=self.info.get("browser", -1),
            hits=self.traffic.get("hits", 0),
            misses=self.traffic.get("misses", 0),
            noise=self.traffic.get("noise", 0),
        )

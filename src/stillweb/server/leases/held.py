"""A lease in the server's hands: what its episode came to, and the one call of it at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stillweb.env.observations.observation import Observation
from stillweb.errors import StillwebError
from stillweb.server.failures import FailureKind, RequestRefused
from stillweb.server.leases.leases import Lease
from stillweb.server.leases.queue import Semaphore
from stillweb.server.monitor.status import SessionStatus, letter_of

__all__ = ["HeldLease", "IdempotencyCache", "ResponseHistory", "digest_of"]

T = TypeVar("T")

_KEPT = 4  # answers of a lease, whose calls come one after the other


def digest_of(body: Any) -> str:
    """Return what tells two requests apart."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


class ResponseHistory(Generic[T]):
    """What was answered to which request, for the last few."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[str, tuple[str, T]] = OrderedDict()

    def get(self, request_id: str, digest: str) -> T | None:
        """Return the answer to a request, be it under way; None if there is none.

        Raises:
            Refused: if the identifier was another request's.
        """
        known = self._known.get(request_id)
        if known is None:
            return None
        if known[0] != digest:
            raise RequestRefused(
                FailureKind.CONFLICT,
                f"request_id {request_id!r} was used for another request",
                hint="a new request needs a new request_id",
            )
        return known[1]

    def put(self, request_id: str, digest: str, answer: T) -> None:
        """Keep an answer, and forget the oldest."""
        self._known[request_id] = (digest, answer)
        while len(self._known) > self._kept:
            self._known.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """Forget an answer, as if the request had not come."""
        self._known.pop(request_id, None)


class IdempotencyCache(Generic[T]):
    """Runs work by request identifiers.

    Args:
        kept: answers at most.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._answers: ResponseHistory[asyncio.Future[T]] = ResponseHistory(kept)
        self._running: set[asyncio.Future[T]] = set()

    async def do(
        self,
        request_id: str,
        body: Any,
        work: Callable[[], Awaitable[T]],
        lasting: tuple[type[Exception], ...] = (),
    ) -> T:
        """Return what the work gives, or gave to the same request. Without an identifier it is always done.

        Args:
            request_id: of the client; "" for none.
            body: what makes it the same request.
            work: what is to be done.
            lasting: failures that are answers, too; after others the request may be made again.

        Raises:
            Refused: if the identifier was another request's.
        """
        digest = digest_of(body) if request_id else ""
        doing = self._answers.get(request_id, digest) if request_id else None
        if doing is None:
            doing = asyncio.ensure_future(work())
            self._running.add(doing)  # the loop holds tasks weakly
            doing.add_done_callback(lambda done: self._ended(request_id, done, lasting))
            if request_id:
                self._answers.put(request_id, digest, doing)
        return await asyncio.shield(doing)

    def _ended(self, request_id: str, done: asyncio.Future[T], lasting: tuple[type[Exception], ...]) -> None:
        self._running.discard(done)
        failure = None if done.cancelled() else done.exception()  # asked for, so that nobody warns of it
        if done.cancelled() or (failure and not isinstance(failure, lasting)):
            self._answers.forget(request_id)


_CALLS = 16  # of one lease that wait for each other


@dataclass(slots=True)
class HeldLease:
    """A lease and its episode.

    Attributes:
        gate: lets calls of the lease in one by one, in their order; beyond a few they are refused.
        lock: held by the call that is in, and by who clears the lease away.
        once: what was answered to which request of it.
        doing: the operation under way.
        playing: whether an episode is under way.
        over: whether it ended as it should.
        reward: of an episode that ended so.
        error: why the episode failed.
        counts: hits, misses and noise of the episode.
        info: of the last reset or step.
        title: of the page.
        picture: digest of the last picture.
        ended: whether the lease is over.
    """

    lease: Lease
    gate: Semaphore = field(default_factory=lambda: Semaphore("this lease", 1, _CALLS))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    once: IdempotencyCache[Any] = field(default_factory=IdempotencyCache)
    doing: str = ""
    task: str = ""
    url: str = ""
    step: int = 0
    playing: bool = False
    over: bool = False
    reward: float | None = None
    error: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    picture: str = ""
    ended: bool = False

    def begins(self, task: str, url: str) -> None:
        """Note that an episode is being opened; what was before is no more."""
        self.task, self.url = task, url
        self.step, self.playing, self.over, self.reward, self.error = 0, False, False, None, ""
        self.counts, self.info, self.title, self.picture = {}, {}, "", ""

    def saw(self, observation: Observation, info: Mapping[str, Any]) -> None:
        """Note what a reset or step gave."""
        self.playing = not self.over
        self.url, self.title = observation.url, observation.title
        self.info, self.step = info, info["step"]
        for name in ("hits", "misses", "noise"):
            self.counts[name] = self.counts.get(name, 0) + info["traffic"][name]

    def ends(self, reward: float) -> None:
        """Note that the episode ended as it should."""
        self.playing, self.over, self.reward = False, True, reward

    def fails(self, error: StillwebError) -> None:
        """Note that the episode failed, and has no reward."""
        self.playing, self.over, self.reward, self.error = False, False, None, str(error)

    def to_status(self, now: float) -> SessionStatus:
        """Return what the monitor shows."""
        lease = self.lease
        return SessionStatus(
            index=lease.session,
            letter=letter_of(
                leased=True, playing=self.playing, over=self.over, failed=bool(self.error), step=self.step
            ),
            doing=self.doing,
            step=self.step,
            age=round(now - lease.since, 3),
            silent=0.0 if lease.calls else round(now - lease.heard, 3),
            lease=lease.id,
            owner=lease.wanted.owner,
            task=self.task,
            url=self.url,
            picture=self.picture,
            reward=self.reward,
            error=self.error,
            browser=self.info.get("browser", -1),
            hits=self.counts.get("hits", 0),
            misses=self.counts.get("misses", 0),
            noise=self.counts.get("noise", 0),
        )

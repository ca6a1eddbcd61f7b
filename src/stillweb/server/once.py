"""The same request twice is done once: a step that is sent again, because its answer was lost, acts once.

`Answers` judges without waiting; `Once` lets work run in a task of its own, so that neither a client that
hangs up nor one that asks again changes what is done.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from stillweb.server.refusals import Refusal, Refused

__all__ = ["Answers", "Once", "digest_of"]

T = TypeVar("T")

_KEPT = 4  # answers of a lease, whose calls come one after the other


def digest_of(body: Any) -> str:
    """Return what tells two requests apart."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


class Answers(Generic[T]):
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
            raise Refused(
                Refusal.CONFLICT,
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


class Once(Generic[T]):
    """Runs work by request identifiers.

    Args:
        kept: answers at most.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._answers: Answers[asyncio.Future[T]] = Answers(kept)
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

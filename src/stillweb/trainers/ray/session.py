"""A session on one of Ray's workers, for a trainer with a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from stillweb.env.tasks.load import Task, task_from_dict
from stillweb.errors import InfraError, ResetNeeded, UsageError
from stillweb.trainers.ray.pool import Pool, RayError, WorkerSlot, cause_of, is_lost, ray
from stillweb.trainers.turn import Turn

__all__ = ["RaySession"]


class RaySession:
    """One episode after the other, as `stillweb.trainers.place.Lease`; `RayRollouts.lease` gives it.

    If its worker is lost, what is asked of it is an `InfraError`; the next reset finds another worker.
    """

    def __init__(self, pool: Pool, wait: float) -> None:
        self._pool = pool
        self._wait = wait
        self._seat: WorkerSlot | None = None
        self._handle: Any = None
        self._i = -1
        self._pictures: dict[str, Any] = {}

    @classmethod
    async def take(cls, pool: Pool, wait: float) -> Self:
        """Return a session when one is free.

        Raises:
            InfraError: if none became free in time, or its worker was lost.
        """
        session = cls(pool, wait)
        await session._place()
        return session

    @property
    def id(self) -> str:
        """Where it is."""
        return f"worker {self._seat.number}, session {self._i}" if self._seat else "nowhere"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Begin an episode: of a task or a `url`, perhaps with a `seed`.

        Raises:
            UsageError, TaskError, InfraError: as `Env.reset`.
        """
        if unknown := sorted(start.keys() - {"url", "seed"}):
            raise UsageError(f"an episode begins with a task or a url, not with {', '.join(unknown)}")
        if self._seat is None:
            await self._place()
        self._pictures.clear()
        given = task_from_dict(task, "task") if isinstance(task, Mapping) else task
        return Turn(**await self._asked("reset", given, **start))

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action, as `Env.step` does."""
        return Turn(**await self._asked("step", action))

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        """Look at the page without a step."""
        seen: Mapping[str, Any] = await self._asked("observe", kinds)
        return seen

    async def picture(self, sha256: str) -> bytes:
        """Return a picture of this episode, by the reference that a turn has.

        Raises:
            InfraError: if there is none, or it was lost with its machine.
        """
        if sha256 not in self._pictures:
            raise InfraError(f"picture {sha256} is none of this episode")
        try:
            body: bytes = (await self._pictures[sha256])[sha256]
        except RayError as error:
            raise cause_of(error) from None
        return body

    async def release(self) -> None:
        """Leave the episode, and give the session back. Twice is once."""
        seat, self._seat = self._seat, None
        if seat is None:
            return
        seat.under_way -= 1
        try:
            await self._handle.give_back.remote(self._i)
        except RayError as error:
            if not is_lost(error):
                raise cause_of(error) from None

    async def _place(self) -> None:
        seat = self._pool.choose()
        seat.under_way += 1
        handle, taking = seat.handle, None
        try:
            async with asyncio.timeout(self._wait):
                await seat.started
                taking = handle.take.remote()
                self._i = await taking
        except BaseException as error:
            seat.under_way -= 1
            if isinstance(error, RayError):
                self._pool.replace(seat, handle)
                raise cause_of(error) from None
            if taking is not None:
                ray.cancel(taking)
            if isinstance(error, TimeoutError):
                raise InfraError(f"no session became free within {self._wait:g} s") from error
            raise
        self._seat, self._handle = seat, handle

    async def _asked(self, what: str, *given: Any, **named: Any) -> Any:
        seat = self._seat
        if seat is None:
            raise ResetNeeded("the session was released, or its worker was lost", hint="reset")
        call = getattr(self._handle, what).options(num_returns=2)
        answer, pictures = call.remote(self._i, *given, **named)
        try:
            told = await answer
        except RayError as error:
            if is_lost(error):
                self._seat = None
                seat.under_way -= 1
                self._pool.replace(seat, self._handle)
            raise cause_of(error) from None
        for reference in told.get("observation", told)["pictures"].values():
            self._pictures[reference["sha256"]] = pictures
        return told

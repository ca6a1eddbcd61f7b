"""A session on a Ray worker, for a trainer with its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from stillweb.env import Task
from stillweb.env.tasks.load import task_from_dict
from stillweb.errors import InfraError, ResetNeeded, UsageError
from stillweb.trainers.episodes.turn import Turn
from stillweb.trainers.ray.pool import RayError, WorkerPool, WorkerSlot, cause_of, is_lost, ray

__all__ = ["RaySession"]


class RaySession(AbstractAsyncContextManager["RaySession"]):
    """One episode after the other, see `EpisodeLease`; `RayRollouts.lease` creates it.

    If its worker is lost, calls raise `InfraError`; the next reset takes a session of another worker.
    """

    def __init__(self, pool: WorkerPool, wait: float) -> None:
        self._pool = pool
        self._wait = wait
        self._slot: WorkerSlot | None = None
        self._handle: Any = None
        self._i = -1
        self._pictures: dict[str, Any] = {}

    @classmethod
    async def take(cls, pool: WorkerPool, wait: float) -> Self:
        """Wait for a free session.

        Raises:
            InfraError: if no session became free in time, or its worker was lost.
        """
        session = cls(pool, wait)
        await session._acquire()
        return session

    @property
    def id(self) -> str:
        return f"worker {self._slot.number}, session {self._i}" if self._slot else "no worker"

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Start an episode of a task or a `url`, optionally with a `seed`.

        Raises:
            UsageError, TaskError, InfraError: see `Env.reset`.
        """
        if unknown := sorted(start.keys() - {"url", "seed"}):
            raise UsageError(f"an episode starts with a task or a url, not with {', '.join(unknown)}")
        if self._slot is None:
            await self._acquire()
        self._pictures.clear()
        given = task_from_dict(task, "task") if isinstance(task, Mapping) else task
        return Turn(**await self._call("reset", given, **start))

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action, see `Env.step`."""
        return Turn(**await self._call("step", action))

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        """Observe the page without a step."""
        seen: Mapping[str, Any] = await self._call("observe", kinds)
        return seen

    async def picture(self, sha256: str) -> bytes:
        """Return a picture that a turn of this episode refers to.

        Raises:
            InfraError: if the episode has no such picture, or it was lost with its machine.
        """
        if sha256 not in self._pictures:
            raise InfraError(f"this episode has no picture {sha256}")
        try:
            body: bytes = (await self._pictures[sha256])[sha256]
        except RayError as error:
            raise cause_of(error) from None
        return body

    async def release(self) -> None:
        """Leave the episode and release the session. Idempotent."""
        slot, self._slot = self._slot, None
        if slot is None:
            return
        slot.under_way -= 1
        try:
            await self._handle.give_back.remote(self._i)
        except RayError as error:
            if not is_lost(error):
                raise cause_of(error) from None

    async def _acquire(self) -> None:
        slot = self._pool.choose()
        slot.under_way += 1
        handle, taking = slot.handle, None
        try:
            async with asyncio.timeout(self._wait):
                await slot.started
                taking = handle.take.remote()
                self._i = await taking
        except BaseException as error:
            slot.under_way -= 1
            if isinstance(error, RayError):
                self._pool.replace(slot, handle)
                raise cause_of(error) from None
            if taking is not None:
                ray.cancel(taking)
            if isinstance(error, TimeoutError):
                raise InfraError(f"no session became free within {self._wait:g} s") from error
            raise
        self._slot, self._handle = slot, handle

    async def _call(self, method: str, *given: Any, **named: Any) -> Any:
        slot = self._slot
        if slot is None:
            raise ResetNeeded(
                "the session was released, or its worker was lost", hint="reset starts another one"
            )
        call = getattr(self._handle, method).options(num_returns=2)
        result, pictures = call.remote(self._i, *given, **named)
        try:
            value = await result
        except RayError as error:
            if is_lost(error):
                self._slot = None
                slot.under_way -= 1
                self._pool.replace(slot, self._handle)
            raise cause_of(error) from None
        for reference in value.get("observation", value)["pictures"].values():
            self._pictures[reference["sha256"]] = pictures
        return value

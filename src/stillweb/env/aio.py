"""An event loop on a thread of its own, for callers that have none, or another one."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

__all__ = ["LoopThread", "Started", "both"]

A = TypeVar("A")
B = TypeVar("B")


async def both(one: Awaitable[A], other: Awaitable[B]) -> tuple[A, B]:
    """Await two things; if one fails, the other is cancelled and the failure raised."""
    pair = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        return await asyncio.gather(*pair)
    finally:
        for each in pair:
            each.cancel()
        await asyncio.gather(*pair, return_exceptions=True)


class Started(ABC):
    """A thing with `start` and `close`, for `async with`."""

    @abstractmethod
    async def start(self) -> None:
        """Make ready."""

    @abstractmethod
    async def close(self) -> None:
        """End; twice is once."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


T = TypeVar("T")


class LoopThread:
    """An event loop that runs until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stillweb", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether it is not closed."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine here, and wait for it in the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def soon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine here, and wait for nothing; where the loop is closed, not at all."""
        if self.runs:
            asyncio.run_coroutine_threadsafe(work, self._loop)
        else:
            work.close()

    def close(self) -> None:
        """End the loop, and what still runs in it. Twice is once."""
        if not self.runs:
            return
        self.run(_ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _ended() -> None:
    """Cancel the other tasks of this loop, as `asyncio.run` does at its end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()

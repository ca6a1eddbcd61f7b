"""Helpers for asyncio: an event loop in a thread, for synchronous callers; a base for async contexts."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from typing import Any, Self, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def both(one: Awaitable[A], other: Awaitable[B]) -> tuple[A, B]:
    """Await both; if one fails, cancel the other and raise the failure."""
    pair = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        return await asyncio.gather(*pair)
    finally:
        for each in pair:
            each.cancel()
        await asyncio.gather(*pair, return_exceptions=True)


class Started(ABC):
    """Base of asynchronous context managers that have `start` and `close`."""

    @abstractmethod
    async def start(self) -> None:
        """Acquire the resources."""

    @abstractmethod
    async def close(self) -> None:
        """Release the resources; a second call has no effect."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


T = TypeVar("T")


class LoopThread:
    """Event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stillweb", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this loop, and wait for it in the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def soon(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine without waiting for it; if the loop is closed, drop it."""
        if self.runs:
            asyncio.run_coroutine_threadsafe(work, self._loop)
        else:
            work.close()

    def close(self) -> None:
        """Cancel the remaining tasks and end the loop; a second call has no effect."""
        if not self.runs:
            return
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    """Cancel the other tasks of this loop, as `asyncio.run` does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()

"""An event loop in a thread: a replay server lives in it while tests block, or run loops of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """A loop in a thread; `close` ends all that it holds, newest first."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stillweb", daemon=True)
        self._held: list[tuple[asyncio.Event, asyncio.Task[None]]] = []
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def hold(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter an asynchronous context and keep it open until `close`; return what it gives.

        One task enters and leaves it: task groups and time limits within it demand that.
        """
        return self.run(self._hold(opening))

    def close(self) -> None:
        """Leave all contexts and end the loop."""
        self.run(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hold(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        given: asyncio.Future[T] = self._loop.create_future()
        leave = asyncio.Event()

        async def stay() -> None:
            async with opening() as value:
                given.set_result(value)
                await leave.wait()

        task = self._loop.create_task(stay())
        both: list[asyncio.Future[Any]] = [task, given]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not given.done():
            given.cancel()
            task.result()  # raises what kept it from opening
            raise AssertionError("a context that gives nothing and raises nothing")
        self._held.append((leave, task))
        return given.result()

    async def _leave(self) -> None:
        while self._held:
            leave, task = self._held.pop()
            leave.set()
            await task
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

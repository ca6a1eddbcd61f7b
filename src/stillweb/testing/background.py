"""An event loop in a thread, for replay servers and environments of tests that block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from stillweb.env.aio import LoopThread

if TYPE_CHECKING:
    from stillweb.env import Env, Observation, Task


T = TypeVar("T")


class Background(LoopThread):
    """A loop in a thread; `close` exits all contexts that it entered, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    def hold(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter an asynchronous context, keep it open until `close`, and return its value.

        One task enters and exits it, as task groups and timeouts inside it require.
        """
        return self.run(self._hold(opening))

    def close(self) -> None:
        """Exit all contexts and end the loop; a second call has no effect."""
        if self.runs:
            self.run(self._leave())
            super().close()

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
            task.result()  # raises the error of the context
            raise AssertionError("the context neither yielded nor raised")
        self._held.append((leave, task))
        return given.result()

    async def _leave(self) -> None:
        while self._held:
            leave, task = self._held.pop()
            leave.set()
            await task
        await self._loop.shutdown_default_executor()


class BlockingEnv:
    """`Env` with synchronous methods.

    Args:
        env: the environment, for exclusive use.
        seed: default of `reset`; None for the recording's seed.
    """

    def __init__(self, env: Env, background: Background, *, seed: int | None = None) -> None:
        self._env = env
        self._seed = seed
        self._background = background

    def reset(
        self, *, task: Task | None = None, url: str | None = None, seed: int | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode, like `Env.reset`."""
        chosen = self._seed if seed is None else seed
        return self._background.run(self._env.reset(task=task, url=url, seed=chosen))

    def step(self, action: Mapping[str, Any] | str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action, like `Env.step`."""
        return self._background.run(self._env.step(action))

    def close(self) -> None:
        """End the episode and the browser."""
        self._background.run(self._env.close())

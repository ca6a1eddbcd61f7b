"""The event loop that the programs of this room run on, and what runs on it beside the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Tasks", "run"]

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not made for Windows
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


class Tasks:
    """Coroutines under way that nobody waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it, or `end`, ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

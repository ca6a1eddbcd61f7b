"""Being stopped: how commands that run for long end on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

__all__ = ["until_signal"]

T = TypeVar("T")


def until_signal(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; SIGINT and SIGTERM cancel it once, so that it can end cleanly.

    Raises:
        Abort: if it was cancelled; the command line then ends with status 130.
    """

    async def under_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal ends the program at once
            if task is not None:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await main

    try:
        return asyncio.run(under_signals())
    except asyncio.CancelledError:
        raise click.Abort from None

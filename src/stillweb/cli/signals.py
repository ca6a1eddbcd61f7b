"""Being stopped: how commands that run for long end on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

__all__ = ["on_signals", "until_signal"]

T = TypeVar("T")


def on_signals() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set; the next one ends the program at once."""
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        if stopped.is_set():
            os._exit(128 + number)  # not by its default action: the first program of a container has none
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopped


def until_signal(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; SIGINT and SIGTERM cancel it once, so that it can end cleanly.

    Raises:
        Abort: if it was cancelled; the command line then ends with status 130.
    """

    async def under_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # a second signal ends the program at once
            if task is not None:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await main

    try:
        return asyncio.run(under_signals())
    except asyncio.CancelledError:
        raise click.Abort from None

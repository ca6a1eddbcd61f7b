"""Waiting for what can only be asked and not awaited, such as the port of a program that is starting.

Apart from `clock`, because rooms without asyncio use that one. Everything that can notify is
awaited instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stillweb import clock

__all__ = ["poll"]


async def poll(
    condition: Callable[[], bool | Awaitable[bool]], *, timeout: float, interval: float = 0.02
) -> bool:
    """Wait until `condition` holds.

    Args:
        condition: a function, or coroutine function, of no arguments.
        timeout: seconds at most.
        interval: seconds between two questions.

    Returns:
        Whether the condition held within the timeout.
    """
    deadline = clock.monotonic() + timeout
    while True:
        held = condition()
        if not isinstance(held, bool):
            held = await held
        if held:
            return True
        if clock.monotonic() >= deadline:
            return False
        await asyncio.sleep(interval)

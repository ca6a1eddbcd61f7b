"""Polling for conditions that cannot be awaited, such as the port of a program that is starting.

Separate from `clock`, because packages without asyncio use that module. Code awaits everything that can
notify.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stillweb import clock


async def poll(
    condition: Callable[[], bool | Awaitable[bool]], *, timeout: float, interval: float = 0.02
) -> bool:
    """Wait until `condition` returns True.

    Args:
        timeout: maximum seconds.
        interval: seconds between two calls.

    Returns:
        False if the timeout expired first.
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


async def wait_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, at most some seconds; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()

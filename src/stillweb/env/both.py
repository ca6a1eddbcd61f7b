"""Two things at once, of which neither outlives the other's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["both"]

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

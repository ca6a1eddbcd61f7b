"""Bounded operation queues: some operations run, some wait in order of arrival, others are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stillweb.server.failures import FailureKind, RequestRefused


class OperationQueue:
    """A FIFO semaphore with a limit on the number of waiting coroutines.

    Args:
        name: shown in the error of a refused operation.
        limit: operations that may run simultaneously.
        capacity: operations that may wait.
    """

    def __init__(self, name: str, limit: int, capacity: int) -> None:
        self.name = name
        self.limit = limit
        self.capacity = capacity
        self.active = 0
        self.waiting = 0
        self.started = 0
        self._semaphore = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free slot and hold it inside the block.

        Raises:
            RequestRefused: if `capacity` operations already wait.
        """
        if self._semaphore.locked() and self.waiting >= self.capacity:
            raise RequestRefused(
                FailureKind.BUSY,
                f"{self.name}: {self.limit} operations run and {self.waiting} wait",
                hint="send the request again later",
            )
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        self.started += 1
        try:
            yield
        finally:
            self.active -= 1
            self._semaphore.release()

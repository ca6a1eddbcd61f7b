"""Processor time of large request bodies: what one session may take while the others wait.

A JSON body of 1 MiB takes 0.1 s to compare by structure, on the event loop that answers all sessions. A
session that sends such bodies without pause would raise the 99th percentile of the others' latency 30 times.
So each session has an allowance: one second, and then 0.5 % of the time. Beyond it the whole session waits,
and continues in the order in which its connections had to wait: a request that overtook a large one
could be answered from another state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stillweb import clock

LARGE = 32 * 1024
"""Bytes from which a request body counts: smaller ones take at most 4 ms."""


@dataclass(slots=True)
class BodyTime:
    """Time of the event loop that large bodies of one session may take, and what waits for it.

    Attributes:
        initial: seconds without any wait.
        share: of the time, once these are used; less than a percentile, so that the 99th of the others stays.
    """

    initial: float = 1.0
    share: float = 0.005
    _paid: float = 0.0  # time of the monotonic clock at which all that was used is earned again
    _waiting: deque[Callable[[], None]] = field(default_factory=deque)

    @property
    def paused(self) -> bool:
        """Whether requests of the session wait, so that another one must wait behind them."""
        return bool(self._waiting)

    def charge(self, seconds: float) -> None:
        """Count time that a large body took."""
        self._paid = max(self._paid, clock.monotonic()) + seconds / self.share

    def wait(self, size: int, resume: Callable[[], None]) -> bool:
        """Return whether a request must wait; `resume` is called when it may be taken.

        Args:
            size: bytes of its body.
        """
        if not self._waiting:
            if size < LARGE:
                return False
            seconds = self._paid - self.initial / self.share - clock.monotonic()
            if seconds <= 0:
                return False
            asyncio.get_running_loop().call_later(seconds, self._resume)
        self._waiting.append(resume)
        return True

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for resume in waiting:
            resume()

"""The only source of time, randomness and identifiers.

A lint rule enforces it: ruff's `banned-api` forbids `time.time`, `datetime.now`, `random`,
`secrets`, `uuid` and every sleep outside this file. Values that an episode sees come
from `seeded`; wall time is for logs, deadlines and new recordings only.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def monotonic() -> float:
    """Return seconds of a monotonic clock, for deadlines."""
    return time.monotonic()


def perf() -> float:
    """Return seconds of the clock with the highest resolution, for measurements."""
    return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, in seconds; None for never."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        return cls(None if seconds is None else monotonic() + seconds)

    @property
    def is_over(self) -> bool:
        return self.at is not None and monotonic() >= self.at

    @property
    def left(self) -> float | None:
        """Seconds until then, at least 0; None for never."""
        return None if self.at is None else max(0.0, self.at - monotonic())

    def check(self) -> None:
        """Return if time is left: computations call it, since a cancellation does not end them.

        Raises:
            TimeoutError: if the deadline is over.
        """
        if self.is_over:
            raise TimeoutError("the time is over")


def new_id() -> str:
    """Return a fresh UUID (RFC 9562, version 4), as 36 characters."""
    return str(uuid.uuid4())


def seeded(*seed: str | int) -> random.Random:
    """Return a generator determined by its seed: equal seeds give equal sequences."""
    return random.Random("\x1f".join(map(str, seed)))

"""The only source of time, randomness and identifiers.

A lint rule enforces it: ruff's `banned-api` forbids `time.time`, `datetime.now`, `random`,
`secrets`, `uuid` and every sleep outside this file. Values that an episode sees come
from `seeded`; wall time is for logs, deadlines and new recordings only.
"""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def monotonic() -> float:
    """Return seconds of a monotonic clock, for deadlines."""
    return time.monotonic()


def perf() -> float:
    """Return seconds of the clock with the highest resolution, for measurements."""
    return time.perf_counter()


def new_id() -> str:
    """Return a fresh UUID (RFC 9562, version 4), as 36 characters."""
    return str(uuid.uuid4())


def seeded(*seed: str | int) -> random.Random:
    """Return a generator determined by its seed: equal seeds give equal sequences."""
    return random.Random("\x1f".join(map(str, seed)))

"""The only door to time, randomness and identifiers.

Determinism is a lint rule here: ruff's `banned-api` forbids `time.time`, `datetime.now`,
`random`, `secrets`, `uuid` and every sleep outside this file. What an episode sees is drawn
from `seeded`; wall time is for logs, deadlines and new recordings only.
"""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Return seconds of a clock that never goes back; for deadlines."""
    return time.monotonic()


def perf() -> float:
    """Return seconds of the finest clock there is; for measuring."""
    return time.perf_counter()


def new_id() -> str:
    """Return a fresh UUID (RFC 9562, version 4), as 36 characters."""
    return str(uuid.uuid4())


def seeded(*seed: str | int) -> random.Random:
    """Return a generator that is fixed by its seed: equal seeds, equal draws."""
    return random.Random("\x1f".join(map(str, seed)))

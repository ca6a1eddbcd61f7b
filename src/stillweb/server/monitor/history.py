"""Time series of a server for the monitor: rates, latencies, failures, misses and memory of the last hour.

A recorder samples the status at fixed intervals. Each sample holds the differences of the counters since the
previous one, so a server and a master use the same code: the master samples the merged status of its nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psutil
from pydantic import BaseModel, Field

from stillweb import clock
from stillweb.polling import wait_event
from stillweb.server.monitor.status import Latency, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


INTERVAL = 5.0
"""Seconds between two samples."""

_SAMPLES = 720  # one hour


class History(BaseModel):
    """The samples of the last hour, oldest first."""

    interval: float = Field(default=INTERVAL, description="Seconds between two samples")
    ages: list[float] = Field(description="Age of each sample in seconds")
    series: dict[str, list[float | None]] = Field(
        description="Values by name. steps, resets, failures, misses: per second. latency.OPERATION.p50 and "
        ".p95: seconds, null without operations. memory.server, memory.browsers: bytes. leased: sessions"
    )


class HistoryRecorder:
    """Keeps the samples of one hour."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float | None]]] = deque(maxlen=_SAMPLES)
        self._previous: tuple[float, Status] | None = None

    def add(self, status: Status, now: float) -> None:
        """Store the difference to the previous status; the first status only starts the series."""
        previous, self._previous = self._previous, (now, status)
        if previous:
            self._samples.append((now, _differences(*previous, status, now)))

    def history(self, now: float) -> History:
        """Return all samples; a name that an older sample lacks is None there."""
        names = dict.fromkeys(name for _, values in self._samples for name in values)
        return History(
            ages=[round(now - time, 1) for time, _ in self._samples],
            series={name: [values.get(name) for _, values in self._samples] for name in names},
        )

    @asynccontextmanager
    async def recording(self, status: Callable[[], Awaitable[Status]]) -> AsyncIterator[None]:
        """Sample a status at each interval until the block is left."""
        ended = asyncio.Event()
        task = asyncio.ensure_future(self._record(status, ended))
        try:
            yield
        finally:
            ended.set()
            await task

    async def _record(self, status: Callable[[], Awaitable[Status]], ended: asyncio.Event) -> None:
        while not ended.is_set():
            self.add(await status(), clock.monotonic())
            await wait_event(ended, INTERVAL)


def _differences(then: float, old: Status, new: Status, now: float) -> dict[str, float | None]:
    seconds = max(now - then, 0.001)

    def rate(before: float, after: float) -> float:
        return round(max(0.0, after - before) / seconds, 3)  # counters of a lost node disappear from a sum

    values: dict[str, float | None] = {
        "steps": rate(old.steps, new.steps),
        "resets": rate(old.resets, new.resets),
        "failures": rate(sum(old.failures.values()), sum(new.failures.values())),
        "misses": rate(old.traffic.get("misses", 0), new.traffic.get("misses", 0)),
        "leased": sum(each.letter != "N" for each in new.sessions),
    }
    for name, latency in new.latency.items():
        before = old.latency.get(name) or Latency()
        counts = [max(0, b - a) for a, b in zip(before.counts, latency.counts, strict=True)]
        values |= {
            f"latency.{name}.p50": quantile(counts, 0.5),
            f"latency.{name}.p95": quantile(counts, 0.95),
        }
    return values | {f"memory.{name}": float(size) for name, size in new.memory.items()}


def quantile(counts: list[int], share: float) -> float | None:
    """Return a quantile of a histogram in seconds, interpolated within its bucket; None without observations.

    The last bucket has no upper bound: its lower bound is returned.
    """
    rank, total = share * sum(counts), 0
    if not rank:
        return None
    for index, count in enumerate(counts):
        lower = Latency.BOUNDS[index - 1] if index else 0.0
        if count and total + count >= rank:
            upper = Latency.BOUNDS[index] if index < len(Latency.BOUNDS) else lower
            return round(lower + (upper - lower) * (rank - total) / count, 4)
        total += count
    return None


def memory_of(browsers: Iterable[int]) -> dict[str, int]:
    """Return the resident memory of this process and of browser process trees, in bytes."""
    pids = {process.pid: process for pid in browsers for process in _tree(pid)}
    return {
        "server": _resident(psutil.Process()),
        "browsers": sum(_resident(process) for process in pids.values()),
    }


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _resident(process: psutil.Process) -> int:
    try:
        size: int = process.memory_info().rss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return size

"""Counters of a server: event rates of the last minute, totals, and the most recent misses."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stillweb.server.monitor.status import Latency

_SPAN = 60  # seconds
_MISSES = 50


class EventRate:
    """Events per second over the last minute."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._seconds: deque[tuple[int, int]] = deque()
        self.total = 0

    def count(self, now: float) -> None:
        self.total += 1
        second = int(now)
        if self._seconds and self._seconds[-1][0] >= second:
            last, events = self._seconds.pop()
            self._seconds.append((last, events + 1))
        else:
            self._seconds.append((second, 1))
        self._forget(now)

    def value(self, now: float) -> float:
        """Return events per second; in the first minute, over the time since the start."""
        self._forget(now)
        span = min(_SPAN, max(1.0, now - self._since))
        return sum(events for _, events in self._seconds) / span

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= int(now) - _SPAN:
            self._seconds.popleft()


@dataclass(frozen=True, slots=True)
class TrackedMiss:
    """A request that the collection does not hold: time, task, and "METHOD URL"."""

    at: float
    task: str
    request: str


class ServerCounters:
    """Counters since the start of a server."""

    def __init__(self, now: float) -> None:
        self.steps = EventRate(now)
        self.resets = EventRate(now)
        self.episodes: Counter[str] = Counter()  # terminated, truncated
        self.leases: Counter[str] = Counter()  # granted, and the reasons of their ends
        self.failures: Counter[str] = Counter()
        self.traffic: Counter[str] = Counter()
        self.misses: deque[TrackedMiss] = deque(maxlen=_MISSES)
        self.latency: defaultdict[str, Latency] = defaultdict(Latency)

    def add_traffic(self, traffic: Mapping[str, Any], task: str, now: float) -> None:
        """Count the replay requests of a reset or step."""
        self.traffic.update(
            {name: traffic.get(name, 0) for name in ("hits", "misses", "noise", "guesses", "derived")}
        )
        self.misses.extend(TrackedMiss(now, task, request) for request in traffic["missed"])

"""Figures as Prometheus reads them; made when they are asked for, so that answering costs nothing more.

All counts are sums over the workers, so that a query need not know how many there are; what tells
workers apart is in `stillweb_worker_*`. `process_*` is the program that was asked: of several workers the
supervisor.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from stillweb import __version__

__all__ = [
    "BOUNDS_MS",
    "MEDIA_TYPE",
    "ReplayMetrics",
    "ResponseCounters",
    "WorkerMetrics",
    "render",
    "resident_bytes",
]

BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0, 1000.0)
"""Upper bounds of the latency histogram; an answer takes some tens of microseconds, a slow client seconds."""

_PLACES = 1000  # of damage that are remembered, and so logged: a disk that fails fails everywhere


class ResponseCounters:
    """Counts of answers.

    Attributes:
        answers: by tier.
        bytes: of their bodies, as sent.
        damaged: requests that a damaged pack could not answer.
        ms: the sum of their durations.
        buckets: answers by duration: `buckets[i]` took at most `BOUNDS_MS[i]`, the last one longer than all.
    """

    __slots__ = ("_told", "answers", "buckets", "bytes", "damaged", "ms")

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.bytes = 0
        self.damaged = 0
        self._told: set[str] = set()
        self.ms = 0.0
        self.buckets = [0] * (len(BOUNDS_MS) + 1)

    def add(self, tier: str, size: int, ms: float) -> None:
        """Count an answer."""
        self.answers[tier] += 1
        self.bytes += size
        self.ms += ms
        self.buckets[bisect_left(BOUNDS_MS, ms)] += 1

    def damage(self, what: str) -> bool:
        """Count a request that met damage; return whether that place is told of for the first time."""
        self.damaged += 1
        new = what not in self._told and len(self._told) < _PLACES
        if new:
            self._told.add(what)
        return new

    def add_up(self, other: ResponseCounters) -> None:
        """Add what another one counted."""
        self.answers.update(other.answers)
        self.bytes += other.bytes
        self.damaged += other.damaged
        self.ms += other.ms
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "answers": dict(self.answers),
            "bytes": self.bytes,
            "damaged": self.damaged,
            "ms": self.ms,
            "buckets": self.buckets,
        }

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> ResponseCounters:
        """Read what `to_dict` made."""
        tally = cls()
        tally.answers.update(loaded["answers"])
        tally.bytes, tally.damaged = loaded["bytes"], loaded["damaged"]
        tally.ms, tally.buckets = loaded["ms"], list(loaded["buckets"])
        return tally


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """How a worker stands.

    Attributes:
        number: from 0.
        up: whether it lives.
        restarts: how often it was started anew.
        sessions: that are open on it, by collection.
        connections: that are open to it.
        in_flight: requests whose answers are going out.
        resident: bytes of its memory that are in RAM, shared pages too.
    """

    number: int = 0
    up: bool = True
    restarts: int = 0
    sessions: Mapping[str, int] = field(default_factory=dict)
    connections: int = 0
    in_flight: int = 0
    resident: int = 0


@dataclass(frozen=True, slots=True)
class ReplayMetrics:
    """What a server says of itself at one moment.

    Attributes:
        tallies: by collection; of all workers together.
        workers: one, or as many as there are.
    """

    tallies: Mapping[str, ResponseCounters] = field(default_factory=dict)
    workers: tuple[WorkerMetrics, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "tallies": {name: tally.to_dict() for name, tally in self.tallies.items()},
            "workers": [asdict(worker) for worker in self.workers],
        }

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> ReplayMetrics:
        """Read what `to_dict` made."""
        tallies = {name: ResponseCounters.from_dict(tally) for name, tally in loaded["tallies"].items()}
        return cls(tallies, tuple(WorkerMetrics(**worker) for worker in loaded["workers"]))


MEDIA_TYPE = CONTENT_TYPE_LATEST


def render(figures: ReplayMetrics) -> bytes:
    """Return figures in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Figures(figures))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def resident_bytes() -> int:
    """Return how much memory of this program is in RAM; 0 where the system does not say."""
    for metric in ProcessCollector(registry=None).collect():
        if metric.name == "process_resident_memory_bytes":
            return int(metric.samples[0].value)
    return 0


class _Figures(Collector):
    def __init__(self, figures: ReplayMetrics) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("stillweb_build", "What is running.", value=build)
        yield from _answers(self._figures)
        yield from _sessions(self._figures)
        yield from _workers(self._figures.workers)


def _answers(figures: ReplayMetrics) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "stillweb_requests", "Answers, by collection and tier.", labels=("collection", "tier")
    )
    sent = CounterMetricFamily("stillweb_sent_bytes", "Bytes of bodies sent.", labels=("collection",))
    damaged = CounterMetricFamily(
        "stillweb_pack_damage", "Requests that a damaged pack could not answer.", labels=("collection",)
    )
    seconds = HistogramMetricFamily(
        "stillweb_answer_seconds",
        "From the complete request to the last byte handed to the network.",
        labels=("collection",),
    )
    for name, tally in figures.tallies.items():
        for tier, count in tally.answers.items():
            answers.add_metric((name, tier), count)
        sent.add_metric((name,), tally.bytes)
        damaged.add_metric((name,), tally.damaged)
        seconds.add_metric((name,), _buckets(tally), tally.ms / 1000)
    yield from (answers, sent, damaged, seconds)


def _buckets(tally: ResponseCounters) -> list[tuple[str, float]]:
    bounds = [*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf"]
    return list(zip(bounds, accumulate(tally.buckets), strict=True))


def _sessions(figures: ReplayMetrics) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "stillweb_sessions", "Open sessions, the default one too.", labels=("collection",)
    )
    for name in figures.tallies:
        family.add_metric((name,), sum(worker.sessions.get(name, 0) for worker in figures.workers))
    yield family
    workers = figures.workers
    yield GaugeMetricFamily(
        "stillweb_connections", "Open connections.", value=sum(each.connections for each in workers)
    )
    yield GaugeMetricFamily(
        "stillweb_in_flight", "Requests whose answers are going out.", value=sum(w.in_flight for w in workers)
    )


def _workers(workers: tuple[WorkerMetrics, ...]) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "stillweb_worker_restarts", "How often a worker was started anew.", labels=("worker",)
    )
    gauges: dict[str, tuple[str, Callable[[WorkerMetrics], float]]] = {
        "up": ("Whether a worker lives.", lambda each: int(each.up)),
        "sessions": ("Open sessions of a worker.", lambda each: sum(each.sessions.values())),
        "connections": ("Open connections of a worker.", lambda each: each.connections),
        "in_flight": ("Requests whose answers go out from a worker.", lambda each: each.in_flight),
        "resident_memory_bytes": ("Memory of a worker in RAM, shared pages too.", lambda each: each.resident),
    }
    for each in workers:
        restarts.add_metric((str(each.number),), each.restarts)
    yield restarts
    for name, (text, value) in gauges.items():
        family = GaugeMetricFamily(f"stillweb_worker_{name}", text, labels=("worker",))
        for each in workers:
            family.add_metric((str(each.number),), value(each))
        yield family

"""Counters of responses and workers, and their Prometheus format.

The format is made when `/metrics` is requested, so that answering pages costs nothing more. All counts are
sums over the workers, so that a query need not know how many there are. `stillweb_worker_*` has one
series for each worker. `process_*` describes the process that answers: with several workers, the supervisor.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from pydantic import TypeAdapter

from stillweb import __version__
from stillweb.http.controlrouter import ControlResponse

BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0, 1000.0)
"""Upper bounds of the latency histogram: a response takes tens of microseconds, a slow client seconds."""

_PLACES = 1000  # places of damage that are logged: a disk that fails is damaged everywhere


@dataclass
class ResponseCounters:
    """Counts of responses.

    Attributes:
        answers: by tier.
        bytes: of their bodies, as sent.
        damaged: requests that a damaged pack could not answer.
        ms: sum of their durations.
        buckets: responses by duration: `buckets[i]` took at most `BOUNDS_MS[i]`, the last one longer than
            all.
    """

    answers: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    damaged: int = 0
    ms: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))

    def __post_init__(self) -> None:
        self._logged: set[str] = set()

    def add(self, tier: str, size: int, ms: float) -> None:
        self.answers[tier] += 1
        self.bytes += size
        self.ms += ms
        self.buckets[bisect_left(BOUNDS_MS, ms)] += 1

    def damage(self, what: str) -> bool:
        """Count a request that met damage; return True the first time that this place is reported."""
        self.damaged += 1
        new = what not in self._logged and len(self._logged) < _PLACES
        if new:
            self._logged.add(what)
        return new

    def add_up(self, other: ResponseCounters) -> None:
        self.answers.update(other.answers)
        self.bytes += other.bytes
        self.damaged += other.damaged
        self.ms += other.ms
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """State of a worker.

    Attributes:
        number: from 0.
        sessions: open ones, by collection.
        in_flight: requests whose responses are going out.
        resident: bytes of its memory that are in RAM, shared pages included.
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
    """Counters of a server at one moment.

    Attributes:
        counters: by collection, of all workers together.
        workers: one, or as many as there are.
    """

    counters: Mapping[str, ResponseCounters] = field(default_factory=dict)
    workers: tuple[WorkerMetrics, ...] = ()


_METRICS = TypeAdapter(ReplayMetrics)


def parse_metrics(loaded: object) -> ReplayMetrics:
    """Return the metrics that a worker sent as JSON.

    Raises:
        ValueError: if they are none.
    """
    return _METRICS.validate_python(loaded)


def metrics_response(figures: ReplayMetrics) -> ControlResponse:
    """Return metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Figures(figures))
    ProcessCollector(registry=registry)
    return ControlResponse(HTTPStatus.OK, raw=generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def resident_bytes() -> int:
    """Return the bytes of this process's memory that are in RAM; 0 where the system does not report them."""
    for metric in ProcessCollector(registry=None).collect():
        if metric.name == "process_resident_memory_bytes":
            return int(metric.samples[0].value)
    return 0


class _Figures(Collector):
    def __init__(self, figures: ReplayMetrics) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("stillweb_build", "Version of the running program.", value=build)
        yield from _answers(self._figures)
        yield from _sessions(self._figures)
        yield from _workers(self._figures.workers)


def _answers(figures: ReplayMetrics) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "stillweb_requests", "Responses, by collection and tier.", labels=("collection", "tier")
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
    for name, counters in figures.counters.items():
        for tier, count in counters.answers.items():
            answers.add_metric((name, tier), count)
        sent.add_metric((name,), counters.bytes)
        damaged.add_metric((name,), counters.damaged)
        seconds.add_metric((name,), _buckets(counters), counters.ms / 1000)
    yield from (answers, sent, damaged, seconds)


def _buckets(counters: ResponseCounters) -> list[tuple[str, float]]:
    bounds = [*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf"]
    return list(zip(bounds, accumulate(counters.buckets), strict=True))


def _sessions(figures: ReplayMetrics) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "stillweb_sessions", "Open sessions, the default one included.", labels=("collection",)
    )
    for name in figures.counters:
        family.add_metric((name,), sum(worker.sessions.get(name, 0) for worker in figures.workers))
    yield family
    workers = figures.workers
    yield GaugeMetricFamily(
        "stillweb_connections", "Open connections.", value=sum(each.connections for each in workers)
    )
    yield GaugeMetricFamily(
        "stillweb_in_flight",
        "Requests whose responses are going out.",
        value=sum(w.in_flight for w in workers),
    )


def _workers(workers: tuple[WorkerMetrics, ...]) -> Iterator[Metric]:
    restarts = CounterMetricFamily("stillweb_worker_restarts", "Restarts of a worker.", labels=("worker",))
    gauges: dict[str, tuple[str, Callable[[WorkerMetrics], float]]] = {
        "up": ("Whether a worker lives.", lambda each: int(each.up)),
        "sessions": ("Open sessions of a worker.", lambda each: sum(each.sessions.values())),
        "connections": ("Open connections of a worker.", lambda each: each.connections),
        "in_flight": ("Requests whose responses go out from a worker.", lambda each: each.in_flight),
        "resident_memory_bytes": (
            "Memory of a worker in RAM, shared pages included.",
            lambda each: each.resident,
        ),
    }
    for each in workers:
        restarts.add_metric((str(each.number),), each.restarts)
    yield restarts
    for name, (text, value) in gauges.items():
        family = GaugeMetricFamily(f"stillweb_worker_{name}", text, labels=("worker",))
        for each in workers:
            family.add_metric((str(each.number),), value(each))
        yield family

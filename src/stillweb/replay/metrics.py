"""Figures as Prometheus reads them; made when they are asked for, so that answering costs nothing more.

All counts are sums over the workers, so that a query need not know how many there are; what tells
workers apart is in `stillweb_worker_*`. `process_*` is the program that was asked: of several workers the
supervisor.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
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

from stillweb import __version__
from stillweb.replay.tally import BOUNDS_MS, Figures, Tally, WorkerFigures

__all__ = ["MEDIA_TYPE", "render", "resident_bytes"]

MEDIA_TYPE = CONTENT_TYPE_LATEST


def render(figures: Figures) -> bytes:
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
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("stillweb_build", "What is running.", value=build)
        yield from _answers(self._figures)
        yield from _sessions(self._figures)
        yield from _workers(self._figures.workers)


def _answers(figures: Figures) -> Iterator[Metric]:
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


def _buckets(tally: Tally) -> list[tuple[str, float]]:
    bounds = [*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf"]
    return list(zip(bounds, accumulate(tally.buckets), strict=True))


def _sessions(figures: Figures) -> Iterator[Metric]:
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


def _workers(workers: tuple[WorkerFigures, ...]) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "stillweb_worker_restarts", "How often a worker was started anew.", labels=("worker",)
    )
    gauges: dict[str, tuple[str, Callable[[WorkerFigures], float]]] = {
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

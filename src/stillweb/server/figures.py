"""The server's status as Prometheus reads it; made when it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stillweb.server.status import Status

__all__ = ["MEDIA_TYPE", "render"]

MEDIA_TYPE = CONTENT_TYPE_LATEST


def render(status: Status) -> bytes:
    """Return a status in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Status(status))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Status(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        status = self._status
        letters = Counter("0-9" if each.letter.isdecimal() else each.letter for each in status.sessions)
        yield _gauge("sessions", "Sessions by their letter.", "letter", letters)
        yield _counter("steps", "Steps taken.", status.steps)
        yield _counter("resets", "Episodes begun.", status.resets)
        yield _counters("episodes", "Episodes that ended as they should.", "how", status.episodes)
        yield _counters("leases", "Leases granted, and why they ended.", "what", status.leases)
        yield _counters("failures", "Requests that failed.", "kind", status.failures)
        yield _counters("traffic", "Requests of episodes to the replay.", "kind", status.traffic)
        for name, text in (("under_way", "Operations at work."), ("waiting", "Operations that wait.")):
            depth = {queue: getattr(each, name) for queue, each in status.queues.items()}
            yield _gauge(f"queue_{name}", text, "queue", depth)
        states = Counter(each.state for each in status.browsers)
        yield _gauge("browsers", "Browsers by their state.", "state", states)
        yield _gauge("pictures", "Pictures in memory.", "what", status.pictures)


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"stillweb_serve_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"stillweb_serve_{name}", text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"stillweb_serve_{name}", text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family

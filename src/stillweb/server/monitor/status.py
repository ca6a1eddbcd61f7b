"""The status of a server: pydantic models of the JSON, and the same figures as Prometheus metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field


class SessionLetter(StrEnum):
    """State of a session as one character; a running episode shows its steps, `0` to `9`."""

    FREE = "N"
    WAITING = "W"  # leased; no episode has started
    FINISHED = "F"
    FAILED = "X"


def letter_of(*, leased: bool, playing: bool, finished: bool, failed: bool, step: int) -> str:
    if not leased:
        return SessionLetter.FREE.value
    if failed:
        return SessionLetter.FAILED.value
    if finished:
        return SessionLetter.FINISHED.value
    return str(min(step, 9)) if playing else SessionLetter.WAITING.value


class SessionStatus(BaseModel):
    """One session."""

    index: int
    letter: str = Field(
        description="N free, W episode starts, 0-9 steps of a running episode, F finished, X failed"
    )
    doing: str = Field(default="", description="Operation under way; queued:NAME while it waits in a queue")
    step: int = 0
    age: float = Field(default=0.0, description="Seconds since the start of the lease")
    silent: float = Field(default=0.0, description="Seconds since the last request of the client")
    lease: str = Field(default="", description="Identifier; empty for leases of other API keys")
    owner: str = Field(default="", description="Label that the client chose")
    client: str = Field(default="", description="Name of the API key that holds the lease")
    task: str = ""
    url: str = ""
    hits: int = Field(default=0, description="Requests of the episode that the collection holds")
    misses: int = 0
    noise: int = 0
    picture: str = Field(default="", description="SHA-256 of the last picture: GET /v1/pictures/{sha256}")
    reward: float | None = Field(default=None, description="Reward of a finished episode; null otherwise")
    error: str = Field(default="", description="Why the episode failed")
    browser: int = Field(default=-1, description="Number of the browser in `browsers`; -1 for none")
    node: str = Field(default="", description="Name of the node, in the status of a master")


class Queue(BaseModel):
    """The queue of one kind of operation; `allocate` is the queue for leases."""

    limit: int = Field(description="Operations that may run simultaneously")
    under_way: int
    waiting: int
    room: int = Field(description="Operations that may wait; more get status 503")
    begun: int = Field(default=0, description="Operations since the start of the server")


class Latency(BaseModel):
    """Durations of one kind of operation, from the arrival of the call to its result, as a histogram."""

    BOUNDS: ClassVar[tuple[float, ...]] = (
        *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    )
    """Upper bounds of the buckets in seconds; a last bucket has none."""

    counts: list[int] = Field(
        default_factory=lambda: [0] * (len(Latency.BOUNDS) + 1), description="Operations in each bucket"
    )
    sum: float = Field(default=0.0, description="Seconds of all operations")

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.sum += seconds

    def __add__(self, other: Latency) -> Latency:
        counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        return Latency(counts=counts, sum=self.sum + other.sum)


class Rates(BaseModel):
    """Events per second over the last minute."""

    steps: float
    resets: float


class RecentMiss(BaseModel):
    """A request that the collection does not hold."""

    age: float = Field(description="Seconds since the request")
    task: str
    request: str = Field(description="METHOD URL")


class BrowserStatus(BaseModel):
    """A browser of the pool."""

    number: int
    state: str
    episodes: int
    leases: int
    pid: int
    driver_pid: int
    node: str = Field(default="", description="Name of the node, in the status of a master")


class Status(BaseModel):
    """The whole server."""

    version: int = 1
    state: str = Field(description="serving or draining")
    uptime: float
    replay: str = Field(description="Control URL of the replay server")
    level: str
    observe: list[str]
    sessions: list[SessionStatus]
    queues: dict[str, Queue]
    rates: Rates
    steps: int = Field(description="Steps since the start of the server")
    resets: int
    episodes: dict[str, int] = Field(description="How episodes ended: terminated, truncated")
    leases: dict[str, int] = Field(description="Granted leases, and the reasons of their ends")
    failures: dict[str, int] = Field(
        description="Failed requests by kind; infra_error is a failure of the server"
    )
    traffic: dict[str, int] = Field(description="hits, misses and noise of all episodes")
    misses: list[RecentMiss] = Field(description="Most recent misses, newest first")
    browsers: list[BrowserStatus]
    pictures: dict[str, int] = Field(description="Number and bytes of the pictures in memory")
    latency: dict[str, Latency] = Field(
        default_factory=dict,
        description=f"By operation; the bounds are {', '.join(map(str, Latency.BOUNDS))} s",
    )
    memory: dict[str, int] = Field(
        default_factory=dict, description="Resident bytes of the server and its browsers"
    )


def visible_to(status: Status, client: str) -> Status:
    """Return a status without the lease identifiers and pictures of other clients."""
    sessions = [
        each if each.client == client else each.model_copy(update={"lease": "", "picture": ""})
        for each in status.sessions
    ]
    return status.model_copy(update={"sessions": sessions})


MEDIA_TYPE = CONTENT_TYPE_LATEST


def render(status: Status) -> bytes:
    """Return a status in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Status(status))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Status(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        letters = Counter("0-9" if each.letter.isdecimal() else each.letter for each in status.sessions)
        yield _gauge("sessions", "Sessions by state letter.", "letter", letters)
        yield _counter("steps", "Steps taken.", status.steps)
        yield _counter("resets", "Episodes started.", status.resets)
        yield _counters("episodes", "Finished episodes.", "how", status.episodes)
        yield _counters("leases", "Leases granted, and the reasons of their ends.", "what", status.leases)
        yield _counters("failures", "Failed requests by kind.", "kind", status.failures)
        yield _counters("traffic", "Requests of episodes to the replay server.", "kind", status.traffic)
        for name, text in (("under_way", "Running operations."), ("waiting", "Waiting operations.")):
            depth = {queue: getattr(each, name) for queue, each in status.queues.items()}
            yield _gauge(f"queue_{name}", text, "queue", depth)
        states = Counter(each.state for each in status.browsers)
        yield _gauge("browsers", "Browsers by state.", "state", states)
        yield _gauge("pictures", "Pictures in memory.", "what", status.pictures)
        yield _gauge("memory_bytes", "Resident memory.", "what", status.memory)
        yield _histogram("operation_seconds", "Durations of operations.", "operation", status.latency)


def _histogram(name: str, text: str, label: str, values: Mapping[str, Latency]) -> Metric:
    family = HistogramMetricFamily(f"stillweb_serve_{name}", text, labels=(label,))
    bounds = [*map(str, Latency.BOUNDS), "+Inf"]
    for key, latency in values.items():
        buckets = list(zip(bounds, accumulate(latency.counts), strict=True))
        family.add_metric((key,), buckets, latency.sum)
    return family


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

"""The server's status as Prometheus reads it; made when it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

__all__ = [
    "MEDIA_TYPE",
    "BrowserStatus",
    "Letter",
    "Queue",
    "Rates",
    "RecentMiss",
    "SessionStatus",
    "Status",
    "letter_of",
    "render",
]


class Letter(StrEnum):
    """Where a session stands, in one sign; an episode that plays shows its steps, `0` to `9`."""

    NOBODY = "N"
    WAITS = "W"  # leased, and no episode has begun yet
    FINISHED = "F"
    FAILED = "X"


def letter_of(*, leased: bool, playing: bool, over: bool, failed: bool, step: int) -> str:
    """Return the sign of a session."""
    if not leased:
        return Letter.NOBODY.value
    if failed:
        return Letter.FAILED.value
    if over:
        return Letter.FINISHED.value
    return str(min(step, 9)) if playing else Letter.WAITS.value


class SessionStatus(BaseModel):
    """One session."""

    index: int
    letter: str = Field(
        description="N nobody has it, W begins, 0-9 plays (steps, 9 and more), F over, X failed"
    )
    doing: str = Field(
        default="", description="The operation under way; queued:NAME while it waits for its turn"
    )
    step: int = 0
    age: float = Field(default=0.0, description="Seconds since the lease began")
    silent: float = Field(default=0.0, description="Seconds since its owner was heard")
    lease: str = ""
    owner: str = ""
    task: str = ""
    url: str = ""
    hits: int = Field(default=0, description="Requests of the episode that the collection answered")
    misses: int = 0
    noise: int = 0
    picture: str = Field(default="", description="SHA-256 of the last picture: GET /v1/pictures/{sha256}")
    reward: float | None = Field(default=None, description="Of an episode that ended as it should; else null")
    error: str = Field(default="", description="Why it failed")
    browser: int = Field(default=-1, description="Number of its browser, as in `browsers`; -1 for none")
    node: str = Field(default="", description="Whose it is, where a master tells of several")


class Queue(BaseModel):
    """One kind of operation; `allocate` is the leases themselves."""

    limit: int = Field(description="At once")
    under_way: int
    waiting: int
    room: int = Field(description="To wait; beyond it requests are answered 503")
    begun: int = Field(default=0, description="Since the server started")


class Rates(BaseModel):
    """A second, over the last minute."""

    steps: float
    resets: float


class RecentMiss(BaseModel):
    """A request that the collection does not hold."""

    age: float = Field(description="Seconds since it was seen")
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
    node: str = Field(default="", description="Whose it is, where a master tells of several")


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
    steps: int = Field(description="Since the server started")
    resets: int
    episodes: dict[str, int] = Field(description="How episodes ended: terminated, truncated")
    leases: dict[str, int] = Field(description="Granted, and why they ended")
    failures: dict[str, int] = Field(description="By kind; infra_error is ours")
    traffic: dict[str, int] = Field(description="hits, misses and noise of all episodes")
    misses: list[RecentMiss] = Field(description="The last ones, newest first")
    browsers: list[BrowserStatus]
    pictures: dict[str, int] = Field(description="How many are in memory, and their bytes")


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

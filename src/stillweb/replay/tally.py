"""What is counted of answers while they go out: cheap enough to be done for every one.

Plain numbers, so that the way of an answer knows nothing of Prometheus; `metrics` turns them into
its text when it is asked. One tally counts for all sessions of a collection, living and closed.

`Figures` are what a server says of itself at one moment: the tallies, and how each worker stands.
Workers send them to their supervisor as JSON, which adds them up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["BOUNDS_MS", "Figures", "Tally", "WorkerFigures"]

BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0, 1000.0)
"""Upper bounds of the latency histogram; an answer takes some tens of microseconds, a slow client seconds."""

_PLACES = 1000  # of damage that are remembered, and so logged: a disk that fails fails everywhere


class Tally:
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

    def add_up(self, other: Tally) -> None:
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
    def from_dict(cls, loaded: Mapping[str, Any]) -> Tally:
        """Read what `to_dict` made."""
        tally = cls()
        tally.answers.update(loaded["answers"])
        tally.bytes, tally.damaged = loaded["bytes"], loaded["damaged"]
        tally.ms, tally.buckets = loaded["ms"], list(loaded["buckets"])
        return tally


@dataclass(frozen=True, slots=True)
class WorkerFigures:
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
class Figures:
    """What a server says of itself at one moment.

    Attributes:
        tallies: by collection; of all workers together.
        workers: one, or as many as there are.
    """

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    workers: tuple[WorkerFigures, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "tallies": {name: tally.to_dict() for name, tally in self.tallies.items()},
            "workers": [asdict(worker) for worker in self.workers],
        }

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> Figures:
        """Read what `to_dict` made."""
        tallies = {name: Tally.from_dict(tally) for name, tally in loaded["tallies"].items()}
        return cls(tallies, tuple(WorkerFigures(**worker) for worker in loaded["workers"]))

"""What an episode asked the replay for since the last step.

The native replay keeps a ledger per session and says of each request how it was answered;
that is the truth. A pywb has none, so there the browser's own events are counted: an answer
of 400 or more, or none at all, is a miss, and what the browser asks on its own is not seen.
`source` says which of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from stillweb.errors import InfraError
from stillweb.model import GUESSES, Tier

__all__ = ["Traffic", "from_events", "from_ledger"]

LISTED = 20


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one step.

    Attributes:
        source: "ledger" or "browser".
        requests: all of them.
        hits: answered from the collection.
        misses: not held by the collection.
        noise: asked by the browser itself or by beacons; no miss.
        missed: "METHOD URL" of the first misses.
        guesses: of the hits, those of looser tiers (fuzzy, pywb): they may be another request's answer.
    """

    source: str
    requests: int = 0
    hits: int = 0
    misses: int = 0
    noise: int = 0
    missed: tuple[str, ...] = ()
    guesses: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON for `info`."""
        return {
            "source": self.source,
            "requests": self.requests,
            "hits": self.hits,
            "misses": self.misses,
            "noise": self.noise,
            "missed": list(self.missed),
            "guesses": self.guesses,
        }


class _LedgerEntry(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def tier(self) -> str: ...
    @property
    def reason(self) -> str: ...


class _BrowserRequest(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def failure(self) -> str: ...


def from_ledger(entries: Iterable[_LedgerEntry]) -> Traffic:
    """Count entries of a session's ledger.

    Raises:
        InfraError: if the replay could not read an answer that it holds.
    """
    requests = misses = noise = guesses = 0
    missed: list[str] = []
    for entry in entries:
        requests += 1
        if entry.tier == Tier.FAULT:
            raise InfraError(f"{entry.method} {entry.url}: {entry.reason}")
        if entry.tier == Tier.MISS:
            misses += 1
            missed.append(f"{entry.method} {entry.url}")
        elif entry.tier == Tier.NOISE:
            noise += 1
        elif entry.tier in GUESSES:
            guesses += 1
    hits = requests - misses - noise
    return Traffic("ledger", requests, hits, misses, noise, tuple(missed[:LISTED]), guesses)


def from_events(requests: Iterable[_BrowserRequest]) -> Traffic:
    """Count requests that the browser told of."""
    count = 0
    missed: list[str] = []
    for request in requests:
        count += 1
        if request.failure or request.status >= 400:
            missed.append(f"{request.method} {request.url}")
    return Traffic("browser", count, count - len(missed), len(missed), 0, tuple(missed[:LISTED]))

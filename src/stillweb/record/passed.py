"""What became of each request that went through a recording proxy, and the account of them.

An account is kept per session, and one of all. It is the ledger that an `Env` reads, in the form in which a
replay gives its own: `recorded` is a hit; a `miss` is what a replay of this recording will not have.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Account", "Outcome", "Passed"]

KEPT = 20_000  # entries of a ledger


class Outcome(StrEnum):
    """What became of a request."""

    RECORDED = "recorded"
    FAILED = "failed"  # the site gave no whole answer
    ABORTED = "aborted"  # the client did not wait for the whole answer
    TOO_LONG = "too long"  # passed on, and not recorded
    OPEN = "open"  # when the recording ended


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that is over.

    Attributes:
        status: of the answer, 0 if there was none.
        reason: why it is not recorded, "" if it is.
        size: bytes of the answer's body as received.
        ms: since the request began.
        protocol: as spoken with the site.
        port: of the listener by which it came.
        resource, referer: as the client told them.
    """

    method: str
    url: str
    outcome: Outcome
    status: int = 0
    reason: str = ""
    size: int = 0
    ms: float = 0.0
    protocol: str = ""
    port: int = 0
    resource: str = ""
    referer: str = ""


@dataclass(slots=True)
class Account:
    """What a session asked for, the oldest forgotten first.

    Attributes:
        counts: requests by outcome, over all that ever were.
    """

    counts: Counter[str] = field(default_factory=Counter)
    _entries: deque[tuple[int, Passed]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _total: int = 0

    def add(self, passed: Passed) -> None:
        """Enter a request."""
        self._total += 1
        self.counts[passed.outcome.value] += 1
        self._entries.append((self._total, passed))

    @property
    def total(self) -> int:
        """How many requests there were."""
        return self._total

    def to_dict(self, after: int = 0) -> dict[str, Any]:
        """Return the ledger beyond request number `after`, as JSON has it."""
        recorded = self.counts[Outcome.RECORDED.value]
        return {
            "entries": list(_entries(self._entries, after)),
            "counts": {"recorded": recorded, "miss": self._total - recorded},
            "dropped": self._total - len(self._entries),
            "closed": False,
        }


def _entries(kept: Iterable[tuple[int, Passed]], after: int) -> Iterable[dict[str, Any]]:
    for number, passed in kept:
        if number > after:
            yield {
                "seq": number,
                "method": passed.method,
                "url": passed.url,
                "status": passed.status,
                "tier": "recorded" if passed.outcome is Outcome.RECORDED else "miss",
                "reason": passed.reason,
                "bytes": passed.size,
                "ms": round(passed.ms, 1),
                "resource": passed.resource,
                "referer": passed.referer,
            }

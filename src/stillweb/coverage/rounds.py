"""Rounds of `record until`, its report, and which means records a miss."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stillweb.collections.branches import FormOutcome
from stillweb.collections.misses import Missed
from stillweb.collections.warc.frames import is_socket_url
from stillweb.coverage.causes import MissCause
from stillweb.coverage.measure import CoverageResult
from stillweb.model import MUTATIONS
from stillweb.record.amend.plan import by_visit
from stillweb.record.harvest.misses import meaning_of

_HARVEST_LEAST, _HARVEST_MOST = 0.25, 0.8  # shares of a pass


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement, and what was recorded before it.

    Attributes:
        number: 0 for the recording as it was found.
        recorded: exchanges written by each means in this round.
        seconds: since the loop began.
    """

    number: int
    recorded: dict[str, int]
    result: CoverageResult
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, without walks."""
        rate = self.result.miss_rate()
        counts = self.result.counts()
        return {
            "round": self.number,
            "recorded": self.recorded,
            "seconds": round(self.seconds, 1),
            "miss_rate": rate.to_dict(),
            **counts,
        }


@dataclass(slots=True)
class HarvestShare:
    """Share of a pass that the harvest gets: that of the missed requests which links and GET forms lead to.

    All walks of a round count. The filling walks alone show nothing once they miss little, and links may wait
    that other agents would follow.
    """

    linked: int = 0
    others: int = 0

    def add(self, linked: int, missed: int) -> None:
        """Add the missed requests of some walks."""
        self.linked += linked
        self.others += missed - linked

    @property
    def of_pass(self) -> float:
        """The share, within limits."""
        share = self.linked / max(1, self.linked + self.others)
        return min(_HARVEST_MOST, max(_HARVEST_LEAST, share))


@dataclass(slots=True)
class UntilReport:
    """Outcome of the loop.

    Attributes:
        rounds: measurements in order; the first is of the recording as it was found.
        reached: whether the last rate is at most the target; controls that are left alone do not count.
        causes: of the misses that are left.
        why: why the loop ended without reaching the target, "" if it was reached.
        forms: outcomes of the forms that were recorded with several texts.
        derived: walks with the seeds of the last measurement on a replay with --derived; None if no form was
            proved.
        late: exchanges that were recorded after the last measurement, which no rate counts.
    """

    rounds: list[Round] = field(default_factory=list)
    reached: bool = False
    causes: list[MissCause] = field(default_factory=list)
    why: str = ""
    forms: list[FormOutcome] = field(default_factory=list)
    derived: CoverageResult | None = None
    late: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "reached": self.reached,
            "why": self.why,
            "late": self.late,
            "rounds": [each.to_dict() for each in self.rounds],
            "causes": [asdict(each) for each in self.causes],
            "forms": [asdict(each) for each in self.forms],
            "derived": self.derived
            and {**self.derived.counts(), "miss_rate": self.derived.miss_rate().to_dict()},
        }


def why_over(limit: float, left: float, last: CoverageResult, *, reached: bool) -> str:
    """Return why nothing more is recorded, and what the last measurement lacks.

    Args:
        limit: of the loop, in seconds.
        left: of it, in seconds; too few to record and measure again.
        reached: whether the rate of the last measurement is at most the target.
    """
    over = f"the time limit of {limit:g} s is over"
    if left > 0:
        over = f"{left:.0f} s are left of the time limit of {limit:g} s, too few to record and measure again"
    if not last.miss_rate().tried:
        return f"{over}: no step of the last measurement requested anything"
    if reached and not last.complete:
        return f"{over}: the last measurement is within the target, but ended after {len(last.walks)} walks"
    return over


def needs_walks(miss: Missed) -> bool:
    """Return whether only a browser on the live site records a request: a write, or a live connection."""
    return miss.method in MUTATIONS or by_visit(miss.url)


def live_share(misses: list[Missed]) -> float:
    """Return the share of misses that only a visit records, because a live connection carries them."""
    return sum(by_visit(each.url) * each.count for each in misses) / _total(misses)


def is_frame(miss: Missed) -> bool:
    """Return whether a page sent the miss over an open WebSocket: the visits of an amend do not send it."""
    return is_socket_url(miss.url) and bool(miss.body_size)


def is_linked(miss: Missed) -> bool:
    """Return whether a link or a GET form leads to a miss: no browser is needed to find more like it.

    A script may load what the link leads to.
    """
    return miss.method == "GET" and (miss.resource == "document" or bool(meaning_of(miss.fields)))


def _total(misses: list[Missed]) -> int:
    return sum(each.count for each in misses) or 1


def key_of(miss: Missed) -> tuple[str, str, str]:
    """Return what equal misses share."""
    return miss.method, miss.url, miss.body_digest

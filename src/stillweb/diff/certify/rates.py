"""How often runs fail, and how sure that is: a rate with its 95% interval.

Where no run failed (or all did) the Clopper-Pearson bound is given, one-sided and exact:
1 - 0.05^(1/n), which the "rule of three" (3/n) comes near. In between it is Wilson's interval, which
keeps its promise for small rates, where the usual p ± 1.96·σ does not (Brown, Cai, DasGupta 2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

CONFIDENCE = 0.95
_Z = 1.959963984540054  # of the normal distribution, two-sided 95%


@dataclass(frozen=True, slots=True)
class FailureRate:
    """`failed` of `tried`, as a share, and the interval in which the true share lies with 95% confidence."""

    failed: int
    tried: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share that was seen; 0.0 where nothing was tried."""
        return self.failed / self.tried if self.tried else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "failed": self.failed,
            "tried": self.tried,
            "share": round(self.share, 6),
            "low": round(self.low, 6),
            "high": round(self.high, 6),
        }

    def __str__(self) -> str:
        if not self.tried:
            return "nothing tried"
        if not self.failed:
            return f"0 of {self.tried}: at most {self.high:.2%} (95%)"
        return f"{self.failed} of {self.tried}: {self.share:.2%} ({self.low:.2%} to {self.high:.2%}, 95%)"


def rate(failed: int, tried: int) -> FailureRate:
    """Return the rate of so many failures; without a trial everything is possible: 0 to 1."""
    if tried <= 0:
        return FailureRate(0, 0, 0.0, 1.0)
    edge = (1 - CONFIDENCE) ** (1 / tried)
    if failed <= 0:
        return FailureRate(0, tried, 0.0, 1 - edge)
    if failed >= tried:
        return FailureRate(tried, tried, edge, 1.0)
    share, weight = failed / tried, _Z * _Z / tried
    centre = (share + weight / 2) / (1 + weight)
    spread = _Z * sqrt(share * (1 - share) / tried + weight / (4 * tried)) / (1 + weight)
    return FailureRate(failed, tried, max(0.0, centre - spread), min(1.0, centre + spread))

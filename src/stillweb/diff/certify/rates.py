"""Failure rates with their 95% confidence interval.

If no run failed, or all did, the interval uses the exact one-sided Clopper-Pearson bound 1 - 0.05^(1/n),
which the "rule of three" (3/n) approximates. Otherwise it is Wilson's interval, which has the nominal
coverage for small rates, where the usual p ± 1.96·σ does not (Brown, Cai, DasGupta 2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

CONFIDENCE = 0.95
_Z = 1.959963984540054  # normal distribution, two-sided 95%


@dataclass(frozen=True, slots=True)
class FailureRate:
    """`failed` of `tried` runs, and the 95% confidence interval of the failure probability."""

    failed: int
    tried: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.failed / self.tried if self.tried else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "failed": self.failed,
            "tried": self.tried,
            "share": round(self.share, 6),
            "low": round(self.low, 6),
            "high": round(self.high, 6),
        }

    def __str__(self) -> str:
        if not self.tried:
            return "no runs"
        if not self.failed:
            return f"0 of {self.tried}: at most {self.high:.2%} (95%)"
        return f"{self.failed} of {self.tried}: {self.share:.2%} ({self.low:.2%} to {self.high:.2%}, 95%)"


def rate(failed: int, tried: int) -> FailureRate:
    """Return the failure rate; the interval is 0 to 1 if nothing was tried."""
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

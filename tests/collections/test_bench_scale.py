"""The p99 that bench/scale.py compares is of the program, not of who else had the machine."""

from __future__ import annotations

import pytest
from scale import compared


def _rounds(slow: int, *preempted: int) -> list[list[int]]:
    """Return 20 rounds of 1000 lookups: 1000 to 2000 ns and `slow` percent more, some rounds interrupted."""
    plain = [(1000 + at) * (100 + slow) // 100 for at in range(1000)]
    return [
        [time + (500_000 if place in preempted and time % 20 == 0 else 0) for time in plain]
        for place in range(20)
    ]


def test_a_round_that_was_interrupted_moves_no_ratio_but_that_of_all_together() -> None:
    found = compared(_rounds(0), _rounds(0, 3, 4, 5, 6, 7, 8))
    assert (found["p50_ratio"], found["p99_ratio"], found["p99_first_round_ratio"]) == (1.0, 1.0, 1.0)
    assert found["p99_together_ratio"] > 10


def test_what_is_slower_in_each_round_is_seen() -> None:
    found = compared(_rounds(0, 0), _rounds(40, 9))
    assert (found["p50_ratio"], found["p99_ratio"]) == pytest.approx((1.4, 1.4), abs=0.01)
    assert found["p99_first_round_ratio"] < 0.1

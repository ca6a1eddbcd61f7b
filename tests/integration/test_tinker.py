"""Tinker cookbook 0.5.8: its group rollouts play episodes; its strategies handle a broken one."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(300)]


def test_its_rollouts_score_groups(drive, record_property, served):
    outcome = drive("tinker", "tinker_side", 280.0)
    assert outcome["played"] == {"rewards": [0.0, 1.0], "errors": []}
    assert outcome["dropped"]["errors"] == ["InfraError"]
    assert outcome["dropped"]["rewards"][:1] == [0.0]
    assert set(outcome["dropped"]["rewards"][1:]) == {1.0}
    assert outcome["failed"].startswith("lease_over")
    record_property("reward", outcome["played"]["rewards"][1])
    assert served.ended()

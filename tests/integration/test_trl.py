"""TRL 1.16.0: GRPOTrainer's own tool loop plays a group; an infrastructure failure is no part of its mean."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_its_trainer_scores_a_group(drive, record_property, served):
    outcome = drive("trl", "trl_side")
    assert outcome["class"] == "GRPOTrainer"
    assert outcome["tools"] == ["back", "click", "fill", "finish", "goto", "press", "scroll", "select"]
    assert outcome["rewards"] == [1.0, 0.0, None]
    assert outcome["mean"] == [0.5]
    assert outcome["advantages"][2] == 0.0
    assert outcome["advantages"][0] == -outcome["advantages"][1] > 0
    record_property("reward", outcome["rewards"][0])
    assert served.ended()

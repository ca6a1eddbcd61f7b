"""Atropos 0.4.0: its environment class plays groups; a group that the infrastructure broke is not sent."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(300)]


def test_its_environment_scores_a_group(drive, record_property, served):
    outcome = drive("atropos", "atropos_side", 280.0)
    assert outcome["played"]["class"] is True
    assert (outcome["played"]["scores"], outcome["played"]["stored"]) == ([0.0, 1.0], 1)
    assert outcome["played"]["trained"] > 0
    assert (outcome["lost"]["scores"], outcome["lost"]["stored"]) == (None, 0)
    record_property("reward", outcome["played"]["scores"][1])
    assert served.ended()

"""Atropos 0.4.0: its environment class plays groups; a group that the infrastructure broke is not sent."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(300)]


def test_its_environment_scores_a_group(drive, record_property, served):
    told = drive("atropos", "atropos_side", 280.0)
    assert told["played"]["class"] is True
    assert (told["played"]["scores"], told["played"]["stored"]) == ([0.0, 1.0], 1)
    assert told["played"]["trained"] > 0
    assert (told["lost"]["scores"], told["lost"]["stored"]) == (None, 0)
    record_property("reward", told["played"]["scores"][1])
    assert served.ended()

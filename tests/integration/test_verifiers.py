"""verifiers 0.4.0: its evaluation loads the example package; an infrastructure failure leaves no reward."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(400)]


def test_its_evaluation_solves_a_task(drive, record_property, served):
    outcome = drive("verifiers", "verifiers_side", 380.0)
    assert outcome["played"]["errors"] == []
    assert outcome["played"]["rewards"]["stillweb_reward"]["score"] == 1.0
    assert outcome["lost"]["rewards"] == {}
    assert outcome["lost"]["types"] == ["EnvError"]
    assert "InfraError: lease_over" in outcome["lost"]["errors"][0]
    record_property("reward", outcome["played"]["rewards"]["stillweb_reward"]["score"])
    assert served.ended()

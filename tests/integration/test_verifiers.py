"""verifiers 0.4.0: its evaluation loads the example package; an infrastructure failure leaves no reward."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(400)]


def test_its_evaluation_solves_a_task(drive, record_property, served):
    told = drive("verifiers", "verifiers_side", 380.0)
    assert told["played"]["errors"] == []
    assert told["played"]["rewards"]["stillweb_reward"]["score"] == 1.0
    assert told["lost"]["rewards"] == {}
    assert told["lost"]["types"] == ["EnvError"]
    assert "InfraError: lease_over" in told["lost"]["errors"][0]
    record_property("reward", told["played"]["rewards"]["stillweb_reward"]["score"])
    assert served.ended()

"""NeMo Gym 0.4.0: its agent and its collection play tasks; an infrastructure failure has no row."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_its_collection_plays_tasks(drive, record_property, served):
    outcome = drive("nemo_gym", "nemo_gym_side")
    assert outcome["played"]["rewards"] == [1.0, 1.0]
    assert outcome["played"]["means"] == [1.0]
    assert ["function_call", "function_call_output"] in outcome["played"]["items"]
    assert outcome["silent"]["rewards"] == [0.0]
    assert outcome["silent"]["truncated"] == [True]
    assert outcome["lost"]["error"].startswith("500 ")
    assert "InfraError" in outcome["lost"]["error"]
    assert (outcome["lost"]["rewards"], outcome["lost"]["means"]) == ([], [])
    assert outcome["resumed"]["rewards"] == [1.0]
    record_property("reward", outcome["played"]["rewards"][0])
    assert served.ended()

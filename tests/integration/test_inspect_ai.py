"""Inspect AI 0.3.285: its own evaluation plays tasks; an infrastructure failure is unscored."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_its_evaluation_solves_tasks(drive, record_property, served):
    outcome = drive("inspect_ai", "inspect_ai_side")
    assert outcome["played"]["status"] == "success"
    assert outcome["played"]["rewards"] == [1.0, 1.0]
    assert outcome["played"]["mean"]["mean"] == 1.0
    assert outcome["played"]["tools"] == 3
    assert outcome["silent"]["rewards"] == [0.0]
    assert outcome["lost"]["reasons"] == ["infra_error"]
    assert outcome["lost"]["unscored"] == 1
    record_property("reward", outcome["played"]["rewards"][0])
    assert served.ended()

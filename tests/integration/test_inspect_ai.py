"""Inspect AI 0.3.285: its own evaluation plays tasks; an infrastructure failure is unscored."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_its_evaluation_solves_tasks(drive, record_property, served):
    told = drive("inspect_ai", "inspect_ai_side")
    assert told["played"]["status"] == "success"
    assert told["played"]["rewards"] == [1.0, 1.0]
    assert told["played"]["mean"]["mean"] == 1.0
    assert told["played"]["tools"] == 3
    assert told["silent"]["rewards"] == [0.0]
    assert told["lost"]["reasons"] == ["infra_error"]
    assert told["lost"]["unscored"] == 1
    record_property("reward", told["played"]["rewards"][0])
    assert served.ended()

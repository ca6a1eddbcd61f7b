"""AReaL 1.0.4: its abstract workflow, and what its text says of the client; its engines are not run."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_a_workflow_of_its_class_solves_a_task(drive, record_property, served):
    result = drive("areal", "areal_side")
    assert result["class"] is True
    assert result["episode"] == {"style": "individual", "reported": [1.0, 1.0]}
    record_property("reward", result["episode"]["reported"][0])
    assert served.ended()

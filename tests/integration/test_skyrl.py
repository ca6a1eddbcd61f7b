"""SkyRL-gym 0.4.0: its registry makes our environment, and drives it."""

from __future__ import annotations

import pytest
from played_tasks import CLICKS

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_an_environment_of_its_registry_solves_tasks(drive, record_property, served):
    result = drive("skyrl", "skyrl_side")
    for name in ("plain", "fenced"):
        assert result[name]["rewards"] == [0.0, 0.0, 1.0]
        assert result[name]["metadata"]["failure_kind"] == ""
    assert result["plain"]["class"] is True
    assert result["plain"]["prompt"] == 2
    assert result["plain"]["first"].startswith("Goal: Go to Project Management")
    assert result["plain"]["metrics"]["reward"] == 1.0
    assert result["turns"] == [False, True]
    assert result["failure"].startswith("lease_over: lease ID")
    record_property("reward", result["plain"]["rewards"][-1])
    assert served.ended()


def test_the_example_runs(example, served):
    printed = example("skyrl", "skyrl_episode.py", served.rollouts, CLICKS)
    assert printed.startswith("Goal: Go to Project Management")
    assert printed.endswith("reward 0, done True\n")

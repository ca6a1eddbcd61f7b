"""SkyRL-gym 0.4.0: its registry makes our environment, and drives it."""

from __future__ import annotations

import pytest
from played_tasks import CLICKS

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_an_environment_of_its_registry_solves_tasks(drive, record_property, served):
    told = drive("skyrl", "skyrl_side")
    for name in ("plain", "fenced"):
        assert told[name]["rewards"] == [0.0, 0.0, 1.0]
        assert told[name]["metadata"]["failure_kind"] == ""
    assert told["plain"]["class"] is True
    assert told["plain"]["prompt"] == 2
    assert told["plain"]["first"].startswith("Goal: Go to Project Management")
    assert told["plain"]["metrics"]["reward"] == 1.0
    assert told["turns"] == [False, True]
    assert told["failure"].startswith("lease_over: lease ID")
    record_property("reward", told["plain"]["rewards"][-1])
    assert served.ended()


def test_the_example_runs(example, served):
    printed = example("skyrl", "skyrl_episode.py", served.rollouts, CLICKS)
    assert printed.startswith("Goal: Go to Project Management")
    assert printed.endswith("reward 0, done True\n")

"""OpenEnv 0.10.0: its clients on our server, and on its own server with our `Environment`."""

from __future__ import annotations

import pytest
from played_tasks import CLICKS

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


def test_its_clients_solve_tasks_on_both_servers(drive, record_property, served):
    result = drive("openenv", "openenv_side")
    assert result["stillweb"]["rewards"] == [0.0, 0.0, 1.0]
    assert result["stillweb"]["url"].endswith("/kanban.html")
    assert result["stillweb"]["state"]["step_count"] == 3
    first, second = result["openenv"]["episodes"]
    assert (first["rewards"], second["rewards"]) == ([0.0, 0.0, 1.0], [0.0, 0.0, 1.0])
    assert first["goal"] == "Go to Project Management and check 'Python' technology checkbox"
    assert first["state"]["step_count"] == 3
    assert "no task 'no such task'" in result["openenv"]["refused"]
    record_property("reward", result["stillweb"]["rewards"][-1])
    assert served.ended()


def test_the_example_runs(example, served):
    printed = example("openenv", "openenv_episode.py", served.rollouts, CLICKS)
    assert "button 'Project Management'" in printed
    assert printed.endswith("reward 0, done True\n")

"""AgentLab 0.4.2: its worker processes find registered tasks, and its experiments solve them."""

from __future__ import annotations

import pytest
from played_tasks import CLICKS, FILLS

from stillweb.browser.launch import find_browser
from stillweb.env.tasks.task import task_to_dict

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(300)]


@pytest.mark.parametrize("backend", ["joblib", "ray"])
def test_its_workers_solve_registered_tasks(drive, record_property, served, backend):
    whole = [task_to_dict(served.tasks[name]) for name in (CLICKS, FILLS)]
    browser = str(find_browser())
    outcome = drive("agentlab", "agentlab_side", 290.0, whole=whole, browser=browser, backend=backend)
    assert outcome["errors"] == [None, None]
    assert outcome["rewards"] == [1.0, 1.0]
    record_property("reward", outcome["rewards"][0])

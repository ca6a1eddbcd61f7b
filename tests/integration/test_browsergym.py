"""browsergym-core 0.14.3: its environment plays registered tasks, and a plain one is pointed at the proxy."""

from __future__ import annotations

import pytest
from played_tasks import CLICKS, FILLS

from stillweb.browser.launch import find_browser
from stillweb.env.tasks.task import task_from_dict, task_to_dict

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(300)]


def test_its_environment_solves_a_registered_task_twice(drive, record_property, served):
    whole = [task_to_dict(served.tasks[name]) for name in (CLICKS, FILLS)]
    task = task_from_dict(whole[0], "here")
    result = drive(
        "browsergym",
        "browsergym_side",
        280.0,
        whole=whole,
        browser=str(find_browser()),
        start_url=task.start_url,
    )
    assert result["class"] is True
    assert result["ids"][0] == f"browsergym/stillweb.{CLICKS}"
    for played in (result["first"], result["again"]):
        assert [error for error in played["errors"] if error and "click action done" not in error] == []
        assert played["rewards"] == [0.0, 0.0, 1.0]
    assert result["first"]["goal"] == task.goal
    assert result["first"]["info"]["task_info"]["environment_id"]
    assert result["untouched"] == [0.0, True]
    assert result["plain"]["url"] == task.start_url
    assert result["plain"]["buttons"] > 2
    record_property("reward", result["first"]["rewards"][-1])

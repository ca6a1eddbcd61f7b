"""`stillweb env` as a command: exit status, table, JSON, and a shell that is spoken to."""

from __future__ import annotations

import json

import pytest
import pytest_asyncio
from small_site import ORIGIN, build

from commands import stillweb
from stillweb.env.actions.action import action_schema
from stillweb.replay.server.server import ReplayOptions, serve

TASK = {
    "task_id": "t.1",
    "env": {"data_path": "small.wacz", "start_url": ORIGIN + "/"},
    "goal": "Enter Ada",
    "eval": {
        "eval_type": "js_matcher",
        "evaluate_scripts": [{"script": "document.querySelector('#name').value == 'Ada'"}],
    },
}


def test_schema_is_printed():
    ran = stillweb("env", "schema")
    assert ran.returncode == 0
    assert json.loads(ran.stdout) == action_schema()


def test_a_bad_task_file_is_reported(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([TASK, {**TASK, "goal": ""}]))
    ran = stillweb("env", "check", str(path), "--proxy", "http://127.0.0.1:9")
    assert ran.returncode == 1
    assert f"{path}#1" in ran.stderr


def test_no_server_is_reported(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([TASK]))
    ran = stillweb("env", "check", str(path), "--proxy", "http://127.0.0.1:9")
    assert ran.returncode == 1
    assert "no replay server" in ran.stderr
    assert "next: " in ran.stderr


@pytest.mark.browser
class TestWithAServer:
    @pytest_asyncio.fixture
    async def url(self, tmp_path, ca):
        collection = build(tmp_path / "collections")
        async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
            yield server.url

    def test_check_passes_tasks_that_reset(self, url, tmp_path):
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps([TASK, TASK]))
        ran = stillweb("env", "check", str(path), "--proxy", url, "--json", "--quick")
        assert ran.returncode == 0, ran.stderr
        output = json.loads(ran.stdout)
        assert [row["task"] for row in output["rows"]] == ["t.1", "t.1~2"]
        assert [row["reward"] for row in output["rows"]] == [0.0, 0.0]
        assert (output["tasks"], output["infra_errors"], output["solved_untouched"], output["misses"]) == (
            2,
            0,
            0,
            0,
        )

    def test_check_fails_on_a_start_page_that_is_not_there(self, url, tmp_path):
        absent = {**TASK, "env": {"data_path": "small.wacz", "start_url": ORIGIN + "/absent"}}
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps([TASK, absent]))
        ran = stillweb("env", "check", str(path), "--proxy", url, "--quick")
        assert ran.returncode == 1
        assert "task_error" in ran.stdout
        ran = stillweb("env", "check", str(path), "--proxy", url, "--limit", "1", "--quick")
        assert ran.returncode == 0

    def test_the_shell_takes_actions(self, url):
        goto = json.dumps({"action": "goto", "url": ORIGIN + "/second"})
        typed = f'{goto}\n\nnonsense\n{{"action": "terminate"}}\n'
        ran = stillweb("env", "shell", "--proxy", url, "--url", ORIGIN + "/", typed=typed)
        assert ran.returncode == 0, ran.stderr
        assert "heading 'Small site'" in ran.stdout
        assert "heading 'Second page'" in ran.stdout
        assert "invalid_action" in ran.stderr

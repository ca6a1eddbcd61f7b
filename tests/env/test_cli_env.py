"""`stillweb env` from outside: exit status, table, JSON, and a shell that is spoken to."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import pytest_asyncio
from small_site import ORIGIN, build

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


async def stillweb(*arguments, typed=""):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stillweb", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(typed.encode())
    return process.returncode, out.decode(), err.decode()


async def test_schema_is_printed():
    status, out, _ = await stillweb("env", "schema")
    assert status == 0
    assert json.loads(out) == action_schema()


async def test_a_bad_task_file_is_reported(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([TASK, {**TASK, "goal": ""}]))
    status, _, err = await stillweb("env", "check", str(path), "--proxy", "http://127.0.0.1:9")
    assert status == 1
    assert f"{path}#1" in err


async def test_no_server_is_reported(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([TASK]))
    status, _, err = await stillweb("env", "check", str(path), "--proxy", "http://127.0.0.1:9")
    assert status == 1
    assert "no replay server" in err
    assert "next: " in err


@pytest.mark.browser
class TestWithAServer:
    @pytest_asyncio.fixture
    async def url(self, tmp_path, ca):
        collection = build(tmp_path / "collections")
        async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
            yield server.url

    async def test_check_passes_tasks_that_reset(self, url, tmp_path):
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps([TASK, TASK]))
        status, out, err = await stillweb("env", "check", str(path), "--proxy", url, "--json", "--quick")
        assert status == 0, err
        told = json.loads(out)
        assert [row["task"] for row in told["rows"]] == ["t.1", "t.1~2"]
        assert [row["reward"] for row in told["rows"]] == [0.0, 0.0]
        assert (told["tasks"], told["infra_errors"], told["solved_untouched"], told["misses"]) == (2, 0, 0, 0)

    async def test_check_fails_on_a_start_page_that_is_not_there(self, url, tmp_path):
        absent = {**TASK, "env": {"data_path": "small.wacz", "start_url": ORIGIN + "/absent"}}
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps([TASK, absent]))
        status, out, _ = await stillweb("env", "check", str(path), "--proxy", url, "--quick")
        assert status == 1
        assert "task_error" in out
        status, out, _ = await stillweb("env", "check", str(path), "--proxy", url, "--limit", "1", "--quick")
        assert status == 0

    async def test_the_shell_takes_actions(self, url):
        goto = json.dumps({"action": "goto", "url": ORIGIN + "/second"})
        typed = f'{goto}\n\nnonsense\n{{"action": "terminate"}}\n'
        status, out, err = await stillweb("env", "shell", "--proxy", url, "--url", ORIGIN + "/", typed=typed)
        assert status == 0, err
        assert "heading 'Small site'" in out
        assert "heading 'Second page'" in out
        assert "invalid_action" in err

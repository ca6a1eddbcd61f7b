"""`stillweb serve` from outside: what it prints, how it drains, what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest
from click.testing import CliRunner
from served_pages import filling
from small_site import ORIGIN

from stillweb.cli.serve import serve
from stillweb.errors import StillwebError
from stillweb.polling import poll
from stillweb.replay.client import ReplayClient

TASK = {
    "task_id": "named",
    "env": {"data_path": "small.wacz", "start_url": ORIGIN + "/"},
    "goal": "Enter Ada",
    "eval": {
        "eval_type": "js_matcher",
        "evaluate_scripts": [{"script": "document.querySelector('#name').value == 'Ada'"}],
    },
}


@asynccontextmanager
async def stillweb(*arguments):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stillweb", "serve", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def announced(process):
    printed = b""
    while line := await process.stdout.readline():
        printed += line
        if line == b"}\n":
            return json.loads(printed)
    raise AssertionError((await process.stderr.read()).decode())


async def watch(client):
    async with client.stream("GET", "/v1/stream") as stream:
        return [line async for line in stream.aiter_lines() if line.startswith("data:")]


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_server_that_drains_lets_what_runs_end(replay, tmp_path):
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([TASK]))
    arguments = (replay.url, "--port", "0", "--sessions", "2", "--tasks", str(file), "--json")
    async with stillweb(*arguments, "--level", "clock") as process:
        announcement = await announced(process)
        assert (announcement["sessions"], announcement["tasks"], announcement["level"]) == (2, 1, "clock")
        async with httpx.AsyncClient(base_url=announcement["url"], timeout=60, trust_env=False) as client:
            began = (await client.post("/v1/leases", json={"task_id": "named"})).json()
            watching = asyncio.ensure_future(watch(client))
            process.send_signal(signal.SIGTERM)

            async def draining():
                return (await client.get("/v1/status")).json()["state"] == "draining"

            assert await poll(draining, timeout=30)
            refused = await client.post("/v1/leases", json={})
            assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) > 0
            assert (await client.get("/ready")).status_code == 503
            one = f"/v1/leases/{began['lease']}"
            action = filling(began["reset"]["observation"])
            assert (await client.post(one + "/step", json={"action": action})).status_code == 200
            end = await client.post(one + "/step", json={"action": {"action": "terminate"}})
            assert end.json()["reward"] == 1.0
            assert (await client.delete(one)).status_code == 204
            assert '"state":"draining"' in (await watching)[-1]  # a whole stream to its end
        assert await process.wait() == 0
    async with ReplayClient(replay.url) as control_api:
        assert len(await control_api.sessions()) == 1


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_server_replays_collections_itself_and_leaves_the_rest(collections_root, tmp_path):
    arguments = ("small", "--collections", str(collections_root), "--certs", str(tmp_path / "certs"))
    more = ("--port", "0", "--drain-seconds", "0.1", "--json", "--trajectories", str(tmp_path / "t"))
    async with stillweb(*arguments, *more) as process:
        announcement = await announced(process)
        async with httpx.AsyncClient(base_url=announcement["url"], timeout=60, trust_env=False) as client:
            began = await client.post("/v1/leases", json={"url": ORIGIN + "/"})
            assert began.status_code == 201
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert list((tmp_path / "t").glob("*/trajectory.jsonl"))


def test_a_missing_extra_is_reported_with_its_name():
    code = "import sys; sys.modules['fastapi'] = None; from stillweb.cli import main; main()"
    command = (sys.executable, "-c", code, "serve", "http://127.0.0.1:9")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'stillweb[serve]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, "either the URL of one replay server"),
        (("http://127.0.0.1:9", "--host", "0.0.0.0"), 2, "no API key"),
        (("http://127.0.0.1:9", "--port", "0"), 1, "no replay server"),
        (("http://127.0.0.1:9", "--queue", "fly=3"), 2, "no queue fly"),
    ],
)
def test_wrong_use_is_reported(arguments, status, says):
    outcome = CliRunner().invoke(serve, arguments)
    assert isinstance(outcome.exception, StillwebError)
    assert (outcome.exception.exit_code, says in str(outcome.exception)) == (status, True)

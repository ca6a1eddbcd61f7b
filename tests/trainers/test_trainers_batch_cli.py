"""`stillweb rollout` from outside: killed, interrupted, gone on with; a browser that dies under it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter

import pytest
import yaml
from endpoint_standin import called, refused, standin
from small_site import ORIGIN, build

from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.rescore import rescore_all
from stillweb.env.trajectories.trajectory import trajectories_in
from stillweb.polling import poll
from stillweb.replay import ReplayOptions, serve
from stillweb.trainers.agents.builtin import RandomAgent
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.runner import BatchOptions, rollout

pytestmark = pytest.mark.browser

# Enters Ada and terminates, and records what it plays. Environment variables choose what else it does.
AGENTS = """
import asyncio, os, signal
from pathlib import Path

def kill_browser():
    found = [os.getpid()]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    for pid in found:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"--remote-debugging-pipe" in command_line and b"--type=" not in command_line:
            os.kill(pid, signal.SIGKILL)

def ada(task):
    async def policy(observation, info):
        name = f"{task.id} {info['episode_number']}"
        with open("played", "a") as file:
            file.write(f"{name} {info['step']}\\n")
        if name in os.environ.get("HANG", "").split(","):
            await asyncio.Event().wait()
        if name in os.environ.get("KILL", "").split(","):
            kill_browser()
        if info["step"]:
            return {"action": "terminate"}
        bid = next(node.bid for node in observation.nodes if node.name == "Name" and node.bid)
        return {"action": "fill", "bid": bid, "value": "Ada"}
    return policy
"""
ADA = {"type": "js", "script": "document.querySelector('#name').value == 'Ada'"}


class Folder:
    """A folder with a collection, tasks, agents and what a batch leaves."""

    def __init__(self, path, count):
        self.path = path
        self.out = path / "out"
        build(path / "collections")
        tasks = [
            {"id": f"t{n}", "goal": "Ada", "start_url": ORIGIN + "/", "evaluate": [ADA]} for n in range(count)
        ]
        document = {"stillweb_tasks": 1, "defaults": {"collection": "small"}, "tasks": tasks}
        (path / "tasks.yaml").write_text(yaml.safe_dump(document))
        (path / "mine.py").write_text(AGENTS)

    async def start(self, *options, agent="mine:ada", **environment):
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stillweb", "rollout", "--tasks", "tasks.yaml", "--agent", agent),
            *("--output", "out", "--level", "clock", *options),
            cwd=self.path,
            env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def run(self, *options, **named):
        process = await self.start(*options, **named)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    def ended(self):
        """Return the results by task and number, the last of each."""
        path = self.out / "results.jsonl"
        lines = path.read_text().splitlines() if path.exists() else ()
        rows = [json.loads(line) for line in lines]
        return {f"{row['task']} {row['number']}": row for row in rows}

    def played(self):
        """Return how often each episode was begun."""
        path = self.path / "played"
        lines = path.read_text().splitlines() if path.exists() else ()
        return Counter(line[:-2] for line in lines if line.endswith(" 0"))


async def test_a_batch_outlives_kills_of_itself_and_of_its_browser(tmp_path):
    folder = Folder(tmp_path, 4)
    process = await folder.start("--episodes", "2", "--max-concurrent", "2", HANG="t2 1")
    assert await poll(lambda: len(folder.ended()) >= 4 or process.returncode is not None, timeout=120)
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    before = folder.ended()
    assert 4 <= len(before) < 8
    (folder.path / "played").unlink()

    # One at a time: what is beside an episode that kills its browser goes down with it.
    options = ("--episodes", "2", "--max-concurrent", "1", "--retry", "1", "--resume", "--json")
    status, out, err = await folder.run(*options, KILL="t3 1")
    summary = json.loads(out)
    assert status == 1, err
    assert not set(folder.played()) & set(before)
    assert folder.played()["t3 1"] == 2
    ended = folder.ended()
    assert len(ended) == 8
    assert all(ended[name] == row for name, row in before.items())
    lost = ended["t3 1"]
    assert (lost["outcome"], lost["reward"], lost["attempts"], len(lost["errors"])) == (
        "infra_error",
        None,
        2,
        2,
    )
    assert {row["reward"] for name, row in ended.items() if name != "t3 1"} == {1.0}
    assert (summary["outcomes"]["ok"], summary["outcomes"]["infra_error"]) == (7, 1)
    assert (summary["success"]["count"], summary["success"]["of"]) == (7, 7)
    assert summary["tasks"]["t3"]["rewards"] == [1.0, None]

    (folder.path / "played").unlink()
    status, _, err = await folder.run("--episodes", "2", "--only-failed")
    assert status == 0, err
    assert folder.played() == {"t3 1": 1}
    assert len((folder.out / "results.jsonl").read_text().splitlines()) == 9
    assert json.loads((folder.out / "summary.json").read_text())["outcomes"]["ok"] == 8
    assert (folder.out / "tasks" / "t3" / "1-before-1" / "failed-1" / "trajectory.jsonl").exists()

    finished = sorted(folder.out.glob("tasks/*/[01]/trajectory.jsonl"))
    assert len(finished) == 8
    assert {row.outcome for row in rescore_all(finished)} == {"same"}
    assert len({path.read_bytes() for path in finished}) == 4  # of one task all episodes are equal
    left = [path.parent for path in trajectories_in(folder.out) if path not in finished]
    assert [path for path in left if path.parent == folder.out] == []


async def test_ctrl_c_keeps_what_has_ended(tmp_path):
    folder = Folder(tmp_path, 3)
    process = await folder.start("--max-concurrent", "2", "--max-concurrent-launch", "1", HANG="t1 0")
    assert await poll(lambda: len(folder.ended()) >= 2 or process.returncode is not None, timeout=120)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130, err
    assert json.loads((folder.out / "summary.json").read_text())["episodes"] == 2
    (cut,) = (folder.out / "cut-short").iterdir()
    assert json.loads((cut / "trajectory.jsonl").read_text().splitlines()[-1])["end"] == "left"
    assert "1/3 t" in err.decode()


async def test_a_model_is_requested_and_what_it_does_not_answer_is_no_reward(tmp_path):
    folder = Folder(tmp_path, 2)

    def answer(request):
        shown = request["messages"][-1]["content"]
        assert "URL: " + ORIGIN in shown
        if len(request["messages"]) > 2:
            return called(arguments='{"action": "terminate"}')
        bid = shown.partition("textbox 'Name'")[0].rpartition("[")[2].partition("]")[0]
        return called(arguments=json.dumps({"action": "fill", "bid": bid, "value": "Ada"}))

    fails = refused(400, "context_length_exceeded")
    with standin(answer, answer, fails) as server:
        status, out, err = await folder.run(
            *("-o", "model=m", "-o", f"base_url={server.url}", "--max-concurrent", "1", "--json"),
            agent="openai",
        )
    assert status == 1, err
    assert json.loads(out)["outcomes"] == {"ok": 1, "infra_error": 0, "task_error": 0, "agent_error": 1}
    ended = folder.ended()
    assert (ended["t0 0"]["reward"], ended["t0 0"]["steps"]) == (1.0, 2)
    assert (ended["t1 0"]["reward"], ended["t1 0"]["attempts"]) == (None, 1)
    assert "too long for m" in ended["t1 0"]["errors"][0]
    assert len(server.requests) == 3


async def test_random_episodes_are_the_same_in_another_batch(tmp_path, ca):
    tasks = [Task("t0", "", ORIGIN + "/", "small")]
    options = BatchOptions(episodes=2, max_steps=4, max_concurrent=2)
    found = []
    async with serve([build(tmp_path)], ca, ReplayOptions(port=0, session_ports=None)) as server:
        for out in (tmp_path / "out", tmp_path / "again"):
            with BatchFolder.open(out, options.to_json()) as folder:
                state = await rollout(server.url, RandomAgent(7), tasks, folder, options)
            assert (state.ended, state.running) == (2, 0)
            found.append([path.read_bytes() for path in sorted(out.glob("tasks/*/*/trajectory.jsonl"))])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]

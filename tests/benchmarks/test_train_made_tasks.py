"""The example that trains a policy on made tasks: it learns on a model of a page, and runs on a recording."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillweb.benchmarks.candidates import SiteFacts
from stillweb.benchmarks.forms import search_words
from stillweb.benchmarks.plan import TaskPlanner
from stillweb.env.tasks.native import native_file
from stillweb.replay import ReplayOptions, serve

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_made_tasks.py"


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("train_made_tasks", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def control(number: int, role: str) -> SimpleNamespace:
    return SimpleNamespace(bid=f"b{number}", role=role, name=f"Control {number}")


PAGE = SimpleNamespace(nodes=[control(0, "searchbox"), *(control(n, "link") for n in range(1, 30))])


def played(policy, number: int) -> float:
    """Return 1.0 if the policy fills the field, sends it from there, and terminates."""
    filled = sent = False
    for step in range(10):
        info = {"episode_number": number, "step": step}
        action = policy("Search the site for “lamp”.", PAGE, info)["action"]
        if action == "terminate":
            break
        sent = sent or (filled and action == "press")
        filled = action == "fill" or (filled and action != "click")
    return float(sent)


def test_it_learns_to_fill_and_send_a_field(example):
    table, curve = {}, []
    for number in range(example.ROUNDS):
        policy = example.Policy(table, f"round {number}")
        rewards = {episode: played(policy, episode) for episode in range(example.EPISODES)}
        example.learn(policy, rewards)
        curve.append(example.success(rewards))
    assert curve[0] < 0.4
    assert min(curve[-3:]) > 0.9
    assert example.draw(curve, 0.1, 1.0).count("<circle") == 2


@pytest.mark.browser
async def test_it_runs_on_a_recording(shop, ca, site, tmp_path, example, capsys):
    planner = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "shop", 7, 1)
    task = planner.plan(next(search_words(SiteFacts(site, 7))), "search").task
    held_out = replace(task, id="held-out", origin=replace(task.origin, split="test"))
    (tmp_path / "tasks.yaml").write_text(json.dumps(native_file([task, held_out])), "utf-8")
    example.ROUNDS, example.EPISODES = 1, 2
    async with serve([shop], ca, ReplayOptions(port=0, session_ports=None)) as server:
        arguments = (server.url, str(tmp_path / "tasks.yaml"), "form/search", str(tmp_path / "curve.svg"))
        await asyncio.to_thread(example.main, *arguments)
    printed = capsys.readouterr().out
    assert printed.startswith("1 tasks to train on, 1 held out\n")
    assert "of 2 episodes\nheld-out tasks:" in printed
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").startswith("<svg")

"""`stillweb why` and `stillweb compare` as commands, on episodes that a browser played."""

from __future__ import annotations

import json
import sys

import pytest
import yaml
from small_site import ORIGIN, build

from commands import stillweb

pytestmark = pytest.mark.browser

# `bob` enters a wrong name; `right` enters the right one from wherever it is put.
AGENTS = """
def entering(name):
    def agent(task):
        actions = []
        def policy(observation, info):
            actions.append(info["step"])
            if len(actions) > 1:
                return {"action": "terminate"}
            bid = next(node.bid for node in observation.nodes if node.name == "Name" and node.bid)
            return {"action": "fill", "bid": bid, "value": name}
        return policy
    return agent

bob, right = entering("Bob"), entering("Ada")
"""
ADA = {"type": "js", "script": "document.querySelector('#name').value == 'Ada'"}


@pytest.fixture
def played(tmp_path, monkeypatch):
    build(tmp_path / "collections")
    task = {"id": "name", "goal": "Enter Ada", "start_url": ORIGIN + "/", "evaluate": [ADA]}
    document = {"stillweb_tasks": 1, "defaults": {"collection": "small"}, "tasks": [task]}
    (tmp_path / "tasks.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "mine.py").write_text(AGENTS)

    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("mine", None)


def printed(*arguments: str) -> str:
    ran = stillweb(*arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.usefixtures("played")
def test_the_step_that_lost_an_episode_is_found(tmp_path):
    play = ("rollout", "--tasks", "tasks.yaml", "--level", "clock", "--episodes", "2")
    printed(*play, "--agent", "mine:bob", "--output", "bob")
    options = ("--agent", "mine:right", "--output", "why", "-k", "3", "--budget", "5", "--html", "why.html")
    outcome = json.loads(printed("why", "bob/tasks/name/0", *options, "--json"))
    assert outcome["forks"] == 4
    assert outcome["values"] == [1.0, 1.0, 0.0]
    assert outcome["lost_after"] == 2
    assert json.loads((tmp_path / "why/why.json").read_text()) == outcome
    assert "<svg" in (tmp_path / "why.html").read_text()
    again = printed("why", "bob/tasks/name/0", *options, "--resume")
    assert "Success is lost by step 2" in again
    assert len((tmp_path / "why/results.jsonl").read_text().splitlines()) == 4

    printed(*play, "--agent", "mine:right", "--output", "right")
    found = json.loads(printed("compare", "bob", "right", "--json"))
    assert found["all"]["success"]["difference"] == 1.0
    assert [each["environment"] for each in found["variance"]] == [0.0, 0.0]
    assert [(each["repeated"], each["differ"]) for each in found["variance"]] == [(1, 0), (1, 0)]
    assert "+100.0%" in printed("compare", "bob", "right", "--html", "compare.html")

"""Checking a task again and again: what is the same is called so, and what differs is located."""

from __future__ import annotations

import json

import pytest
from small_site import ORIGIN

from commands import stillweb
from stillweb.env.check import CheckOptions, check_env
from stillweb.env.tasks.evaluators import AnswerEvaluator, ScriptEvaluator, UrlEvaluator
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.trace import Trace

pytestmark = pytest.mark.browser

HOME = ORIGIN + "/"


async def checked(replay, browser, *subjects, **options):
    chosen = CheckOptions(**{"runs": 2, "sessions": (1, 2), "steps": 2, "observe": ("axtree",)} | options)
    return await check_env(subjects, replay.url, options=chosen, browser=browser)


async def test_what_is_the_same_every_time_is_called_so(replay, browser):
    solved = Task("solved", "Be there", HOME, evaluation=ScriptEvaluator(script="true"))
    going = Trace("going", ({"action": "goto", "url": ORIGIN + "/second"},), url=HOME)
    task, trace = await checked(replay, browser, solved, going)
    assert (task.outcome, task.runs, task.steps, task.untouched) == ("same", 4, 4, 1.0)
    assert task.rewards == ((1.0, 4),)
    assert all(step == {"axtree": 1} for step in task.distinct)
    assert (trace.outcome, trace.steps, trace.untouched, trace.divergence) == ("same", 2, None, None)


async def test_what_differs_is_located(replay, browser):
    # Below level `clock` the page shows the time of day; its heading is the same on the second page.
    going = (
        {"action": "goto", "url": ORIGIN + "/second"},
        {"action": "goto", "url": HOME},
        {"action": "terminate"},
    )
    (row,) = await checked(replay, browser, Trace("t", going, url=ORIGIN + "/second"), level="network")
    assert row.outcome == "differs"
    assert (row.divergence.step, row.divergence.what, row.divergence.action) == (
        2,
        ("axtree",),
        f"goto {HOME}",
    )
    assert row.distinct[1] == {"axtree": 1}
    assert row.distinct[2]["axtree"] > 1
    assert "step 2 after goto" in row.detail
    assert json.loads(json.dumps(row.to_dict()))["divergence"]["step"] == 2


async def test_failures_and_misses_are_reported_by_their_kind(replay, browser):
    absent = Task("absent", "g", ORIGIN + "/absent", evaluation=UrlEvaluator(exact=(HOME,)))
    judged = Task("judged", "g", HOME, evaluation=AnswerEvaluator(fuzzy=("x",), question="?"))
    missing = Trace("missing", ({"action": "goto", "url": ORIGIN + "/absent"},), url=HOME)
    rows = await checked(replay, browser, absent, missing)
    assert [(row.name, row.outcome, row.misses) for row in rows] == [
        ("absent", "task_error", 0),
        ("missing", "same", 1),
    ]
    assert "does not hold" in rows[0].detail
    answering = Trace("answering", ({"action": "terminate", "answer": "y"},), task=judged)
    (row,) = await checked(replay, browser, answering)
    assert (row.outcome, row.failures[0].step) == ("task_error", 1)
    assert "needs a judge" in row.detail


def test_from_the_command_line(replay, tmp_path):
    Trace("going", ({"action": "goto", "url": ORIGIN + "/second"},), url=HOME).dump(tmp_path / "t.jsonl")
    ran = stillweb(
        *("env", "check", "--trace", tmp_path / "t.jsonl", "--json"),
        *("--proxy", replay.url, "--runs", "2", "--sessions", "1"),
    )
    assert ran.returncode == 0, ran.stderr
    output = json.loads(ran.stdout)
    assert (output["tasks"], output["same"], output["rows"][0]["runs"]) == (1, 1, 2)
    assert set(output["rows"][0]["distinct"][1]) == {"axtree", "screenshot"}

"""Traces: written and read, taken twice alike, proposed from observations, and failing in a typed way."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from small_site import ORIGIN

from stillweb.env.env import Env
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.propose import propose_trace
from stillweb.env.trajectories.trace import Trace, run_trace
from stillweb.errors import TaskError, UsageError

HAS_ADA = Evaluation(EvalKind.JS, "document.querySelector('#name').value == 'Ada'")
TASK = Task(
    "ada",
    "Enter Ada",
    ORIGIN + "/",
    evaluation=HAS_ADA,
    start=datetime(2024, 1, 2, tzinfo=UTC),
    viewport=(800, 600),
    seed=3,
)


def test_a_trace_is_read_as_it_was_written(tmp_path):
    trace = Trace(
        "one", ({"action": "back"}, {"action": "fill", "bid": "a1", "value": "ö"}), task=TASK, seed=9
    )
    trace.dump(tmp_path / "new" / "one.jsonl")
    assert Trace.load(tmp_path / "new" / "one.jsonl") == trace
    plain = Trace("two", (), url="https://a.example/")
    plain.dump(tmp_path / "two.jsonl")
    assert Trace.load(tmp_path / "two.jsonl") == plain


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ":1"),
        ('{"format": "other", "version": 1}', ":1"),
        ('{"format": "stillweb-trace", "version": 2, "url": "https://a.example/"}', ":1"),
        ('{"format": "stillweb-trace", "version": 1}', ":1"),
        ('{"format": "stillweb-trace", "version": 1, "url": "https://a.example/"}\n[]', ":2"),
        ('{"format": "stillweb-trace", "version": 1, "url": "https://a.example/"}\nx', ":2"),
        ('{"format": "stillweb-trace", "version": 1, "task": {"id": "x"}}', ":1"),
    ],
)
def test_what_is_no_trace_is_reported_by_its_line(tmp_path, text, where):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TaskError, match=f"{path}{where}"):
        Trace.load(path)


def test_a_trace_begins_somewhere():
    with pytest.raises(UsageError):
        Trace("none", ())


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
class TestOnASite:
    async def test_a_trace_runs_twice_alike_and_is_scored(self, env, tmp_path):
        observation, _ = await env.reset(task=TASK)
        name = next(node.bid for node in observation.nodes if node.role == "textbox" and node.name == "Name")
        actions = (
            {"action": "fill", "bid": name, "value": "Ada"},
            {"action": "click", "bid": "zz9"},
            {"action": "terminate"},
        )
        first, again = [await run_trace(env, Trace("ada", actions, task=TASK)) for _ in range(2)]
        assert [step.status for step in first.steps] == ["ok", "ok", first.steps[2].status, "ok"]
        assert first.steps[2].status != "ok"
        assert first.stream("axtree") == again.stream("axtree")
        assert len(set(first.stream("axtree"))) == 2  # the field was filled
        assert first.reward == again.reward == 1.0
        assert json.loads(json.dumps(first.steps[1].to_dict()))["digests"] == dict(first.steps[1].digests)

    async def test_what_was_seen_is_stored_where_requested(self, env):
        run = await run_trace(env, Trace("home", (), url=ORIGIN + "/"), keep=True)
        assert run.steps[0].observation.title == "Home"
        assert run.steps[0].info["collection"] == "small"
        run = await run_trace(env, Trace("home", (), url=ORIGIN + "/"))
        assert run.steps[0].observation is None

    async def test_a_start_page_that_is_not_there_is_a_failure_and_no_run(self, env):
        run = await run_trace(env, Trace("absent", ({"action": "back"},), url=ORIGIN + "/absent"))
        assert (run.failure.kind, run.failure.step, run.steps) == ("task_error", 0, ())

    async def test_equal_seeds_propose_equal_traces_that_do_something(self, env):
        one = await propose_trace(env, ORIGIN + "/", seed=1, steps=7)
        assert one == await propose_trace(env, ORIGIN + "/", seed=1, steps=7)
        assert one.actions != (await propose_trace(env, ORIGIN + "/", seed=2, steps=7)).actions
        run = await run_trace(env, one)
        assert len(run.steps) == 8
        assert run.failure is None
        assert len(set(run.stream("axtree"))) > 1
        assert sum(step.status == "ok" for step in run.steps) > 5

    async def test_exploring_needs_the_tree(self, replay, browser):
        async with Env(replay.url, browser=browser, observe=("text",)) as blind:
            with pytest.raises(UsageError, match="accessibility tree"):
                await propose_trace(blind, ORIGIN + "/", seed=1)

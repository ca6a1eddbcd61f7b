"""Episodes written down: equal ones in equal bytes, scored again without a browser, failures by kind."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode

import pytest
import pytest_asyncio
from small_site import ORIGIN

from stillweb.env.env import Env, EnvOptions
from stillweb.env.tasks.evaluators import (
    AllEvaluator,
    AnswerEvaluator,
    ContentEvaluator,
    DownloadEvaluator,
    EvalKind,
    Evaluation,
    NetworkEvaluator,
    ScriptEvaluator,
    UrlEvaluator,
)
from stillweb.env.tasks.requests import RequestEvaluator
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.rescore import rescore, rescore_all
from stillweb.env.trajectories.trace import Trace, run_trace
from stillweb.env.trajectories.trajectory import Trajectory, trajectories_in
from stillweb.errors import InfraError, ResetNeeded, TaskError

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = ORIGIN + "/"


def task(evaluation, name="t"):
    return Task(name, "Do it", HOME, evaluation=evaluation)


def bid(observation, role, name):
    return next(node.bid for node in observation.nodes if node.role == role and node.name == name)


@pytest_asyncio.fixture(loop_scope="session")
async def logged(replay, browser, tmp_path):
    """An env that writes down, and where."""
    options = EnvOptions(trajectories=tmp_path / "out", har="bodies")
    async with Env(replay.url, browser=browser, observe=("axtree", "screenshot"), options=options) as env:
        yield env, tmp_path / "out"


def only(root):
    (path,) = trajectories_in(root)
    return Trajectory.load(path)


async def test_equal_episodes_are_equal_in_bytes_and_share_their_pictures(logged):
    env, root = logged
    observation, _ = await env.reset(url=HOME)
    actions = (
        {"action": "click", "bid": bid(observation, "button", "Prompt")},
        {"action": "click", "bid": bid(observation, "link", "File")},
        {"action": "click", "bid": "zz9"},
        {"action": "terminate", "answer": "9"},
    )
    evaluation = AllEvaluator(
        parts=(
            AnswerEvaluator(exact="9"),
            Evaluation(EvalKind.JS, "out.textContent"),
            ContentEvaluator(include=(("Ada",),)),
        )
    )
    trace = Trace("twice", actions, task=task(evaluation))
    one, two = await run_trace(env, trace), await run_trace(env, trace)
    assert one.reward == two.reward == 1.0
    unfinished, first, second = sorted(trajectories_in(root), key=lambda path: path.stat().st_mtime_ns)
    assert first.read_bytes() == second.read_bytes()
    assert Trajectory.load(unfinished).end["end"] == "left"
    runs = [json.loads((path.parent / "run.jsonl").read_text().split("\n")[0]) for path in (first, second)]
    assert runs[0]["episode"] == first.parent.name != runs[1]["episode"]

    written = Trajectory.load(first)
    assert written.header["collection"] == "small"
    assert written.header["machine"]["cpu"]
    assert written.header["determinism"]["browser"] == env._browser.version
    assert [step.get("status") for step in written.steps][:3] == ["ok", "ok", "ok"]
    assert written.steps[1]["dialogs"][0]["answer"] == "Ada"
    assert written.steps[2]["downloads"][0]["sha256"] == hashlib.sha256(b"0123456789").hexdigest()
    assert written.observed(1, "screenshot").startswith(b"\x89PNG")
    assert b"Small site" in written.observed(1, "axtree")
    digests = {
        step["digests"]["screenshot"] for each in (first, second) for step in Trajectory.load(each).steps
    }
    assert digests == {path.stem for path in root.glob("store/*/*.png")}
    assert Trace.load(first.parent).actions == actions


async def test_a_trajectory_is_scored_again_without_a_browser(logged):
    env, root = logged
    parts = (
        AnswerEvaluator(exact="Ada"),
        UrlEvaluator(exact=(ORIGIN + "/second",)),
        NetworkEvaluator(url=ORIGIN + "/second"),
        NetworkEvaluator(url=HOME, at_most=1),  # the evaluator's own look at it, below, does not count
        DownloadEvaluator(filename="file.bin"),
        ContentEvaluator(url=HOME, locator="document.title", exact="Home"),
        ScriptEvaluator(script="document.title", expected="Second"),
    )
    observation, _ = await env.reset(task=task(AllEvaluator(parts=parts)))
    await env.step({"action": "click", "bid": bid(observation, "link", "File")})
    await env.step({"action": "goto", "url": ORIGIN + "/second"})
    observation, reward, terminated, _, info = await env.step({"action": "terminate", "answer": "ada"})
    assert (reward, terminated) == (1.0, True), info["score"]
    assert observation.url == ORIGIN + "/second"  # the evaluator's own tab is gone
    assert len(observation.tabs) == 1
    with pytest.raises(ResetNeeded):
        await env.step({"action": "back"})

    written = only(root)
    row = rescore(written)
    assert (row.outcome, row.rescored) == ("same", 1.0)
    assert set(row.stored) == {"js", "locator"}
    changed = task(AllEvaluator(parts=(*parts, ContentEvaluator(include=(("No such text",),)))))
    (row,) = rescore_all([written.path], [changed])
    assert (row.outcome, row.reward, row.rescored) == ("other", 1.0, 0.0)
    (row,) = rescore_all([written.path], [task(ScriptEvaluator(script="document.body.id"))])
    assert (row.outcome, row.rescored) == ("unknown", None)
    assert "document.body.id" in row.detail
    (row,) = rescore_all([written.path], [task(None, "another id")])
    assert row.outcome == "same"


async def test_a_write_that_was_not_recorded_is_scored_and_scored_again(logged):
    env, root = logged
    pattern = {"url": ORIGIN + "/notes", "body": {"note": "my own", "csrf": {"any": True}}}
    right = RequestEvaluator(requests={**pattern, "other_fields": False}, only=True)
    await env.reset(task=Task("note", "g", ORIGIN + "/form", evaluation=right))
    observation = await env.observe("axtree")
    typed = {"action": "fill", "bid": bid(observation, "textbox", "Note"), "value": "my own", "enter": True}
    _, _, _, _, info = await env.step(typed)
    assert info["traffic"]["missed"] == [f"POST {ORIGIN}/notes"]
    assert (await env.step({"action": "terminate"}))[1] == 1.0
    written = only(root)
    (stored,) = [each for each in written.end["evidence"]["requests"] if each["method"] == "POST"]
    assert b64decode(stored["body"]) == b"csrf=1f2e&note=my+own"
    assert (rescore(written).outcome, rescore(written).rescored) == ("same", 1.0)
    other = RequestEvaluator(requests={**pattern, "body": {"note": "other"}})
    (row,) = rescore_all([written.path], [Task("note", "g", ORIGIN + "/form", evaluation=other)])
    assert (row.outcome, row.rescored) == ("other", 0.0)
    assert "field note is 'my own', expected is 'other'" in row.detail


async def test_the_har_holds_what_the_browser_saw(logged):
    env, root = logged
    observation, _ = await env.reset(url=HOME)
    await env.step({"action": "click", "bid": bid(observation, "button", "Fetch")})
    await env.step({"action": "terminate"})
    log = json.loads((only(root).path.parent / "episode.har").read_text())["log"]
    assert log["version"] == "1.2"
    found = {entry["request"]["url"]: entry for entry in log["entries"]}
    home = found[HOME]
    assert home["response"]["status"] == 200
    assert "<h1>Small site</h1>" in home["response"]["content"]["text"]
    assert home["startedDateTime"].endswith("Z")
    assert found[ORIGIN + "/absent.json"]["response"]["status"] == 404
    for entry in log["entries"]:
        assert {"startedDateTime", "time", "request", "response", "cache", "timings"} <= set(entry)


async def test_failures_are_ends_by_their_kind_and_no_rewards(logged, replay):
    env, root = logged
    _, info = await env.reset(task=task(AnswerEvaluator(fuzzy=("Ada",), question="Who?")))
    with pytest.raises(TaskError, match="needs a judge"):
        await env.step({"action": "terminate", "answer": "her"})
    with pytest.raises(ResetNeeded):
        await env.step({"action": "terminate", "answer": "her"})
    _, info = await env.reset(task=task(UrlEvaluator(exact=(HOME,))))
    await env._replay.client.close_session(info["session"])
    with pytest.raises(InfraError):
        await env.step({"action": "reload"})
    written = [Trajectory.load(path) for path in trajectories_in(root)]
    assert {each.end["end"] for each in written} == {"task_error", "infra_error"}
    assert {row.outcome for row in map(rescore, written)} == {"unscored"}
    assert {row.rescored for row in map(rescore, written)} == {None}


async def test_half_a_character_is_typed_logged_and_scored_as_one_text(logged):
    env, root = logged
    observation, _ = await env.reset(task=task(AnswerEvaluator(exact="\ufffd")))
    given = {"action": "fill", "bid": bid(observation, "textbox", "Name"), "value": "\ud83d"}
    observation, _, _, _, info = await env.step(given)
    assert (info["action"]["status"], "\ufffd" in observation.axtree) == ("ok", True)
    await env.step({**given, "bid": "\ud83d"})
    _, reward, *_ = await env.step({"action": "terminate", "answer": "\ud800"})
    written = only(root)
    assert (reward, rescore(written).outcome) == (1.0, "same")
    assert (written.steps[1]["raw"], written.steps[1]["parsed"]["value"]) == (given, "\ufffd")
    trace = Trace.load(written.path)
    trace.dump(root / "trace.jsonl")
    assert Trace.load(root / "trace.jsonl").actions == trace.actions


async def test_an_episode_that_runs_out_of_steps_is_truncated(logged):
    env, root = logged
    await env.reset(task=Task("t", "g", HOME, evaluation=UrlEvaluator(exact=(HOME,)), max_steps=1))
    assert (await env.step({"action": "scroll", "dy": 10}))[3]
    row = rescore(only(root))
    assert (only(root).end["end"], row.outcome, row.reward) == ("truncated", "unscored", 0.0)


class Fair:
    """A judge that is right."""

    async def __call__(self, question, answer, reference):
        if answer == "boom":
            raise RuntimeError("no such model")
        return question == "Do it?" and answer == "sixty minutes" and reference == "an hour"

    async def unachievable(self, question, answer, reference):
        return 0.25


async def test_a_judge_is_requested_and_its_verdict_stored(replay, browser, tmp_path):
    options = EnvOptions(trajectories=tmp_path, judge=Fair(), har="")
    fuzzy = task(AnswerEvaluator(fuzzy=("an hour",), question="Do it?"))
    reason = task(AnswerEvaluator(unachievable="closed", question="Do it?"), "u")
    async with Env(replay.url, browser=browser, observe=(), options=options) as env:
        rewards = []
        for each, answer in (
            (fuzzy, "Sixty minutes"),
            (fuzzy, "a day"),
            (reason, "it is shut"),
            (reason, "N/A"),
        ):
            await env.reset(task=each)
            rewards.append((await env.step({"action": "terminate", "answer": answer}))[1])
        assert rewards == [1.0, 0.0, 0.25, 1.0]
        await env.reset(task=fuzzy)
        with pytest.raises(InfraError, match="no such model"):
            await env.step({"action": "terminate", "answer": "boom"})
    rows = [rescore(Trajectory.load(path)) for path in trajectories_in(tmp_path)]
    assert sorted(row.outcome for row in rows) == ["same", "same", "same", "same", "unscored"]
    assert not list(tmp_path.rglob("*.har"))


async def test_a_page_that_an_evaluator_wants_and_the_collection_lacks_is_no_reward(env):
    await env.reset(task=task(ContentEvaluator(url=ORIGIN + "/absent", include=(("x",),))))
    with pytest.raises(TaskError, match="does not hold"):
        await env.step({"action": "terminate"})


async def test_tabs_and_scripts_of_a_task_are_there_before_the_first_observation(env):
    two = Task(
        id="two",
        goal="",
        start_url=HOME,
        tabs=(ORIGIN + "/second",),
        setup=("({seed}) => { document.title = `set ${seed}`; }",),
        goal_script="document.title + '!'",
        seed=11,
        evaluation=ScriptEvaluator(script="document.title", expected="set 11"),
    )
    observation, info = await env.reset(task=two)
    assert [tab.url for tab in observation.tabs] == [HOME, ORIGIN + "/second"]
    assert (observation.title, info["goal"]) == ("set 11", "set 11!")
    assert (await env.step({"action": "terminate"}))[1] == 1.0
    broken = Task("broken", "", HOME, setup=("nothing.at.all()",))
    with pytest.raises(TaskError, match="the task's script threw"):
        await env.reset(task=broken)


async def test_events_hold_requests_console_and_the_element_of_the_action(logged):
    env, root = logged
    observation, _ = await env.reset(url=HOME)
    await env.step({"action": "click", "bid": bid(observation, "link", "File")})
    await env.step({"action": "click", "x": 40, "y": 30})
    await env.step({"action": "goto", "url": ORIGIN + "/second"})
    await env.step({"action": "terminate", "answer": ""})
    (path,) = trajectories_in(root)
    lines = [json.loads(text) for text in (path.parent / "events.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert next((each["url"], each["tier"], each["status"]) for each in lines[0]["requests"]) == (
        HOME,
        "exact",
        200,
    )
    _, _, width, height = lines[1]["target"]
    assert width > 5
    assert height > 5
    assert lines[2]["target"] == [37, 27, 6, 6]
    assert "target" not in lines[3]
    assert ORIGIN + "/second" in [each["url"] for each in lines[3]["requests"]]

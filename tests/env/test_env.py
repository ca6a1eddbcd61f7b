"""Episodes on a small site: what reset, step and close promise."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from small_site import ORIGIN, build

from stillweb.browser.launch import launch, sandbox_mode
from stillweb.env.env import Env, EnvOptions
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.vector import VectorEnv
from stillweb.errors import (
    CollectionNotFound,
    EnvClosed,
    InfraError,
    ReplayUnreachable,
    ResetNeeded,
    TaskError,
    UsageError,
)
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HAS_ADA = Evaluation(EvalKind.JS, "document.querySelector('#name').value == 'Ada'")
NAME_IS_ADA = Task("ada", "Enter Ada", ORIGIN + "/", evaluation=HAS_ADA)


def bid(observation, role, name, nth=0):
    found = [node.bid for node in observation.nodes if node.role == role and node.name == name]
    return found[nth]


def seen(observation, role):
    return [(node.name, node.value) for node in observation.nodes if node.role == role]


async def test_an_episode_is_scored_at_terminate(env):
    observation, info = await env.reset(task=NAME_IS_ADA)
    assert observation.title == "Home"
    assert observation.url == ORIGIN + "/"
    assert info["settle"]["settled"]
    assert info["traffic"]["misses"] == 0
    assert info["backend"] == "native"
    assert info["sandbox"] is sandbox_mode().on
    observation, reward, terminated, truncated, info = await env.step(
        {"action": "fill", "bid": bid(observation, "textbox", "Name"), "value": "Ada"}
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["action"] == {"status": "ok", "error": ""}
    _, reward, terminated, truncated, info = await env.step({"action": "terminate"})
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["score"]["reasons"]
    with pytest.raises(ResetNeeded):
        await env.step({"action": "back"})


async def test_untouched_it_is_not_solved(env):
    await env.reset(task=NAME_IS_ADA)
    _, reward, terminated, _, _ = await env.step({"action": "terminate"})
    assert (reward, terminated) == (0.0, True)


@pytest.mark.parametrize(
    ("script", "reward", "reason"),
    [
        ("1 + 1", 1.0, "gave 2"),
        ("() => true", 1.0, "gave True"),
        ("null.x", 0.0, "threw"),
        ("not javascript", 0.0, "threw"),
    ],
)
async def test_scripts_are_expressions_or_functions(env, script, reward, reason):
    await env.reset(task=Task("t", "g", ORIGIN + "/", evaluation=Evaluation(EvalKind.JS, script)))
    _, got, _, _, info = await env.step({"action": "terminate"})
    assert got == reward
    assert reason in info["score"]["reasons"][0]


async def test_a_url_is_scored_on_the_active_tab(env):
    await env.reset(
        task=Task("t", "g", ORIGIN + "/", evaluation=Evaluation(EvalKind.URL, ORIGIN + "/second"))
    )
    await env.step({"action": "new_tab", "url": ORIGIN + "/second"})
    assert (await env.step({"action": "terminate"}))[1] == 1.0


async def test_a_model_s_mistakes_are_reported_and_cost_a_step(env):
    await env.reset(url=ORIGIN + "/")
    observation, _, _, _, info = await env.step({"action": "click"})
    assert info["action"]["status"] == "invalid_action"
    assert observation.last_action_error == info["action"]["error"]
    assert observation.last_action_error == "click needs 'bid', or 'x' and 'y'"
    assert info["step"] == 1
    _, _, _, _, info = await env.step("nonsense")
    assert info["action"]["status"] == "invalid_action"
    observation, _, _, _, info = await env.step({"action": "back", "bid": None})
    assert info["action"]["status"] == "action_failed"
    assert "no page to go back to" in observation.last_action_error
    _, _, _, _, info = await env.step({"action": "click", "bid": "zz9"})
    assert info["action"]["status"] in ("action_failed", "invalid_action")
    assert "zz9" in info["action"]["error"]


async def test_fields_of_all_kinds_are_filled(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    for role, name, value in (
        ("Date", "Day", "2024-02-29"),
        ("slider", "Loud", "40"),
        ("checkbox", "Agree", "true"),
        ("textbox", "Name", "x"),
    ):
        observation, *_, info = await env.step(
            {"action": "fill", "bid": bid(observation, role, name), "value": value}
        )
        assert info["action"]["status"] == "ok", (role, info)
    observation, *_, info = await env.step(
        {"action": "select", "bid": bid(observation, "combobox", "Size"), "value": "Large"}
    )
    assert info["action"]["status"] == "ok"
    assert ("Size", "Large") in seen(observation, "combobox")
    assert ("Loud", "40") in seen(observation, "slider")
    for wrong in ("x", "0x10", "+5", "5."):
        observation, *_, info = await env.step(
            {"action": "fill", "bid": bid(observation, "slider", "Loud"), "value": wrong}
        )
        assert f'does not take "{wrong}" as a number' in info["action"]["error"]
        assert ("Loud", "40") in seen(observation, "slider")
    observation, *_, info = await env.step(
        {"action": "fill", "bid": bid(observation, "slider", "Loud"), "value": "9e1"}
    )
    assert ("Loud", "90") in seen(observation, "slider")
    assert ("Name", "x") in seen(observation, "textbox")


async def test_history_and_reload(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    observation, *_ = await env.step({"action": "click", "bid": bid(observation, "link", "Second")})
    assert observation.title == "Second"
    observation, *_ = await env.step({"action": "back"})
    assert observation.title == "Home"
    observation, *_ = await env.step({"action": "forward"})
    assert observation.title == "Second"
    observation, *_, info = await env.step({"action": "forward"})
    assert info["action"]["status"] == "action_failed"
    observation, *_, info = await env.step({"action": "reload"})
    assert info["action"]["status"] == "ok"
    observation, *_ = await env.step({"action": "goto", "url": ORIGIN + "/"})
    assert observation.title == "Home"


async def test_popups_are_tabs(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    observation, *_ = await env.step({"action": "click", "bid": bid(observation, "link", "Popup")})
    assert [(tab.title, tab.active) for tab in observation.tabs] == [("Home", False), ("Second", True)]
    observation, *_ = await env.step({"action": "switch_tab", "tab": 0})
    assert observation.title == "Home"
    observation, *_ = await env.step({"action": "close_tab", "tab": 1})
    assert [tab.title for tab in observation.tabs] == ["Home"]
    observation, *_, info = await env.step({"action": "switch_tab", "tab": 7})
    assert "no tab 7" in info["action"]["error"]
    observation, *_ = await env.step({"action": "close_tab"})
    assert [(tab.url, tab.active) for tab in observation.tabs] == [("about:blank", True)]


async def test_a_page_may_close_itself(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    observation, *_ = await env.step({"action": "click", "bid": bid(observation, "link", "Popup")})
    observation, *_, info = await env.step({"action": "click", "bid": bid(observation, "button", "Shut")})
    assert info["action"]["status"] == "ok"
    assert [(tab.title, tab.active) for tab in observation.tabs] == [("Home", True)]


async def test_dialogs_are_answered_and_reported(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    observation, *_, info = await env.step({"action": "click", "bid": bid(observation, "button", "Ask")})
    assert info["dialogs"] == [{"kind": "confirm", "message": "Sure?", "answer": "accepted"}]
    assert "'yes'" in observation.axtree
    observation, *_, info = await env.step({"action": "click", "bid": bid(observation, "button", "Prompt")})
    assert info["dialogs"] == [{"kind": "prompt", "message": "Name?", "answer": "Ada"}]
    assert "'Ada'" in observation.axtree


async def test_downloads_are_reported_with_their_digest(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    _, *_, info = await env.step({"action": "click", "bid": bid(observation, "link", "File")})
    (download,) = info["downloads"]
    assert download["filename"] == "file.bin"
    assert download["sha256"] == hashlib.sha256(b"0123456789").hexdigest()
    assert download["size"] == 10


async def test_misses_are_counted_where_they_happen(env):
    observation, info = await env.reset(url=ORIGIN + "/")
    assert info["traffic"]["hits"] >= 1
    observation, *_, info = await env.step({"action": "click", "bid": bid(observation, "button", "Fetch")})
    assert info["traffic"]["misses"] == 1
    assert info["traffic"]["missed"] == [f"GET {ORIGIN}/absent.json"]
    _, *_, info = await env.step({"action": "hover", "bid": bid(observation, "button", "Ask")})
    assert info["traffic"]["requests"] == 0


async def test_time_stands_but_for_wait(env):
    observation, info = await env.reset(url=ORIGIN + "/")
    assert info["determinism"]["start"] == "2024-05-06T07:08:09+00:00"
    assert info["determinism"]["seed"] == 5
    assert str(int(datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp()))[:8] in observation.axtree
    observation, *_ = await env.step({"action": "click", "bid": bid(observation, "button", "Late")})
    for _ in range(3):
        observation, *_, later = await env.step({"action": "wait", "ms": 1000})
        assert later["settle"]["virtual_ms"] >= 1000
        assert later["determinism"] == info["determinism"]  # the stamp is on every info
    assert "'later'" in observation.axtree


async def test_seed_decides_and_the_recording_s_is_the_default(env):
    first, _ = await env.reset(url=ORIGIN + "/")
    again, _ = await env.reset(url=ORIGIN + "/")
    other, info = await env.reset(url=ORIGIN + "/", seed=6)
    assert first.digests == again.digests
    assert other.digests != first.digests
    assert info["seed"] == 6


async def test_an_episode_leaves_nothing_to_the_next(env):
    visits = Task("v", "g", ORIGIN + "/", evaluation=Evaluation(EvalKind.JS, "localStorage.visits == 1"))
    for _ in range(2):
        await env.reset(task=visits)
        assert (await env.step({"action": "terminate"}))[1] == 1.0


async def test_zone_viewport_and_start_are_the_task_s(env):
    task = Task(
        "t",
        "g",
        ORIGIN + "/",
        start=datetime(2030, 1, 1, tzinfo=UTC),
        timezone="America/Los_Angeles",
        viewport=(800, 600),
        evaluation=Evaluation(
            EvalKind.JS,
            "innerWidth == 800 && innerHeight == 600 && new Date().getFullYear() == 2029"
            " && String(new Date()).includes('Pacific Standard Time')",
        ),
    )
    _, info = await env.reset(task=task)
    assert info["determinism"]["start"] == "2030-01-01T00:00:00+00:00"
    _, reward, _, _, info = await env.step({"action": "terminate"})
    assert reward == 1.0, info["score"]


async def test_only_what_is_requested_is_observed(replay, browser):
    kinds = ("axtree", "html", "screenshot", "text")
    async with Env(replay.url, browser=browser, observe=kinds) as env:
        observation, _ = await env.reset(url=ORIGIN + "/")
        assert sorted(observation.digests) == sorted(kinds)
        assert observation.screenshot.startswith(b"\x89PNG")
        assert "<h1>Small site</h1>" in observation.html
        assert "Small site" in observation.text
        for kind, body in (("screenshot", observation.screenshot), ("html", observation.html.encode())):
            assert observation.digests[kind] == hashlib.sha256(body).hexdigest()
        again, _ = await env.reset(url=ORIGIN + "/")
        assert again.digests == observation.digests
    async with Env(replay.url, browser=browser, observe=()) as env:
        observation, _ = await env.reset(url=ORIGIN + "/")
        assert observation.axtree is None
        assert observation.digests == {}


async def test_an_episode_is_truncated_at_max_steps(replay, browser):
    async with Env(replay.url, browser=browser, options=EnvOptions(max_steps=2)) as env:
        await env.reset(task=NAME_IS_ADA)
        assert (await env.step({"action": "scroll", "dy": 100}))[3] is False
        _, reward, terminated, truncated, _ = await env.step({"action": "scroll", "dy": -100})
        assert (reward, terminated, truncated) == (0.0, False, True)
        with pytest.raises(ResetNeeded):
            await env.step({"action": "terminate"})


async def test_wrong_use_is_reported(replay, browser):
    with pytest.raises(UsageError, match="no level"):
        Env(replay.url, level="loose")
    with pytest.raises(UsageError, match="pixels"):
        Env(replay.url, observe=("pixels",))
    async with Env(replay.url, browser=browser) as env:
        with pytest.raises(ResetNeeded):
            await env.step({"action": "terminate"})
        with pytest.raises(UsageError):
            await env.reset()
        with pytest.raises(TaskError, match="does not hold the start page"):
            await env.reset(url=ORIGIN + "/absent")
        with pytest.raises(UsageError, match="'x' is not a Task"):
            await env.reset(task="x")
        for seed in ("x", 1.5, True):
            with pytest.raises(UsageError, match="a seed is an integer"):
                await env.reset(url=ORIGIN + "/", seed=seed)
        await env.reset(url=ORIGIN + "/")
        for n in (0, -1, "x"):
            with pytest.raises(UsageError, match="at least one env"):
                await env.fork(n)
        steps = [env.step({"action": "scroll", "dy": 1}) for _ in range(2)]
        results = await asyncio.gather(*steps, return_exceptions=True)
        assert [isinstance(result, UsageError) for result in results] == [False, True]
    await env.close()
    with pytest.raises(EnvClosed):
        await env.step({"action": "terminate"})
    with pytest.raises(EnvClosed):
        await env.reset(url=ORIGIN + "/")


@pytest.mark.parametrize("wrong", [{"max_steps": 0}, {"max_steps": -3}, {"har": "all"}, {"step_seconds": 0}])
async def test_options_that_cannot_be_are_reported(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        EnvOptions(**wrong)


async def test_no_address_of_a_server_is_reported():
    for made in (Env(None), VectorEnv(None, 1)):
        with pytest.raises(UsageError, match="is a text, not None"):
            await made.start()


async def test_an_unknown_collection_is_reported(replay, browser):
    async with Env(replay.url, "nothing", browser=browser) as env:
        with pytest.raises(CollectionNotFound):
            await env.reset(url=ORIGIN + "/")


async def test_no_server_is_reported():
    with pytest.raises(ReplayUnreachable):
        async with Env("http://127.0.0.1:9"):
            pass


async def test_a_browser_that_dies_is_an_infra_error(replay, ca):
    async with launch(spki=ca.spki_hashes()) as mortal, Env(replay.url, browser=mortal) as env:
        await env.reset(task=NAME_IS_ADA)
        await mortal.close()
        with pytest.raises(InfraError):
            await env.step({"action": "terminate"})
        with pytest.raises(ResetNeeded):
            await env.step({"action": "terminate"})
        with pytest.raises(InfraError):
            await env.reset(task=NAME_IS_ADA)


async def test_a_page_that_crashes_is_an_infra_error(env):
    await env.reset(task=NAME_IS_ADA)
    session = await env._episode.context.new_cdp_session(env._episode.page)
    crashed = asyncio.Event()
    env._episode.page.on("crash", lambda _: crashed.set())
    task = asyncio.ensure_future(session.send("Page.crash"))
    await asyncio.wait_for(crashed.wait(), 20)
    task.cancel()
    with pytest.raises(InfraError, match="crash"):
        await env.step({"action": "terminate"})
    await env.reset(task=NAME_IS_ADA)


async def test_a_proxy_that_dies_is_an_infra_error(tmp_path, ca, browser):
    collection = build(Path(tmp_path))
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        env = Env(server.url, browser=browser)
        observation, _ = await env.reset(task=NAME_IS_ADA)
    with pytest.raises(InfraError):
        await env.step({"action": "click", "bid": bid(observation, "link", "Second")})
    with pytest.raises(InfraError):
        await env.reset(task=NAME_IS_ADA)
    await env.close()


async def test_eight_environments_share_a_browser(replay, browser):
    async def episode(number):
        async with Env(replay.url, browser=browser) as env:
            observation, info = await env.reset(task=NAME_IS_ADA)
            value = "Ada" if number % 2 else f"Bob {number}"
            target = bid(observation, "textbox", "Name")
            filled, *_ = await env.step({"action": "fill", "bid": target, "value": value})
            assert ("Name", value) in seen(filled, "textbox")
            _, reward, *_ = await env.step({"action": "terminate"})
            return observation.digests["axtree"], reward, info["session"], info["episode"]

    results = await asyncio.gather(*(episode(number) for number in range(8)))
    assert len({digest for digest, *_ in results}) == 1
    assert [reward for _, reward, *_ in results] == [0.0, 1.0] * 4
    assert len({session for *_, session, _ in results}) == 8
    assert len({episode for *_, episode in results}) == 8

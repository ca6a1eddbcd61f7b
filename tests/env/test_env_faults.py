"""Faults under an episode are infrastructure errors, leave nothing behind, and end with a reset."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest
from small_site import ORIGIN, build

from stillweb.browser.launch import launch
from stillweb.env.env import Env
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.errors import EnvClosed, InfraError
from stillweb.replay.client import ReplayClient
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = ORIGIN + "/"
TRUE = Task("true", "Do nothing", HOME, evaluation=Evaluation(EvalKind.JS, "true"))


async def left_behind(replay, browser):
    return [session["id"] for session in await replay.sessions()], len(browser.contexts)


NOTHING = (["default"], 0)


@pytest.mark.parametrize("action", [{"action": "terminate"}, {"action": "scroll", "dy": 1}])
async def test_a_session_closed_by_someone_else_is_an_infra_error(env, replay, action):
    _, info = await env.reset(task=TRUE)
    async with ReplayClient(replay.url) as client:
        await client.close_session(info["session"])
    with pytest.raises(InfraError, match="lost the episode's session"):
        await env.step(action)
    await env.reset(task=TRUE)
    assert (await env.step({"action": "terminate"}))[1] == 1.0


async def test_a_server_that_was_restarted_is_an_infra_error_once(tmp_path, ca, browser):
    collection = build(tmp_path)
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        port = int(server.url.rpartition(":")[2])
        env = Env(server.url, browser=browser)
        await env.reset(task=TRUE)
    async with serve([collection], ca, ReplayOptions(port=port, session_ports=None)):
        with pytest.raises(InfraError):
            await env.step({"action": "terminate"})
        await env.reset(task=TRUE)
        assert (await env.step({"action": "terminate"}))[1] == 1.0
        await env.close()


@pytest.mark.parametrize("seconds", [0, 0.005, 0.02, 0.04, 0.06, 0.09, 0.12])
async def test_close_ends_a_reset_under_way_and_leaves_nothing(replay, browser, seconds):
    env = Env(replay.url, browser=browser)
    await env.start()
    reset = asyncio.ensure_future(env.reset(url=HOME))
    await asyncio.wait([reset], timeout=seconds)
    await env.close()
    assert await left_behind(replay, browser) == NOTHING
    with pytest.raises(EnvClosed):
        await reset


async def test_close_ends_a_step_under_way(replay, browser):
    env = Env(replay.url, browser=browser)
    await env.reset(url=HOME)
    step = asyncio.ensure_future(env.step({"action": "wait", "ms": 60000}))
    await asyncio.wait([step], timeout=0.02)
    await env.close()
    with pytest.raises(EnvClosed):
        await step


async def again(call, *args, **named):
    while True:
        await call(*args, **named)


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.03, 0.08, 0.15])
async def test_what_is_cancelled_leaves_nothing(replay, browser, seconds):
    async with Env(replay.url, browser=browser) as env:
        for _ in range(2):  # the second one is cancelled while it leaves the first one's episode, too
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(again(env.reset, url=HOME), seconds)
        await env.reset(task=TRUE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(again(env.step, {"action": "reload"}), seconds)
        await env.reset(task=TRUE)
        assert (await env.step({"action": "terminate"}))[1] == 1.0
    assert await left_behind(replay, browser) == NOTHING


def drivers_of_playwright():
    """Return the processes of Playwright's driver below this one."""
    listing = subprocess.run(
        ["ps", "-ewwo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [(int(pid), int(parent), args) for pid, parent, args in _columns(listing)]
    ours = {os.getpid()}
    while more := {pid for pid, parent, _ in rows if parent in ours} - ours:
        ours |= more
    return {pid for pid, _, args in rows if pid in ours and "run-driver" in args}


def _columns(listing):
    return [line.split(None, 2) for line in listing.splitlines()[1:]]


@pytest.mark.usefixtures("own_browsers")
async def test_an_own_browser_whose_driver_died_is_replaced(replay):
    others = drivers_of_playwright()
    async with Env(replay.url) as env:
        await env.reset(task=TRUE)
        for pid in drivers_of_playwright() - others:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(InfraError):
            await env.step({"action": "terminate"})
        await env.reset(task=TRUE)
        assert (await env.step({"action": "terminate"}))[1] == 1.0


@pytest.mark.usefixtures("own_browsers")
async def test_a_shared_browser_that_died_stays_an_infra_error(replay, ca):
    async with launch(spki=ca.spki_hashes()) as mortal, Env(replay.url, browser=mortal) as env:
        await mortal.close()
        for _ in range(2):
            with pytest.raises(InfraError):
                await env.reset(task=TRUE)
    assert [session["id"] for session in await replay.sessions()] == ["default"]

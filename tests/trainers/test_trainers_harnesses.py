"""Gymnasium by names, and a browser for harnesses that speak CDP; on WARC-Bench's tasks."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
from plan_actor import Actor
from played_tasks import CLICKS, FILLS, servers
from playwright.async_api import async_playwright

from stillweb.env.tasks.evaluators import AllEvaluator, AnswerEvaluator, ContentEvaluator, DownloadEvaluator
from stillweb.env.tasks.task import Task
from stillweb.errors import InfraError, ReplayUnreachable, TaskError, UsageError
from stillweb.trainers.cdp import cdp_browser

pytestmark = [pytest.mark.browser, pytest.mark.shared]


@pytest.fixture(scope="module")
def served(shared, tmp_path_factory):
    with servers(shared, tmp_path_factory.mktemp("harnesses"), sessions=1) as running:
        yield running


# --- Gymnasium -------------------------------------------------------------------------------------


def test_gymnasium_makes_a_task_by_its_name_checks_it_and_solves_it(served):
    gymnasium = pytest.importorskip("gymnasium", reason="needs the extra stillweb[gym]")
    from gymnasium.utils.env_checker import check_env

    from stillweb.env.gym import GymOptions
    from stillweb.trainers.gymnasium import register_tasks

    tasks = [replace(served.tasks[CLICKS], id="odd~1"), served.tasks[FILLS]]
    ids = register_tasks(tasks, served.replay, GymOptions(level="clock"), namespace="harness")
    assert ids == ["harness/odd-1-v0", f"harness/{FILLS}-v0"]
    env = gymnasium.make(ids[0])
    check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
    seen, info = env.reset(seed=3)
    assert (seen["goal"], info["task"]) == (tasks[0].goal, "odd~1")
    actor, reward, over = Actor(CLICKS), 0.0, False
    while not over:
        seen, reward, over, _, _ = env.step(json.dumps(actor.act(seen["axtree"])))
    assert reward == 1.0
    env.close()


# --- a browser by its CDP address ------------------------------------------------------------------


async def act(cdp_url, start_url):
    """Do what a harness does: open the page, and click."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(cdp_url)
        page = browser.contexts[0].pages[0]
        await page.goto(start_url)
        await page.get_by_role("button", name="Project Management").click()
        await page.get_by_role("checkbox", name="Python").check()
        return await page.evaluate("[navigator.userAgent, innerWidth, innerHeight, devicePixelRatio]")


def running_in(group):
    """Return the processes of a group that run: PID 1 may reap the others seconds later."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.info["name"])
    return found


async def test_a_harness_is_scored_by_the_page_it_leaves_and_all_it_requested_is_replayed(served):
    task = served.tasks[CLICKS]
    async with (
        cdp_browser(served.replay, task=task) as browser,
        cdp_browser(served.replay, task=task) as other,
    ):
        agent, *sizes = await act(browser.cdp_url, task.start_url)
        assert (await browser.score()).reward == 1.0
        requests = await browser.requests()
        with pytest.raises(InfraError, match="no page nothing"):
            await browser.score(target="nothing")
        assert await other.requests() == []
        assert other.session.id != browser.session.id
        assert (await other.score()).reward == 0.0
        described = browser.to_dict()
    for each in (browser, other):
        assert running_in(each.pid) == []
    assert "Headless" not in agent
    assert sizes == [1280, 720, 1]
    assert {entry["tier"] for entry in requests} <= {"exact", "noise"}
    assert requests[0]["url"] == task.start_url
    assert (described["task"], described["level"], described["start_url"]) == (CLICKS, "live", task.start_url)


async def test_a_browser_that_is_gone_gives_no_reward_and_leaves_nothing(served):
    async with cdp_browser(served.replay, task=served.tasks[CLICKS]) as browser:
        os.killpg(browser.pid, signal.SIGKILL)
        with pytest.raises(InfraError):
            await browser.score()
    async with cdp_browser(served.replay) as browser:
        with pytest.raises(UsageError, match="no task"):
            await browser.score()


async def test_what_cannot_be_judged_from_the_page_is_refused_before_it_begins(served):
    """Without an observation to judge, the reward would be 0."""
    elsewhere = ContentEvaluator(url="https://other.test/", include=(("a",),))
    for evaluation in (
        elsewhere,
        DownloadEvaluator(),
        AllEvaluator(parts=(AnswerEvaluator(fuzzy=("cheap",)),)),
    ):
        task = replace(served.tasks[CLICKS], evaluation=evaluation)
        with pytest.raises(TaskError, match="scored"):
            async with cdp_browser(served.replay, task=task):
                pass
    with pytest.raises(ReplayUnreachable):
        async with cdp_browser("http://127.0.0.1:9"):
            pass


async def test_a_start_page_that_is_not_there_is_no_reward_of_0(served):
    task = replace(served.tasks[CLICKS], start_url="https://nowhere.test/")
    async with cdp_browser(served.replay, task=task) as browser:
        async with async_playwright() as playwright:
            connected = await playwright.chromium.connect_over_cdp(browser.cdp_url)
            await connected.contexts[0].pages[0].goto(task.start_url)
        with pytest.raises(TaskError, match="does not hold the start page"):
            await browser.score()


def test_the_command_prints_the_address_and_scores_after_a_line_of_input(served, shared):
    command = [sys.executable, "-m", "stillweb", "cdp", served.replay, "--json", "--task-id", CLICKS]
    tasks = shared / "tasks" / "warc_bench_public.json"
    with subprocess.Popen(
        [*command, "--tasks", str(tasks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        announcement = json.loads(read_object(program.stdout))
        assert announcement["cdp_url"].startswith("http://127.0.0.1:")
        assert announcement["goal"] == served.tasks[CLICKS].goal
        out, _ = program.communicate("an answer\n", timeout=60)
    assert json.loads(out)["reward"] == 0.0
    assert program.returncode == 0


def read_object(lines):
    """Return the text of one JSON object that is printed over several lines."""
    text = ""
    for line in lines:
        text += line
        if line.startswith("}") or (line.startswith("{") and line.rstrip().endswith("}")):
            return text
    return text


def test_a_name_registers_its_task_in_every_process_that_receives_it():
    """Workers of joblib and Ray start with an empty registry and get the name by pickle."""
    pytest.importorskip("gymnasium", reason="needs the extra stillweb[gym]")
    from stillweb.trainers.gymnasium import register_tasks

    task = Task("w/1", "goal", "https://a.test/", "none")
    (name,) = register_tasks([task], "http://127.0.0.1:9", namespace="workers")
    assert name == "workers/w-1-v0"
    assert name.task_name == "w-1-v0"
    worker = (
        "import pickle, sys; names = pickle.load(sys.stdin.buffer); import gymnasium; "
        "print(names[0], gymnasium.spec(names[0]).entry_point.args[1][0].id, names[1])"
    )
    for sent in ((name, name), (name, name.task_name), copy.deepcopy((name, name))):
        done = subprocess.run(
            [sys.executable, "-c", worker], input=pickle.dumps(sent), capture_output=True, check=True
        )
        assert done.stdout.decode().split() == [str(sent[0]), "w/1", str(sent[1])]

"""Tasks of WARC-Bench on its real archives, solved through `Env.step` alone."""

from __future__ import annotations

import pytest
import pytest_asyncio
from solutions import SOLUTIONS, After

from stillweb.env.check import check_tasks
from stillweb.env.env import Env

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.asyncio(loop_scope="module")]

VALUE_OF = {"fill": "value", "select": "value", "press": "key", "type": "text", "terminate": "answer"}


@pytest_asyncio.fixture(loop_scope="module")
async def env(warc_bench, browser):
    async with Env(warc_bench.url, browser=browser, level="clock") as opened:
        yield opened


def label(nodes, index):
    """The name of a node or, if it has none, the text right below it."""
    node = nodes[index]
    if node.name:
        return node.name
    below = nodes[index + 1 : index + 2]
    return below[0].name if below and below[0].depth > node.depth and below[0].role == "StaticText" else ""


def locate(nodes, role, name, nth=0):
    """The bid of the one element that a step is about."""
    begin = 0
    if isinstance(name, After):
        begin = next(index for index, node in enumerate(nodes) if name.text in node.name)
    found = [
        node.bid
        for index, node in enumerate(nodes)
        if index >= begin
        and node.bid
        and node.role == role
        and (isinstance(name, After) or label(nodes, index) == name)
    ]
    assert len(found) > nth, f"no {role} {name!r} among {[(n.role, n.name) for n in nodes if n.bid]}"
    return found[nth]


def as_action(step, nodes):
    """A line of `solutions` as the action that it means on this page."""
    verb, *rest = step
    action = {"action": verb}
    if verb in ("click", "dblclick", "hover", "fill", "select", "press", "drag") and len(rest) > 1:
        action["bid"] = locate(nodes, rest[0], rest[1])
        rest = rest[2:]
    if verb == "drag":
        action["dx"], action["dy"] = rest
    elif verb == "wait":
        action["ms"] = rest[0]
    elif verb == "scroll":
        action["bid"], action["dy"] = locate(nodes, rest[0], rest[1]), rest[2]
    elif rest:
        action[VALUE_OF[verb]] = rest[0]
    return action


async def solve(env, task, steps):
    """Take the steps, and terminate if they do not; return the reward."""
    observation, info = await env.reset(task=task)
    assert info["traffic"]["misses"] == 0, info["traffic"]
    for step in [*steps, ("terminate", "")]:
        action = as_action(step, observation.nodes)
        observation, reward, terminated, _, info = await env.step(action)
        assert info["action"]["status"] == "ok", (step, info["action"], observation.axtree)
        assert info["settle"] is None or info["settle"]["settled"], (step, info["settle"])
        if terminated:
            return reward, info["score"]["reasons"], observation
    raise AssertionError("terminate did not terminate")


@pytest.mark.parametrize("task_id", SOLUTIONS)
async def test_a_task_is_solved_by_its_steps_and_not_by_none(env, warc_bench_tasks, task_id):
    task = warc_bench_tasks[task_id]
    reward, reasons, _ = await solve(env, task, [])
    assert reward == 0.0, reasons
    reward, reasons, observation = await solve(env, task, SOLUTIONS[task_id])
    assert reward == 1.0, (task.goal, task.evaluation.expected, reasons, observation.axtree)


@pytest.mark.timeout(900)
async def test_all_720_tasks_reset_without_a_miss_and_are_scored_untouched(
    warc_bench, browser, warc_bench_tasks
):
    assert len({task.start_url for task in warc_bench_tasks.values()}) == 17
    checked = await check_tasks(list(warc_bench_tasks.values()), warc_bench.url, jobs=4, browser=browser)
    assert len(checked) == 720
    assert [row for row in checked if row.outcome != "ok" or row.misses or not row.settled] == []
    # Some tasks are solved by doing nothing; most must not be.
    assert sum(row.reward for row in checked) < 30

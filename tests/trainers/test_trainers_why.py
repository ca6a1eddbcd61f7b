"""Forks of an episode: prefix, verification, values, the lost step, the report."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from stillweb.env import Trajectory
from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.errors import ForkDiverged, UsageError
from stillweb.trainers.agents.builtin import ScriptedAgent
from stillweb.trainers.batch.results import Result
from stillweb.trainers.batch.why import EpisodeForks, write_why_report

TASK = Task("lamp", "Buy a lamp", "https://shop.test/", "shop")
ACTIONS = [{"action": "click", "bid": str(n)} for n in range(3)] + [{"action": "terminate"}]


def episode(tmp_path, actions=ACTIONS, *, reward=0.0, **header):
    """Write an episode, and load its forks."""
    head = {"format": "stillweb-trajectory", "version": 1, "name": "lamp", "task": task_to_dict(TASK)}
    head |= {"goal": TASK.goal, "level": "exact", "seed": 7, "collection": "shop"} | header
    seen = {"status": "ok", "url": TASK.start_url}
    lines = [head, {"step": 0, "digests": {"axtree": "d0"}, **seen}]
    lines += [
        {"step": n, "raw": action, "digests": {"axtree": f"d{n}"}, **seen}
        for n, action in enumerate(actions, 1)
    ]
    if reward is not None:
        lines.append({"end": "terminated", "reward": reward})
    path = tmp_path / "trajectory.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return EpisodeForks.of(Trajectory.load(path))


def results(successes, of=8):
    return [
        Result(f"lamp@{state}", n, "ok", float(n < good), steps=4)
        for state, good in enumerate(successes)
        for n in range(of)
    ]


def play(forks, state, agent, digests=("d0", "d1", "d2", "d3")):
    """Play the fork of a state up to its own first action; return the actions and what the agent saw."""
    (task,) = [each for each in forks.tasks if each.id == f"lamp@{state}"]
    policy = forks.agent(agent)(task)

    async def run():
        taken = []
        for step in range(state + 1):
            observation = SimpleNamespace(digests={"axtree": digests[step]})
            info = {"step": step, "episode_number": 1} | ({"goal": "Buy a lamp"} if not step else {})
            taken.append(await policy(observation, info))
        return taken

    return asyncio.run(run())


def test_a_fork_repeats_the_steps_and_then_asks_the_agent(tmp_path):
    forks = episode(tmp_path)
    seen = []

    def agent(task):
        assert task == TASK
        return lambda observation, info: seen.append(info) or {"action": "back"}

    assert play(forks, 2, agent) == [*ACTIONS[:2], {"action": "back"}]
    assert (seen[0]["goal"], seen[0]["step"]) == ("Buy a lamp", 2)
    assert play(forks, 0, agent) == [{"action": "back"}]
    assert seen[0]["episode_number"] != seen[1]["episode_number"]


def test_an_agent_may_resume(tmp_path):
    class Agent:
        def __call__(self, task):
            raise AssertionError

        def resume(self, task, past):
            assert [each.action for each in past] == ACTIONS[:2]

            async def policy(observation, info):
                return "noop()"

            return policy

    assert play(episode(tmp_path), 2, Agent())[-1] == "noop()"


def test_a_fork_that_sees_another_page_diverged(tmp_path):
    with pytest.raises(ForkDiverged):
        play(episode(tmp_path), 2, lambda task: None, digests=("d0", "other", "d2"))
    with pytest.raises(ForkDiverged):
        play(episode(tmp_path), 0, lambda task: None, digests=("other",))


def test_a_scripted_agent_continues_where_the_episode_left_its_trace(tmp_path):
    right = [ACTIONS[0], {"action": "click", "bid": "right"}, {"action": "terminate"}]
    trace = tmp_path / "solutions" / "lamp.jsonl"
    trace.parent.mkdir()
    head = {"format": "stillweb-trace", "version": 1, "name": "lamp", "url": "https://shop.test/"}
    trace.write_text("".join(json.dumps(each) + "\n" for each in [head, *right]))
    forks = episode(tmp_path)
    agent = ScriptedAgent(trace.parent)
    assert play(forks, 0, agent)[-1] == right[0]
    assert [play(forks, state, agent)[-1] for state in (1, 2, 3)] == [right[1]] * 3


def test_an_episode_without_an_end_can_be_forked_at_its_last_state(tmp_path):
    assert episode(tmp_path).states == range(4)
    assert episode(tmp_path, reward=None).states == range(5)


@pytest.mark.parametrize(
    ("successes", "lost"), [([8, 8, 0, 0], 2), ([8, 5, 6, 0], 3), ([8, 8, 8, 8], 4), ([8, 0, 1, 0], 3)]
)
def test_the_lost_step_is_the_first_after_which_no_fork_succeeds(tmp_path, successes, lost):
    found = episode(tmp_path).explain(results(successes))
    assert found["lost_after"] == lost
    assert found["verdict"].startswith(f"Success is lost by step {lost}")
    assert found["values"] == [each / 8 for each in successes] + [0.0]
    assert sum(found["process_rewards"]) == pytest.approx(0.0 - successes[0] / 8)
    assert found["forks"] == 32


def test_few_forks_are_said_to_be_few(tmp_path):
    found = episode(tmp_path).explain(results([1, 1, 0, 0], of=2))
    assert found["lost_after"] == 2
    assert "more forks are needed" in found["verdict"]
    assert "more forks" not in episode(tmp_path).explain(results([8, 8, 0, 0]))["verdict"]


def test_an_agent_that_never_succeeds_judges_nothing(tmp_path):
    found = episode(tmp_path).explain(results([0, 0, 0, 0]))
    assert found["lost_after"] is None
    assert "cannot judge" in found["verdict"]
    assert episode(tmp_path, reward=1.0).explain(results([8, 8, 8, 8]))["lost_after"] is None


def test_forks_without_a_reward_count_nowhere(tmp_path):
    broken = [Result("lamp@1", 8, "infra_error", steps=1)]
    found = episode(tmp_path).explain([*results([8, 8, 0, 0]), *broken])
    assert found["states"][1]["success"] == 1.0
    assert found["without_reward"] == 1
    none = episode(tmp_path, reward=None).explain([])
    assert none["values"] == [None] * 5
    assert none["verdict"] == "No fork has a reward"


def test_an_episode_that_cannot_be_forked_is_refused(tmp_path):
    for given in ({"task": None}, {"actions": []}):
        with pytest.raises(UsageError):
            episode(tmp_path, **given)


def test_the_report_shows_the_chart(tmp_path):
    forks = episode(tmp_path, [*ACTIONS[:2], "click('<b>')", ACTIONS[3]])
    write_why_report(forks.explain(results([8, 8, 0, 0])), tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text()
    assert page.count("<circle") == 5
    assert "&lt;b&gt;" in page
    write_why_report(forks.explain([]), tmp_path / "none.html")

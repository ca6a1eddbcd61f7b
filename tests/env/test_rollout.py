"""Episodes on sessions that fail on demand: how the player handles each failure."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.rollout import Outcome, Planned, RolloutOptions, play
from stillweb.errors import CollectionNotFound, EnvError, InfraError, TaskError

STEPS = 2


class Sessions:
    """Stands for a VectorEnv: each attempt of an episode ends as the script of its task says."""

    def __init__(self, n, scripts):
        self.n = n
        self.scripts = {name: iter(script) for name, script in scripts.items()}
        self.now = {}
        self.resetting = self.most_resetting = 0
        self.left = Counter()
        self.seeds = []

    def __len__(self):
        return self.n

    async def reset(self, i, *, task, seed):
        self.resetting += 1
        self.most_resetting = max(self.most_resetting, self.resetting)
        await asyncio.sleep(0)
        self.resetting -= 1
        how = next(self.scripts[task.id])
        self.seeds.append((task.id, seed))
        if how == "reset":
            raise InfraError("the browser is gone")
        if how == "task":
            raise TaskError("no page")
        if how == "collection":
            raise CollectionNotFound("it is not served")
        if how == "bug":
            raise ZeroDivisionError("unforeseen")
        self.now[i] = how, 0
        return self._seen(0)

    async def step(self, i, action):
        await asyncio.sleep(0)
        how, steps = self.now[i]
        self.now[i] = how, steps + 1
        if how == "step":
            raise InfraError("the proxy is gone")
        over = steps + 1 == STEPS
        observation, info = self._seen(steps + 1)
        return observation, float(over), over, False, info

    def _seen(self, step):
        traffic = {"requests": 2, "hits": 1, "misses": 1, "noise": 0}
        info = {"episode": "e", "step": step, "action": {"status": "ok"}, "traffic": traffic}
        return Observation("https://a.test/", "", ()), info

    async def leave(self, i):
        self.left[i] += 1

    async def proxy_ready(self):
        return True


def agent(task):
    def policy(observation, info):
        if task.id.startswith("raises"):
            raise KeyError(info["episode_number"])
        return {"action": "back"}

    return policy


ENDS = {
    "ok": Outcome.OK,
    "task": Outcome.TASK_ERROR,
    "collection": Outcome.TASK_ERROR,
    "reset": Outcome.INFRA_ERROR,
    "step": Outcome.INFRA_ERROR,
}
attempts = st.lists(st.sampled_from(list(ENDS)), min_size=3, max_size=3)


@given(
    st.lists(st.tuples(st.booleans(), attempts), max_size=9),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_every_episode_is_reported_once_as_it_ended(scripts, n, most, tries):
    named = {f"{'raises' if bad else 'plays'}{k}": script for k, (bad, script) in enumerate(scripts)}
    sessions = Sessions(n, named)
    planned = [Planned(Task(name, "", "https://a.test/"), k, seed=k) for k, name in enumerate(named)]
    options = RolloutOptions(attempts=tries, max_resets=most)

    async def run():
        return [each async for each in play(sessions, agent, planned, options)]

    ended = asyncio.run(run())
    assert sorted(each.number for each in ended) == list(range(len(named)))
    assert sessions.most_resetting <= (most or n)
    assert {(name, seed) for name, seed in sessions.seeds} == {(name, k) for k, name in enumerate(named)}
    for each in ended:
        taken = []
        for how in named[each.task.id][:tries]:
            raises = each.task.id.startswith("raises") and how in ("ok", "step")
            taken.append(Outcome.AGENT_ERROR if raises else ENDS[how])
            if taken[-1] is not Outcome.INFRA_ERROR:
                break
        assert (each.outcome, each.attempts, len(each.episodes)) == (taken[-1], len(taken), len(taken))
        good = each.outcome is Outcome.OK
        assert each.reward == (1.0 if good else None)
        assert len(each.errors) == len(taken) - good
        assert len(each.steps) == (STEPS if good else 0)
        assert not good or each.traffic == TRAFFIC


TRAFFIC = {"requests": 6, "hits": 3, "misses": 3, "noise": 0, "guesses": 0, "derived": 0}


def test_a_bug_ends_its_session_and_is_reported_once_the_others_are_through():
    sessions = Sessions(2, {"a": ["bug"], "b": ["ok"], "c": ["ok"]})
    ended = []

    async def run():
        async for each in play(
            sessions, agent, [Task(name, "", "https://a.test/") for name in "abc"], RolloutOptions()
        ):
            ended.append(each)

    with pytest.raises(EnvError, match="task 'a' failed: ZeroDivisionError: unforeseen"):
        asyncio.run(run())
    assert sorted(each.task.id for each in ended) == ["b", "c"]
    assert sessions.left == {0: 1, 1: 1}

"""Gymnasium's interfaces, checked by Gymnasium's own checker and against its SyncVectorEnv."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading

import pytest
from small_site import ORIGIN, build

from stillweb.env.options import EnvOptions
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.vector import VectorOptions
from stillweb.errors import InfraError, UsageError
from stillweb.polling import poll
from stillweb.replay.server.server import ReplayOptions, serve

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra stillweb[gym]")
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from stillweb.env.gym import GymOptions, StillwebEnv, StillwebVectorEnv  # noqa: E402

pytestmark = pytest.mark.browser

ADA = Evaluation(EvalKind.JS, "document.getElementById('name').value == 'Ada'")
NAMED = Task("named", "Say Ada", ORIGIN + "/", evaluation=ADA, max_steps=6)
TASKS = [Task(f"t{n}", f"Do {n}", ORIGIN + "/", evaluation=ADA) for n in range(50)]
END = json.dumps({"action": "terminate"})
STAY = json.dumps({"action": "scroll", "dy": 1})


@pytest.fixture(scope="module")
def server(tmp_path_factory, ca):
    """A replay server on a thread of its own, since what is tested is synchronous."""
    collection = build(tmp_path_factory.mktemp("collections"))
    loop = asyncio.new_event_loop()
    ready, ending = threading.Event(), asyncio.Event()
    url = []

    async def run():
        async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as running:
            url.append(running.url)
            ready.set()
            await ending.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    ready.wait()
    yield url[0]
    loop.call_soon_threadsafe(ending.set)
    thread.join()
    loop.close()


class SharedLoop:
    """The loop of the tests, which shares browsers, in place of a thread's; it runs while a call does."""

    def run(self, work):
        return asyncio.run(work)  # tests/shared_browsers.py

    def close(self): ...


@pytest.fixture(autouse=True)
def shared_loop(monkeypatch):
    """Only the environment of the module has a thread of its own."""
    monkeypatch.setattr("stillweb.env.gym.LoopThread", SharedLoop)


@pytest.fixture(scope="module")
def env(server):
    opened = StillwebEnv(server, [NAMED], GymOptions(observe=("axtree", "screenshot")))
    yield opened
    opened.close()
    opened.close()


def named(axtree):
    """Return the bid of the text field."""
    line = next(line for line in axtree.splitlines() if "textbox" in line and "Name" in line)
    return line.strip().partition("[")[2].partition("]")[0]


def test_gymnasiums_own_checker_passes(env):
    with pytest.warns(UserWarning, match="spec"):  # it was not made by gymnasium.make
        check_env(env, skip_render_check=False, skip_close_check=True)


def test_an_episode_has_gymnasiums_signals(env):
    seen, info = env.reset(seed=1)
    assert seen in env.observation_space
    assert (seen["goal"], seen["title"], info["task"]) == ("Say Ada", "Home", "named")
    assert seen["screenshot"].shape == (720, 1280, 3)
    env.step({"action": "fill", "bid": named(seen["axtree"]), "value": "Ada"})
    _, reward, terminated, truncated, info = env.step(END)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["score"]["reward"] == 1.0
    assert env.unique_info["session"]
    env.reset()
    ends = [env.step(STAY) for _ in range(NAMED.max_steps)]
    assert [end[3] for end in ends] == [False] * (NAMED.max_steps - 1) + [True]
    assert ends[-1][1] == 0.0


def test_the_seed_draws_the_task(server):
    env = StillwebEnv(server, TASKS, GymOptions(observe=()))
    drawn = [env.reset(seed=seed)[1]["task"] for seed in (1, None, 1, None, 2)]
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) > 1
    assert env.reset(options={"task": NAMED, "page_seed": 77})[1]["seed"] == 77
    env.close()
    with pytest.raises(UsageError, match="closed"):
        env.reset()


def kill(vector):
    os.kill(vector._vector.browsers()[0]["pid"], signal.SIGKILL)


def test_the_next_task_is_prepared_while_this_one_is_played_and_the_order_stays(server):
    orders = []
    for ahead in (0, 1):
        vector = VectorOptions(env=EnvOptions(prefetch=ahead))
        env = StillwebEnv(server, TASKS, GymOptions(level="exact", vector=vector))

        async def ready(env=env):
            return bool(env._vector._slots[0].env.prefetcher.ready)

        try:
            env.reset(seed=3)
            order = []
            for options in (None, {"task": NAMED}, None, None):
                assert not ahead or env._loop.run(poll(ready, timeout=60, interval=0.02))
                order.append(env.reset(options=options)[1]["task"])
            orders.append(order)
            taken = env._vector._slots[0].env.prefetcher.counts.taken
        finally:
            env.close()
    assert orders[0] == orders[1]
    assert orders[0][1] == "named"
    assert taken == 3


def test_an_infra_failure_raises_or_is_flagged_and_never_a_plain_reward(server):
    raising = StillwebEnv(server, [NAMED])
    raising.reset()
    kill(raising)
    with pytest.raises(InfraError):
        raising.step(END)
    raising.reset()
    raising.close()
    flagging = StillwebEnv(server, [NAMED], GymOptions(infra="flag"))
    last, _ = flagging.reset()
    kill(flagging)
    seen, reward, terminated, truncated, info = flagging.step(END)
    assert (seen, reward, terminated, truncated) == (last, 0.0, False, True)
    assert info["infra_error"]
    assert "infra_error" not in flagging.reset()[1]
    flagging.close()
    nowhere = StillwebEnv("http://127.0.0.1:9", [NAMED], GymOptions(infra="flag"))
    assert nowhere.reset()[1]["infra_error"]
    assert nowhere.step(END)[1:4] == (0.0, False, True)
    nowhere.close()


def trace(vector, actions):
    """Return the signals of steps, and the tasks that infos and observations name."""
    results = [vector.reset(seed=3)]
    results += [vector.step(each) for each in actions]
    rows = []
    for each in results:
        info = each[-1]
        row = {"goals": each[0]["goal"], "task": list(info["task"])}
        if len(each) == 5:
            row |= {"reward": each[1].tolist(), "over": each[2].tolist(), "cut": each[3].tolist()}
        if "final_obs" in info:
            row["final"] = [None if obs is None else obs["goal"] for obs in info["final_obs"]]
            row["final_task"] = info["final_info"]["task"].tolist()
        rows.append(row)
    return rows


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_autoreset_is_that_of_gymnasiums_own_vector(server, mode):
    actions = [(END, STAY), (STAY, END), (STAY, STAY)]
    options = GymOptions(observe=())
    ours = StillwebVectorEnv(server, 2, TASKS, autoreset_mode=mode, options=options)
    theirs = SyncVectorEnv(
        [lambda: StillwebEnv(server, TASKS, options) for _ in range(2)], autoreset_mode=mode
    )
    try:
        assert ours.observation_space == theirs.observation_space
        assert trace(ours, actions) == trace(theirs, actions)
    finally:
        ours.close()
        theirs.close()


def test_without_autoreset_episodes_that_are_over_are_reset_by_mask(server):
    import numpy as np

    vector = StillwebVectorEnv(
        server, 2, TASKS, autoreset_mode=AutoresetMode.DISABLED, options=GymOptions(observe=())
    )
    vector.reset(seed=[5, 6])
    *_, infos = vector.step((END, STAY))
    assert "final_obs" not in infos
    with pytest.raises(UsageError, match=r"sessions \[0\] are over"):
        vector.step((STAY, STAY))
    _, infos = vector.reset(options={"reset_mask": np.array([True, False])})
    assert infos["_task"].tolist() == [True, False]
    _, _, terminated, truncated, infos = vector.step((STAY, STAY))
    assert not (terminated | truncated).any()
    assert infos["step"].tolist() == [1, 2]
    vector.close()


def test_what_breaks_one_session_of_a_vector_is_flagged_in_that_one(server):
    vector = StillwebVectorEnv(server, 2, TASKS, options=GymOptions(observe=(), infra="flag"))
    vector.reset(seed=1)
    session = vector.unique_info[0]["session"]

    async def close():
        from stillweb.replay.client import ReplayClient

        async with ReplayClient(server) as client:
            await client.close_session(session)

    vector._loop.run(close())
    _, rewards, terminated, truncated, infos = vector.step((END, END))
    assert (terminated.tolist(), truncated.tolist()) == ([False, True], [True, False])
    assert infos["_infra_error"].tolist() == [True, False]
    assert rewards.tolist() == [0.0, 0.0]
    _, _, terminated, truncated, infos = vector.step((STAY, STAY))
    assert "infra_error" not in infos
    assert not (terminated | truncated).any()
    vector.close()

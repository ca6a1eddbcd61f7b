"""Sessions without barriers: a fault reaches its session only, and browsers are replaced beneath them."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing

import pytest
import pytest_asyncio
from small_site import ORIGIN

from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import BrowserPool, PoolOptions
from stillweb.env.vector.rollout import Outcome, RolloutOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import EnvClosed, ForkDiverged, InfraError, ReplayUnreachable, ResetNeeded, UsageError
from stillweb.polling import poll
from stillweb.replay.client import ReplayClient

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = ORIGIN + "/"
ADA = Evaluation(EvalKind.JS, "document.getElementById('name').value == 'Ada'")
NAMED = Task("named", "Say Ada", HOME, evaluation=ADA)


def bid(observation, name="Name"):
    return next(node.bid for node in observation.nodes if node.name == name and node.bid)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def module_vector(replay):
    async with VectorEnv(replay.url, 3) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def vector(module_vector):
    """The module's vector; no episode runs on into the next test, in any order of tests."""
    yield module_vector
    for i in range(len(module_vector)):
        await module_vector.leave(i)


async def test_vectors_in_turn_share_a_browser_that_its_owner_ends(replay, ca):
    async with BrowserPool(ca.spki_hashes()) as browsers:
        shown = []
        for _ in range(2):
            options = VectorOptions(browsers=browsers)
            async with VectorEnv(replay.url, 1, level="clock", options=options) as vector:
                await vector.reset(0, url=HOME)
                shown += [each["pid"] for each in vector.browsers()]
        assert len(set(shown)) == 1
        assert [each["state"] for each in browsers.browsers()] == ["serving"]
    assert not browsers.browsers()


def entering(texts):
    """Return an agent that enters the text of its task's id and terminates."""

    def agent(task):
        async def policy(observation, info):
            if info["step"]:
                return {"action": "terminate"}
            return {"action": "fill", "bid": bid(observation), "value": texts[task.id]}

        return policy

    return agent


async def test_sessions_share_a_browser_and_wait_for_no_other(vector):
    (one, at), (two, _) = await asyncio.gather(vector.reset(0, task=NAMED), vector.reset(1, task=NAMED))
    assert one.digests == two.digests
    assert (at["session_index"], len(vector.browsers())) == (0, 1)
    await vector.step(0, {"action": "fill", "bid": bid(one), "value": "Ada"})
    *_, reward, terminated, truncated, _ = await vector.step(0, {"action": "terminate"})
    assert (reward, terminated, truncated) == (1.0, True, False)
    with pytest.raises(ResetNeeded):
        await vector.step(0, {"action": "terminate"})
    both = await asyncio.gather(
        *(vector.step(1, {"action": "scroll", "dy": 1}) for _ in range(2)), return_exceptions=True
    )
    assert isinstance(both[1], UsageError)
    assert (await vector.step(1, {"action": "terminate"}))[1] == 0.0


async def test_an_infra_error_is_that_sessions_alone(vector, replay):
    (_, lost), _ = await asyncio.gather(vector.reset(0, task=NAMED), vector.reset(1, task=NAMED))
    async with ReplayClient(replay.url) as client:
        await client.close_session(lost["session"])
    with pytest.raises(InfraError):
        await vector.step(0, {"action": "terminate"})
    assert (await vector.step(1, {"action": "terminate"}))[1] == 0.0
    _, info = await vector.reset(0, task=NAMED)
    assert info["browser"] == lost["browser"]  # which was not to blame


async def test_a_browser_that_is_lost_is_replaced_at_the_next_reset(vector):
    _, before = await vector.reset(0, task=NAMED)
    await vector.reset(1, task=NAMED)
    os.kill(vector.browsers()[0]["pid"], signal.SIGKILL)
    for i in (0, 1):
        with pytest.raises(InfraError):
            await vector.step(i, {"action": "terminate"})
    (observation, info), _ = await asyncio.gather(vector.reset(0, task=NAMED), vector.reset(1, task=NAMED))
    assert info["browser"] == before["browser"] + 1
    await vector.step(0, {"action": "fill", "bid": bid(observation), "value": "Ada"})
    assert (await vector.step(0, {"action": "terminate"}))[1] == 1.0


@pytest.mark.usefixtures("own_browsers")
async def test_new_episodes_begin_on_the_new_browser_and_running_ones_end_on_the_old(replay):
    options = VectorOptions(pool=PoolOptions(episodes=3))
    async with VectorEnv(replay.url, 3, options=options) as vector:
        await vector.reset(0, task=NAMED)
        browsers = []
        for _ in range(3):
            _, info = await vector.reset(1, task=NAMED)
            browsers.append(info["browser"])
            await vector.step(1, {"action": "terminate"})
        assert len(set(browsers)) == 2
        old = vector.browsers()[0]
        assert (old["state"], old["leases"]) == ("draining", 1)
        assert (await vector.step(0, {"action": "terminate"}))[2]
        assert await poll(lambda: len(vector.browsers()) == 1, timeout=30)
        with pytest.raises(ResetNeeded):
            await vector.step(0, {"action": "terminate"})


async def test_a_session_forks_into_others(vector):
    observation, _ = await vector.reset(0, task=NAMED, seed=3)
    await vector.step(0, {"action": "fill", "bid": bid(observation), "value": "Ada"})
    await vector.fork(0, [1, 2])
    ends = await asyncio.gather(*(vector.step(i, {"action": "terminate"}) for i in range(3)))
    assert [end[1] for end in ends] == [1.0] * 3
    assert {end[4]["seed"] for end in ends} == {3}
    for into in ([0], [1, 1]):
        with pytest.raises(UsageError, match="each named once"):
            await vector.fork(0, into)


async def test_a_fork_that_diverges_leaves_no_episode(vector):
    await vector.reset(0, task=NAMED)
    past = vector._slots[0].env.past
    past.steps[0] = type(past.steps[0])(None, {**past.steps[0].seen, "axtree": "other"})
    with pytest.raises(ForkDiverged):
        await vector.fork(0, [1])
    with pytest.raises(ResetNeeded, match="has no episode"):
        await vector.step(1, {"action": "terminate"})


async def test_a_rollout_yields_every_episode_with_its_outcome(vector):
    texts = {f"t{n}": "Ada" if n % 2 else "Bob" for n in range(5)} | {"raises": "Ada"}
    tasks = [Task(name, "", HOME, evaluation=ADA) for name in texts]
    tasks.append(Task("absent", "", ORIGIN + "/absent", evaluation=ADA))
    del texts["raises"]  # so that the agent does
    found = {each.task.id: each async for each in vector.rollout(entering(texts), tasks)}
    assert {name: found[name].reward for name in texts} == {
        name: float(text == "Ada") for name, text in texts.items()
    }
    assert {found[name].outcome for name in texts} == {Outcome.OK}
    assert [played.status for played in found["t1"].steps] == ["ok", "ok"]
    assert found["raises"].outcome is Outcome.AGENT_ERROR
    assert found["raises"].errors == ("KeyError: 'raises'",)
    assert found["absent"].outcome is Outcome.TASK_ERROR
    assert {found["raises"].reward, found["absent"].reward} == {None}


@pytest.mark.usefixtures("own_browsers")
async def test_a_rollout_outlives_its_browser(replay):
    killed = []

    def agent(task):
        policy = entering({task.id: "Ada"})(task)

        async def killing(observation, info):
            if task.id in ("t1", "always") and (task.id not in killed or task.id == "always"):
                killed.append(task.id)
                os.kill(vector.browsers()[-1]["pid"], signal.SIGKILL)
            return await policy(observation, info)

        return killing

    tasks = [Task(name, "", HOME, evaluation=ADA, seed=9) for name in ("t0", "t1", "t2", "always", "t3")]
    async with VectorEnv(replay.url, 1) as vector:
        options = RolloutOptions(attempts=2)
        found = {each.task.id: each async for each in vector.rollout(agent, tasks, options)}
    assert {name: (each.outcome.value, each.reward, each.attempts) for name, each in found.items()} == {
        "t0": ("ok", 1.0, 1),
        "t1": ("ok", 1.0, 2),
        "t2": ("ok", 1.0, 1),
        "always": ("infra_error", None, 2),
        "t3": ("ok", 1.0, 1),
    }
    assert len(found["t1"].errors) == 1
    assert found["t1"].start == found["t0"].start  # the same seed again
    assert [session["id"] for session in await replay.sessions()] == ["default"]


async def test_who_leaves_a_rollout_leaves_nothing_running(vector, replay):
    tasks = [Task(f"t{n}", "", HOME, evaluation=ADA) for n in range(50)]
    agent = entering({task.id: "" for task in tasks})
    async with aclosing(vector.rollout(agent, tasks)) as episodes:
        async for _ in episodes:
            break
    assert [session["id"] for session in await replay.sessions()] == ["default"]


async def test_no_server_is_ours_in_a_reset_and_typed_at_the_start():
    with pytest.raises(ReplayUnreachable):
        await VectorEnv("http://127.0.0.1:9", 1).start()
    async with ReplayClient("http://127.0.0.1:9"):
        vector = VectorEnv("http://127.0.0.1:9", 1)
        with pytest.raises(InfraError):
            await vector.reset(0, url=HOME)
        await vector.close()
        with pytest.raises(EnvClosed):
            await vector.reset(0, url=HOME)
    with pytest.raises(UsageError):
        VectorEnv("http://127.0.0.1:9", 0)

"""A fork starts in the original's state and continues separately; a past that differs is an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from small_site import ORIGIN

from stillweb.env.env import Env
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.fork import retrace
from stillweb.errors import ForkDiverged, UsageError

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = ORIGIN + "/"
NAMED = Task(
    "named",
    "Say Ada",
    HOME,
    evaluation=Evaluation(EvalKind.JS, "document.getElementById('name').value == 'Ada'"),
)


def bid(observation, name):
    return next(node.bid for node in observation.nodes if node.name == name and node.bid)


async def test_forks_stand_where_the_original_stands_and_go_on_apart(replay, browser):
    async with Env(replay.url, browser=browser, observe=("axtree", "html")) as env:
        seen, _ = await env.reset(task=NAMED, seed=11)
        name = bid(seen, "Name")
        there, *_ = await env.step({"action": "fill", "bid": name, "value": "Ad"})
        forks = await env.fork(3)
        # Each gets another action next, and so another score. The original is not affected.
        texts = ["Ada", "Bob", "Ada"]
        filled = await asyncio.gather(
            *(
                fork.step({"action": "fill", "bid": name, "value": text})
                for fork, text in zip(forks, texts, strict=True)
            )
        )
        assert [each[4]["action"]["error"] for each in filled] == [""] * 3
        ends = await asyncio.gather(*(fork.step({"action": "terminate"}) for fork in forks))
        still, *_ = await env.step({"action": "press", "key": "Shift"})
        assert [end[1] for end in ends] == [1.0, 0.0, 1.0]
        assert {end[4]["seed"] for end in ends} == {11}
        assert len({end[4]["session"] for end in ends}) == 3
        assert still.digests["html"] == there.digests["html"]
        for fork in forks:
            await fork.close()
        assert (await env.step({"action": "terminate"}))[1] == 0.0


async def test_a_past_that_does_not_come_again_is_reported_by_step_kind_and_digests(env, replay, browser):
    await env.reset(url=HOME)
    await env.step({"action": "goto", "url": ORIGIN + "/second"})
    past = env.past
    step = past.steps[1]
    past.steps[1] = replace(step, seen={**step.seen, "axtree": "0" * 64})
    sessions = len(await replay.sessions())
    with pytest.raises(ForkDiverged) as raised:
        await env.fork(2)
    assert (raised.value.step, raised.value.kind, raised.value.expected) == (1, "axtree", "0" * 64)
    assert raised.value.found == step.seen["axtree"]
    assert (len(await replay.sessions()), len(browser.contexts)) == (sessions, 1)  # none is left behind


async def test_another_seed_is_another_past(env, replay, browser):
    # The page prints Math.random: a prefix under another seed must not pass for the same.
    await env.reset(url=HOME, seed=1)
    async with Env(replay.url, browser=browser) as other:
        with pytest.raises(ForkDiverged, match="after step 0 axtree"):
            await retrace(other, replace(env.past, seed=2))


async def test_what_cannot_be_forked_says_so(env, replay, browser):
    with pytest.raises(UsageError, match="no running episode"):
        await env.fork(2)
    await env.reset(url=HOME)
    await env.step({"action": "terminate"})
    with pytest.raises(UsageError, match="no running episode"):
        await env.fork(2)
    async with Env(replay.url, browser=browser, observe=()) as blind:
        await blind.reset(url=HOME)
        with pytest.raises(UsageError, match="observes nothing"):
            await blind.fork(2)

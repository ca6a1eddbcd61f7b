"""A prefetched start is the same episode, for an equal reset alone, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from small_site import ORIGIN, RECORDED, build

from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env, EnvOptions
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.trace import Trace, run_trace
from stillweb.env.vector.pool import BrowserProcess
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import EnvClosed, ResetNeeded, TaskError, UsageError
from stillweb.model import Exchange, Request, Response
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HOME = ORIGIN + "/"
SECOND = ORIGIN + "/second"
PREFETCH = EnvOptions(prefetch=1)
SEEN = ("axtree", "dom", "screenshot")
TRACES = Path(__file__).parents[2] / "bench" / "traces"


@pytest.fixture(scope="module")
def exact():
    return True


@pytest_asyncio.fixture(loop_scope="session")
async def env(replay, browser):
    async with Env(replay.url, level="exact", observe=SEEN, browser=browser, options=PREFETCH) as opened:
        yield opened
    await assert_nothing_is_left(replay, browser)


async def assert_nothing_is_left(replay, browser):
    async with ReplayClient(replay.url) as client:
        assert [session["id"] for session in await client.sessions()] == ["default"]
    assert browser.contexts == []


async def ready(env):
    async def is_ready():
        return bool(env.prefetcher.ready)

    assert await poll(is_ready, timeout=60, interval=0.02)


async def sessions(replay):
    async with ReplayClient(replay.url) as client:
        return [session["id"] for session in await client.sessions()]


WHEEL_FLAG = "a page changes in each frame while it scrolls"


def stable_info(info):
    """Return an info without identifiers and real times."""
    settle = {name: value for name, value in info["settle"].items() if name != "waited"}
    # Whether a wheel's last scroll event comes a frame later depends on the machine; the flag says so.
    flags = [each for each in info["determinism"]["flags"] if each != WHEEL_FLAG]
    determinism = {**info["determinism"], "flags": flags}
    rest = {name: info[name] for name in info if name not in ("episode", "session")}
    return rest | {"settle": settle, "determinism": determinism}


@pytest.mark.shared
@pytest.mark.parametrize("name", ["svelte-gantt", "synthetic-train"])
async def test_on_real_pages_a_prepared_episode_is_the_one_that_was_not_prepared(warc_bench, browser, name):
    trace = Trace.load(TRACES / name / f"{name}-1.jsonl")
    trace = replace(trace, actions=trace.actions[:3])
    collection = name.replace("-", "_")
    runs = []
    for options in (EnvOptions(), PREFETCH):
        async with Env(
            warc_bench.url, collection, level="exact", observe=SEEN, browser=browser, options=options
        ) as env:
            runs.append(await run_trace(env, trace, keep=True))
            if options.prefetch:
                await ready(env)
                runs.append(await run_trace(env, trace, keep=True))
                assert env.prefetcher.counts.taken == 1
    plain, beside, prepared = runs
    assert plain.failure is beside.failure is prepared.failure is None
    assert len(plain.steps) == 4
    for kind in SEEN:
        assert plain.stream(kind) == beside.stream(kind) == prepared.stream(kind)
    assert [stable_info(step.info) for step in plain.steps] == [
        stable_info(step.info) for step in prepared.steps
    ]


async def test_a_reset_takes_what_was_prepared_for_it_and_the_next_one_is_prepared(env, replay):
    episodes, seen = [], []
    for _ in range(3):
        observation, info = await env.reset(url=HOME)
        episodes.append(info["episode"])
        seen.append((observation.digests, stable_info(info)))
        waiting = set(await sessions(replay)) - {"default", info["session"]}
        await ready(env)
    assert env.prefetcher.counts.taken == 2
    assert len(set(episodes)) == 3
    assert seen[0] == seen[1] == seen[2]
    assert len(waiting) <= 2  # the one left, and the one prepared


async def test_a_reset_waits_for_what_is_on_its_way(env):
    first, _ = await env.reset(url=HOME)
    again, _ = await env.reset(url=HOME)
    assert again.digests == first.digests
    assert env.prefetcher.counts.taken == 1


@pytest.mark.parametrize(
    "reset",
    [{"url": SECOND}, {"url": HOME, "seed": 6}, {"task": Task("home", "Look", HOME)}],
    ids=["url", "seed", "task"],
)
async def test_what_was_prepared_for_another_reset_is_closed(env, replay, browser, reset):
    await env.reset(url=HOME)
    await ready(env)
    observation, info = await env.reset(**reset)
    assert (env.prefetcher.counts.taken, env.prefetcher.counts.left) == (0, 1)
    async with Env(replay.url, level="exact", observe=SEEN, browser=browser) as plain:
        wanted, other = await plain.reset(**reset)
    assert observation.digests == wanted.digests
    assert stable_info(info) == stable_info(other)


async def test_a_task_that_is_equal_finds_its_start(env):
    await env.reset(task=Task("home", "Look", HOME), seed=3)
    await ready(env)
    _, info = await env.reset(task=Task("home", "Look", HOME), seed=3)
    assert (env.prefetcher.counts.taken, info["goal"], info["seed"]) == (1, "Look", 3)


async def test_who_knows_the_next_start_says_so(env):
    with pytest.raises(ResetNeeded):
        env.prepare(url=SECOND)
    await env.reset(url=HOME)
    env.prepare(url=SECOND)
    await ready(env)
    observation, _ = await env.reset(url=SECOND)
    assert (env.prefetcher.counts.taken, observation.url) == (1, SECOND)


async def test_what_cannot_be_prepared_is_reported_by_the_reset_that_asks_for_it(env):
    await env.reset(url=HOME)
    env.prepare(url=ORIGIN + "/absent")

    async def failed():
        return env.prefetcher.counts.failed == 1

    assert await poll(failed, timeout=30, interval=0.02)
    with pytest.raises(TaskError, match="does not hold the start page"):
        await env.reset(url=ORIGIN + "/absent")
    assert (await env.reset(url=HOME))[0].url == HOME


async def test_a_prepared_start_whose_session_was_closed_is_discarded(env, replay):
    _, info = await env.reset(url=HOME)
    await ready(env)
    (prepared,) = set(await sessions(replay)) - {"default", info["session"]}
    async with ReplayClient(replay.url) as client:
        await client.close_session(prepared)
    observation, info = await env.reset(url=HOME)
    assert (env.prefetcher.counts.taken, env.prefetcher.counts.discarded) == (0, 1)
    assert (observation.url, info["traffic"]["misses"]) == (HOME, 0)


async def test_a_prepared_page_that_crashed_is_discarded(env, browser):
    await env.reset(url=HOME)
    await ready(env)
    page = browser.contexts[-1].pages[0]
    session = await browser.contexts[-1].new_cdp_session(page)
    async with asyncio.timeout(30):
        crashed = asyncio.ensure_future(page.wait_for_event("crash"))
        crash = asyncio.ensure_future(session.send("Page.crash"))
        await crashed
        crash.cancel()
    observation, _ = await env.reset(url=HOME)
    assert (env.prefetcher.counts.discarded, observation.url) == (1, HOME)


async def test_a_newer_pack_spoils_what_was_prepared(tmp_path, ca, browser):
    collection = build(tmp_path)
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
        Env(server.url, level="exact", browser=browser, options=PREFETCH) as env,
    ):
        _, before = await env.reset(url=HOME)
        await ready(env)
        body = b"<!doctype html><title>Third</title>"
        headers = (("Content-Type", "text/html"), ("Content-Length", str(len(body))))
        with CollectionWriter(collection) as writer:
            answer = Response(200, "OK", headers, body)
            writer.write(Exchange(Request("GET", ORIGIN + "/third"), answer, RECORDED))
        seal(collection)
        assert (await client.reload("small"))["newer"]
        _, after = await env.reset(url=HOME)
        assert (env.prefetcher.counts.taken, env.prefetcher.counts.discarded) == (0, 1)
        assert before["environment_id"] != after["environment_id"]


async def test_closing_ends_what_is_ready_and_what_is_on_its_way(replay, browser):
    for wait in (True, False):
        env = Env(replay.url, level="exact", browser=browser, options=EnvOptions(prefetch=2))
        await env.reset(url=HOME)
        if wait:
            await ready(env)
        await env.close()
        await assert_nothing_is_left(replay, browser)
        with pytest.raises(EnvClosed):
            await env.reset(url=HOME)


async def test_a_killed_browser_takes_what_was_prepared_with_it(replay):
    async with Env(replay.url, level="exact", options=PREFETCH) as env:
        await env.reset(url=HOME)
        await ready(env)
        process = await BrowserProcess.of(env._browser)
        os.kill(process.browser.pid, signal.SIGKILL)

        async def gone():
            return not env._browser.is_connected()

        assert await poll(gone, timeout=30, interval=0.02)
        observation, info = await env.reset(url=HOME)
        assert observation.url == HOME
        assert env.prefetcher.counts.taken == 0
        await ready(env)
        assert len(await sessions(replay)) == 3  # the default one, the episode's, the prepared one's
        assert info["session"] in await sessions(replay)
        await process.release()
    assert await sessions(replay) == ["default"]


async def test_what_no_one_took_was_no_episode(replay, browser, tmp_path):
    options = EnvOptions(prefetch=1, trajectories=tmp_path)
    async with Env(replay.url, level="exact", browser=browser, options=options) as env:
        episodes = []
        for _ in range(2):
            episodes.append((await env.reset(url=HOME))[1]["episode"])
            await ready(env)
    written = [path.parent.name for path in tmp_path.glob("*/trajectory.jsonl")]
    assert sorted(written) == sorted(episodes)


async def test_sessions_of_a_vector_have_starts_of_their_own(replay):
    options = VectorOptions(env=PREFETCH)
    async with VectorEnv(replay.url, 2, level="exact", options=options) as vector:

        async def round_of(url):
            starts = await asyncio.gather(*(vector.reset(i, url=url) for i in range(2)))
            return {observation.digests["axtree"] for observation, _ in starts}

        first = await round_of(HOME)
        await asyncio.gather(*(ready(seat.env) for seat in vector._slots))
        assert await round_of(HOME) == first
        assert len(first) == 1
        vector.prepare(1, url=SECOND)
        await ready(vector._slots[1].env)
        observation, _ = await vector.reset(1, url=SECOND)
        assert observation.url == SECOND
        assert [seat.env.prefetcher.counts.taken for seat in vector._slots] == [1, 2]
    assert await sessions(replay) == ["default"]


async def test_only_where_a_page_stands_still(replay, browser):
    with pytest.raises(UsageError, match="real time passes"):
        Env(replay.url, level="clock", options=PREFETCH)
    with pytest.raises(UsageError, match="negative"):
        Env(replay.url, level="exact", options=EnvOptions(prefetch=-1))
    async with Env(replay.url, level="exact", browser=browser) as env:
        await env.reset(url=HOME)
        with pytest.raises(UsageError, match="prefetching is off") as raised:
            env.prepare(url=HOME)
        assert "prefetch=1" in raised.value.hint
        assert len(await env.fork(1)) == 1

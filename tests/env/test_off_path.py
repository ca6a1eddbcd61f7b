"""Off-path modes: navigations to documents that are not recorded, of every kind, at every level."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from small_site import ORIGIN

from stillweb.browser.launch import launch
from stillweb.browser.state import state_of
from stillweb.env.env import Env, EnvOptions
from stillweb.env.episode.offpath import off_path_mode
from stillweb.env.tasks.evaluators import UrlEvaluator
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.trajectory import Trajectory, trajectories_in
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import UsageError
from stillweb.http.control import ReplayInfo

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FORM = ORIGIN + "/form"
ABSENT = f"GET {ORIGIN}/absent"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browsers(ca):
    async with launch(spki=ca.spki_hashes(), exact=True) as exact, launch(spki=ca.spki_hashes()) as plain:
        yield {"exact": exact, "clock": plain, "network": plain}


@pytest.fixture(params=["exact", "clock", "network"])
def level(request):
    return request.param


@pytest_asyncio.fixture(loop_scope="session")
async def env(replay, browsers, level):
    async with Env(
        replay.url, browser=browsers[level], level=level, observe=("axtree", "elements")
    ) as opened:
        yield opened


def bid(observation, role, name):
    return next(node.bid for node in observation.nodes if node.role == role and node.name == name)


WAYS = {
    "a link": ("link", "Lost", f"GET {ORIGIN}/lost"),
    "a script": ("button", "Move", ABSENT),
    "a link to a new tab": ("link", "Absent popup", ABSENT),
    "a script that opens a window": ("button", "Open", ABSENT),
    "a form": ("button", "Find", f"GET {ORIGIN}/find?q="),
    "a form by POST": ("button", "Send", f"POST {ORIGIN}/notes"),
    "a link into a frame": ("link", "Absent inner", ABSENT),
    "a link in a frame": ("link", "Absent within", ABSENT),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_navigation_that_misses_leaves_the_page_as_it_is(env, way):
    role, name, missed = WAYS[way]
    before, info = await env.reset(url=FORM)
    assert info["off_path"] == {"mode": "stay", "cancelled": [], "total": 0, "masked": []}
    action = {"action": "click", "bid": bid(before, role, name)}
    after, reward, terminated, truncated, info = await env.step(action)
    assert info["action"] == {"status": "not_recorded", "error": f"not recorded: {missed}"}
    assert after.last_action_error == f"not recorded: {missed}"
    assert info["off_path"] == {"mode": "stay", "cancelled": [missed], "total": 1, "masked": []}
    assert info["traffic"]["misses"] == 1
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (after.url, len(after.tabs), after.tabs[0].active) == (FORM, 1, True)
    assert "Form page" in after.axtree
    assert "Inner page" in after.axtree
    # The page was never left, and the next navigation works.
    after, _, _, _, info = await env.step({"action": "click", "bid": bid(after, "link", "Second")})
    assert (after.url, info["action"]["status"], info["off_path"]["total"]) == (ORIGIN + "/second", "ok", 1)
    after, _, _, _, info = await env.step({"action": "back"})
    assert (after.url, info["action"]["status"]) == (FORM, "ok")
    assert "left 1" in after.axtree


async def test_no_step_waits_for_a_popup_without_a_document(replay, browsers):
    """Playwright never reports such a popup: each rest would wait 3 s for it, in every later step."""
    async with Env(replay.url, browser=browsers["exact"], level="exact") as env:
        before, _ = await env.reset(url=FORM)
        await env.step({"action": "click", "bid": bid(before, "link", "Absent popup")})
        context = browsers["exact"].contexts[-1]
        assert state_of(context).exact.pages == len(context.pages) == 1


async def test_addresses_and_tabs_that_an_agent_opens(env):
    await env.reset(url=FORM)
    for action in (
        {"action": "goto", "url": ORIGIN + "/absent"},
        {"action": "new_tab", "url": ORIGIN + "/absent"},
    ):
        after, _, _, _, info = await env.step(action)
        assert info["action"]["status"] == "not_recorded"
        assert (after.url, len(after.tabs)) == (FORM, 1)
    after, _, _, _, info = await env.step({"action": "goto", "url": "https://elsewhere.test/"})
    assert (after.url, info["off_path"]["cancelled"]) == (FORM, ["GET https://elsewhere.test/"])
    await env.step({"action": "goto", "url": ORIGIN + "/second"})
    await env.step({"action": "goto", "url": ORIGIN + "/absent"})
    after, _, _, _, info = await env.step({"action": "back"})
    assert (after.url, info["action"]["status"], info["off_path"]["total"]) == (FORM, "ok", 4)


async def test_what_is_no_navigation_is_as_before(env):
    before, _ = await env.reset(url=ORIGIN + "/")
    after, _, _, _, info = await env.step({"action": "click", "bid": bid(before, "button", "Fetch")})
    assert (info["action"]["status"], info["off_path"]["cancelled"]) == ("ok", [])
    assert info["traffic"]["missed"] == [f"GET {ORIGIN}/absent.json"]
    after, _, _, _, info = await env.step({"action": "click", "bid": bid(after, "link", "Popup")})
    assert (len(after.tabs), after.url, info["action"]["status"]) == (2, ORIGIN + "/second", "ok")
    await env.reset(url=FORM)
    part = await env.observe("axtree")
    after, _, _, _, info = await env.step({"action": "click", "bid": bid(part, "link", "Part")})
    assert (after.url, info["action"]["status"]) == (FORM + "#part", "ok")


async def test_links_that_are_known_to_miss_are_marked(replay, browsers, level):
    async with Env(
        replay.url, browser=browsers[level], level=level, observe=("axtree", "elements"), off_path="mask"
    ) as env:
        observation, info = await env.reset(url=FORM)
        names = {"Absent popup", "Lost", "Absent inner", "Absent within"}
        masked = {bid(observation, "link", name) for name in names}
        assert (info["off_path"]["mode"], set(info["off_path"]["masked"])) == ("mask", masked)
        assert {each.name for each in observation.elements if each.unrecorded} == names
        lines = [line for line in observation.axtree.split("\n") if "unrecorded" in line]
        assert len(lines) == 4
        after, _, _, _, info = await env.step({"action": "click", "bid": bid(observation, "link", "Lost")})
        assert (after.url, info["action"]["status"]) == (FORM, "not_recorded")


async def test_an_episode_can_end_where_the_recording_does(replay, browsers, level, tmp_path):
    options = EnvOptions(off_path="terminate", trajectories=tmp_path)
    task = Task("t", "g", FORM, evaluation=UrlEvaluator(exact=(FORM,)))
    async with Env(replay.url, browser=browsers[level], level=level, options=options) as env:
        before, _ = await env.reset(task=task)
        after, reward, terminated, truncated, info = await env.step(
            {"action": "click", "bid": bid(before, "link", "Lost")}
        )
        assert (reward, terminated, truncated, after.url) == (0.0, False, True, FORM)
        assert info["off_path"]["cancelled"] == [f"GET {ORIGIN}/lost"]
    (path,) = trajectories_in(tmp_path)
    written = Trajectory.load(path)
    assert (written.header["off_path"], written.end["end"]) == ("terminate", "truncated")
    assert written.steps[1]["off_path"]["cancelled"] == [f"GET {ORIGIN}/lost"]


async def test_follow_shows_the_empty_page(replay, browsers, level):
    async with Env(replay.url, browser=browsers[level], level=level, off_path="follow") as env:
        before, _ = await env.reset(url=FORM)
        after, _, _, _, info = await env.step({"action": "click", "bid": bid(before, "link", "Lost")})
        assert (after.url, info["action"]["status"]) == (ORIGIN + "/lost", "ok")
        assert info["off_path"] == {"mode": "follow", "cancelled": [], "total": 0, "masked": []}


async def test_episodes_with_cancelled_navigations_are_equal_and_can_be_forked(replay, browsers):
    options = VectorOptions(env=EnvOptions(off_path="mask"))
    ways = ("Lost", "Absent popup", "Absent within")

    async def play(vector, i):
        observation, _ = await vector.reset(i, url=FORM)
        digests = [dict(observation.digests)]
        for name in ways:
            action = {"action": "click", "bid": bid(observation, "link", name)}
            observation, _, _, _, info = await vector.step(i, action)
            digests.append(dict(observation.digests))
            assert info["off_path"]["cancelled"]
        return digests

    async with VectorEnv(
        replay.url, 4, level="exact", observe=("axtree", "screenshot"), options=options
    ) as vector:
        one, *others = await asyncio.gather(*(play(vector, i) for i in range(3)))
        assert others == [one, one]
        await vector.fork(0, [3])


async def test_a_server_that_cannot_cancel_navigations():
    able, unable = (
        ReplayInfo("native", {}, (), {"ledger": True, "cancel_navigations": able}) for able in (True, False)
    )
    assert [off_path_mode(chosen, able) for chosen in (None, "mask", "follow")] == ["stay", "mask", "follow"]
    assert [off_path_mode(chosen, unable) for chosen in (None, "follow")] == ["follow", "follow"]
    with pytest.raises(UsageError, match="off_path='stay' is not supported by this native server"):
        off_path_mode("stay", unable)
    with pytest.raises(UsageError, match="no off_path 'leave'"):
        EnvOptions(off_path="leave")

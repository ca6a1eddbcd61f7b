"""MiniWoB++'s own pages, recorded and played: problem by seed, goal, and the page's own reward and end."""

from __future__ import annotations

import mimetypes
from pathlib import Path

import pytest
import pytest_asyncio

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env, EnvOptions
from stillweb.env.tasks.miniwob import miniwob_tasks
from stillweb.env.trajectories.rescore import rescore
from stillweb.env.trajectories.trajectory import Trajectory, trajectories_in
from stillweb.model import Exchange, Page, Request, Response
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [
    pytest.mark.browser,
    pytest.mark.sites,
    pytest.mark.asyncio(loop_scope="session"),
]

SITE = Path("~/.cache/stillweb-sites/games/miniwob/html").expanduser()
ORIGIN = "https://games.test"
TIME = "20260101000000"
GAMES = ("click-test", "enter-text")
SHARED = (
    "core/core.js",
    "core/core.css",
    "core/d3.v3.min.js",
    "common/ui_utils.js",
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def games(tmp_path_factory, ca):
    """A replay server with some of the published pages; skips where they are not installed."""
    if not SITE.is_dir():
        pytest.skip(f"MiniWoB++ is not at {SITE} (sites.py up games)")
    collection = Collection.create(tmp_path_factory.mktemp("games"), "games")
    paths = [
        *(f"miniwob/{game}.html" for game in GAMES),
        *SHARED,
    ]
    with CollectionWriter(collection) as writer:
        for path in paths:
            mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
            response = Response(200, "OK", (("Content-Type", mime),), (SITE / path).read_bytes())
            writer.write(Exchange(Request("GET", f"{ORIGIN}/{path}"), response, TIME))
    collection.write_pages([Page(f"{ORIGIN}/miniwob/{game}.html", TIME) for game in GAMES])
    collection.write_manifest(Manifest(name="games", recorded_at=TIME, seed=5))
    seal(collection)
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        tasks = miniwob_tasks([page.url for page in collection.each_page()], collection="games", seed=1)
        yield server.url, {task.id.removeprefix("miniwob."): task for task in tasks}


@pytest_asyncio.fixture(loop_scope="session")
async def env(games, browser, tmp_path):
    options = EnvOptions(trajectories=tmp_path, har="")
    async with Env(games[0], browser=browser, options=options) as opened:
        yield opened


def bid(observation, role, name):
    return next(node.bid for node in observation.nodes if node.role == role and node.name == name)


async def test_every_page_is_a_task(games):
    assert set(games[1]) == set(GAMES)


async def test_the_page_ends_the_episode_and_gives_its_own_reward(games, env, tmp_path):
    observation, info = await env.reset(task=games[1]["click-test"])
    assert info["goal"] == "Click the button."
    assert info["settle"]["settled"]
    _, reward, terminated, truncated, info = await env.step(
        {"action": "click", "bid": bid(observation, "button", "Click Me!")}
    )
    assert (terminated, truncated) == (True, False)
    assert 0.5 < reward <= 1.0  # less what the time took, of the page's own clock
    assert '"raw":1' in info["score"]["reasons"][0]
    row = rescore(Trajectory.load(next(trajectories_in(tmp_path))))
    assert (row.outcome, row.rescored, row.stored) == ("same", reward, ("site",))


async def test_what_is_wrong_is_what_the_page_says_it_is(games, env):
    observation, _ = await env.reset(task=games[1]["enter-text"])
    _, reward, terminated, _, _ = await env.step(
        {"action": "click", "bid": bid(observation, "button", "Submit")}
    )
    assert (reward, terminated) == (-1.0, True)


async def test_untouched_it_is_worth_nothing_and_its_time_runs_out(games, env):
    await env.reset(task=games[1]["enter-text"])
    assert (await env.step({"action": "terminate"}))[1:3] == (0.0, True)
    await env.reset(task=games[1]["enter-text"])
    _, reward, terminated, _, info = await env.step({"action": "wait", "ms": 11_000})
    assert (reward, terminated) == (-1.0, True)
    assert "timed out" in info["score"]["reasons"][0]


async def test_the_seed_makes_the_problem(games, env):
    goals = [(await env.reset(task=games[1]["enter-text"], seed=seed))[1]["goal"] for seed in (3, 3, 4)]
    assert goals[0] == goals[1] != goals[2]

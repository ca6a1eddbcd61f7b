"""Answers to unrecorded requests that an episode allows: the env's choice, the task's, the server's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env, EnvOptions
from stillweb.env.episode.start import unrecorded_of
from stillweb.env.tasks.native import native_tasks
from stillweb.env.tasks.task import Task, task_from_dict, task_to_dict
from stillweb.env.trajectories.trajectory import Trajectory, trajectories_in
from stillweb.http.control import ReplayInfo
from stillweb.matching.resolver import UnrecordedAnswers
from stillweb.model import Exchange, Request, Response

HTML = (("Content-Type", "text/html"),)
FORM_TYPE = (("Content-Type", "application/x-www-form-urlencoded"),)
START = "https://notes.test/"
FORM = b"<!doctype html><form method=post action=/add>"
FORM += b"<input name=note aria-label=Note><button>Add</button></form>"
TASK = Task("note", "Add a note", START)
ACCEPT = UnrecordedAnswers(on_write="accept")
BOTH = UnrecordedAnswers(derived=True, on_write="accept")


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    made = Collection.create(tmp_path_factory.mktemp("collections"), "notes")
    with CollectionWriter(made) as writer:
        for second, (request, body) in enumerate(
            (
                (Request("GET", START), FORM),
                (Request("POST", f"{START}add", FORM_TYPE, b"note=recorded"), b"<h1>Added recorded</h1>"),
            )
        ):
            writer.write(Exchange(request, Response(200, "OK", HTML, body), f"202405060708{second:02}"))
    seal(made)
    return made


@pytest.mark.parametrize(
    ("options", "task", "features", "requested", "total"),
    [
        (UnrecordedAnswers(), None, {}, UnrecordedAnswers(), UnrecordedAnswers()),
        (ACCEPT, None, {}, ACCEPT, ACCEPT),
        (UnrecordedAnswers(), "accept", {}, ACCEPT, ACCEPT),
        (ACCEPT, "miss", {}, ACCEPT, ACCEPT),
        (UnrecordedAnswers(derived=True), "accept", {}, BOTH, BOTH),
        (UnrecordedAnswers(), None, {"derived": True, "accept": True}, UnrecordedAnswers(), BOTH),
        (ACCEPT, None, {"derived": True}, ACCEPT, BOTH),
    ],
)
def test_an_episode_allows_what_env_task_or_server_allow(options, task, features, requested, total):
    info = ReplayInfo("native", {}, (), features)
    found = unrecorded_of(EnvOptions(unrecorded=options), task and replace(TASK, on_write=task), info)
    assert (found.requested, found.total) == (requested, total)
    assert bool(found.total) == (total != UnrecordedAnswers())


def test_a_task_file_may_accept_writes():
    text = "stillweb_tasks: 1\ntasks: [{id: a, goal: g, start_url: 'https://a.test/', on_write: accept}]"
    (task,) = native_tasks(text, source="f")
    assert task.on_write == "accept"
    assert task_from_dict(task_to_dict(task), "f").on_write == "accept"
    assert "on_write" not in task_to_dict(TASK)


async def send(env, **start):
    observation, _ = await env.reset(**start)
    bids = {node.name: node.bid for node in observation.nodes}
    await env.step({"action": "type", "bid": bids["Note"], "text": "own"})
    return await env.step({"action": "click", "bid": bids["Add"]})


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_the_choice_is_stamped_and_guesses_are_counted(replay, browser, tmp_path):
    options = EnvOptions(trajectories=tmp_path)
    async with Env(replay.url, browser=browser, options=options) as env:
        _, _, _, _, info = await send(env, url=START)
        assert info["action"]["status"] == "not_recorded"
        assert "unrecorded" not in info
        observation, _, _, _, info = await send(env, task=replace(TASK, on_write="accept"))
        assert "Added recorded" in observation.axtree
    async with Env(replay.url, browser=browser, on_write="accept", derived=True, options=options) as env:
        observation, _, _, _, info = await send(env, url=START)
    assert "Added recorded" in observation.axtree
    assert (info["traffic"]["guesses"], info["traffic"]["misses"]) == (1, 0)
    assert info["unrecorded"] == {"derived": True, "on_write": "accept"}
    stamps = [Trajectory.load(each).header.get("unrecorded") for each in trajectories_in(tmp_path)]
    wanted = [None, {"derived": False, "on_write": "accept"}, {"derived": True, "on_write": "accept"}]
    assert sorted(map(str, stamps)) == sorted(map(str, wanted))

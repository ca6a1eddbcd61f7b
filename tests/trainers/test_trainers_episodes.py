"""Adapters' own half: client, places, tools, workflows; on a real rollout server, with WARC-Bench's tasks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_actor import Actor
from played_tasks import CLICKS, COLLECTION, FILLS, servers

from stillweb.env.tasks.task import Task, task_to_dict
from stillweb.env.vector.rollout import Outcome
from stillweb.errors import InfraError, ResetNeeded, TaskError, UsageError
from stillweb.polling import poll
from stillweb.trainers.areal import StillwebWorkflow, WorkflowOptions
from stillweb.trainers.episodes.client import RolloutClient
from stillweb.trainers.episodes.failures import FailurePolicy
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions
from stillweb.trainers.episodes.turn import Turn, cut

KEY = "open sesame"
live = [pytest.mark.browser, pytest.mark.shared]


@pytest.fixture(scope="module")
def served(shared, tmp_path_factory):
    with servers(shared, tmp_path_factory.mktemp("episodes"), sessions=3, key=KEY) as running:
        yield running


@pytest.fixture
async def client(served):
    async with RolloutClient(served.rollouts, api_key=KEY, retry_seconds=10.0) as opened:
        yield opened


async def solve(lease, task):
    """Play a task to its end; return all turns."""
    actor, turns = Actor(task), [await lease.reset(task_id=task)]
    while not turns[-1].over:
        turns.append(await lease.step(actor.act(turns[-1].observation["axtree"])))
    return turns


def digests(turns):
    return [turn.observation["digests"] for turn in turns]


@asynccontextmanager
async def relay(url):
    """A connection to a server that loses the next answers, a given number, after they were given."""
    host, port = url.removeprefix("http://").split(":")
    state = SimpleNamespace(lose=0, lost=0, url="")
    met = set()

    async def meet(reader, writer):
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        met.add(asyncio.current_task())

        async def up():
            while data := await reader.read(65536):
                up_writer.write(data)
                await up_writer.drain()

        async def down():
            while data := await up_reader.read(65536):
                if state.lose:
                    state.lose -= 1
                    state.lost += 1
                    break
                writer.write(data)
                await writer.drain()

        ways = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, up_writer):
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield state
    for task in met:
        task.cancel()
    await asyncio.gather(*met, return_exceptions=True)


async def end_leases(served):
    """End every lease behind its holder's back; return how many there were."""
    async with httpx.AsyncClient(base_url=served.rollouts, headers={"x-api-key": KEY}) as http:
        sessions = (await http.get("/v1/status")).json()["sessions"]
        held = [each["lease"] for each in sessions if each.get("lease")]
        for lease in held:
            await http.delete(f"/v1/leases/{lease}")
    return len(held)


# --- the client ------------------------------------------------------------------------------------


class TestClient:
    pytestmark = live

    async def test_a_task_is_solved_and_its_lease_given_back(self, served, client):
        async with await client.lease("test") as lease:
            turns = await solve(lease, CLICKS)
        assert (turns[0].reward, turns[-1].reward, turns[-1].terminated) == (None, 1.0, True)
        assert turns[0].goal == served.tasks[CLICKS].goal
        assert turns[-1].info["action"]["status"] == "ok"
        assert await poll(lambda: not served.running.engine.leases.held, timeout=10)

    async def test_what_is_lost_on_its_way_is_requested_again_and_done_once(self, served):
        async with (
            relay(served.rollouts) as way,
            RolloutClient(way.url, api_key=KEY) as client,
            await client.lease("test") as lease,
        ):
            way.lose = 1
            await lease.reset(task_id=CLICKS)
            way.lose = 2
            turn = await lease.step({"action": "scroll", "dy": 10})
            assert turn.info["step"] == 1
            turn = await lease.step({"action": "scroll", "dy": 10})
        assert way.lost == 3
        assert turn.info["step"] == 2

    async def test_a_lease_whose_answer_is_lost_is_not_taken_twice(self, served):
        async with relay(served.rollouts) as way, RolloutClient(way.url, api_key=KEY) as client:
            way.lose = 1
            async with await client.lease("test", beat=False):
                assert len(served.running.engine.leases.held) == 1

    async def test_failures_are_reported_by_whose_they_are(self, served, client):
        async with await client.lease("test", beat=False) as lease:
            with pytest.raises(ResetNeeded):
                await lease.step({"action": "terminate"})
            with pytest.raises(UsageError, match="no task 'nothing'"):
                await lease.reset(task_id="nothing")
            with pytest.raises(TaskError, match="does not hold the start page"):
                await lease.reset(task=Task("t", "g", "https://nowhere.test/", COLLECTION))
            with pytest.raises(UsageError, match="needs one of task, task_id and url"):
                await lease.reset(task_id=CLICKS, url="https://a.test/")
            await end_leases(served)
            with pytest.raises(InfraError, match="lease_over"):
                await lease.reset(task_id=CLICKS)
        async with RolloutClient(served.rollouts, api_key="wrong") as stranger:
            with pytest.raises(UsageError, match="key"):
                await stranger.lease("test")
        async with RolloutClient("http://127.0.0.1:9", retry_seconds=0.1) as alone:
            with pytest.raises(InfraError, match="does not answer"):
                await alone.lease("test")
        with pytest.raises(UsageError, match="not the URL of a rollout server"):
            RolloutClient("127.0.0.1:7000")

    async def test_what_is_held_is_renewed_and_what_falls_silent_ends(self, served, client):
        silent = await client.lease("silent", ttl=0.4, beat=False)
        async with await client.lease("held", ttl=0.4) as held:
            control_api = served.running.engine.leases
            for _ in range(3):  # lives of the silent one
                assert await poll(lambda gone=silent.id: gone not in control_api.held, timeout=10)
                silent = await client.lease("silent", ttl=0.4, beat=False)
            assert held.id in control_api.held
        await silent.release()

    async def test_pictures_are_fetched_by_their_digest_and_stored_within_their_capacity(self, served):
        async with (
            RolloutClient(served.rollouts, api_key=KEY, picture_bytes=1) as client,
            await client.lease("test") as lease,
        ):
            await lease.reset(task_id=CLICKS)
            seen = await lease.observe("screenshot", "som")
            names = [each["sha256"] for each in seen["pictures"].values()]
            bodies = [await lease.picture(name) for name in names]
            assert [hashlib.sha256(body).hexdigest() for body in bodies] == names
            assert list(client._pictures) == names[-1:]
            with pytest.raises(UsageError, match="no picture"):
                await client.picture("0" * 64)

    async def test_many_leases_by_one_request_fail_by_themselves(self, client):
        async with await client.lease("a") as one, await client.lease("b") as two:
            begun = await client.resets([(one, {"task_id": CLICKS}), (two, {"task_id": "nothing"})])
            assert isinstance(begun[0], Turn)
            assert isinstance(begun[1], UsageError)
            end = {"action": "terminate"}
            ended = await client.steps([(one, end), (two, end)])
        assert (ended[0].reward, ended[0].terminated) == (0.0, True)
        assert isinstance(ended[1], ResetNeeded)


# --- sources ----------------------------------------------------------------------------------------


class TestSource:
    pytestmark = live

    def test_an_engine_here_gives_what_a_server_gives(self, served, monkeypatch):
        monkeypatch.setenv("STILLWEB_API_KEY", KEY)
        there = open_source(served.rollouts)
        here = open_source({"proxy": served.replay, "sessions": 1})
        assert open_source({"sessions": 1, "proxy": served.replay}) is here
        played = []
        for source in (there, here):
            lease = source.run(source.lease("test"))
            actor = Actor(CLICKS)
            turns = [source.run(lease.reset(task=task_to_dict(served.tasks[CLICKS])))]
            while not turns[-1].over:
                turns.append(source.run(lease.step(actor.act(turns[-1].observation["axtree"]))))
            seen = source.run(lease.observe("screenshot"))["pictures"]["screenshot"]["sha256"]
            assert hashlib.sha256(source.run(lease.picture(seen))).hexdigest() == seen
            with pytest.raises(ResetNeeded):
                source.run(lease.step({"action": "terminate"}))
            source.run(lease.release())
            played.append((digests(turns), turns[-1].reward, turns[-1].text()))
        assert played[0] == played[1]
        assert played[0][1] == 1.0
        here.close()
        here.close()
        assert open_source({"proxy": served.replay, "sessions": 1}) is not here

    def test_a_full_engine_says_so(self, served):
        source = open_source({"proxy": served.replay, "sessions": 1, "level": "network"})
        lease = source.run(source.lease("test"))
        with pytest.raises(InfraError, match="full"):
            source.run(source.lease("test", wait=0.0))
        source.run(lease.release())
        source.close()

    def test_it_is_one_or_the_other(self):
        for wrong in ({}, {"server": "http://a", "proxy": "http://b"}, {"server": "http://a", "sessions": 2}):
            with pytest.raises(UsageError, match="either a server or a proxy"):
                open_source(wrong)

    @pytest.mark.parametrize(
        ("loads", "extra"),
        [
            ("tool, client, source, start, failures, turn", "[]"),
            ("scoring", "['pydantic']"),  # of tasks, evaluators and request rules
        ],
    )
    def test_adapters_that_run_elsewhere_load_no_browser(self, loads, extra):
        """The environments of trainers have Playwright of another version, or none."""
        script = (
            f"import sys; from stillweb.trainers.episodes import {loads}; "
            "from stillweb.trainers.agents import reply; "
            "from stillweb.env.actions import action; "
            "print([n for n in ('playwright', 'yaml', 'pydantic', 'uvloop', 'orjson') if n in sys.modules])"
        )
        program = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert program.stdout.strip() == extra


# --- tools -----------------------------------------------------------------------------------------


class TestToolPlay:
    pytestmark = live

    @pytest.fixture
    def source(self, served):
        return open_source({"server": served.rollouts, "api_key": KEY})

    async def test_the_first_call_shows_and_the_end_is_scored_once(self, source):
        play, actor = ToolEpisode(source, {"task_id": FILLS}), Actor(FILLS)
        answers = [await source.on_loop(play.call({"action": "click", "bid": "a1"}))]
        assert answers[0].text.startswith("This is the start page. Your call was not carried out")
        while play.outcome is None:
            answers.append(await source.on_loop(play.call(actor.act(answers[-1].text))))
        late = await source.on_loop(play.call({"action": "terminate"}))
        assert [answer.reward for answer in answers] == [0.0, 0.0, 0.0, 1.0]
        assert (late.text, late.reward) == ("The episode is over; nothing was done.", 0.0)
        assert play.fields() == {"stillweb_reward": 1.0, "failure_kind": "", "failure": "", "steps": 3}

    async def test_an_episode_that_is_closed_while_it_opens_holds_no_session(self, source, served):
        play = ToolEpisode(source, {"task_id": FILLS})

        async def close_meanwhile():
            opening = asyncio.ensure_future(play.open())
            await asyncio.sleep(0)  # its session is requested
            await play.close()
            return await opening

        assert (await source.on_loop(close_meanwhile())).reward is None
        assert play.outcome is Outcome.INFRA_ERROR
        assert await poll(lambda: not served.running.engine.leases.held, timeout=5.0)

    async def test_a_failure_of_ours_ends_it_without_a_reward(self, source, served):
        play = ToolEpisode(source, {"task_id": FILLS}, ToolOptions(first="act", limit=60))
        opened = await source.on_loop(play.open())
        assert len(opened.text) == 60
        assert await end_leases(served) == 1
        answer = await source.on_loop(play.call({"action": "terminate"}))
        assert (play.outcome, play.reward, answer.reward) == (Outcome.INFRA_ERROR, None, None)
        assert play.fields()["failure_kind"] == "infra_error"
        again = await source.on_loop(play.call({"action": "terminate"}))
        assert again.reward is None

    async def test_a_task_that_is_not_held_is_no_reward_either(self, source):
        for start in ({"url": "https://nowhere.test/"}, {"task_id": "nothing"}):
            play = ToolEpisode(source, start)
            await source.on_loop(play.call({"action": "terminate"}))
            assert (play.outcome, play.reward) == (Outcome.TASK_ERROR, None)
            assert play._lease is None


# --- AReaL -----------------------------------------------------------------------------------------


class Client:
    """In place of AReaL's client: answers by a script, and stores rewards and discounts."""

    def __init__(self, task, before=None):
        self.actor, self.before, self.prompts = Actor(task), before, []
        self.rewards, self.discounts = [], []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages, tools, **_):
        self.prompts.append(messages)
        if self.before:
            await self.before()
        action = self.actor.act(messages[-1]["content"])
        function = SimpleNamespace(name="browser", arguments=json.dumps(action))
        calls = [SimpleNamespace(id=f"c{len(self.prompts)}", function=function)]
        message = SimpleNamespace(
            content=None, tool_calls=calls, model_dump=lambda **_: {"role": "assistant"}
        )
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    def set_last_reward(self, reward):
        self.rewards.append(reward)

    def apply_reward_discount(self, *, turn_discount):
        self.discounts.append(turn_discount)

    def export_interactions(self, *, style):
        return {"style": style, "answers": len(self.prompts)}


class TestAreal:
    pytestmark = live

    async def test_an_episode_is_its_interactions_and_a_failed_one_is_none(self, served):
        source = {"server": served.rollouts, "api_key": KEY}
        clients = []

        def make(engine):
            clients.append(Client(CLICKS, engine))
            return clients[-1]

        workflow = StillwebWorkflow(source, options=WorkflowOptions(attempts=2), client=make)
        interactions = await workflow.arun_episode(None, {"task_id": CLICKS})
        assert interactions == {"style": "individual", "answers": 3}
        assert (clients[0].rewards, clients[0].discounts) == ([1.0], [1.0])
        assert clients[0].prompts[-1][2]["role"] == "assistant"

        async def end():
            await end_leases(served)

        assert await workflow.arun_episode(end, {"task_id": CLICKS}) is None
        assert len(clients) == 3
        assert clients[1].rewards == clients[2].rewards == []


# --- values ----------------------------------------------------------------------------------------


@given(st.text(max_size=400), st.integers(1, 200))
def test_what_is_cut_keeps_to_its_length_and_begins_alike(text, limit):
    shown = cut(text, limit)
    assert len(shown) <= limit or shown == text
    assert cut(text, 0) == text
    if len(text) > limit > 60:
        stored, _, rest = shown.partition("\n[... ")
        assert text.startswith(stored)
        assert int(rest.split()[0]) == len(text) - len(stored)


def test_the_most_important_comes_first_in_a_text():
    seen = {
        "url": "https://a.test/",
        "title": "A",
        "tabs": [
            {"index": 0, "url": "https://a.test/", "title": "A", "active": True},
            {"index": 1, "url": "https://b.test/", "title": "B", "active": False},
        ],
        "axtree": "RootWebArea",
        "last_action_error": "no element a7",
    }
    text = Turn(seen, 0.0, truncated=True).text(first=["Goal: g"])
    assert text.splitlines() == [
        "Goal: g",
        "Error: no element a7",
        "The episode is over.",
        "Page: A https://a.test/",
        "Tab 0 (current): A https://a.test/",
        "Tab 1: B https://b.test/",
        "",
        "RootWebArea",
    ]


def test_a_row_names_one_episode():
    assert start_of_row({"task_id": "t", "url": None, "other": 1, "seed": 7.0}, "row") == {
        "task_id": "t",
        "seed": 7,
    }
    assert start_of_row({"task": '{"id": "t"}'}, "row") == {"task": {"id": "t"}}
    for wrong, why in (({}, "none"), ({"task": "{"}, "not JSON"), ({"task_id": "a", "url": "b"}, "and")):
        with pytest.raises(UsageError, match=why):
            start_of_row(wrong, "row")
    with pytest.raises(UsageError, match="first"):
        ToolOptions(first="look")
    assert FailurePolicy("mask") is FailurePolicy.MASK

"""Agents by name: what the endpoint's answers become, and what never becomes a reward."""

from __future__ import annotations

import socket
import sys
from base64 import b64encode

import pytest
from endpoint_standin import called, refused, said, standin

from stillweb.env.actions.action import Action, parse, tool_schema
from stillweb.env.observations.observation import Observation, Tab
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.trace import Trace
from stillweb.errors import AgentError, UsageError
from stillweb.trainers.agents import load_agent

TASK = Task("kettle", "Order the cheapest kettle.", "https://shop.test/")
AGAIN = {"Retry_After_Ms": 1}


def observation(*, picture=None):
    digests = {"axtree": "0" * 64} | ({"screenshot": "1" * 64} if picture else {})
    tabs = (Tab(0, "https://shop.test/", "Shop", True),)
    return Observation(
        "https://shop.test/", "Shop", tabs, axtree="RootWebArea 'Shop'", screenshot=picture, digests=digests
    )


def info(number=0, status="ok", error=""):
    return {"action": {"status": status, "error": error}, "episode_number": number, "goal": TASK.goal}


async def actions_of(server, *, rounds=1, picture=None, number=0, **options):
    """Return what an agent does in an episode of so many rounds."""
    given = {"model": "m", "base_url": server.url, "retries": 2, "seconds": 20} | options
    agent = load_agent("openai", seed=5, options={name: str(value) for name, value in given.items()})
    try:
        policy = agent(TASK)
        return [await policy(observation(picture=picture), info(number)) for _ in range(rounds)]
    finally:
        await agent.aclose()


async def test_a_tool_call_is_an_action_and_the_request_is_the_protocols():
    with standin(called(arguments='{"action": "click", "bid": "a12"}')) as server:
        actions = await actions_of(server, rounds=2, number=3, temperature=0.5, max_tokens=77)
    assert [parse(action) for action in actions] == [Action("click", bid="a12")] * 2
    first, second = server.requests
    assert first["path"] == "/v1/chat/completions"
    assert first["tools"] == [tool_schema("openai")]
    assert (first["model"], first["temperature"], first["seed"], first["max_tokens"]) == ("m", 0.5, 8, 77)
    assert [message["role"] for message in second["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert second["messages"][:2] == first["messages"]
    assert TASK.goal in first["messages"][0]["content"]


async def test_pictures_are_parts_and_can_be_left_out():
    with standin(said('{"action": "back"}')) as server:
        await actions_of(server, picture=b"PNG")
        await actions_of(server, picture=b"PNG", images="false", tools="false")
    shown, not_shown = (each["messages"][1]["content"] for each in server.requests)
    assert shown[1]["image_url"]["url"] == f"data:image/png;base64,{b64encode(b'PNG').decode()}"
    assert isinstance(not_shown, str)
    assert "tools" not in server.requests[1]


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        (called(arguments='{"action": "click", "bid": '), None),
        (called(arguments="[]"), None),
        (called("click", '{"bid": "a12"}'), Action("click", bid="a12")),
        (said('<think>Or so?</think>So:\n```json\n{"action": "back"}\n```'), Action("back")),
        (said("click('a12')"), Action("click", bid="a12")),
        (said("I cannot see a kettle."), None),
        (said(None), None),
    ],
)  # fmt: skip
async def test_what_is_said_wrongly_is_the_environments_to_judge(answer, action):
    with standin(answer) as server:
        (found,) = await actions_of(server)
    read = parse(found)
    assert read == action if action else not isinstance(read, Action)
    assert len(server.requests) == 1


@pytest.mark.parametrize("first", [refused(429, **AGAIN), refused(500, **AGAIN), refused(503, **AGAIN)])
async def test_what_may_pass_is_requested_again(first):
    with standin(first, first, called(arguments='{"action": "back"}')) as server:
        assert await actions_of(server) == [{"action": "back"}]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("answers", "message", "requests"),
    [
        ([refused(429, message="slow down", **AGAIN)], "did not answer.*slow down", 3),
        ([refused(500, **AGAIN)], "did not answer", 3),
        ([refused(401, message="no such key")], "did not answer.*no such key", 1),
        ([refused(404)], "did not answer", 1),
        ([refused(400, "context_length_exceeded", "8192 tokens")], "too long for m.*8192", 1),
        ([refused(400, message="This model's maximum context length is 8192")], "too long", 1),
        ([refused(400, message="bad schema")], "refused the request.*bad schema", 1),
        ([(200, None, {})], "no choice", 1),
    ],
)
async def test_what_the_endpoint_does_not_answer_is_an_agent_error(answers, message, requests):
    with standin(*answers) as server, pytest.raises(AgentError, match=message):
        await actions_of(server)
    assert len(server.requests) == requests


async def test_no_endpoint_is_an_agent_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen

        class No_one:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"

        with pytest.raises(AgentError, match="did not answer"):
            await actions_of(No_one, retries=0)


async def test_the_key_is_the_environments(monkeypatch):
    with standin(called(arguments='{"action": "back"}')) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        await actions_of(server)
        monkeypatch.delenv("OPENAI_API_KEY")
        await actions_of(server)
    assert [each["key"] for each in server.requests] == ["Bearer sk-1", "Bearer none"]


async def test_a_budget_that_nothing_fits_is_reported_before_anything_is_requested():
    with standin(said("")) as server, pytest.raises(UsageError, match="budget of 20"):
        await actions_of(server, budget=20)
    assert not server.requests


# --- the other agents ------------------------------------------------------------------------------


def test_a_script_is_a_trace_or_one_of_a_folder_and_ends_the_episode(tmp_path):
    for name, key in (("kettle", "a"), ("lamp%2F1", "b")):
        Trace(name, ({"action": "press", "key": key},), url="https://shop.test/").dump(
            tmp_path / f"{name}.jsonl"
        )
    found = {}
    for name, path in (("kettle", tmp_path), ("lamp/1", tmp_path), ("other", tmp_path / "kettle.jsonl")):
        policy = load_agent(f"scripted:{path}")(Task(name, "", "https://shop.test/"))
        found[name] = [policy(observation(), info()) for _ in range(3)]
    end = {"action": "terminate"}
    assert found == {
        name: [{"action": "press", "key": key}, end, end]
        for name, key in (("kettle", "a"), ("lamp/1", "b"), ("other", "a"))
    }
    with pytest.raises(UsageError, match=r"no trace of absent") as raised:
        load_agent(f"scripted:{tmp_path}")(Task("absent", "", "https://shop.test/"))(observation(), info())
    assert raised.value.hint == "record it as absent.jsonl"


MINE = """
def agent(task):
    return lambda observation, info: {"action": "terminate", "answer": task.id}

class Made:
    def __init__(self, answer):
        self.answer = answer
    def __call__(self, task):
        return lambda observation, info: {"action": "terminate", "answer": self.answer}

def broken(task):
    import no_such_thing
number = 3
"""


def test_an_agent_of_ones_own_is_found_where_one_works(tmp_path, monkeypatch):
    (tmp_path / "mine_agents.py").write_text(MINE)
    (tmp_path / "mine_lacking.py").write_text("import no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_agent("mine_agents:agent")(TASK)(None, {})["answer"] == "kettle"
    made = load_agent("mine_agents:Made", options={"answer": "7"})
    assert made(TASK)(None, {})["answer"] == "7"
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_agent("mine_lacking:agent")
    for name in ("mine_agents:nobody", "mine_absent:agent", "mine_agents:number"):
        with pytest.raises(UsageError):
            load_agent(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rando", {}, "no agent is called 'rando'"),
        ("random", {"ende": "1"}, "takes no option ende"),
        ("random", {"end": "often"}, "option end of random: .*number"),
        ("openai", {}, "needs a model"),
        ("openai", {"model": "m", "tools": "perhaps"}, "option tools of openai"),
        ("openai", {"model": "m", "api_key": "sk"}, "takes no option api_key"),
        ("scripted:/absent/traces", {}, "no trace and no folder"),
        ("scripted:/", {"x": "1"}, "takes no option x"),
    ],
)
def test_wrong_use_is_reported(name, options, message):
    with pytest.raises(UsageError, match=message):
        load_agent(name, options=options)

"""Messages to a model, compared with files (`STILLWEB_WRITE=1` writes them anew: read what changed), and
the model's answers, read in every dialect."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.env.actions.action import Action, parse
from stillweb.env.observations.observation import Observation, Tab
from stillweb.errors import UsageError
from stillweb.trainers.agents.endpoint import Conversation, ConversationOptions
from stillweb.trainers.agents.reply import ToolCall, read_reply, without_thinking

MESSAGES = Path(__file__).with_name("messages")
GOAL = "Order the cheapest kettle."
URL = "https://shop.test/catalogue/"


def observation(number, *, picture=False, tabs=1, links=1):
    shown = tuple(Tab(i, URL + "?" * i, f"Tab {i}", i == 0) for i in range(tabs))
    tree = f"RootWebArea 'Page {number}'" + f"\n\t[a{number}] link 'Kettle {number}'" * links
    digests = {"axtree": "0" * 64} | ({"som": "1" * 64} if picture else {})
    som = f"PNG {number}".encode() if picture else None
    return Observation(URL, f"Page {number}", shown, axtree=tree, som=som, digests=digests)


def info(status="ok", error=""):
    return {"action": {"status": status, "error": error}}


def called(**action):
    return read_reply("", [ToolCall("browser", json.dumps(action))])


REPLIES = (
    lambda: called(action="click", bid="a0"),
    lambda: read_reply(
        '<think>Hm, a secret.</think>I fill it in.\n```json\n{"action": "clear", "bid": "a1"}\n```'
    ),
    lambda: read_reply("", [ToolCall("browser", '{"action": "click", "bid": ')]),
    lambda: read_reply("", [ToolCall("scroll", '{"delta_x": 0, "delta_y": 300}')]),
    lambda: read_reply("I do not know."),
    lambda: called(action="press", key="Enter"),
)
OUTCOMES = (("ok", ""), ("action_failed", "there is no element a1"), ("invalid_action", "not JSON"))


def conversation(rounds, options, *, picture=False, links=1):
    context = Conversation(GOAL, options)
    context.add_observation(observation(0, picture=picture, tabs=2), info())
    for number in range(rounds):
        context.add_reply(REPLIES[number % len(REPLIES)]())
        context.add_observation(
            observation(number + 1, picture=picture, links=links), info(*OUTCOMES[number % len(OUTCOMES)])
        )
    return context


GOLDEN = {
    "first": lambda: conversation(0, ConversationOptions()),
    "tools": lambda: conversation(6, ConversationOptions(), picture=True),
    "text": lambda: conversation(6, ConversationOptions(tools=False, images=False), picture=True),
    "budget": lambda: conversation(12, ConversationOptions(budget=900)),
    "cut": lambda: conversation(3, ConversationOptions(budget=400, system="Act."), links=30),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_messages_are_those_of_the_file(name):
    messages = json.dumps(GOLDEN[name]().messages(), indent=1, ensure_ascii=False) + "\n"
    path = MESSAGES / f"{name}.json"
    if os.environ.get("STILLWEB_WRITE"):
        path.write_text(messages)
    assert messages == path.read_text(), "if the change is intended: STILLWEB_WRITE=1 pytest THIS FILE"


def test_what_the_files_are_there_to_show():
    tools = json.loads((MESSAGES / "tools.json").read_text())
    assert (
        sum(
            part["type"] == "image_url"
            for m in tools
            if isinstance(m["content"], list)
            for part in m["content"]
        )
        == 4
    )
    assert "secret" not in json.dumps(tools)
    first = tools[1]["content"][0]["text"]
    assert first.startswith("Your actions so far:\n1. ")
    assert "3. " in first
    assert "4. " not in first
    assert json.loads((MESSAGES / "cut.json").read_text())[-1]["content"].endswith("are not shown]")


@given(st.integers(0, 14), st.integers(1, 6), st.integers(0, 4000), st.booleans(), st.booleans())
def test_a_budget_is_stored_and_what_is_newest_stays(rounds, full, budget, tools, picture):
    options = ConversationOptions(rounds=full, budget=budget, tools=tools, image_cost=90)
    context = conversation(rounds, options, picture=picture)
    try:
        messages = context.messages()
    except UsageError:
        least = conversation(0, ConversationOptions(tools=tools, image_cost=90), picture=picture)
        assert 0 < budget < least.cost(least.messages()) + 200
        return
    assert not budget or context.cost(messages) <= budget
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert GOAL in messages[0]["content"]
    assert messages[-1]["role"] == "user"
    assert f"Title: Page {rounds}" in json.dumps(messages[-1])
    users = [message for message in messages if message["role"] == "user"]
    assert len(users) <= min(full, rounds + 1)
    for before, after in pairwise(messages):  # what chat templates insist upon
        allowed = {
            "system": ("user",),
            "user": ("assistant",),
            "assistant": ("user", "tool"),
            "tool": ("user",),
        }
        assert after["role"] in allowed[before["role"]]
        if after["role"] == "tool":
            assert after["tool_call_id"] == before["tool_calls"][0]["id"]
    again = conversation(rounds, options, picture=picture)
    assert again.messages() == messages


def test_a_tokenizer_counts_in_place_of_characters():
    counted = []

    def count(text):
        counted.append(text)
        return len(text.split())

    context = conversation(5, ConversationOptions(budget=120, count=count, tools=True, system="Act."))
    assert context.cost(context.messages()) <= 120
    assert counted


def test_replies_and_observations_take_turns():
    context = Conversation(GOAL)
    with pytest.raises(UsageError, match="next observation before"):
        context.messages()
    context.add_observation(observation(0), info())
    context.add_reply(called(action="back"))
    with pytest.raises(UsageError, match="follows an observation"):
        context.add_reply(called(action="back"))
    with pytest.raises(UsageError, match="next observation"):
        context.messages()
    with pytest.raises(UsageError, match="budget"):
        conversation(2, ConversationOptions(budget=50)).messages()
    with pytest.raises(UsageError):
        ConversationOptions(rounds=0)


CLICK = Action("click", bid="a12")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"action": "click", "bid": "a12"}', CLICK),
        ('I think so.\n```json\n{"action": "click", "bid": "a12"}\n```\nDone.', CLICK),
        ('First {"action": "back"}, no: {"action": "click", "target": "a12"}', CLICK),  # WebServ
        ('{"click_id": {"id": "a12"}}', CLICK),  # WebGym
        ("Action: click('a12')", CLICK),  # BrowserGym
        ("```\nclick('a12')\n```", CLICK),
        ("I press `click('a12')`.", CLICK),
        ('<tool_call>\n{"name": "click", "arguments": {"bid": "a12"}}\n</tool_call>', CLICK),
        ('<think>{"action": "back"}</think>{"action": "click", "bid": "a12"}', CLICK),
        ('{"action": "back"}</think>\n{"action": "click", "bid": "a12"}', CLICK),
        ('{"action": "click", "bid": "a12"}\nas in {"a": 1}', CLICK),
        ('{"action": "terminate", "answer": "{9.85}"} <think>or is it', Action("terminate", answer="{9.85}")),
    ],
)
def test_an_action_is_found_in_what_is_said(text, action):
    assert parse(read_reply(text).action) == action
    assert read_reply(text).parsed == action


@pytest.mark.parametrize("text", ["I do not know.", "", None, '{"action": "click", "bid": ', "{" * 3000])
def test_what_is_no_action_is_left_to_the_environment(text):
    reply = read_reply(text)
    assert reply.parsed is None
    assert reply.action == (text or "").strip()


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (ToolCall("browser", '{"action": "click", "bid": "a12"}'), CLICK),
        (ToolCall("click", '{"bid": "a12"}'), CLICK),
        (ToolCall("mouse_click", '{"x": 3, "y": 4}'), Action("click", x=3, y=4)),
        (ToolCall("browser", '{"action": "click", "bid": '), None),
        (ToolCall("browser", "[1]"), None),
        (ToolCall("browser", ""), None),
    ],
)
def test_a_tool_call_is_read(call, action):
    reply = read_reply("<think>x</think>so", [call, ToolCall("browser", '{"action": "back"}')])
    assert (reply.parsed, reply.text, reply.called) == (action, "so", True)


@given(st.text(alphabet='<>/think{}":a ', max_size=80))
def test_thinking_leaves_nothing_of_itself_and_reading_never_fails(text):
    said = without_thinking(f"before<think>{text}</think>after" if "<think>" not in text else "after")
    assert said.endswith("after")
    assert "<think>" not in said
    read_reply(text)

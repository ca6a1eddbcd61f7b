"""Actions: one table, from which schema and parser come."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillweb.env.actions.action import Action, InvalidAction, action_schema, parse


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"action": "click", "bid": "a1"}, Action("click", bid="a1")),
        ({"action": "click", "bid": "a1", "button": "right"}, Action("click", bid="a1", button="right")),
        ('{"action": "back"}', Action("back")),
        (b'{"action": "back"}', Action("back")),
        ({"action": "fill", "bid": "a1", "value": ""}, Action("fill", bid="a1", value="")),
        ({"action": "fill", "bid": "a1", "value": 40}, Action("fill", bid="a1", value="40")),
        ({"action": "fill", "bid": "a1", "value": 40.0}, Action("fill", bid="a1", value="40")),
        ({"action": "fill", "bid": "a1", "value": True}, Action("fill", bid="a1", value="true")),
        ({"action": "switch_tab", "tab": "1"}, Action("switch_tab", tab=1)),
        ({"action": "scroll", "dy": 300.0, "bid": None, "url": ""}, Action("scroll", dy=300)),
        ({"action": "click", "bid": "a1", "button": ""}, Action("click", bid="a1")),
        ({"action": "terminate"}, Action("terminate")),
        ({"action": "terminate", "answer": 3}, Action("terminate", answer="3")),
        ({"action": "new_tab"}, Action("new_tab")),
        ({"action": "goto", "url": "https://a.example/b?c"}, Action("goto", url="https://a.example/b?c")),
        ('{"action": "type", "text": "a\\ud83d"}', Action("type", text="a\ufffd")),  # half a character
        ({"action": "terminate", "answer": "\ud800"}, Action("terminate", answer="\ufffd")),
        ({"action": "select", "bid": "a1", "value": ["\ud800"]}, Action("select", bid="a1", value="\ufffd")),
        ("keyboard_type('\\ud83d\\ude00')", Action("type", text="\U0001f600")),
    ],
)
def test_well_formed(raw, expected):
    assert parse(raw) == expected


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("{", ["not JSON"]),
        ([], ["a list where an object"]),
        (None, ["NoneType"]),
        ({}, ["action None is none of click, dblclick"]),
        ({"action": "klick"}, ["'klick' is none of"]),
        ({"action": ["click"]}, ["is none of"]),
        ({"action": "click"}, ["click needs 'bid'"]),
        ({"action": "click", "bid": ""}, ["'bid' is empty"]),
        ({"action": "click", "bid": {"id": 1}}, ["'bid' must be a text"]),
        ({"action": "click", "bid": "a1", "button": "side"}, ["one of left, middle, right"]),
        ({"action": "fill"}, ["fill needs 'bid'", "fill needs 'value'"]),
        ({"action": "click", "bid": "a1", "url": "x", "foo": 1}, ["takes no 'url'", "takes no 'foo'"]),
        ({"action": "switch_tab", "tab": 1.5}, ["'tab' must be a whole number"]),
        ({"action": "switch_tab", "tab": True}, ["'tab' must be a whole number"]),
        ({"action": "switch_tab", "tab": -1}, ["counts from 0"]),
        ({"action": "switch_tab", "tab": 10**400}, ["'tab' must be a whole number"]),
        ({"action": "scroll"}, ["needs 'dx' or 'dy'"]),
        ({"action": "scroll", "dy": 0}, ["needs 'dx' or 'dy'"]),
        ({"action": "wait", "ms": 0}, ["1 to 60000"]),
        ({"action": "goto", "url": "javascript:alert(1)"}, ["http or https"]),
        ({"action": "goto", "url": "file:///etc/passwd"}, ["http or https"]),
        ({"action": "goto", "url": "data:text/html,x"}, ["http or https"]),
        ({"action": "goto", "url": "http://[bad/"}, ["http or https"]),
        ({"action": "new_tab", "url": "/relative"}, ["http or https"]),
    ],
)
def test_every_problem_is_listed(raw, words):
    result = parse(raw)
    assert isinstance(result, InvalidAction)
    for word in words:
        assert word in result.error
    assert len(result.problems) == len(words)


def test_schema_is_flat_and_names_what_parse_takes():
    schema = action_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["required"] == ["action"]
    assert schema["properties"]["action"]["enum"][0] == "click"
    for field in schema["properties"].values():
        assert field["type"] in ("string", "integer", "boolean")
        assert "properties" not in field
        assert "items" not in field
    for name in schema["properties"]["action"]["enum"]:
        assert name in schema["properties"]["action"]["description"]


_names = st.sampled_from([*action_schema()["properties"]["action"]["enum"], "nothing"])
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the machine may be busy
@given(_names, st.dictionaries(st.sampled_from(list(action_schema()["properties"])), _scalars))
def test_parse_is_total(name, fields):
    result = parse({**fields, "action": name})
    assert isinstance(result, Action) or result.problems


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.binary() | st.text() | st.integers())
def test_parse_takes_anything(raw):
    assert isinstance(parse(raw), InvalidAction)

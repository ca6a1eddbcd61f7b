"""Other environments' names: every one of them becomes an action of ours, and no text is ever run."""

# ruff: noqa: E501  a case is one line

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillweb.env.actions.action import Action, InvalidAction, parse
from stillweb.env.actions.aliases import ABSENT, ALIASES

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "actions.md"

CALLS = [
    ("click('a42')", Action("click", bid="a42")),
    ("click('a42', button='right')", Action("click", bid="a42", button="right")),
    ("click('a42', 'middle', ['Shift', 'ctrl'])", Action("click", bid="a42", button="middle", modifiers="Shift+Control")),
    ("```python\nclick('a42')\n```", Action("click", bid="a42")),
    ("fill('237', 'a text with \\'quotes\\'', True)", Action("fill", bid="237", value="a text with 'quotes'")),
    ("check('a1')", Action("fill", bid="a1", value="true")),
    ("select_option('c48', ['red', 'green'])", Action("select", bid="c48", value="red\ngreen")),
    ("press('88', 'ctrl+a')", Action("press", bid="88", key="Control+a")),
    ("drag_and_drop('56', '498')", Action("drag", bid="56", to="498")),
    ("scroll(-50.2, -100.5)", Action("scroll", dx=-50, dy=-100)),
    ("scroll_at(10, 20, 0, 30)", Action("scroll", x=10, y=20, dy=30)),
    ("mouse_click(887.4, 68)", Action("click", x=887, y=68)),
    ("mouse_drag_and_drop(10.7, 325, 235.6, 24.5)", Action("drag", x=11, y=325, dx=225, dy=-300)),
    ("keyboard_press('Meta+Shift+t')", Action("press", key="Meta+Shift+t")),
    ("keyboard_type('Hello world!')", Action("type", text="Hello world!")),
    ("upload_file('572', ['a.pdf', 'b.pdf'])", Action("upload", bid="572", file="a.pdf\nb.pdf")),
    ("tab_focus(2)", Action("switch_tab", tab=2)),
    ("noop()", Action("wait", ms=1000)),
    ("noop(500)", Action("wait", ms=500)),
    ("go_back()", Action("back")),
    ("send_msg_to_user('42')", Action("terminate", answer="42")),
    ("report_infeasible('no such button')", Action("terminate", answer="N/A")),
    ("terminate(answer='x')", Action("terminate", answer="x")),
]  # fmt: skip

OBJECTS = [
    ({"action": "click", "target": "login_button"}, Action("click", bid="login_button")),
    ({"action": "type", "target": "q", "text": "hi", "enter": True}, Action("type", bid="q", text="hi", enter=True)),
    ({"action": "select", "target": "s", "value": "Two"}, Action("select", bid="s", value="Two")),
    ({"action": "clear", "target": "q"}, Action("clear", bid="q")),
    ({"action": "key_press", "key": "Return"}, Action("press", key="Enter")),
    ({"action": "key_press", "key": "esc", "target": "q"}, Action("press", key="Escape", bid="q")),
    ({"action": "goto_url", "url": "http://a.test/"}, Action("goto", url="http://a.test/")),
    ({"action": "refresh"}, Action("reload")),
    ({"action": "switch_tab", "tab_id": 1}, Action("switch_tab", tab=1)),
    ({"click_coords": {"x": 10.4, "y": 20.5}}, Action("click", x=10, y=21)),
    ({"node": "h", "instance_id": "u:1", "click_id": {"id": "12"}}, Action("click", bid="12")),
    ({"fill_coords": {"x": 1, "y": 2, "value": "v", "press_enter": False, "delete_existing": True}}, Action("fill", x=1, y=2, value="v")),
    ({"fill_id": {"id": 7, "value": "v"}}, Action("type", bid="7", text="v", enter=True)),
    ({"select_option": {"id": "9"}}, Action("select", bid="9")),
    ({"keypress": {"keys": ["ctrl", "a"]}}, Action("press", key="Control+a")),
    ({"page_down": {}}, Action("scroll", dy=200)),
    ({"page_up": {"amount": 50}}, Action("scroll", dy=-50)),
    ({"page_down": {"full_page": True}}, Action("press", key="PageDown")),
    ({"scroll_id": {"id": "3", "direction": "up"}}, Action("scroll", bid="3", dy=-300)),
    ({"hover_and_scroll_coords": {"x": 5, "y": 6, "direction": "right", "amount": 2}}, Action("scroll", x=5, y=6, dx=200)),
    ({"sleep": {"duration": 2.5}}, Action("wait", ms=2500)),
    ({"tab_and_enter": {}}, Action("press", key="Tab Enter")),
    ({"visit_page": {"url": "http://a.test/"}}, Action("goto", url="http://a.test/")),
    ({"name": "click", "arguments": '{"bid": "a1"}'}, Action("click", bid="a1")),
    ({"name": "click", "input": {"bid": "[a1]"}}, Action("click", bid="a1")),
    ({"type": "function", "function": {"name": "click", "arguments": '{"bid": "a1"}'}}, Action("click", bid="a1")),
    ({"name": "browser", "arguments": {"action": "click", "bid": "a1"}}, Action("click", bid="a1")),
    ({"id": "c1", "type": "function", "function": {"name": "back", "arguments": "{}"}}, Action("back")),
    ({"action": "click('a1')"}, Action("click", bid="a1")),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "expected"), [*CALLS, *OBJECTS])
def test_translations(raw, expected):
    assert parse(raw) == expected
    assert parse(expected.to_dict()) == expected
    if not isinstance(raw, str):
        assert parse(json.dumps(raw)) == expected


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: f"{alias.source}-{alias.name}")
def test_every_alias_becomes_an_action(alias):
    samples = {
        **{"bid": "a1", "to": "a2", "value": "v", "text": "t", "key": "a", "file": "f", "answer": "x"},
        **{
            "url": "http://a.test/",
            "tab": 1,
            "ms": 5,
            "x": 1,
            "y": 2,
            "dx": 3,
            "dy": 4,
            "to_x": 9,
            "to_y": 9,
        },
        **{"button": "left", "modifiers": ["Alt"], "enter": True, "direction": "down", "duration": 1},
    }
    fields = {theirs: samples[ours] for theirs, ours in alias.args.items() if ours in samples}
    for raw in ({"action": alias.name, **fields}, {alias.name: fields}):
        made = parse(raw)
        assert isinstance(made, Action), made
        assert made.action in (alias.action, "press" if alias.action == "scroll" else alias.action)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("click('a1')\nclick('a2')", "one call"),
        ("click(__import__('os').system('true'))", "not a call with plain values"),
        ("[click('a1')]", "not JSON"),
        ("frobnicate(1)", "frobnicate is not an action"),
        ("click('a1', 'left', [], 4)", "click is called with bid, button, modifiers"),
        ("click(bid)", "not a call with plain values"),
        ("click('a1'", "not a call with plain values"),
        ({"screenshot": {}}, "the observation carries the screenshot"),
        ({"get_webpage_text": {"n_lines": 1}}, "the observation shows the page"),
        ({"action": "click", "bid": "a1", "x": 1, "y": 2}, "either 'bid' or 'x' and 'y'"),
        ({"action": "click", "x": 1}, "needs both 'x' and 'y'"),
        ({"action": "click", "x": "nan", "y": 1}, "'x' must be a whole number"),
        ({"action": "drag", "bid": "a1"}, "needs either 'to', or 'dx' or 'dy'"),
        ({"action": "drag", "bid": "a1", "to": "a2", "dx": 5}, "needs either 'to', or 'dx' or 'dy'"),
        ({"action": "press", "key": "Entr"}, "no key is called 'Entr'"),
        ({"action": "press", "key": "a+b"}, "no key is called 'a+b'"),
        ({"action": "click", "bid": "a1", "modifiers": "Hyper"}, "no modifier is called 'Hyper'"),
        ({"action": "fill", "bid": "a1", "value": ["a", "b"]}, "'value' must be a text"),
        ({"action": "type", "text": "x", "enter": "maybe"}, "'enter' must be true or false"),
        ({"click_coords": "nonsense"}, "click needs 'bid', or 'x' and 'y'"),
    ],
)  # fmt: skip
def test_what_is_no_action_is_said(raw, words):
    made = parse(raw)
    assert isinstance(made, InvalidAction)
    assert words in made.error


@pytest.mark.parametrize("text", ["click(bid)", "click(f())", "click(bid=f())", "click('a1', -f())"])
def test_what_is_said_of_a_call_is_the_same_in_every_episode(text):
    assert parse(text).error == (
        "not a call with plain values: all arguments must be texts, numbers or lists"
    )


def test_the_documentation_lists_every_name():
    text = DOCS.read_text("utf-8")
    table = alias_table()
    assert table in text, f"put this table into {DOCS}:\n{table}"
    assert all(f"`{name}`" in text for name in ABSENT)


def alias_table() -> str:
    """Return the Markdown table of other environments' names, for the documentation."""
    rows = ["| from | there | here | note |", "|---|---|---|---|"]
    for alias in ALIASES:
        there = f"`{alias.name}({', '.join(alias.args)})`"
        fields = [name for name in alias.args.values() if name]
        implied = [f"{name}={value!r}" for name, value in alias.fixed.items()]
        here = f"`{alias.action}({', '.join([*fields, *implied])})`"
        rows.append(f"| {alias.source} | {there} | {here} | {alias.note} |")
    return "\n".join(rows)


_names = st.sampled_from([*{alias.name for alias in ALIASES}, *ABSENT])
_arguments = st.sampled_from(sorted({arg for alias in ALIASES for arg in alias.args}))
_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text() | st.integers())
)
_slow = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the machine may be busy


@_slow
@given(_names, st.dictionaries(_arguments, _values))
def test_objects_never_raise(name, fields):
    for raw in ({"action": name, **fields}, {name: fields}, {"name": name, "arguments": fields}):
        made = parse(raw)
        assert isinstance(made, Action) or made.problems
        if isinstance(made, Action):
            assert parse(made.to_dict()) == made


@_slow
@given(_names, st.lists(_values, max_size=4))
def test_calls_never_raise(name, values):
    made = parse(f"{name}({', '.join(map(repr, values))})")
    assert isinstance(made, Action) or made.problems


@_slow
@given(st.from_regex(re.compile(r"[a-z_]{1,9}\([\[\]{}()*'\"\\a-z0-9,.+= -]{0,60}"), fullmatch=True))
def test_text_that_looks_like_a_call_never_raises(text):
    made = parse(text)
    assert isinstance(made, Action) or made.problems


@pytest.mark.parametrize(
    "text",
    [
        "f(" * 5000,
        "f(" + "-" * 20_000 + "1)",
        "f(" + "1+" * 20_000 + "1)",
        "f(" + "[" * 20_000,
        "f(\x00)",
        "f('\\N{nothing}')",
    ],
)
def test_deep_and_odd_text_never_raises(text):
    assert isinstance(parse(text), InvalidAction)

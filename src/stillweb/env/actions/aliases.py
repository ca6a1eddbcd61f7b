"""Translation of other environments' actions into ours.

Accepted are our own objects, BrowserGym's function calls as text (`click('a42', button='right')`), WebServ's
objects (`{"action": "click", "target": "login"}`), WebGym's commands (`{"click_coords": {"x": 10, "y": 20}}`)
and tool calls of models (`{"name": "click", "arguments": {...}}`). Python's parser reads a call as literals;
nothing is evaluated. `ALIASES` is the only table of names and arguments; a test compares
docs/reference/actions.md with it.

The translation does not validate: values are passed on, and `action.parse` reports the problems.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = dict[str, Any]
_MAX_CHARS = 200_000
_CALL = re.compile(r"\s*[A-Za-z_]\w*\s*\(")
_FENCE = re.compile(r"\A\s*```\w*\s*\n?(.*?)```\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Untranslatable:
    """Input that is not an action in any dialect; `why` is one clause for the model."""

    why: str


@dataclass(frozen=True, slots=True)
class ActionAlias:
    """An action of another environment.

    Attributes:
        source: "BrowserGym", "WebServ" or "WebGym".
        name: name in that environment.
        action: our name.
        args: that environment's arguments in order, with our names; "" for an argument without effect here.
        fixed: fields that the alias implies.
        adapt: further change of the fields, after they have our names.
        note: difference, for the documentation.
    """

    source: str
    name: str
    action: str
    args: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    adapt: Callable[[Fields], Fields] | None = None
    note: str = ""


def _drag_to_point(given: Fields) -> Fields:
    try:
        moved = {
            "dx": float(given.pop("to_x")) - float(given["x"]),
            "dy": float(given.pop("to_y")) - float(given["y"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError):
        return given  # `parse` reports which one is missing or no number
    return {**given, **moved}


def _paged(given: Fields, sign: int) -> Fields:
    whole, amount = given.pop("full_page", False), given.pop("amount", 200)
    if whole in (True, "true"):
        return {"action": "press", "key": "PageDown" if sign > 0 else "PageUp"}
    return {**given, "dy": _times(amount, sign)}


def _directed(given: Fields, pixels: int) -> Fields:
    """Convert WebGym's direction and amount (turns of a wheel) to pixels."""
    direction, amount = given.pop("direction", "down"), given.pop("amount", 1)
    horizontal = direction in ("left", "right")
    sign = -1 if direction in ("up", "left") else 1
    return {**given, "dx" if horizontal else "dy": _times(amount, sign * pixels)}


def _times(value: Any, factor: int) -> Any:
    return value * factor if isinstance(value, int | float) else value


def _typed_or_filled(given: Fields) -> Fields:
    """Convert WebGym's fill, which appends to the field's text unless `delete_existing` is given."""
    given.setdefault("enter", True)
    if given.pop("delete_existing", False) in (True, "true"):
        return {**given, "action": "fill"}
    text = given.pop("value", None)
    return {**given, "text": text, "action": "type"}


def _held_together(given: Fields) -> Fields:
    keys = given.get("key")
    return {**given, "key": "+".join(map(str, keys)) if isinstance(keys, list) and keys else keys}


def _seconds(given: Fields) -> Fields:
    duration = given.pop("duration", None)
    return {**given, "ms": round(_times(duration, 1000)) if isinstance(duration, int | float) else duration}


def _same(*names: str, **others: str) -> dict[str, str]:
    return {name: name for name in names} | others


_XY = _same("x", "y")
_BG, _WS, _WG = "BrowserGym", "WebServ", "WebGym"
_FILL = {**_same("value", "delete_existing"), "press_enter": "enter"}

ALIASES: tuple[ActionAlias, ...] = (
    # BrowserGym 0.14, core/action/functions.py
    ActionAlias(_BG, "click", "click", _same("bid", "button", "modifiers")),
    ActionAlias(_BG, "dblclick", "dblclick", _same("bid", "button", "modifiers")),
    ActionAlias(_BG, "hover", "hover", _same("bid")),
    ActionAlias(_BG, "focus", "focus", _same("bid")),
    ActionAlias(_BG, "clear", "clear", _same("bid")),
    ActionAlias(_BG, "fill", "fill", _same("bid", "value", enable_autocomplete_menu="")),
    ActionAlias(_BG, "check", "fill", _same("bid"), {"value": "true"}),
    ActionAlias(_BG, "uncheck", "fill", _same("bid"), {"value": "false"}),
    ActionAlias(_BG, "select_option", "select", {"bid": "bid", "options": "value"}),
    ActionAlias(_BG, "press", "press", {"bid": "bid", "key_comb": "key"}),
    ActionAlias(_BG, "drag_and_drop", "drag", {"from_bid": "bid", "to_bid": "to"}),
    ActionAlias(_BG, "upload_file", "upload", _same("bid", "file"), note="from the allow-list only"),
    ActionAlias(
        _BG, "scroll", "scroll", {"delta_x": "dx", "delta_y": "dy"}, note="over the middle of the page"
    ),
    ActionAlias(_BG, "scroll_at", "scroll", {**_XY, "dx": "dx", "dy": "dy"}),
    ActionAlias(_BG, "mouse_move", "hover", _XY),
    ActionAlias(_BG, "mouse_down", "mouse_down", {**_XY, "button": "button"}),
    ActionAlias(_BG, "mouse_up", "mouse_up", {**_XY, "button": "button"}),
    ActionAlias(_BG, "mouse_click", "click", {**_XY, "button": "button"}),
    ActionAlias(_BG, "mouse_dblclick", "dblclick", {**_XY, "button": "button"}),
    ActionAlias(
        _BG,
        "mouse_drag_and_drop",
        "drag",
        {"from_x": "x", "from_y": "y", "to_x": "to_x", "to_y": "to_y"},
        adapt=_drag_to_point,
    ),
    ActionAlias(_BG, "mouse_upload_file", "upload", {**_XY, "file": "file"}, note="from the allow-list only"),
    ActionAlias(_BG, "keyboard_press", "press", _same("key")),
    ActionAlias(_BG, "keyboard_down", "key_down", _same("key")),
    ActionAlias(_BG, "keyboard_up", "key_up", _same("key")),
    ActionAlias(_BG, "keyboard_type", "type", _same("text")),
    ActionAlias(_BG, "keyboard_insert_text", "type", _same("text"), note="typed key by key"),
    ActionAlias(_BG, "goto", "goto", _same("url")),
    ActionAlias(_BG, "go_back", "back"),
    ActionAlias(_BG, "go_forward", "forward"),
    ActionAlias(_BG, "new_tab", "new_tab"),
    ActionAlias(_BG, "tab_close", "close_tab"),
    ActionAlias(_BG, "tab_focus", "switch_tab", {"index": "tab"}),
    ActionAlias(_BG, "noop", "wait", {"wait_ms": "ms"}, adapt=lambda given: {"ms": 1000, **given}),
    ActionAlias(_BG, "send_msg_to_user", "terminate", {"text": "answer"}, note="ends the episode"),
    ActionAlias(
        _BG,
        "report_infeasible",
        "terminate",
        {"reason": ""},
        {"answer": "N/A"},
        note="ends the episode; WebArena's answer for what cannot be done",
    ),
    # WebServ: fourteen actions, an object each
    ActionAlias(_WS, "click", "click", {"target": "bid"}),
    ActionAlias(_WS, "type", "type", {"target": "bid", "text": "text", "enter": "enter"}),
    ActionAlias(_WS, "hover", "hover", {"target": "bid"}),
    ActionAlias(_WS, "select", "select", {"target": "bid", "value": "value"}),
    ActionAlias(_WS, "clear", "clear", {"target": "bid"}),
    ActionAlias(_WS, "key_press", "press", {"key": "key", "target": "bid"}),
    ActionAlias(_WS, "goto_url", "goto", _same("url")),
    ActionAlias(_WS, "back", "back"),
    ActionAlias(_WS, "forward", "forward"),
    ActionAlias(_WS, "refresh", "reload"),
    ActionAlias(_WS, "new_tab", "new_tab", _same("url")),
    ActionAlias(_WS, "switch_tab", "switch_tab", {"tab_id": "tab"}),
    ActionAlias(_WS, "close_tab", "close_tab", {"tab_id": "tab"}),
    ActionAlias(_WS, "terminate", "terminate", _same("answer")),
    # WebGym (Omniboxes): one command to an object
    ActionAlias(_WG, "visit_page", "goto", _same("url")),
    ActionAlias(_WG, "back", "back"),
    ActionAlias(_WG, "click_coords", "click", {**_XY, "button": "button"}),
    ActionAlias(_WG, "click_id", "click", {"id": "bid"}),
    ActionAlias(
        _WG,
        "fill_coords",
        "type",
        {**_XY, **_FILL},
        adapt=_typed_or_filled,
        note="`fill` with delete_existing",
    ),
    ActionAlias(
        _WG,
        "fill_id",
        "type",
        {"id": "bid", **_FILL},
        adapt=_typed_or_filled,
        note="`fill` with delete_existing",
    ),
    ActionAlias(_WG, "select_option", "select", {"id": "bid"}, note="the option's own id"),
    ActionAlias(_WG, "hover_coords", "hover", _XY),
    ActionAlias(_WG, "hover_id", "hover", {"id": "bid"}),
    ActionAlias(_WG, "keypress", "press", {"keys": "key"}, adapt=_held_together),
    ActionAlias(
        _WG,
        "page_down",
        "scroll",
        _same("amount", "full_page"),
        adapt=lambda given: _paged(given, 1),
        note="`press` PageDown with full_page",
    ),
    ActionAlias(
        _WG,
        "page_up",
        "scroll",
        _same("amount", "full_page"),
        adapt=lambda given: _paged(given, -1),
        note="`press` PageUp with full_page",
    ),
    ActionAlias(
        _WG,
        "scroll_id",
        "scroll",
        {"id": "bid", "direction": "direction"},
        adapt=lambda given: _directed(given, 300),
        note="by 300 pixels",
    ),
    ActionAlias(
        _WG,
        "hover_and_scroll_coords",
        "scroll",
        {**_XY, **_same("direction", "amount")},
        adapt=lambda given: _directed(given, 100),
        note="by 100 pixels for each of amount",
    ),
    ActionAlias(_WG, "sleep", "wait", {"duration": "duration"}, adapt=_seconds, note="of the page's time"),
    ActionAlias(_WG, "tab_and_enter", "press", fixed={"key": "Tab Enter"}),
)

ABSENT = {
    **dict.fromkeys(
        ("get_page_metadata", "get_webpage_text", "get_interactive_rects", "get_page_snapshot"),
        "the observation shows the page after every action",
    ),
    **dict.fromkeys(("screenshot", "get_screenshot_info"), "the observation carries the screenshot"),
    "scroll_pointer": "scroll takes a place: bid, or x and y",
}
"""Names without an equivalent, with an alternative."""

_NAMED: dict[str, list[ActionAlias]] = {}
for _alias in ALIASES:
    _NAMED.setdefault(_alias.name, []).append(_alias)


def read_call(raw: object, ours: Mapping[str, tuple[str, ...]]) -> Mapping[Any, Any] | Untranslatable:
    """Return an action as an object with "action" and fields by our names.

    Args:
        raw: an object, its JSON text, or a call as text.
        ours: our actions with their fields, in order.
    """
    if isinstance(raw, str | bytes):
        raw = _read_text(raw, ours)
    if isinstance(raw, Untranslatable):
        return raw
    if not isinstance(raw, Mapping):
        return Untranslatable(f"a {type(raw).__name__} where an object with 'action' is expected")
    name, given = _named(raw, ours)
    if isinstance(name, str) and not given and _CALL.match(name):
        read = _read_code(name.strip(), ours)  # {"action": "click('a42')"}
        if isinstance(read, Untranslatable):
            return read
        name, given = _named(read, ours)
    if isinstance(name, str) and name in ABSENT:
        return Untranslatable(f"there is no action {name!r}: {ABSENT[name]}")
    return _translated(name, given, ours) if isinstance(name, str) else raw


def _named(raw: Mapping[Any, Any], ours: Mapping[str, tuple[str, ...]]) -> tuple[Any, Mapping[Any, Any]]:
    """Find the action's name in an object, and its fields."""
    if isinstance(raw.get("function"), Mapping):  # {"id": ..., "type": "function", "function": {...}}
        raw = raw["function"]
    if "action" in raw:
        return raw["action"], {key: value for key, value in raw.items() if key != "action"}
    for holder in ("arguments", "input", "parameters"):
        if isinstance(raw.get("name"), str) and holder in raw:
            given = _object(raw[holder])
            # A single tool for all actions has the action among its arguments.
            return _named(given, ours) if "action" in given else (raw["name"], given)
    commands = [key for key in raw if key not in ("node", "instance_id")]
    if len(commands) == 1 and (commands[0] in _NAMED or commands[0] in ours or commands[0] in ABSENT):
        return commands[0], _object(raw[commands[0]])
    return None, raw


def _object(value: object) -> Mapping[Any, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def _translated(
    name: str, given: Mapping[Any, Any], ours: Mapping[str, tuple[str, ...]]
) -> Mapping[Any, Any] | Untranslatable:
    aliases = [alias for alias in _NAMED.get(name, ()) if all(key in alias.args for key in given)]
    native = name in ours
    if native and all(key in ours[name] for key in given):
        return {"action": name, **given}
    if not aliases:
        # No alias takes all of these fields; `parse` reports those that the first one does not take.
        aliases = [] if native else _NAMED.get(name, [])
    if not aliases:
        return {"action": name, **given}
    alias = aliases[0]
    fields: Fields = {
        alias.args.get(key, key): value for key, value in given.items() if alias.args.get(key) != ""
    }
    fields = {**fields, **alias.fixed}
    if alias.adapt:
        fields = alias.adapt(fields)
    return {"action": alias.action, **fields}


def _read_text(raw: str | bytes, ours: Mapping[str, tuple[str, ...]]) -> object:
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError as error:
        return Untranslatable(f"not UTF-8: {error}")
    if len(text) > _MAX_CHARS:
        return Untranslatable(f"an action of {len(text)} characters; at most {_MAX_CHARS} are read")
    if fenced := _FENCE.match(text):
        text = fenced[1]
    if _CALL.match(text):
        return _read_code(text.strip(), ours)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Untranslatable(f"not JSON: {error}")


def _read_code(text: str, ours: Mapping[str, tuple[str, ...]]) -> Mapping[str, Any] | Untranslatable:
    """Read a call such as `click('a42')`, whose arguments are literals."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # '\d' in a text is harmless
            body = ast.parse(text).body
        calls = [node.value for node in body if isinstance(node, ast.Expr)]
        if len(body) != 1 or not isinstance(calls[0], ast.Call) or not isinstance(calls[0].func, ast.Name):
            return Untranslatable(
                f"one call such as click('a42') is expected, here are {len(body)} statements"
            )
        call, name = calls[0], calls[0].func.id
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except SyntaxError as error:
        return Untranslatable(f"not a call with plain values: {error}")
    except (ValueError, TypeError, RecursionError, MemoryError, IndexError):
        # Python's message would contain a memory address, which differs from run to run.
        return Untranslatable("not a call with plain values: all arguments must be texts, numbers or lists")
    signature = _signature(name, ours)
    if signature is None or len(positional) > len(signature):
        takes = "not an action" if signature is None else f"called with {', '.join(signature) or 'nothing'}"
        return Untranslatable(f"{name} is {takes}")
    return {"action": name, **dict(zip(signature, positional, strict=False)), **named}


def _signature(name: str, ours: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the arguments of a call in order; BrowserGym's take precedence, since it uses calls."""
    if name in _NAMED:
        return tuple(_NAMED[name][0].args)
    return ours.get(name)

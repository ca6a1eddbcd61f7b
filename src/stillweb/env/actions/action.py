"""Actions: their schema, parser, tool definitions, and the table of other environments' names.

Tool definitions: `openai` and `anthropic` are one tool with one flat schema in the format of these APIs;
`browsergym` is a list of functions, as a text for a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from stillweb.env.actions.aliases import ALIASES, Untranslatable, read_call
from stillweb.text import shortened, well_formed

MODIFIERS = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")

# Named keys of UI Events KeyboardEvent key Values (w3.org/TR/uievents-key) that a keyboard has.
_NAMED = (
    *("Alt", "AltGraph", "ArrowDown", "ArrowLeft", "ArrowRight", "ArrowUp", "Backspace", "CapsLock"),
    *("ContextMenu", "Control", "ControlOrMeta", "Delete", "End", "Enter", "Escape", "Home", "Insert"),
    *("Meta", "NumLock", "PageDown", "PageUp", "Pause", "PrintScreen", "ScrollLock", "Shift", "Space"),
    *("Tab", *(f"F{number}" for number in range(1, 13))),
    # Playwright's names of single keys, left from right (KeyboardEvent.code).
    *(f"{modifier}{side}" for modifier in ("Alt", "Control", "Meta", "Shift") for side in ("Left", "Right")),
    *("Backquote", "Backslash", "BracketLeft", "BracketRight", "Comma", "Equal", "Minus", "Period", "Quote"),
    *("Semicolon", "Slash", "NumpadEnter", "NumpadAdd", "NumpadSubtract", "NumpadMultiply", "NumpadDivide"),
    *(f"Key{letter}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    *(f"{row}{digit}" for row in ("Digit", "Numpad") for digit in range(10)),
)
_OTHER_SPELLINGS = {
    **dict.fromkeys(("cmd", "command", "super", "win", "windows"), "Meta"),
    **{"ctrl": "Control", "option": "Alt", "controlormeta": "ControlOrMeta"},
    **{"esc": "Escape", "return": "Enter", "del": "Delete"},
    **{"ins": "Insert", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"},
    **{"pgup": "PageUp", "pgdn": "PageDown", "prior": "PageUp", "next": "PageDown", "spacebar": "Space"},
    **{"plus": "+", "minus": "-", "comma": ",", "period": ".", "slash": "/"},
}
_CANONICAL = {**{name.lower(): name for name in _NAMED}, **_OTHER_SPELLINGS}


def canonical_key(text: str, *, modifiers_only: bool = False) -> str | None:
    """Return keys in their canonical spelling, or None if one of them is not a key.

    Args:
        text: combinations, separated by spaces.
        modifiers_only: accept modifiers only.
    """
    if text == " ":
        return None if modifiers_only else "Space"
    combinations = [_combination(word, modifiers_only) for word in text.split()]
    return " ".join(map(str, combinations)) if combinations and None not in combinations else None


def _combination(word: str, modifiers_only: bool) -> str | None:
    # "Control++" is Control and the plus key.
    names = [*word[:-2].split("+"), "+"] if word.endswith("++") else word.split("+") if word != "+" else ["+"]
    keys = [_key(name) for name in names]
    if None in keys:
        return None
    held = keys if modifiers_only else keys[:-1]
    return "+".join(map(str, keys)) if all(key in MODIFIERS for key in held) else None


def _key(name: str) -> str | None:
    if len(name) == 1:
        return name if name.isprintable() else None
    return _CANONICAL.get(name.lower(), _CANONICAL.get(name.lower().replace("_", "").replace("-", "")))


@dataclass(frozen=True, slots=True)
class Action:
    """A valid action; the page may still make it fail.

    `x` and `y` are CSS pixels from the viewport's upper left corner. `value` of `select`, and `file`, may
    have several values, one on each line. `modifiers` are joined by `+`.
    """

    action: str
    bid: str = ""
    x: int | None = None
    y: int | None = None
    to: str = ""
    dx: int = 0
    dy: int = 0
    value: str = ""
    text: str = ""
    key: str = ""
    enter: bool = False
    url: str = ""
    tab: int | None = None
    file: str = ""
    button: str = "left"
    modifiers: str = ""
    ms: int = 0
    accept: bool = True
    answer: str = ""

    @property
    def point(self) -> tuple[int, int] | None:
        """Coordinates of the action, if it has any."""
        return None if self.x is None or self.y is None else (self.x, self.y)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `parse` reads as this action, without default values."""
        spec = _ACTIONS[self.action]
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {
            name: value
            for name, value in given.items()
            if name == "action" or name in spec.required or value != defaults[name]
            if not (name == "bid" and value == "")
        }


@dataclass(frozen=True, slots=True)
class InvalidAction:
    """An action that the agent got wrong; `problems` has a clause for each fault."""

    problems: tuple[str, ...]

    @property
    def error(self) -> str:
        return "; ".join(self.problems)


class ActionStatus(StrEnum):
    """Outcome of an action; a failure of browser or proxy is an `InfraError` instead."""

    OK = "ok"
    INVALID = "invalid_action"  # caused by the agent
    FAILED = "action_failed"  # caused by the page
    NOT_RECORDED = "not_recorded"  # led to a document that the collection does not hold


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Outcome of an action; `error` is "" for success."""

    status: ActionStatus = ActionStatus.OK
    error: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"status": self.status.value, "error": self.error}


@dataclass(frozen=True, slots=True)
class _Field:
    type: str
    description: str
    enum: tuple[str, ...] = ()
    joined: str = ""  # separator that joins a list, for fields that accept one


@dataclass(frozen=True, slots=True)
class _Spec:
    description: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    point: bool = False  # whether x and y may replace bid

    @property
    def takes(self) -> tuple[str, ...]:
        return self.required + self.optional + (("x", "y") if self.point else ())


_FIELDS = {
    "bid": _Field(
        "string", "Id of an element as the observation shows it, such as a12, or its mark's number."
    ),
    "x": _Field("integer", "CSS pixels from the left edge of the viewport, instead of bid."),
    "y": _Field("integer", "CSS pixels from the upper edge of the viewport, instead of bid."),
    "to": _Field("string", "Id of the element to drag to."),
    "dx": _Field("integer", "CSS pixels to the right."),
    "dy": _Field("integer", "CSS pixels down."),
    "value": _Field(
        "string",
        "Value for a field, or option to choose; several options one per line.",
        (),
        "\n",
    ),
    "text": _Field("string", "Text to type, key by key."),
    "key": _Field(
        "string", "Key or combination, such as Enter, ArrowRight or Control+a; several separated by spaces."
    ),
    "enter": _Field("boolean", "Whether to press Enter afterwards."),
    "url": _Field("string", "Absolute http or https URL."),
    "tab": _Field("integer", "Index of a tab, from 0."),
    "file": _Field("string", "Name of a file to upload; several one per line.", (), "\n"),
    "button": _Field("string", "Mouse button; the default is left.", ("left", "middle", "right")),
    "modifiers": _Field(
        "string", f"Keys held during the action, joined by +: {', '.join(MODIFIERS)}.", (), "+"
    ),
    "ms": _Field("integer", "Milliseconds of the page's time, 1 to 60000."),
    "accept": _Field("boolean", "Whether the dialog is accepted."),
    "answer": _Field("string", "The answer to the task, if it requires one."),
}

_ACTIONS = {
    "click": _Spec("Click an element.", ("bid",), ("button", "modifiers"), point=True),
    "dblclick": _Spec("Click an element twice.", ("bid",), ("button", "modifiers"), point=True),
    "hover": _Spec("Move the mouse onto an element.", ("bid",), point=True),
    "drag": _Spec(
        "Drag an element onto another one, or by dx and dy.", ("bid",), ("to", "dx", "dy"), point=True
    ),
    "mouse_down": _Spec("Press a mouse button and hold it.", ("bid",), ("button",), point=True),
    "mouse_up": _Spec("Release a mouse button.", ("bid",), ("button",), point=True),
    "focus": _Spec("Move the keyboard focus to an element.", ("bid",)),
    "fill": _Spec(
        "Set a text field, date (YYYY-MM-DD), time, slider or check box (true, false).",
        ("bid", "value"),
        ("enter",),
        point=True,
    ),
    "clear": _Spec("Empty a field.", ("bid",), point=True),
    "select": _Spec(
        "Choose from a drop-down list, by label or value; or the option itself by its bid.",
        ("bid",),
        ("value",),
        point=True,
    ),
    "type": _Spec(
        "Type text at the focus, or into an element, after its present text.",
        ("text",),
        ("bid", "enter"),
        point=True,
    ),
    "press": _Spec("Press a key, on an element if one is given.", ("key",), ("bid",)),
    "key_down": _Spec("Press a key and hold it.", ("key",)),
    "key_up": _Spec("Release a key.", ("key",)),
    "upload": _Spec(
        "Choose files in a file field, or in the file chooser that a button opens.",
        ("bid", "file"),
        point=True,
    ),
    "scroll": _Spec(
        "Turn the mouse wheel over the page, or over an element.", (), ("bid", "dx", "dy"), point=True
    ),
    "goto": _Spec("Open a URL in the current tab.", ("url",)),
    "back": _Spec("Go back in the tab's history."),
    "forward": _Spec("Go forward in the tab's history."),
    "reload": _Spec("Load the page again."),
    "new_tab": _Spec("Open a new tab and switch to it.", (), ("url",)),
    "close_tab": _Spec("Close a tab; the default is the current one.", (), ("tab",)),
    "switch_tab": _Spec("Make a tab the current one.", ("tab",)),
    "wait": _Spec("Let the page's time pass.", ("ms",)),
    "dialog": _Spec("Set the answer to the next dialog, with a text for a prompt.", ("accept",), ("text",)),
    "terminate": _Spec("End the episode, with an answer if the task requires one.", (), ("answer",)),
}

_EMPTY_ALLOWED = {"value"}  # an empty value clears a field
_PIXELS = ("x", "y", "dx", "dy")
_MAX_WAIT_MS = 60_000
_MAX_PIXELS = 1_000_000  # beyond, the browser takes longer than an action may


def action_schema() -> dict[str, Any]:
    """Return the JSON schema of an action: one flat object."""
    properties: dict[str, Any] = {
        "action": {
            "type": "string",
            "enum": list(_ACTIONS),
            "description": " ".join(
                f"{_signature(name)}: {spec.description}" for name, spec in _ACTIONS.items()
            ),
        }
    }
    for name, field in _FIELDS.items():
        users = [action for action, spec in _ACTIONS.items() if name in spec.takes]
        described = f"{field.description} For: {', '.join(users)}."
        properties[name] = {"type": field.type, "description": described}
        if field.enum:
            properties[name]["enum"] = list(field.enum)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stillweb action",
        "type": "object",
        "properties": properties,
        "required": ["action"],
        "additionalProperties": False,
    }


def parse(raw: object) -> Action | InvalidAction:
    """Read an action from a JSON object, its text, or a call such as `click('a42')`.

    Names and fields of BrowserGym, WebServ and WebGym are accepted (docs/reference/actions.md).
    """
    given = read_call(raw, {name: spec.takes for name, spec in _ACTIONS.items()})
    if isinstance(given, Untranslatable):
        return InvalidAction((given.why,))
    name = given.get("action")
    if not isinstance(name, str) or name not in _ACTIONS:
        return InvalidAction((f"action {name!r} is none of {', '.join(_ACTIONS)}",))
    spec = _ACTIONS[name]
    problems: list[str] = []
    values = _values(given, name, spec, problems)
    _check(name, values, problems)
    return InvalidAction(tuple(problems)) if problems else Action(name, **values)


def _values(given: Mapping[Any, Any], name: str, spec: _Spec, problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "action" or value is None or (value in ("", []) and key not in spec.required):
            continue
        if key not in spec.takes:
            problems.append(f"{name} takes no {key!r}; it is {_signature(name)}")
            continue
        coerced = _coerce(value, key, name)
        if coerced is None:
            problems.append(f"{key!r} must be {_wanted(key)}, it is {shortened(value)}")
        else:
            values[key] = well_formed(coerced) if isinstance(coerced, str) else coerced
    present = {key for key, value in given.items() if value is not None}
    pointed = spec.point and {"x", "y"} & present
    missing = [key for key in spec.required if key not in present and not (key == "bid" and pointed)]
    problems += [f"{name} needs {_either(key, spec)}" for key in missing]
    return values


def _coerce(value: Any, key: str, action: str) -> str | int | bool | None:
    field = _FIELDS[key]
    if isinstance(value, list | tuple):
        return _joined(value, field, action)
    if field.type == "boolean":
        spelled = value.strip().lower() if isinstance(value, str) else value
        return {"true": True, "false": False}.get(spelled) if isinstance(spelled, str) else _flag(spelled)
    if isinstance(value, bool):
        return str(value).lower() if key == "value" else None
    if field.type == "integer":
        return _integer(value, rounded=key in _PIXELS)
    if isinstance(value, int | float):
        value = f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
    if not isinstance(value, str) or (field.enum and value not in field.enum):
        return None
    return value.strip().removeprefix("[").removesuffix("]") if key in ("bid", "to") else value


def _joined(value: list[Any] | tuple[Any, ...], field: _Field, action: str) -> str | None:
    if not field.joined or (field is _FIELDS["value"] and action != "select"):
        return None
    texts = [str(one) for one in value if isinstance(one, str | int | float) and not isinstance(one, bool)]
    return field.joined.join(texts) if len(texts) == len(value) else None


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool | int) and value in (0, 1) else None


def _integer(value: Any, *, rounded: bool) -> int | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return math.floor(number + 0.5) if rounded else int(number) if number.is_integer() else None


def _check(name: str, values: dict[str, Any], problems: list[str]) -> None:
    """Append problems of values that have the right types; replace keys by their canonical spelling."""
    problems += [
        f"{key!r} is empty" for key, value in values.items() if value == "" and key not in _EMPTY_ALLOWED
    ]
    if values.get("url") and not _is_web(values["url"]):
        problems.append(f"'url' must be an absolute http or https URL, it is {shortened(values['url'])}")
    _check_place(name, values, problems)
    _check_numbers(values, problems)
    for field in ("key", "modifiers"):
        if values.get(field):
            spelled = canonical_key(values[field], modifiers_only=field == "modifiers")
            if spelled is None:
                problems.append(
                    f"no {'key' if field == 'key' else 'modifier'} is called {shortened(values[field])}"
                )
            else:
                values[field] = spelled


def _check_place(name: str, values: dict[str, Any], problems: list[str]) -> None:
    if ("x" in values) != ("y" in values):
        problems.append(f"{name} needs both 'x' and 'y'")
    elif "x" in values and values.get("bid"):
        problems.append(f"{name} takes either 'bid' or 'x' and 'y', not both")
    moves = bool(values.get("dx") or values.get("dy"))
    if name == "scroll" and not problems and not moves:
        problems.append("scroll needs 'dx' or 'dy' other than 0")
    if name == "drag" and not problems and moves == bool(values.get("to")):
        problems.append("drag needs either 'to', or 'dx' or 'dy' other than 0")


def _check_numbers(values: dict[str, Any], problems: list[str]) -> None:
    if "ms" in values and not 1 <= values["ms"] <= _MAX_WAIT_MS:
        problems.append(f"'ms' must be 1 to {_MAX_WAIT_MS}, it is {values['ms']}")
    problems += [
        f"{key!r} must be -{_MAX_PIXELS} to {_MAX_PIXELS}, it is {values[key]}"
        for key in _PIXELS
        if abs(values.get(key, 0)) > _MAX_PIXELS
    ]
    if "tab" in values and values["tab"] < 0:
        problems.append(f"'tab' counts from 0, it is {values['tab']}")


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _wanted(key: str) -> str:
    field = _FIELDS[key]
    if field.enum:
        return f"one of {', '.join(field.enum)}"
    return {"integer": "a whole number", "boolean": "true or false"}.get(field.type, "a text")


def _either(key: str, spec: _Spec) -> str:
    return "'bid', or 'x' and 'y'" if key == "bid" and spec.point else repr(key)


def _signature(name: str) -> str:
    spec = _ACTIONS[name]
    required = ["bid | x, y" if key == "bid" and spec.point else key for key in spec.required]
    optional = [key + "?" for key in spec.optional]
    if spec.point and "bid" not in spec.required:
        optional = ["bid? | x?, y?" if key == "bid?" else key for key in optional]
    return f"{name}({', '.join(required + optional)})"


STYLES = ("json", "openai", "anthropic", "browsergym")
_NAME, _DESCRIPTION = "browser", "Act on a web page, one action at a time."


def tool_schema(style: str = "json") -> Any:
    """Return the tool definition in one of STYLES: JSON, for "browsergym" a text."""
    schema = action_schema()
    parameters = {key: schema[key] for key in ("type", "properties", "required", "additionalProperties")}
    if style == "openai":
        function = {"name": _NAME, "description": _DESCRIPTION, "parameters": parameters}
        return {"type": "function", "function": function}
    if style == "anthropic":
        return {"name": _NAME, "description": _DESCRIPTION, "input_schema": parameters}
    if style == "browsergym":
        return "\n".join(
            f"{alias.name}({', '.join(alias.args)}){f'  # {alias.note}' if alias.note else ''}"
            for alias in ALIASES
            if alias.source == "BrowserGym"
        )
    return schema

"""Actions: flat JSON objects, all said in one table.

`{"action": "fill", "bid": "a42", "value": "Ada"}`: the name, and fields that are texts,
numbers or one of a list, never nested, so that every trainer's tool schema can carry them.
`action_schema()` and `parse()` both read `_ACTIONS` and `_FIELDS`; there is no second place.

What a model may send wrong is judged here: `parse` gives an `InvalidAction` that lists
everything wrong with it, in words that the model can act upon, and never raises. Numbers are
taken for texts and digits for numbers; fields that are null, or empty and of no use to the
action, are taken as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Action", "ActionResult", "ActionStatus", "InvalidAction", "action_schema", "parse"]


@dataclass(frozen=True, slots=True)
class Action:
    """An action that is well formed; whether the page lets it happen is another matter."""

    action: str
    bid: str = ""
    value: str = ""
    text: str = ""
    key: str = ""
    url: str = ""
    answer: str = ""
    button: str = "left"
    tab: int | None = None
    dx: int = 0
    dy: int = 0
    ms: int = 0


@dataclass(frozen=True, slots=True)
class InvalidAction:
    """Not an action: the model's fault. `problems` lists everything that was wrong."""

    problems: tuple[str, ...]

    @property
    def error(self) -> str:
        """The problems as one text."""
        return "; ".join(self.problems)


class ActionStatus(StrEnum):
    """How an action went; a failure of ours is none of these but an `InfraError`."""

    OK = "ok"
    INVALID = "invalid_action"  # the model's fault
    FAILED = "action_failed"  # the page's


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What became of an action. `error` is "" if it went well."""

    status: ActionStatus = ActionStatus.OK
    error: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON for `info` and trajectories."""
        return {"status": self.status.value, "error": self.error}


@dataclass(frozen=True, slots=True)
class _Field:
    type: str
    description: str
    enum: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Spec:
    description: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


_FIELDS = {
    "bid": _Field("string", "Id of an element as the observation shows it in brackets, such as a12."),
    "value": _Field("string", "What a field shall hold, or which option to choose."),
    "text": _Field("string", "Text to type, key by key."),
    "key": _Field("string", "Key or combination, such as Enter, ArrowRight or Control+a."),
    "url": _Field("string", "Absolute http or https address."),
    "tab": _Field("integer", "Index of a tab, from 0."),
    "dx": _Field("integer", "CSS pixels to the right."),
    "dy": _Field("integer", "CSS pixels down."),
    "ms": _Field("integer", "Milliseconds of the page's time, 1 to 60000."),
    "button": _Field("string", "Mouse button; left unless said.", ("left", "middle", "right")),
    "answer": _Field("string", "The answer to the task, where it asks for one."),
}

_ACTIONS = {
    "click": _Spec("Click an element.", ("bid",), ("button",)),
    "dblclick": _Spec("Click an element twice.", ("bid",)),
    "hover": _Spec("Move the mouse onto an element.", ("bid",)),
    "drag": _Spec("Press the mouse on an element, move it by dx and dy, release it.", ("bid",), ("dx", "dy")),
    "fill": _Spec(
        "Set a text field, date (YYYY-MM-DD), time, slider or check box (true, false).", ("bid", "value")
    ),
    "select": _Spec("Choose an option of a drop-down list, by its label or value.", ("bid", "value")),
    "press": _Spec("Press a key, on an element if one is given.", ("key",), ("bid",)),
    "type": _Spec("Type text where the focus is, or into an element.", ("text",), ("bid",)),
    "scroll": _Spec("Turn the mouse wheel over the page, or over an element.", (), ("bid", "dx", "dy")),
    "goto": _Spec("Open an address in the current tab.", ("url",)),
    "back": _Spec("Go back in the tab's history."),
    "forward": _Spec("Go forward in the tab's history."),
    "reload": _Spec("Load the page again."),
    "new_tab": _Spec("Open a new tab and switch to it.", (), ("url",)),
    "close_tab": _Spec("Close a tab, the current one unless said.", (), ("tab",)),
    "switch_tab": _Spec("Make a tab the current one.", ("tab",)),
    "wait": _Spec("Let the page's time pass.", ("ms",)),
    "terminate": _Spec("End the episode, with an answer if the task asks for one.", (), ("answer",)),
}

_EMPTY_ALLOWED = {"value"}  # an empty value clears a field
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
        users = [action for action, spec in _ACTIONS.items() if name in spec.required + spec.optional]
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
    """Read an action from a JSON object, or the text of one."""
    given = _object(raw)
    if isinstance(given, InvalidAction):
        return given
    name = given.get("action")
    if not isinstance(name, str) or name not in _ACTIONS:
        return InvalidAction((f"action {name!r} is none of {', '.join(_ACTIONS)}",))
    spec = _ACTIONS[name]
    problems: list[str] = []
    values = _values(given, name, spec, problems)
    _judge(name, values, problems)
    return InvalidAction(tuple(problems)) if problems else Action(name, **values)


def _object(raw: object) -> Mapping[Any, Any] | InvalidAction:
    if isinstance(raw, str | bytes):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError) as error:
            return InvalidAction((f"not JSON: {error}",))
    if not isinstance(raw, Mapping):
        return InvalidAction((f"a {type(raw).__name__} where an object with 'action' is expected",))
    return raw


def _values(given: Mapping[Any, Any], name: str, spec: _Spec, problems: list[str]) -> dict[str, Any]:
    takes = spec.required + spec.optional
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "action" or value is None or (value == "" and key not in spec.required):
            continue
        if key not in takes:
            problems.append(f"{name} takes no {key!r}; it is {_signature(name)}")
            continue
        coerced = _coerce(value, _FIELDS[key])
        if coerced is None:
            problems.append(f"{key!r} must be {_wanted(_FIELDS[key])}, it is {value!r}")
        else:
            values[key] = coerced
    wrong = {key for key, value in given.items() if value is not None}
    problems += [f"{name} needs {key!r}" for key in spec.required if key not in wrong]
    return values


def _coerce(value: Any, field: _Field) -> str | int | None:
    if isinstance(value, bool):
        return str(value).lower() if field is _FIELDS["value"] else None
    if field.type == "integer":
        return _integer(value)
    if isinstance(value, int | float):
        value = f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
    if not isinstance(value, str) or (field.enum and value not in field.enum):
        return None
    return value


def _integer(value: Any) -> int | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return int(number) if number is not None and number.is_integer() else None


def _judge(name: str, values: dict[str, Any], problems: list[str]) -> None:
    problems += [
        f"{key!r} is empty" for key, value in values.items() if value == "" and key not in _EMPTY_ALLOWED
    ]
    if values.get("url") and not _is_web(values["url"]):
        problems.append(f"'url' must be an absolute http or https address, it is {values['url']!r}")
    if name in ("scroll", "drag") and not problems and not (values.get("dx") or values.get("dy")):
        problems.append(f"{name} needs 'dx' or 'dy' other than 0")
    if "ms" in values and not 1 <= values["ms"] <= _MAX_WAIT_MS:
        problems.append(f"'ms' must be 1 to {_MAX_WAIT_MS}, it is {values['ms']}")
    problems += [
        f"{key!r} must be -{_MAX_PIXELS} to {_MAX_PIXELS}, it is {values[key]}"
        for key in ("dx", "dy")
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


def _wanted(field: _Field) -> str:
    if field.enum:
        return f"one of {', '.join(field.enum)}"
    return "a whole number" if field.type == "integer" else "a text"


def _signature(name: str) -> str:
    spec = _ACTIONS[name]
    return f"{name}({', '.join([*spec.required, *(key + '?' for key in spec.optional)])})"

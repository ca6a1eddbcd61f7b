"""Reads a model's reply as an action.

The action may be a tool call, a JSON object anywhere in a text, or a call such as `click('a12')`. It may use
the action names of stillweb, WebServ, WebGym or BrowserGym (`env/actions/aliases.py`). The reader does not
validate: an invalid action goes to the environment unchanged, which reports the error to the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stillweb.env import Action, parse

_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
# Chat templates that open the thought leave only its end in the text; a truncated reply has only its start.
_THOUGHT_BEFORE = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_THOUGHT_AFTER = re.compile(r"<think(?:ing)?>.*\Z", re.DOTALL | re.IGNORECASE)
_CALL = re.compile(r"(?:^|[\s`:])([a-z_]{3,}\([^\n]*\))[`.;]*\s*$", re.MULTILINE)
_MOST_CHARS = 20_000  # read from the end of a text, where the action is

ACT_IN_JSON = (
    "You act on a web page to reach a goal. Reply with one action as a JSON object, such as "
    '{"action": "click", "bid": "a12"} or {"action": "fill", "bid": "a3", "value": "Ada"}. '
    'When the goal is reached or impossible, reply with {"action": "terminate", "answer": "..."}.'
)
"""System prompt of loops that let the model reply with a text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call with its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's reply.

    Attributes:
        action: argument of `env.step`.
        text: text beside a tool call, or the whole reply; without thoughts.
        called: whether the action was a tool call.
    """

    action: Mapping[str, Any] | str
    text: str = ""
    called: bool = False

    @property
    def parsed(self) -> Action | None:
        """The action, or None if it is invalid."""
        action = parse(self.action)
        return action if isinstance(action, Action) else None


def without_thinking(text: str) -> str:
    """Return a text without its part between `<think>` and `</think>`; either tag may be missing."""
    text = _THOUGHT.sub("", text)
    text = _THOUGHT_BEFORE.sub("", text)
    return _THOUGHT_AFTER.sub("", text).strip()


def read_reply(text: str | None, calls: Sequence[ToolCall] = (), *, tool: str = "browser") -> ModelReply:
    """Read a reply: the first of several tool calls, the last of several actions in a text.

    Args:
        tool: name of the browser tool; any other tool name counts as the name of an action.
    """
    spoken = without_thinking(text or "")
    if calls:
        return ModelReply(_called(calls[0], tool), spoken, called=True)
    found = list(_candidates(spoken))
    actions = [each for each in found if isinstance(parse(each), Action)]
    chosen: list[Mapping[str, Any] | str] = [spoken, *found, *actions]
    return ModelReply(chosen[-1], spoken)


def _called(call: ToolCall, tool: str) -> Mapping[str, Any] | str:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    if not isinstance(arguments, dict):
        return call.arguments
    return arguments if call.name == tool else {"name": call.name, "arguments": arguments}


def _candidates(text: str) -> Iterator[Mapping[str, Any] | str]:
    """Yield possible actions in the order of the text: JSON objects, or calls if the text has none."""
    objects = list(_objects(text))
    yield from objects
    if not objects:
        yield from (str(found[1]) for found in _CALL.finditer(text))


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    decoder = json.JSONDecoder()
    text = text[-_MOST_CHARS:]
    begin = text.find("{")
    while begin >= 0:
        try:
            value, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            end = begin + 1
        else:
            yield value
        begin = text.find("{", end)

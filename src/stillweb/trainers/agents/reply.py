"""What a model said, read as an action.

A tool call, a JSON object anywhere in a text, or a call such as `click('a12')`; in stillweb's words or
those of WebServ, WebGym and BrowserGym (`env/aliases.py`). Reading judges nothing: what is no action is
given to the environment as it stands, which tells the model what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stillweb.env.actions.action import Action, parse

__all__ = ["ModelReply", "ToolCall", "read_reply", "without_thinking"]

_THOUGHT = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
# Templates that open the thought themselves leave only its end in the text; a cut answer only its beginning.
_THOUGHT_BEFORE = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_THOUGHT_AFTER = re.compile(r"<think(?:ing)?>.*\Z", re.DOTALL | re.IGNORECASE)
_CALL = re.compile(r"(?:^|[\s`:])([a-z_]{3,}\([^\n]*\))[`.;]*\s*$", re.MULTILINE)
_MOST_CHARS = 20_000  # of the end of a text; there is the action


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, its arguments as the model wrote them."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model said.

    Attributes:
        action: for `env.step`.
        text: what was said besides a tool call, or all of it; without thinking.
        called: whether the action was a tool call.
    """

    action: Mapping[str, Any] | str
    text: str = ""
    called: bool = False

    @property
    def parsed(self) -> Action | None:
        """The action, if it is well formed."""
        action = parse(self.action)
        return action if isinstance(action, Action) else None


def without_thinking(text: str) -> str:
    """Return a text without what stands between `<think>` and `</think>`; one of them may be missing."""
    text = _THOUGHT.sub("", text)
    text = _THOUGHT_BEFORE.sub("", text)
    return _THOUGHT_AFTER.sub("", text).strip()


def read_reply(text: str | None, calls: Sequence[ToolCall] = (), *, tool: str = "browser") -> ModelReply:
    """Read a reply; of several tool calls the first counts, of several actions in a text the last.

    Args:
        text: of the message.
        calls: of tools, in their order.
        tool: the name of ours; the name of any other is taken for an action's.
    """
    said = without_thinking(text or "")
    if calls:
        return ModelReply(_called(calls[0], tool), said, called=True)
    found = list(_candidates(said))
    actions = [each for each in found if isinstance(parse(each), Action)]
    chosen: list[Mapping[str, Any] | str] = [said, *found, *actions]
    return ModelReply(chosen[-1], said)


def _called(call: ToolCall, tool: str) -> Mapping[str, Any] | str:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    if not isinstance(arguments, dict):
        return call.arguments
    return arguments if call.name == tool else {"name": call.name, "arguments": arguments}


def _candidates(text: str) -> Iterator[Mapping[str, Any] | str]:
    """Yield what may be an action, in the order of the text: objects, then calls if there is none."""
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

"""Omniboxes' commands, told apart without a browser: what is an action here, and what only looks.

    {"node": ..., "instance_id": ..., "click_coords": {"x": 10, "y": 20}}

Actions are those that `env.aliases` has of WebGym. Looking takes no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stillweb.env.action import InvalidAction, parse
from stillweb.env.aliases import ALIASES
from stillweb.errors import UsageError

__all__ = ["Command", "command_of", "first_lines", "rects_of", "sequential_ids"]

ACTIONS = frozenset(alias.name for alias in ALIASES if alias.source == "WebGym")
LOOKS = frozenset(
    ("get_page_metadata", "get_webpage_text", "get_interactive_rects", "get_screenshot_info", "screenshot")
)
_LINES = 100


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it was sent.

    Attributes:
        name: which.
        args: of it.
        action: our action, where it is one.
    """

    name: str
    args: Mapping[str, Any]
    action: Mapping[str, Any] | None = None


def command_of(body: Mapping[str, Any]) -> Command:
    """Return the one command of a request.

    Raises:
        UsageError: if there is none, more than one, or one that cannot be done here.
    """
    names = [name for name in body if name not in ("node", "instance_id")]
    if len(names) != 1:
        raise UsageError(f"exactly one command is expected, not {' and '.join(names) or 'none'}")
    name, args = names[0], body[names[0]]
    if not isinstance(args, Mapping):
        raise UsageError(f"{name} takes an object, not {type(args).__name__}")
    if name in LOOKS:
        return Command(name, args)
    if name not in ACTIONS:
        known = ", ".join(sorted(ACTIONS | LOOKS))
        raise UsageError(f"there is no command {name!r} here", hint=f"known: {known}")
    action = parse({name: dict(args)})
    if isinstance(action, InvalidAction):
        raise UsageError(f"{name}: {action.error}")
    return Command(name, args, action.to_dict())


def first_lines(text: str, given: Mapping[str, Any]) -> str:
    """Return as many lines of a page as are asked for.

    Raises:
        UsageError: if that is no number.
    """
    count = given.get("n_lines", _LINES)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UsageError(f"n_lines is a number, not {count!r}")
    return "\n".join(text.splitlines()[:count])


def rects_of(elements: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return elements as `get_interactive_rects` shows them, by their identifiers."""
    return {
        each["bid"]: {
            "tag_name": "",
            "role": each["role"],
            "aria-name": each["name"],
            "v-scrollable": False,
            "rects": [_rect(*each["box"])],
        }
        for each in elements
    }


def _rect(x: float, y: float, width: float, height: float) -> dict[str, float]:
    sides = {"left": x, "top": y, "right": x + width, "bottom": y + height}
    return {"x": x, "y": y, "width": width, "height": height, **sides}


def sequential_ids(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `get_screenshot_info` shows of the last picture with marks."""
    rects = rects_of(observation.get("elements", []))
    return {
        "id_mapping": dict(observation.get("marks", {})),
        "visible_rects": list(rects),
        "rects_above": [],
        "rects_below": [],
        "interactive_regions": rects,
    }

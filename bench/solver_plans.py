"""Plans: how a reader of the accessibility tree solves a task, and the reading itself.

A policy is a generator that is given a `View` (what the text of an observation says, nothing else) and
yields flat JSON actions; it is sent the next view. Policies of WARC-Bench are plans in `solutions/*.yaml`:

    groups:
      - steps:
          - [click, button, Project Management]
          - [fill, slider, Project Complexity, $1]
        tasks: {online_train.1050: [6], ...}

A step is an action, the role and name of the element it goes to, and what else the action takes. The name
is the element's own or, where it has none, the text right below it; `{after: text}` is the first element
of the role behind a text, for controls without a name. `{until: text, step: [...]}` repeats a step until
the page says the text. `$1`, `$2` are the task's own values. `hopeless` lists the tasks that no page
state solves, with why.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Line", "NoElement", "Plans", "Policy", "View", "load_plans"]

SOLUTIONS = Path(__file__).resolve().parent / "solutions"
_LINE = re.compile(r"(\t*)(?:\[(\w+)\] )?(\w+)(?: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))?(.*)")
_VALUE = re.compile(r" value=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(.*)")
_LAST = {"fill": "value", "select": "value", "press": "key", "type": "text"}
_MOST = 200  # repetitions of an `until`: a date picker 15 years back


class NoElement(Exception):
    """The page does not show what a policy looks for."""


@dataclass(frozen=True, slots=True)
class Line:
    """A node, as its line says."""

    depth: int
    bid: str
    role: str
    name: str
    value: str
    rest: str


@dataclass(frozen=True, slots=True)
class View:
    """An observation's accessibility tree, read from its text."""

    text: str
    lines: tuple[Line, ...] = field(default=())

    @staticmethod
    def of(text: str) -> View:
        return View(text, tuple(_line(line) for line in text.splitlines()))

    def label(self, index: int) -> str:
        """Return the name of a node or, if it has none, the text right below it."""
        line = self.lines[index]
        if line.name or index + 1 == len(self.lines):
            return line.name
        below = self.lines[index + 1]
        return below.name if below.depth > line.depth and below.role == "StaticText" else ""

    def all(self, role: str, name: str | None = None, *, after: str = "") -> list[Line]:
        """Return the elements of a role that can be acted on, in order."""
        begin = 0
        if after:
            begin = next((i for i, line in enumerate(self.lines) if after in line.name), len(self.lines))
        return [
            line
            for index, line in enumerate(self.lines)
            if index >= begin and line.bid and line.role == role and name in (None, self.label(index))
        ]

    def find(self, role: str, name: str | None = None, *, after: str = "", nth: int = 0) -> str:
        """Return the bid of one element.

        Raises:
            NoElement: if there is none.
        """
        found = self.all(role, name, after=after)
        if len(found) <= nth:
            raise NoElement(f"no {role} {name or ''!r}" + (f" after {after!r}" if after else ""))
        return found[nth].bid


Policy = Callable[[View], Generator[dict[str, Any], View, None]]


def _line(text: str) -> Line:
    match = _LINE.match(text)
    if match is None:
        return Line(0, "", "", "", "", text)
    tabs, bid, role, name, rest = match.groups()
    value = ""
    if said := _VALUE.match(rest):
        value, rest = ast.literal_eval(said[1]), said[2]
    return Line(len(tabs), bid or "", role, ast.literal_eval(name) if name else "", value, rest)


# --- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plans:
    """Policies by task id, and why there is none for others."""

    policies: dict[str, Policy]
    hopeless: dict[str, str]


def load_plans(folder: Path = SOLUTIONS) -> Plans:
    """Read `solutions/*.yaml`."""
    policies: dict[str, Policy] = {}
    hopeless: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in document["groups"]:
            for task, values in group["tasks"].items():
                if task in policies:
                    raise ValueError(f"{path}: a second plan for {task}")
                policies[task] = partial(_follow, [_filled(step, values or []) for step in group["steps"]])
        for why, tasks in document.get("hopeless", {}).items():
            hopeless |= dict.fromkeys(tasks, why)
    return Plans(policies, hopeless)


def _filled(step: Any, values: list[Any]) -> Any:
    """Put a task's values in the places of `$1`, `$2`."""
    if isinstance(step, dict):
        return {key: _filled(part, values) for key, part in step.items()}
    if isinstance(step, list):
        return [_filled(part, values) for part in step]
    if isinstance(step, str) and re.fullmatch(r"\$\d", step):
        return str(values[int(step[1]) - 1])
    return step


def _follow(steps: list[Any], view: View) -> Generator[dict[str, Any], View, None]:
    for step in steps:
        if isinstance(step, list):
            view = yield _action(step, view)
            continue
        for _ in range(_MOST):
            if any(step["until"] in line.name for line in view.lines):
                break
            view = yield _action(step["step"], view)
        else:
            raise NoElement(f"never {step['until']!r}")


def _action(step: list[Any], view: View) -> dict[str, Any]:
    verb, *rest = step
    action: dict[str, Any] = {"action": verb}
    takes = iter(rest)
    if verb == "terminate":
        return action | {"answer": str(rest[0])}
    # `press` and `type` go where the focus is, if no element is given.
    if verb not in ("press", "type") or len(rest) > 1:
        action["bid"] = _element(takes, view)
    if verb in ("drag", "scroll"):
        action |= {"dx": next(takes), "dy": next(takes)}
    elif verb in _LAST:
        action[_LAST[verb]] = str(next(takes))
    return action


def _element(takes: Iterator[Any], view: View) -> str:
    role, name = next(takes), next(takes)
    if isinstance(name, dict):
        return view.find(role, name.get("name"), after=name.get("after", ""), nth=name.get("nth", 0))
    return view.find(role, str(name))

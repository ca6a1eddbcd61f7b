"""Vocabulary of the policies for MiniWoB: short names for actions and for the parts of a view."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

from solver_plans import Line, NoElement, View

Steps = Generator[dict[str, Any], View, Any]
POLICIES: dict[str, Callable[[View], Steps]] = {}


def solves(*pages: str) -> Callable[[Callable[[View], Steps]], Callable[[View], Steps]]:
    """Keep a policy for pages such as "click-test"."""

    def keep(policy: Callable[[View], Steps]) -> Callable[[View], Steps]:
        POLICIES.update(dict.fromkeys(pages, policy))
        return policy

    return keep


def click(bid: str) -> dict[str, Any]:
    return {"action": "click", "bid": bid}


def fill(bid: str, value: str) -> dict[str, Any]:
    return {"action": "fill", "bid": bid, "value": value}


def press(key: str, bid: str = "") -> dict[str, Any]:
    return {"action": "press", "key": key} | ({"bid": bid} if bid else {})


def goal(view: View) -> str:
    """Return the text with which the page begins: the task, and what stands right behind it."""
    return next(line.name for line in view.lines if line.role == "StaticText")


def said(pattern: str, view: View) -> tuple[str, ...]:
    found = re.search(pattern, goal(view))
    if not found:
        raise NoElement(f"the task says no {pattern}: {goal(view)}")
    return tuple(part.strip() for part in found.groups())


def fields(view: View) -> list[Line]:
    return [line for line in view.lines if line.bid and line.role in ("textbox", "spinbutton", "searchbox")]


def texts(view: View) -> list[str]:
    return [line.name for line in view.lines if line.role == "StaticText"]


def submit(view: View) -> dict[str, Any]:
    return click(view.find("button", "Submit"))


def until(view: View, role: str, name: str, action: dict[str, Any], most: int = 30) -> Steps:
    """Repeat an action until an element is shown; return the view."""
    for _ in range(most):
        if view.all(role, name):
            break
        view = yield action
    return view


def leaves(view: View) -> list[tuple[str, str]]:
    """Return what can be acted on, with its text."""
    return [(line.bid, view.label(index)) for index, line in enumerate(view.lines) if line.bid]


def leaf(view: View, name: str) -> str:
    """Return what can be acted on under a text, or ""."""
    return next((bid for bid, label in leaves(view) if label == name), "")

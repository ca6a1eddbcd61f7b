"""How a reader of the accessibility tree solves MiniWoB tasks.

A policy (solver_clicks.py, solver_fields.py, solver_widgets.py) reads the task off the page, since each
seed sets another one, and returns flat JSON actions. The page covers itself with START
before an episode and when one has ended, which is how it is known that it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import solver_clicks
import solver_fields
import solver_widgets
from solver_plans import Line, Policy, View
from solver_words import POLICIES, Steps, click

__all__ = ["PAGES", "policy_of"]

_STORED = (solver_clicks, solver_fields, solver_widgets)  # importing them keeps their policies
PAGES = tuple(sorted(POLICIES))


def policy_of(page: str) -> Policy | None:
    """Return the policy for a page such as "click-test", or None."""
    policy = POLICIES.get(page)
    return partial(_from_start_to_start, policy) if policy else None


def _covered(view: View) -> list[Line]:
    return view.all("generic", "START")


def _from_start_to_start(policy: Callable[[View], Steps], view: View) -> Steps:
    if cover := _covered(view):
        view = yield click(cover[0].bid)
    steps = policy(view)
    try:
        action = next(steps)
        while True:
            view = yield action
            if _covered(view):
                return
            action = steps.send(view)
    except StopIteration:
        return

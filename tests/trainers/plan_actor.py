"""Plays a task by its plan in bench/solutions; for tests, and for programs in the environments of others."""

from __future__ import annotations

from typing import Any

from solver_plans import View, load_plans


class Actor:
    """Follows a task's plan by what an observation's text shows; then terminates."""

    def __init__(self, task: str) -> None:
        self.policy = load_plans().policies[task]
        self.following: Any = None

    def act(self, text: str) -> dict[str, Any]:
        """Return the planned action for an observation."""
        view = View.of(text)
        try:
            if self.following is None:
                self.following = self.policy(view)
                return next(self.following)
            return self.following.send(view)
        except StopIteration:
            return {"action": "terminate"}

"""What the sides share: a plan of bench/solutions, followed by what an observation's text shows."""

from __future__ import annotations

import json
import sys
from typing import Any

from solver_plans import View, load_plans

GIVEN = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


class Actor:
    """Follows a task's plan; then terminates."""

    def __init__(self, task: str) -> None:
        self.policy = load_plans().policies[task]
        self.following: Any = None

    def act(self, text: str) -> dict[str, Any]:
        """Return the action that what is seen asks for."""
        view = View.of(text)
        try:
            if self.following is None:
                self.following = self.policy(view)
                return next(self.following)
            return self.following.send(view)
        except StopIteration:
            return {"action": "terminate"}


def tell(told: dict[str, Any]) -> None:
    """Print what came of it, for the test."""
    sys.stdout.write("\n" + json.dumps(told, default=str) + "\n")

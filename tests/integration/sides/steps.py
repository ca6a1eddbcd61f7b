"""What the sides share: what they are given, and how they tell what came of it."""

from __future__ import annotations

import json
import sys
from typing import Any

from plan_actor import Actor

__all__ = ["GIVEN", "Actor", "report"]

GIVEN = json.loads(sys.argv[1])


def report(told: dict[str, Any]) -> None:
    """Print what came of it, for the test."""
    sys.stdout.write("\n" + json.dumps(told, default=str) + "\n")

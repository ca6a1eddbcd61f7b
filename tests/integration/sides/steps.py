"""Parts that the sides share: their input, and the report of their results."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
from plan_actor import Actor

__all__ = ["GIVEN", "Actor", "lose_leases", "report"]

GIVEN = json.loads(sys.argv[1])


def report(outcome: dict[str, Any]) -> None:
    """Print what came of it, for the test."""
    sys.stdout.write("\n" + json.dumps(outcome, default=str) + "\n")


def lose_leases() -> None:
    """End all leases behind their holders' backs, as a failing server does."""
    with httpx.Client(base_url=GIVEN["rollouts"], trust_env=False) as client:
        for each in client.get("/v1/status").json()["sessions"]:
            if each.get("lease"):
                client.delete(f"/v1/leases/{each['lease']}")

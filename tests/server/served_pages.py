"""Actions of the rollout server's tests on the small site's page."""

from __future__ import annotations

import re

FILLED = "Ada"


def bid(axtree, name="Name"):
    """Return the bid of the element of that name."""
    return re.search(rf"\[(\w+)\] \w+ '{re.escape(name)}'", axtree)[1]


async def lease(client, **given):
    """Lease a session with an episode of the task `named`; return its identifier and what is seen."""
    answer = await client.post("/v1/leases", json={"task_id": "named", **given})
    assert answer.status_code == 201, answer.text
    return answer.json()["lease"], answer.json()["reset"]["observation"]


async def step(client, lease_id, action, **given):
    """Take an action; return the response."""
    return await client.post(f"/v1/leases/{lease_id}/step", json={"action": action, **given})


def filling(observation):
    """Return the action that solves the task."""
    return {"action": "fill", "bid": bid(observation["axtree"]), "value": FILLED}


async def play(client, lease_id, observation):
    """Solve the task; return the last step's answer."""
    assert (await step(client, lease_id, filling(observation))).status_code == 200
    return (await step(client, lease_id, {"action": "terminate"})).json()

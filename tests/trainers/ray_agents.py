"""Agents that Ray's workers import by name."""

from __future__ import annotations

import os
from pathlib import Path

from stillweb.polling import poll

PLACE = "STILLWEB_TEST_RAY"  # folder through which tests and workers exchange messages


def clicks(task):
    """Click as many links as the task's id says, in turn, and end."""
    left = int(task.id.rpartition("-")[2])

    def act(observation, info):
        nonlocal left
        if "raise" in task.id:
            raise ValueError("as requested")
        if not left:
            return {"action": "terminate"}
        left -= 1
        link = next(node for node in observation.nodes if node.role == "link")
        return {"action": "click", "bid": link.bid}

    return act


def solver(task):
    """Solve a task of WARC-Bench by its plan."""
    from plan_actor import Actor

    actor = Actor(task.id)
    return lambda observation, info: actor.act(observation.axtree)


def held(task):
    """As `clicks`; where the task says so, the first one reports its process and stops there."""
    chosen = clicks(task)

    async def act(observation, info):
        pid_file = Path(os.environ[PLACE]) / task.id
        if "held" in task.id and info["step"] == 1 and not pid_file.exists():
            part = pid_file.with_suffix(".part")
            part.write_text(str(os.getpid()))
            part.rename(pid_file)
            await poll(lambda: False, timeout=120)
        return chosen(observation, info)

    return act

"""Drives an environment that SkyRL-gym's own registry made."""

from __future__ import annotations

import json
import re

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv
from steps import GIVEN, Actor, report

from stillweb.errors import InfraError

HERE = {"source": {"server": GIVEN["rollouts"]}, "max_observation_length": 100_000}


def episode(task: str, *, fenced: bool) -> dict:
    env = skyrl_gym.make("stillweb", env_config=HERE, extras={"task_id": task, "max_turns": 9})
    actor = Actor(task)
    seen, info = env.init([{"role": "user", "content": "Reach the goal."}])
    result = {
        "prompt": len(seen),
        "first": seen[-1]["content"][:200],
        "info": info,
        "class": isinstance(env, BaseTextEnv),
    }
    rewards = []
    done = False
    while not done:
        action = actor.act(seen[-1]["content"].partition("\n\n")[2])
        said = json.dumps(action)
        out = env.step(f"<think>{{}}</think>So:\n```json\n{said}\n```" if fenced else said)
        seen, done = out["observations"] or seen, out["done"]
        rewards.append(out["reward"])
    metrics = type(env).aggregate_metrics([env.get_metrics()])
    env.close()
    env.close()
    return {**result, "rewards": rewards, "metadata": out["metadata"], "metrics": metrics}


def turns() -> list[bool]:
    """A model that never comes to an end is stopped after its turns."""
    env = skyrl_gym.make("stillweb", env_config=HERE, extras={"task_id": GIVEN["tasks"][0], "max_turns": 2})
    env.init([])
    ends = [env.step("I do not know")["done"] for _ in range(2)]
    env.close()
    return ends


def failure() -> str:
    """A failure of ours raises, and has no reward."""
    import httpx

    env = skyrl_gym.make("stillweb", env_config=HERE, extras={"task_id": GIVEN["tasks"][0]})
    env.init([])
    for each in httpx.get(GIVEN["rollouts"] + "/v1/status").json()["sessions"]:
        if each.get("lease"):
            httpx.delete(f"{GIVEN['rollouts']}/v1/leases/{each['lease']}")
    try:
        env.step('{"action": "terminate"}')
    except InfraError as error:
        return re.sub(r"[0-9a-f]{8,}", "ID", str(error))
    finally:
        env.close()
    return ""


skyrl_gym.register("stillweb", "stillweb.trainers.skyrl:StillwebTextEnv")
report(
    {
        "plain": episode(GIVEN["tasks"][0], fenced=False),
        "fenced": episode(GIVEN["tasks"][1], fenced=True),
        "turns": turns(),
        "failure": failure(),
    }
)

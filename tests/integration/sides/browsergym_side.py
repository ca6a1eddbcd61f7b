"""Drives BrowserGym's own environment: a registered task, and a plain `BrowserEnv` pointed at the proxy."""

from __future__ import annotations

import re

import browsergym.core  # noqa: F401 - registers its own
import gymnasium
from browsergym.core.env import BrowserEnv
from browsergym.core.task import OpenEndedTask
from browsergym.utils.obs import flatten_axtree_to_str
from steps import GIVEN, Actor, report

from stillweb.env.tasks.task import task_from_dict
from stillweb.trainers.browsergym import register_tasks, use_browser


def call(action: dict) -> str:
    """Return one of our actions in BrowserGym's words."""
    if action["action"] == "terminate":
        return "send_msg_to_user('done')"
    fields = ", ".join(repr(action[name]) for name in ("bid", "value") if name in action)
    return f"{action['action']}({fields})"


def solved(env: gymnasium.Env, task: str) -> dict:
    actor = Actor(task)
    seen, info = env.reset(seed=1)
    rewards, done, errors = [], False, []
    while not done:
        action = call(actor.act(flatten_axtree_to_str(seen["axtree_object"])))
        for _ in range(5):  # its clicks are given half a second, which a busy machine may not have
            seen, reward, done, _, after = env.step(action)
            error = seen["last_action_error"]
            if "Timeout 500ms" not in error or "click action done" in error:
                break
        rewards.append(reward)
        errors.append(seen["last_action_error"])
    return {
        "rewards": rewards,
        "errors": errors,
        "goal": seen["goal"],
        "info": info,
        "after": after["task_info"],
    }


def plain() -> dict:
    """BrowserGym as it is, on the replay server's first session."""
    env = BrowserEnv(
        OpenEndedTask,
        {"start_url": GIVEN["start_url"], "goal": "look"},
        pw_context_kwargs={"proxy": {"server": GIVEN["replay"]}, "ignore_https_errors": True},
        slow_mo=0,
    )
    seen, _ = env.reset()
    text = flatten_axtree_to_str(seen["axtree_object"])
    env.close()
    return {"url": seen["url"], "buttons": len(re.findall(r"button '", text))}


use_browser(GIVEN["browser"])
ids = register_tasks([task_from_dict(task, "side") for task in GIVEN["whole"]], GIVEN["replay"])
env = gymnasium.make(ids[0])
result = {"ids": ids, "class": isinstance(env.unwrapped, BrowserEnv)}
result["first"] = solved(env, GIVEN["tasks"][0])
result["again"] = solved(env, GIVEN["tasks"][0])
env.reset(seed=1)
result["untouched"] = env.step("send_msg_to_user('done')")[1:3]
env.close()
report({**result, "plain": plain()})

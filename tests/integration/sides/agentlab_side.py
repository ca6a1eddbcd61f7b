"""AgentLab runs experiments on registered tasks, in joblib's and in Ray's worker processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import ray
from agentlab.agents.agent_args import AgentArgs
from agentlab.experiments.launch_exp import run_experiments
from agentlab.experiments.loop import EnvArgs, ExpArgs
from bgym import Agent, HighLevelActionSet
from browsergym.utils.obs import flatten_axtree_to_str
from steps import GIVEN, Actor, report

from stillweb.env.tasks.task import task_from_dict
from stillweb.trainers.browsergym import register_tasks, use_browser


class Planned(Agent):
    """Follows the plan of a task, in BrowserGym's actions."""

    def __init__(self, task: str) -> None:
        self.actor = Actor(task)
        self.last = ""
        self.action_set = HighLevelActionSet(["bid", "chat", "nav"])

    def obs_preprocessor(self, obs: dict) -> dict:
        # No texts: AgentLab counts their tokens, for which it downloads an encoding.
        return {"seen": (flatten_axtree_to_str(obs["axtree_object"]), obs["last_action_error"])}

    def get_action(self, obs: dict) -> tuple[str, dict]:
        text, error = obs["seen"]
        late = "Timeout 500ms" in error and "click action done" not in error
        if not late:  # its clicks are given half a second, which a busy machine may not have
            action = self.actor.act(text)
            fields = ", ".join(repr(action[name]) for name in ("bid", "value") if name in action)
            ends = action["action"] == "terminate"
            self.last = "send_msg_to_user('done')" if ends else f"{action['action']}({fields})"
        return self.last, {}


@dataclass
class PlannedArgs(AgentArgs):
    task: str = ""
    agent_name: str = "planned"

    def make_agent(self) -> Planned:
        return Planned(self.task)


def experiments(backend: str) -> dict:
    """Run both tasks in worker processes; return what AgentLab stored of each."""
    folder = Path.cwd() / f"agentlab-{backend}"
    runs = [
        ExpArgs(
            agent_args=PlannedArgs(task=task["id"]), env_args=EnvArgs(task_name=name.task_name, max_steps=8)
        )
        for task, name in zip(GIVEN["whole"], ids, strict=True)
    ]
    run_experiments(2, runs, folder, parallel_backend=backend)
    stored = [json.loads(path.read_text()) for path in sorted(folder.glob("*/summary_info.json"))]
    return {
        "rewards": [each["cum_reward"] for each in stored],
        "errors": [each["err_msg"] for each in stored],
    }


def start_ray(*given, original=ray.init, **named) -> object:
    """Start Ray without its dashboard, which a busy machine does not start within Ray's 30 s."""
    return original(*given, **{**named, "include_dashboard": False, "dashboard_port": None})


ray.init = start_ray
tasks = [task_from_dict(task, "given") for task in GIVEN["whole"]]
use_browser(GIVEN["browser"])
ids = register_tasks(tasks, GIVEN["replay"])
report(experiments(GIVEN["backend"]))

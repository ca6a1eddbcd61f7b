"""Drives our workflow as AReaL's text has it: the abstract class is the real one, the client a stand-in."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
from types import ModuleType, SimpleNamespace

from steps import GIVEN, Actor, report

# `import areal` wants torch and its engines; the interface is a file that wants neither.
package = ModuleType("areal")
package.__path__ = [str(importlib.metadata.distribution("areal").locate_file("areal"))]
sys.modules["areal"] = package

from areal.api.workflow_api import RolloutWorkflow  # noqa: E402

from stillweb.trainers.areal import StillwebWorkflow  # noqa: E402


class Client:
    """Parts of `ArealOpenAI` that a workflow calls: chat.completions.create, rewards, export_interactions."""

    def __init__(self, engine: str) -> None:
        self.actor, self.reported = Actor(engine), []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list, tools: list, **_: object) -> SimpleNamespace:
        function = SimpleNamespace(
            name="browser", arguments=json.dumps(self.actor.act(messages[-1]["content"]))
        )
        call = SimpleNamespace(id="c", function=function)
        message = SimpleNamespace(content="", tool_calls=[call], model_dump=lambda **_: {"role": "assistant"})
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    def set_last_reward(self, reward: float) -> None:
        self.reported.append(reward)

    def apply_reward_discount(self, *, turn_discount: float) -> None:
        self.reported.append(turn_discount)

    def export_interactions(self, *, style: str) -> dict:
        return {"style": style, "reported": self.reported}


workflow = StillwebWorkflow({"server": GIVEN["rollouts"]}, client=Client)
task = GIVEN["tasks"][0]
episode = asyncio.run(workflow.arun_episode(task, {"task_id": task}))
report({"class": isinstance(workflow, RolloutWorkflow), "episode": episode})

"""Inspect AI evaluates tasks with its own loop, model interface and metrics."""

from __future__ import annotations

import inspect_ai
from inspect_ai.model import ModelOutput, get_model
from steps import GIVEN, Actor, lose_leases, report

from stillweb.trainers.inspect_ai import browser_task


def answering(actors: dict[str, Actor], *, lost: bool = False):
    """Return a model that follows the plan of the task whose goal is in its prompt."""

    def answer(messages, tools, tool_choice, config) -> ModelOutput:
        assert [tool.name for tool in tools] == ["browser"]
        goal = messages[1].text.splitlines()[0]
        page = messages[-1].text
        if lost:
            lose_leases()
        name = next(name for name, actor in actors.items() if goal in GOALS[name])
        action = actors[name].act(page.removeprefix(goal))
        return ModelOutput.for_tool_call("mockllm", "browser", action)

    return offline(get_model("mockllm/model", custom_outputs=answer))


def offline(model):
    """Have a model count its tokens itself: Inspect would download an encoding."""

    async def count(text: str) -> int:
        return len(text) // 4

    model.api.count_text_tokens = count
    return model


def evaluated(rows: list[dict], model, **options) -> dict:
    task = browser_task(rows, {"server": GIVEN["rollouts"]}, max_observation_length=100_000, **options)
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir="inspect-logs", max_samples=2)
    assert log.status == "success", log.error or [sample.error for sample in log.samples or []]
    scores = [score for sample in log.samples or [] for score in sample.scores.values()]
    return {
        "status": log.status,
        "rewards": [score.value for score in scores],
        "reasons": [score.reason for score in scores],
        "mean": {name: metric.value for name, metric in log.results.scores[0].metrics.items()},
        "unscored": log.results.scores[0].unscored_samples,
        "tools": sum(message.role == "tool" for message in log.samples[0].messages),
    }


GOALS = {name: f"Goal: {goal}" for name, goal in GIVEN["goals"].items()}
ROWS = [{"task_id": name} for name in GIVEN["tasks"]]
played = evaluated(ROWS, answering({name: Actor(name) for name in GIVEN["tasks"]}))
silent = evaluated(ROWS[:1], offline(get_model("mockllm/model")), max_turns=2)
lost = evaluated(ROWS[:1], answering({name: Actor(name) for name in GIVEN["tasks"]}, lost=True))
report({"played": played, "silent": silent, "lost": lost})

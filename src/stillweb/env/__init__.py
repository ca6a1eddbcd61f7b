"""Episodes on replayed pages: tasks, actions, observations, evaluators and the environment itself.

What is listed in `__all__` is imported when it is first asked for, so that who only needs the words of
actions or tasks (adapters that run where no browser is) does not load Playwright.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stillweb.env.action import Action, ActionResult, ActionStatus, InvalidAction, action_schema, parse
    from stillweb.env.check import Checked, check_tasks
    from stillweb.env.checkenv import CheckOptions, EnvChecked, check_env
    from stillweb.env.env import Env, EnvOptions
    from stillweb.env.evidence import Evidence, Judge, Score
    from stillweb.env.explore import propose_trace
    from stillweb.env.miniwob import miniwob_tasks
    from stillweb.env.observation import Observation, Observe, Tab
    from stillweb.env.pool import PoolOptions
    from stillweb.env.rollout import Outcome, Planned, Rollout, RolloutOptions
    from stillweb.env.tables import tool_schema
    from stillweb.env.tabs import DialogAnswers
    from stillweb.env.task import (
        EvalKind,
        Evaluation,
        Task,
        load_tasks,
        native_tasks,
        warc_bench_tasks,
        webarena_tasks,
    )
    from stillweb.env.trace import Trace, TraceRun, run_trace
    from stillweb.env.trajectory import Trajectory
    from stillweb.env.vector import VectorEnv, VectorOptions

__all__ = [
    "Action",
    "ActionResult",
    "ActionStatus",
    "CheckOptions",
    "Checked",
    "DialogAnswers",
    "Env",
    "EnvChecked",
    "EnvOptions",
    "EvalKind",
    "Evaluation",
    "Evidence",
    "InvalidAction",
    "Judge",
    "Observation",
    "Observe",
    "Outcome",
    "Planned",
    "PoolOptions",
    "Rollout",
    "RolloutOptions",
    "Score",
    "Tab",
    "Task",
    "Trace",
    "TraceRun",
    "Trajectory",
    "VectorEnv",
    "VectorOptions",
    "action_schema",
    "check_env",
    "check_tasks",
    "load_tasks",
    "miniwob_tasks",
    "native_tasks",
    "parse",
    "propose_trace",
    "run_trace",
    "tool_schema",
    "warc_bench_tasks",
    "webarena_tasks",
]

_HOMES = {
    "Action": "action",
    "ActionResult": "action",
    "ActionStatus": "action",
    "CheckOptions": "checkenv",
    "Checked": "check",
    "DialogAnswers": "tabs",
    "Env": "env",
    "EnvChecked": "checkenv",
    "EnvOptions": "env",
    "EvalKind": "task",
    "Evaluation": "task",
    "Evidence": "evidence",
    "InvalidAction": "action",
    "Judge": "evidence",
    "Observation": "observation",
    "Observe": "observation",
    "Outcome": "rollout",
    "Planned": "rollout",
    "PoolOptions": "pool",
    "Rollout": "rollout",
    "RolloutOptions": "rollout",
    "Score": "evidence",
    "Tab": "observation",
    "Task": "task",
    "Trace": "trace",
    "TraceRun": "trace",
    "Trajectory": "trajectory",
    "VectorEnv": "vector",
    "VectorOptions": "vector",
    "action_schema": "action",
    "check_env": "checkenv",
    "check_tasks": "check",
    "load_tasks": "task",
    "miniwob_tasks": "miniwob",
    "native_tasks": "task",
    "parse": "action",
    "propose_trace": "explore",
    "run_trace": "trace",
    "tool_schema": "tables",
    "warc_bench_tasks": "task",
    "webarena_tasks": "task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

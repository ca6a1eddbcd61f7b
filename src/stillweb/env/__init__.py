"""Episodes on replayed pages: tasks, actions, observations, evaluators and the environment itself."""

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

"""Episodes on replayed pages: tasks, actions, observations, evaluators and the environment itself."""

from stillweb.env.action import Action, ActionResult, ActionStatus, InvalidAction, action_schema, parse
from stillweb.env.check import Checked, check_tasks
from stillweb.env.env import Env, EnvOptions
from stillweb.env.evaluator import Score, evaluate
from stillweb.env.observation import Observation, Observe, Tab
from stillweb.env.task import EvalKind, Evaluation, Task, load_tasks, warc_bench_tasks

__all__ = [
    "Action",
    "ActionResult",
    "ActionStatus",
    "Checked",
    "Env",
    "EnvOptions",
    "EvalKind",
    "Evaluation",
    "InvalidAction",
    "Observation",
    "Observe",
    "Score",
    "Tab",
    "Task",
    "action_schema",
    "check_tasks",
    "evaluate",
    "load_tasks",
    "parse",
    "warc_bench_tasks",
]

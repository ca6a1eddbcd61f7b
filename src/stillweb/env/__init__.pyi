from .actions.action import (
    Action,
    ActionResult,
    ActionStatus,
    InvalidAction,
    action_schema,
    parse,
    tool_schema,
)
from .check import CheckOptions, EnvCheck, TaskCheck, check_env, check_tasks
from .env import Env
from .episode.tabs import DialogAnswers
from .observations.observation import Observation, Observe, Tab
from .options import EnvOptions
from .tasks.evaluators import EvalKind, Evaluation
from .tasks.evidence import Evidence, Judge, Score
from .tasks.formats.warcbench import warc_bench_tasks
from .tasks.formats.webarena import webarena_tasks
from .tasks.load import load_tasks
from .tasks.miniwob import miniwob_tasks
from .tasks.native import native_tasks
from .tasks.task import Task
from .trajectories.propose import propose_trace
from .trajectories.trace import Trace, TraceRun, run_trace
from .trajectories.trajectory import Trajectory
from .vector.pool import PoolOptions
from .vector.rollout import Outcome, Planned, Rollout, RolloutOptions
from .vector.vector import VectorEnv, VectorOptions

__all__ = [
    "Action",
    "ActionResult",
    "ActionStatus",
    "CheckOptions",
    "DialogAnswers",
    "Env",
    "EnvCheck",
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
    "TaskCheck",
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

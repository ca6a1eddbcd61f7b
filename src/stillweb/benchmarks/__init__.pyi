from .audit import AuditFinding, AuditOptions, AuditReport, audit_tasks
from .make import ALL_FAMILIES, MadeTask, MadeTasks, MakeOptions, make_tasks
from .oracle import OracleRun, action_of, run_oracle
from .paraphrase import ParaphrasedTasks, paraphrase_tasks
from .perturb import PerturbedTask, PerturbTasksOptions, perturb_tasks
from .proof import ProofOptions, ProofResult, TaskProver
from .site import SiteMap, read_site, split_pages

__all__ = [
    "ALL_FAMILIES",
    "AuditFinding",
    "AuditOptions",
    "AuditReport",
    "MadeTask",
    "MadeTasks",
    "MakeOptions",
    "OracleRun",
    "ParaphrasedTasks",
    "PerturbTasksOptions",
    "PerturbedTask",
    "ProofOptions",
    "ProofResult",
    "SiteMap",
    "TaskProver",
    "action_of",
    "audit_tasks",
    "make_tasks",
    "paraphrase_tasks",
    "perturb_tasks",
    "read_site",
    "run_oracle",
    "split_pages",
]

"""Solve tasks by the accessibility tree's text and `Env.step` alone, once or twice, and compare.

    python bench/solver.py --shared ../shared --level exact --jobs 8 --twice [--only 'kanban|menu']
    python bench/solver.py --tasks miniwob --collections DIR --seeds 3 --level exact --twice

The second needs a recording of the games: `stillweb record crawl https://games.test/miniwob/ -c games
--collections DIR --scope prefix --limit 160`, with --resolve and --upstream-ca (docs/how-to/record.md).

Each task is first scored untouched: one that is solved by doing nothing counts for nothing. Then its policy
(solver_plans.py: `solutions/*.yaml`; solver_miniwob.py) is followed from a reset to `terminate`, and with
`--twice` again, in another context and session: every observation's digests must be equal, step for
step. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from solver_miniwob import PAGES, policy_of
from solver_plans import NoElement, Policy, View, load_plans
from warc_bench import prepare

from stillweb import clock
from stillweb.browser.launch import launch
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env.env import Env, EnvOptions
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.miniwob import miniwob_tasks
from stillweb.env.tasks.task import Task
from stillweb.errors import StillwebError
from stillweb.replay.server.server import ReplayOptions, serve

MAX_STEPS = 200
MINIWOB = "https://games.test/miniwob/"


@dataclass(frozen=True, slots=True)
class Played:
    """An episode.

    Attributes:
        reward: at its end.
        trouble: "" or why it ended early or was not solved.
        infra: whether that was ours.
        digests: of every observation, the first being that of reset.
        misses: requests that the collection does not hold.
        flags: what the environment says is not exact, for each step that has any.
    """

    reward: float = 0.0
    trouble: str = ""
    infra: bool = False
    digests: tuple[dict[str, str], ...] = ()
    misses: int = 0
    unsettled: int = 0
    flags: tuple[str, ...] = ()
    actions: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class Row:
    """The result of a task (or of a task under one seed)."""

    task: str
    page: str
    untouched: Played | None = None
    runs: list[Played] = field(default_factory=list)
    no_policy: str = ""

    @property
    def solved(self) -> bool:
        touched = self.untouched is not None and self.untouched.reward < 1.0 and not self.untouched.infra
        return touched and bool(self.runs) and all(run.reward > 0 and not run.infra for run in self.runs)

    @property
    def first_difference(self) -> dict[str, Any] | None:
        """Where two runs part, or None."""
        if len(self.runs) < 2:
            return None
        one, two = self.runs[0], self.runs[1]
        for step, (left, right) in enumerate(zip(one.digests, two.digests, strict=False)):
            if left != right:
                kinds = [kind for kind in left if left[kind] != right.get(kind)]
                return {"task": self.task, "step": step, "kinds": kinds}
        if one.actions != two.actions or one.reward != two.reward or len(one.digests) != len(two.digests):
            return {"task": self.task, "step": min(len(one.digests), len(two.digests)), "kinds": ["course"]}
        return None

    @property
    def failure(self) -> str:
        """ "" or the reason, in words that can be counted."""
        if self.solved:
            return ""
        if self.untouched and self.untouched.reward >= 1.0:
            return "solved untouched"
        if self.no_policy:
            return self.no_policy
        return next((run.trouble for run in self.runs if run.trouble), "not solved")

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "task": self.task,
            "solved": self.solved,
            "failure": self.failure,
            "untouched": self.untouched and self.untouched.reward,
            "rewards": [run.reward for run in self.runs],
            "steps": [len(run.actions) for run in self.runs],
            "infra": [run.trouble for run in (self.untouched, *self.runs) if run and run.infra],
            "difference": self.first_difference,
        }


async def play(env: Env, task: Task, policy: Policy | None, seed: int | None = None) -> Played:
    """Reset, follow a policy, terminate; with no policy terminate immediately."""
    digests: list[dict[str, str]] = []
    actions: list[dict[str, Any]] = []
    flags: list[str] = []
    reward, trouble, misses, unsettled = 0.0, "", 0, 0
    try:
        observation, info = await env.reset(task=task, seed=seed)
        digests.append(dict(observation.digests))
        unsettled += not info["settle"]["settled"]
        generator = policy(View.of(observation.axtree)) if policy else iter(())
        terminated = truncated = False
        view: View | None = None
        while not (terminated or truncated):
            action = _next(generator, view)
            actions.append(action)
            observation, reward, terminated, truncated, info = await env.step(action)
            digests.append(dict(observation.digests))
            misses = info["traffic"]["misses"]
            flags += [str(answer)] if (answer := info["determinism"]["flags"]) else []
            unsettled += bool(info["settle"]) and not info["settle"]["settled"]
            if info["action"]["status"] != "ok" and not trouble:
                trouble = f"{info['action']['status']}: {info['action']['error']}"
            view = View.of(observation.axtree or "")
        if not reward:
            trouble = trouble or "; ".join(info.get("score", {}).get("reasons", ("truncated",)))
        else:
            trouble = ""
    except (NoElement, LookupError, ValueError, RuntimeError) as error:
        trouble = f"the policy finds its way no more: {error!r}"
    except StillwebError as error:
        return Played(0.0, str(error), True, tuple(digests), misses, unsettled, tuple(flags), tuple(actions))
    return Played(reward, trouble, False, tuple(digests), misses, unsettled, tuple(flags), tuple(actions))


def _next(generator: Any, view: View | None) -> dict[str, Any]:
    try:
        return next(generator) if view is None else generator.send(view)
    except (StopIteration, AttributeError):
        return {"action": "terminate"}


@dataclass(frozen=True, slots=True)
class Job:
    """A task to be solved: under a seed, if it has several faces."""

    task: Task
    policy: Policy | None
    no_policy: str = ""
    seed: int | None = None


async def solve_all(
    jobs: Sequence[Job],
    envs: Iterable[Env],
    *,
    runs: int = 1,
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Solve every job, one at a time in each environment; rows come in the order of the jobs."""
    rows: list[Row | None] = [None] * len(jobs)
    todo = iter(enumerate(jobs))

    async def work(env: Env) -> None:
        for index, job in todo:
            name = job.task.id if job.seed is None else f"{job.task.id}#{job.seed}"
            row = Row(name, job.task.start_url, no_policy=job.no_policy)
            row.untouched = await play(env, job.task, None, job.seed)
            if job.policy and not row.untouched.infra:
                row.runs = [await play(env, job.task, job.policy, job.seed) for _ in range(runs)]
            rows[index] = row
            on_row(row)

    async with asyncio.TaskGroup() as group:
        for env in envs:
            group.create_task(work(env))
    return [row for row in rows if row is not None]


def warc_bench_jobs(shared: Path, only: str) -> list[Job]:
    """Make the jobs of the public tasks of WARC-Bench."""
    plans = load_plans()
    wanted = re.compile(only)
    return [
        Job(
            task,
            plans.policies.get(task.id),
            "" if task.id in plans.policies else plans.hopeless.get(task.id, "no plan"),
        )
        for task in load_tasks(shared / "tasks" / "warc_bench_public.json")
        if wanted.search(f"{task.id} {task.start_url}")
    ]


def miniwob_jobs(only: str, seeds: int) -> list[Job]:
    """Make the jobs of MiniWoB: each page under so many seeds, by the site's reward."""
    wanted = re.compile(only)
    tasks = miniwob_tasks([f"{MINIWOB}{page}.html" for page in PAGES], collection="games")
    return [
        Job(task, policy_of(task.id.removeprefix("miniwob.")), seed=seed)
        for task in tasks
        if wanted.search(task.id.removeprefix("miniwob."))
        for seed in range(1, seeds + 1)
    ]


# --- the program -----------------------------------------------------------------------------------


async def run(arguments: argparse.Namespace, jobs: list[Job], folder: Path) -> dict[str, Any]:
    collections = _collections(arguments, jobs, folder)
    ca = CertAuthority.load_or_init(folder / "certs")
    started = clock.perf()
    async with AsyncExitStack() as stack:
        options = ReplayOptions(port=0, session_ports=None)
        server = await stack.enter_async_context(serve(collections, ca, options))
        browser = await stack.enter_async_context(
            launch(spki=ca.spki_hashes(), exact=arguments.level == "exact")
        )
        envs = []
        for _ in range(min(arguments.jobs, len(jobs))):
            env = Env(
                server.url,
                level=arguments.level,
                observe=tuple(arguments.observe.split(",")),
                browser=browser,
                options=EnvOptions(max_steps=MAX_STEPS),
            )
            envs.append(await stack.enter_async_context(env))
        bar = stack.enter_context(Progress(console=Console(stderr=True)))
        shown = bar.add_task("tasks", total=len(jobs))
        log = stack.enter_context(arguments.rows.open("w")) if arguments.rows else None

        def show(row: Row) -> None:
            bar.advance(shown)
            if log:
                log.write(json.dumps(row.to_dict()) + "\n")
                log.flush()

        rows = await solve_all(jobs, envs, runs=2 if arguments.twice else 1, on_row=show)
    return summary(arguments, rows, clock.perf() - started)


def _collections(arguments: argparse.Namespace, jobs: list[Job], folder: Path) -> list[Collection]:
    names = {job.task.collection for job in jobs}
    if arguments.collections is None:
        return prepare(arguments.shared, folder / "collections", names)
    found = [Collection.open(arguments.collections, name) for name in sorted(names)]
    for collection in found:
        seal(collection)
    return found


def summary(arguments: argparse.Namespace, rows: list[Row], seconds: float) -> dict[str, Any]:
    solved = [row for row in rows if row.solved]
    played = [run for row in rows for run in [row.untouched, *row.runs] if run is not None]
    parted = [row.first_difference for row in rows if row.first_difference]
    failures = [row for row in rows if not row.solved]
    return {
        "tasks": len(rows),
        "level": arguments.level,
        "jobs": arguments.jobs,
        "observe": arguments.observe,
        "solved": len(solved),
        "solved_untouched": sorted(row.task for row in rows if row.untouched and row.untouched.reward >= 1.0),
        "identical_twice": len(solved) - len({d["task"] for d in parted} & {row.task for row in solved})
        if arguments.twice
        else None,
        "differences": parted[:20],
        "failures": dict(Counter(_short(row.failure) for row in failures).most_common(30)),
        "unsolved": {row.task: row.failure[:300] for row in failures},
        "infra_errors": sum(run.infra for run in played),
        "misses": sum(run.misses for run in played),
        "unsettled": sum(run.unsettled for run in played),
        "flagged_steps": dict(Counter(flag for run in played for flag in run.flags).most_common(10)),
        "episodes": len(played),
        "steps": sum(len(run.actions) for run in played),
        "by_page": _by_page(rows),
        "seconds": round(seconds, 1),
    }


def _by_page(rows: list[Row]) -> dict[str, str]:
    total, solved = Counter(row.page for row in rows), Counter(row.page for row in rows if row.solved)
    return {page: f"{solved[page]}/{total[page]}" for page in sorted(total)}


def _short(reason: str) -> str:
    return re.sub(r"\[\w+\]|'[^']*'|\"[^\"]*\"", "_", reason)[:80]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--tasks", choices=["warc-bench", "miniwob"], default="warc-bench")
    parser.add_argument("--collections", type=Path, help="folder of collections, instead of importing them")
    parser.add_argument("--level", default="clock")
    parser.add_argument("--observe", default="axtree", help="parts of an observation that are compared")
    parser.add_argument("--jobs", type=int, default=4, help="simultaneous environments, in one browser")
    parser.add_argument("--seeds", type=int, default=1, help="of each MiniWoB task")
    parser.add_argument("--twice", action="store_true", help="solve again and compare all observations")
    parser.add_argument(
        "--rows", type=Path, help="file to write each task's outcome to, one JSON object a line"
    )
    parser.add_argument("--only", default="", help="regular expression for task ids and start URLs")
    arguments = parser.parse_args()
    if arguments.tasks == "miniwob":
        jobs = miniwob_jobs(arguments.only, arguments.seeds)
    else:
        jobs = warc_bench_jobs(arguments.shared, arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(arguments, jobs, Path(folder)))
    print(json.dumps(result, indent=2))
    return 1 if result["infra_errors"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""`stillweb env check`: is a task on a collection the same every time, and is it a task at all?"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import print_json, print_table, progress, stderr
from stillweb.cli.options import json_option, level_option, proxy_option, session_counts, sites_option
from stillweb.env.check import Checked, check_tasks
from stillweb.env.checkenv import CheckOptions, EnvChecked, check_env
from stillweb.env.task import Task, load_tasks
from stillweb.env.trace import Trace
from stillweb.errors import UsageError

_FILE = click.Path(path_type=Path, exists=True)


@click.command()
@click.argument("tasks", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@proxy_option
@level_option
@sites_option
@click.option("--trace", "traces", multiple=True, type=_FILE, help="Trace or trajectory to run. Repeatable.")
@click.option("--runs", type=click.IntRange(2), default=3, show_default=True, help="At each count, at least.")
@click.option(
    "--sessions", callback=session_counts, default="1,4", show_default=True, help="Counts of sessions."
)
@click.option("--steps", type=click.IntRange(0), default=6, show_default=True, help="To explore in a task.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the exploring.")
@click.option("--limit", type=click.IntRange(min=1), help="Check the first so many tasks only.")
@click.option("--quick", is_flag=True, help="Only reset each task and score it untouched, once.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="At a time, with --quick."
)
@json_option
def check(tasks: Path | None, proxy: str, level: str, sites: dict[str, str], **chosen: Any) -> None:
    """Run each task again and again, and tell whether anything differs.

    A task is explored from its start page with equal actions each time, alone and beside others, and
    scored; a trace is taken as it is. Shown are: steps at which what is observed differs, pages that do
    not settle, requests that the collection does not hold, rewards, and the reward for doing
    nothing. Exit status 1 if anything differs or a task cannot be run.

    \b
    Example:
      stillweb env check tasks.yaml --proxy http://127.0.0.1:8080
      stillweb env check tasks.json --proxy http://127.0.0.1:8080 --quick --limit 20
      stillweb env check --trace trajectories/2f0c/ --proxy http://127.0.0.1:8080 --runs 10
    """  # noqa: D301
    loaded = load_tasks(tasks, sites=sites)[: chosen["limit"]] if tasks else []
    traces = [Trace.load(path) for path in chosen["traces"]]
    if not loaded and not traces:
        raise UsageError("there is nothing to check", hint="name a task file, or --trace FILE")
    if chosen["quick"]:
        _quick(loaded, proxy, level, chosen["jobs"], as_json=chosen["as_json"])
        return
    options = CheckOptions(
        runs=chosen["runs"],
        sessions=chosen["sessions"],
        steps=chosen["steps"],
        seed=chosen["seed"],
        level=level,
    )
    rows = asyncio.run(_check([*loaded, *traces], proxy, options))
    summary = _summary(rows)
    if chosen["as_json"]:
        print_json({**summary, "rows": [row.to_dict() for row in rows]})
    else:
        _print_rows(rows)
        stderr().print(", ".join(f"{name} {count}" for name, count in summary.items()), highlight=False)
    if summary["same"] < len(rows):
        sys.exit(1)


async def _check(subjects: list[Task | Trace], proxy: str, options: CheckOptions) -> list[EnvChecked]:
    with progress() as bar:
        shown = bar.add_task("runs", total=options.total(len(subjects)))
        return await check_env(subjects, proxy, options=options, on_run=lambda: bar.advance(shown))


def _summary(rows: list[EnvChecked]) -> dict[str, int]:
    outcomes = Counter(row.outcome for row in rows)
    return {
        "tasks": len(rows),
        "same": outcomes["same"],
        "differs": outcomes["differs"],
        "infra_errors": outcomes["infra_error"],
        "task_errors": outcomes["task_error"],
        "solved_untouched": sum(1 for row in rows if row.untouched),
        "unsettled": sum(row.unsettled for row in rows),
        "misses": sum(row.misses for row in rows),
    }


def _print_rows(rows: list[EnvChecked]) -> None:
    print_table(
        ("task", "outcome", "#runs", "#steps", "#unsettled", "#misses", "reward", "untouched", "detail"),
        (
            (
                row.name,
                row.outcome,
                row.runs,
                row.steps,
                row.unsettled,
                row.misses,
                " or ".join("none" if value is None else f"{value:g}" for value, _ in row.rewards),
                "" if row.untouched is None else f"{row.untouched:g}",
                row.detail,
            )
            for row in rows
        ),
    )


# --- quick -----------------------------------------------------------------------------------------


def _quick(loaded: list[Task], proxy: str, level: str, jobs: int, *, as_json: bool) -> None:
    rows = asyncio.run(_reset_all(loaded, proxy, level, jobs))
    outcomes = Counter(row.outcome for row in rows)
    summary = {
        "tasks": len(rows),
        "infra_errors": outcomes["infra_error"],
        "task_errors": outcomes["task_error"],
        "solved_untouched": sum(1 for row in rows if row.reward),
        "unsettled": sum(1 for row in rows if row.outcome == "ok" and not row.settled),
        "misses": sum(row.misses for row in rows),
    }
    if as_json:
        print_json({**summary, "rows": [row.to_dict() for row in rows]})
    else:
        _print_quick(rows)
        stderr().print(", ".join(f"{name} {count}" for name, count in summary.items()), highlight=False)
    if summary["infra_errors"] or summary["task_errors"]:
        sys.exit(1)


async def _reset_all(loaded: list[Task], proxy: str, level: str, jobs: int) -> list[Checked]:
    with progress() as bar:
        shown = bar.add_task("checking tasks", total=len(loaded))
        return await check_tasks(
            loaded, proxy, level=level, jobs=jobs, on_checked=lambda _: bar.advance(shown)
        )


def _print_quick(rows: list[Checked]) -> None:
    print_table(
        ("task", "collection", "outcome", "#reward", "#requests", "#misses", "#seconds", "detail"),
        (
            (
                row.task,
                row.collection,
                row.outcome,
                "" if row.reward is None else f"{row.reward:g}",
                row.requests,
                row.misses,
                f"{row.seconds:.2f}",
                row.detail,
            )
            for row in rows
        ),
    )

"""`stillweb env`: check tasks and try actions on a replayed collection."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stillweb.browser.profile import BEST_LEVEL, LEVEL
from stillweb.cli import CommandGroup
from stillweb.cli.console import echo, print_json, print_table, stderr
from stillweb.cli.options import (
    EXISTING,
    EXISTING_FILE,
    collections_option,
    json_option,
    option_for,
    options_from,
    proxy_option,
    sites_option,
)
from stillweb.cli.progress import counting
from stillweb.collections.layout import Collection
from stillweb.env import (
    CheckOptions,
    Env,
    EnvCheck,
    EnvOptions,
    Observation,
    Task,
    TaskCheck,
    Trace,
    check_env,
    check_tasks,
    load_tasks,
    miniwob_tasks,
    tool_schema,
)
from stillweb.env.actions.action import STYLES
from stillweb.env.tasks.evidence import Evaluator
from stillweb.env.tasks.native import native_file, native_schema
from stillweb.errors import UsageError
from stillweb.options import Option


@click.command()
@click.argument("file", type=EXISTING_FILE)
@sites_option
@json_option
def tasks(file: Path, sites: dict[str, str], as_json: bool) -> None:
    """List the tasks of a file (WARC-Bench, WebArena or stillweb's own), and the needs of their evaluators.

    Scoring a task that needs a judge requires EnvOptions(judge=...). A task that needs the site's API cannot
    be scored on a recording. Neither gets a reward of 0 for that.

    \b
    Example:
      stillweb env tasks test.raw.json --site SHOPPING=https://shop.example --site MAP=https://map.example
    """
    loaded = load_tasks(file, sites=sites)
    rows = [
        {
            "task": task.id,
            "collection": task.collection,
            "start_url": task.start_url,
            "scored_by": sorted(_kinds(task)),
            "needs": sorted(task.needs),
            "goal": task.goal,
        }
        for task in loaded
    ]
    needs = Counter(", ".join(sorted(task.needs)) or "nothing" for task in loaded)
    if as_json:
        print_json({"tasks": len(rows), "needs": dict(needs), "rows": rows})
        return
    print_table(
        ("task", "collection", "start_url", "scored by", "needs"),
        (
            (
                row["task"],
                row["collection"],
                row["start_url"],
                " ".join(row["scored_by"]),
                " ".join(row["needs"]),
            )
            for row in rows
        ),
    )
    counts = ", ".join(f"{count} need {what}" for what, count in sorted(needs.items()))
    echo(f"{len(rows)} tasks: {counts}", err=True)


def _kinds(task: Task) -> set[str]:
    def within(evaluation: Evaluator) -> set[str]:
        if evaluation.parts_in:
            return {kind for part in evaluation.parts_in for kind in within(part)}
        return {str(getattr(evaluation, "kind", evaluation.type))}

    return within(task.evaluation) if task.evaluation else set()


@click.command()
@click.argument("name")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the problems.")
@click.option(
    "--limit-ms",
    type=click.IntRange(min=1),
    metavar="MS",
    help="Milliseconds for an episode.  [default: 10000]",
)
@collections_option
def miniwob(name: str, seed: int, limit_ms: int | None, root: Path) -> None:
    """Print a task file for the MiniWoB++ pages of a collection.

    \b
    Example:
      stillweb env miniwob games --seed 3 > games.tasks.json
    """
    urls = [page.url for page in Collection.open(root, name).each_page()]
    print_json(native_file(miniwob_tasks(urls, collection=name, seed=seed, limit_ms=limit_ms)))


@click.command()
@click.argument("tasks", type=EXISTING_FILE, required=False)
@proxy_option
@sites_option
@click.option(
    "--trace", "traces", multiple=True, type=EXISTING, help="Trace or trajectory to run. Repeatable."
)
@options_from(CheckOptions)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Check the first N tasks only.")
@click.option("--quick", is_flag=True, help="Only reset each task and score it without any action, once.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Simultaneous tasks with --quick.",
)
@json_option
def check(
    tasks: Path | None, proxy: str, options: CheckOptions, sites: dict[str, str], **chosen: Any
) -> None:
    """Run each task repeatedly, and report whether anything differs.

    The check explores a task from its start page with equal actions each time, alone and in parallel with
    other sessions, and scores it. It repeats a trace as recorded. It reports steps with different
    observations, pages that do not settle, requests that the collection does not hold, rewards, and the
    reward for no action. Exit status 1 if anything differs or a task cannot run.

    \b
    Example:
      stillweb env check tasks.yaml --proxy http://127.0.0.1:8080
      stillweb env check tasks.json --proxy http://127.0.0.1:8080 --quick --limit 20
      stillweb env check --trace trajectories/2f0c/ --proxy http://127.0.0.1:8080 --runs 10
    """
    loaded = load_tasks(tasks, sites=sites)[: chosen["limit"]] if tasks else []
    traces = [Trace.load(path) for path in chosen["traces"]]
    if not loaded and not traces:
        raise UsageError("nothing to check", hint="give a task file, or --trace FILE")
    if chosen["quick"]:
        _quick(loaded, proxy, options.level, chosen["jobs"], as_json=chosen["as_json"])
        return
    rows = asyncio.run(_check([*loaded, *traces], proxy, options))
    summary = _summary(rows)
    if chosen["as_json"]:
        print_json({**summary, "rows": [row.to_dict() for row in rows]})
    else:
        _print_rows(rows)
        echo(", ".join(f"{name} {count}" for name, count in summary.items()), err=True)
    if summary["same"] < len(rows):
        sys.exit(1)


async def _check(subjects: list[Task | Trace], proxy: str, options: CheckOptions) -> list[EnvCheck]:
    with counting("runs", options.total(len(subjects))) as on_run:
        return await check_env(subjects, proxy, options=options, on_run=on_run)


def _summary(rows: list[EnvCheck]) -> dict[str, int]:
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


def _print_rows(rows: list[EnvCheck]) -> None:
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
        print_json({**summary, "rows": [asdict(row) for row in rows]})
    else:
        _print_quick(rows)
        echo(", ".join(f"{name} {count}" for name, count in summary.items()), err=True)
    if summary["infra_errors"] or summary["task_errors"]:
        sys.exit(1)


async def _reset_all(loaded: list[Task], proxy: str, level: str, jobs: int) -> list[TaskCheck]:
    with counting("checking tasks", len(loaded)) as on_checked:
        return await check_tasks(loaded, proxy, level=level, jobs=jobs, on_checked=on_checked)


def _print_quick(rows: list[TaskCheck]) -> None:
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


@click.group(cls=CommandGroup)
def env() -> None:
    """Check tasks and try actions on a replayed collection.

    \b
    Example:
      stillweb replay shop &
      stillweb env check tasks.json --proxy http://127.0.0.1:8080
      stillweb env shell --proxy http://127.0.0.1:8080 --url https://shop.example/
    """


env.add_command(check)
env.add_command(tasks)
env.add_command(miniwob)


@env.command()
@click.option("--tasks", "of_tasks", is_flag=True, help="Print the schema of task files instead.")
@click.option(
    "--style",
    type=click.Choice(STYLES),
    default="json",
    show_default=True,
    help="Format: JSON schema, OpenAI or Anthropic tool definition, or BrowserGym's functions.",
)
def schema(of_tasks: bool, style: str) -> None:
    """Print the JSON schema of an action, for a trainer's tool definition.

    \b
    Example:
      stillweb env schema > action.schema.json
      stillweb env schema --style openai
    """
    found = native_schema() if of_tasks else tool_schema(style)
    if isinstance(found, str):
        echo(found)
    else:
        print_json(found)


@env.command()
@proxy_option
@option_for("level", str, BEST_LEVEL, LEVEL)
@click.option("--url", required=True, help="Start page.")
@click.option("-c", "--collection", metavar="NAME", help="Collection, if the server has several.")
@click.option("--seed", type=int, help="Seed of the page's random numbers.  [default: the recording's]")
@options_from(EnvOptions(max_steps=sys.maxsize), only=("trajectories",))
@option_for(
    "observe",
    tuple[str, ...],
    ("axtree",),
    Option(
        "Form of observation: axtree, compact:viewport, ... (docs/reference/observations.md). Repeatable.",
        metavar="FORM",
    ),
)
def shell(
    proxy: str, level: str, url: str, collection: str | None, options: EnvOptions, **chosen: Any
) -> None:
    """Execute actions from stdin, one JSON object a line, and print the observations of the agent.

    Screenshots are printed as digests; --trajectories stores the images.

    \b
    Example:
      stillweb env shell --proxy http://127.0.0.1:8080 --url https://shop.example/
      > {"action": "click", "bid": "a12"}
    """
    environment = Env(proxy, collection, level=level, observe=chosen["observe"], options=options)
    asyncio.run(_shell(environment, url, chosen["seed"]))


async def _shell(environment: Env, url: str, seed: int | None) -> None:
    async with environment:
        observation, info = await environment.reset(url=url, seed=seed)
        _show(observation)
        _print_info(observation.url, info)
        while line := await asyncio.to_thread(_read_line):
            if not line.strip():
                continue
            observation, _, terminated, truncated, info = await environment.step(line)
            _show(observation)
            _print_info(observation.url, info)
            if terminated or truncated:
                break


def _show(observation: Observation) -> None:
    for form, digest in observation.digests.items():
        if form in ("screenshot", "som"):
            echo(f"{form} {digest}")
        else:
            echo((observation.body(form) or b"").decode())
    if observation.marks:
        echo(json.dumps(dict(observation.marks)))


def _read_line() -> str:
    stderr().print("> ", end="")
    return sys.stdin.readline()


def _print_info(url: str, info: dict[str, Any]) -> None:
    action, settle, traffic = info["action"], info["settle"], info["traffic"]
    stderr().print(f"{url}  {action['status']} {action['error']}", style="bold", markup=False)
    facts = {"settle": settle and settle["reason"], "traffic": traffic, "dialogs": info["dialogs"]}
    stderr().print(json.dumps(facts, ensure_ascii=False), style="dim", markup=False)

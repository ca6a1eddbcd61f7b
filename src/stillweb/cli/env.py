"""`stillweb env`: try tasks and actions on a replayed collection."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import print_json, print_table, progress, stderr
from stillweb.cli.options import json_option
from stillweb.env.action import action_schema
from stillweb.env.check import Checked, check_tasks
from stillweb.env.env import Env, EnvOptions
from stillweb.env.task import Task, load_tasks

_proxy_option = click.option(
    "--proxy",
    required=True,
    metavar="URL",
    help="Control URL of a replay server, as stillweb replay prints it.",
)
_level_option = click.option(
    "--level",
    type=click.Choice(["network", "clock"]),
    default="clock",
    show_default=True,
    help="How much is pinned.",
)


@click.group()
def env() -> None:
    """Try tasks and actions on a replayed collection.

    \b
    Example:
      stillweb replay shop &
      stillweb env check tasks.json --proxy http://127.0.0.1:8080
      stillweb env shell --proxy http://127.0.0.1:8080 --url https://shop.example/
    """  # noqa: D301  click reads \b itself


@env.command()
def schema() -> None:
    """Print the JSON schema of an action, for a trainer's tool definition.

    \b
    Example:
      stillweb env schema > action.schema.json
    """  # noqa: D301
    print_json(action_schema())


@env.command()
@click.argument("tasks", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_proxy_option
@_level_option
@click.option("--limit", type=click.IntRange(min=1), help="Check the first so many tasks only.")
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Tasks at a time.")
@json_option
def check(tasks: Path, proxy: str, level: str, limit: int | None, jobs: int, as_json: bool) -> None:
    """Reset every task of a file and score it untouched.

    Shows tasks that cannot be reset, that ask for what the collection does not hold, and that
    are solved by doing nothing. Exit status 1 if a task cannot be reset.

    \b
    Example:
      stillweb env check tasks.json --proxy http://127.0.0.1:8080 --limit 20
    """  # noqa: D301
    loaded = load_tasks(tasks)[:limit]
    rows = asyncio.run(_check(loaded, proxy, level, jobs))
    summary = _summary(rows)
    if as_json:
        print_json({**summary, "rows": [row.to_dict() for row in rows]})
    else:
        _print_rows(rows)
        stderr().print(", ".join(f"{name} {count}" for name, count in summary.items()))
    if summary["infra_errors"] or summary["task_errors"]:
        sys.exit(1)


async def _check(tasks: list[Task], proxy: str, level: str, jobs: int) -> list[Checked]:
    with progress() as bar:
        shown = bar.add_task("checking tasks", total=len(tasks))
        return await check_tasks(
            tasks, proxy, level=level, jobs=jobs, on_checked=lambda _: bar.advance(shown)
        )


def _summary(rows: list[Checked]) -> dict[str, int]:
    outcomes = Counter(row.outcome for row in rows)
    return {
        "tasks": len(rows),
        "infra_errors": outcomes["infra_error"],
        "task_errors": outcomes["task_error"],
        "solved_untouched": sum(1 for row in rows if row.reward),
        "unsettled": sum(1 for row in rows if row.outcome == "ok" and not row.settled),
        "misses": sum(row.misses for row in rows),
    }


def _print_rows(rows: list[Checked]) -> None:
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


@env.command()
@_proxy_option
@_level_option
@click.option("--url", required=True, help="Page to begin with.")
@click.option("-c", "--collection", help="Collection, if the server has several.")
@click.option("--seed", type=int, help="Seed of the page's randomness; the recording's unless given.")
def shell(proxy: str, level: str, url: str, collection: str | None, seed: int | None) -> None:
    """Type actions as JSON, one a line, and see what the agent would see.

    \b
    Example:
      stillweb env shell --proxy http://127.0.0.1:8080 --url https://shop.example/
      > {"action": "click", "bid": "a12"}
    """  # noqa: D301
    options = EnvOptions(max_steps=sys.maxsize)
    asyncio.run(_shell(Env(proxy, collection, level=level, options=options), url, seed))


async def _shell(environment: Env, url: str, seed: int | None) -> None:
    async with environment:
        observation, info = await environment.reset(url=url, seed=seed)
        click.echo(observation.axtree)
        _say(observation.url, info)
        while line := await asyncio.to_thread(_read_line):
            if not line.strip():
                continue
            observation, _, terminated, truncated, info = await environment.step(line)
            click.echo(observation.axtree)
            _say(observation.url, info)
            if terminated or truncated:
                break


def _read_line() -> str:
    stderr().print("> ", end="")
    return sys.stdin.readline()


def _say(url: str, info: dict[str, Any]) -> None:
    action, settle, traffic = info["action"], info["settle"], info["traffic"]
    stderr().print(f"{url}  {action['status']} {action['error']}", style="bold", markup=False)
    said = {"settle": settle and settle["reason"], "traffic": traffic, "dialogs": info["dialogs"]}
    stderr().print(json.dumps(said, ensure_ascii=False), style="dim", markup=False)

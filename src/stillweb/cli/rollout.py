"""`stillweb rollout`: play tasks with an agent, and store each episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import click

from stillweb import __version__
from stillweb.cli.console import Sectioned, echo, print_json, print_table, progress, stderr, until_signal
from stillweb.cli.options import (
    EXISTING_FILE,
    FILE,
    FOLDER,
    certs_option,
    collections_option,
    json_option,
    options_from,
    sites_option,
)
from stillweb.cli.replay.started import replayed_together
from stillweb.collections.layout import Collection
from stillweb.diff.certify.rates import rate
from stillweb.env import Task, load_tasks
from stillweb.env.vector.rollout import Agent
from stillweb.errors import UsageError
from stillweb.options import parse_list, parse_pairs
from stillweb.trainers.agents import load_agent
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.results import Result, summary_of
from stillweb.trainers.batch.runner import BatchOptions, BatchState, select_tasks
from stillweb.trainers.batch.runner import rollout as play_tasks


class RolloutProgress:
    """The progress of a batch: a bar on a terminal, else a line for each episode.

    Args:
        success: minimum reward of a successful episode.
    """

    def __init__(self, success: float) -> None:
        self._success = success
        self._console = stderr()
        self._stack = ExitStack()
        self._bar = progress() if self._console.is_terminal else None
        self._task = self._bar.add_task("starting", total=None) if self._bar else None
        self._failed: Counter[str] = Counter()
        self._good = self._scored = self._ended = 0

    def __enter__(self) -> Self:
        if self._bar:
            self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def change(self, state: BatchState) -> None:
        result = state.latest if state.ended > self._ended else None
        if result:
            self._ended = state.ended
            self._count(result)
        if self._bar and self._task is not None:
            text = self._text(state)
            self._bar.update(self._task, description=text, total=state.planned, completed=state.ended)
        elif result:
            self._console.print(
                f"{state.ended}/{state.planned} {_line(result)}", markup=False, soft_wrap=True
            )

    def _count(self, result: Result) -> None:
        if result.reward is None:
            self._failed[result.outcome] += 1
        else:
            self._scored += 1
            self._good += result.reward >= self._success

    def _text(self, state: BatchState) -> str:
        parts = [f"{state.running} running", f"{state.steps_per_second:.1f} steps/s"]
        if self._scored:
            parts.append(f"success {self._good / self._scored:.0%}")
        parts += [f"[red]{count} {kind}[/red]" for kind, count in sorted(self._failed.items())]
        return ", ".join(parts)


def _line(result: Result) -> str:
    outcome = result.errors[-1] if result.reward is None else f"reward {result.reward:g}"
    again = f", attempt {result.attempts}" if result.attempts > 1 else ""
    return f"{result.task} #{result.number}: {result.outcome}, {result.steps} steps{again}, {outcome}"


def success_line(summary: Mapping[str, Any]) -> str:
    """Return the success rate with its 95 % bounds."""
    counts = summary["success"]
    failed = summary["episodes"] - counts["of"]
    without = f"; {failed} of {summary['episodes']} episodes have no reward" if failed else ""
    if not counts["of"]:
        return f"no episode has a reward{without}"
    found = rate(counts["count"], counts["of"])
    bounds = f"{found.low:.1%} to {found.high:.1%}"
    return f"success {counts['count']} of {counts['of']}: {found.share:.1%} (95%: {bounds}){without}"


def print_summary(summary: Mapping[str, Any]) -> None:
    print_table(
        ("task", "#episodes", "rewards", "#steps", "without a reward"),
        (
            (
                name,
                len(task["rewards"]),
                " ".join("-" if reward is None else f"{reward:g}" for reward in task["rewards"]),
                sum(task["steps"]),
                task["failed"],
            )
            for name, task in summary["tasks"].items()
        ),
    )
    for kind, rows in summary["groups"].items():
        print_groups(kind, rows)
    traffic = summary["traffic"]
    echo(
        f"{success_line(summary)}; {summary['steps']} steps, "
        f"{traffic['hits']} hits, {traffic['misses']} misses{_unrecorded(traffic)}",
        err=True,
    )


def _unrecorded(traffic: Mapping[str, int]) -> str:
    """Return the counts of hits that were not recorded, as the end of a clause."""
    counts = [f"{traffic[kind]} {kind}" for kind in ("derived", "guesses") if traffic[kind]]
    return f" (of the hits {', '.join(counts)})" if counts else ""


def print_groups(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    ks = list(dict.fromkeys(k for row in rows for k in row["pass_at"]))
    print_table(
        (kind, "#tasks", "#episodes", *(f"pass@{k} (95%)" for k in ks)),
        (
            (row["name"], row["tasks"], row["episodes"], *(_interval(row["pass_at"].get(k)) for k in ks))
            for row in rows
        ),
    )


def _interval(found: Mapping[str, float] | None) -> str:
    return f"{found['value']:.1%} ({found['low']:.1%} to {found['high']:.1%})" if found else ""


SECTIONS = {
    "Episodes": ("task_ids", "only_sites", "sites", "episodes", "resume", "only_failed", "report"),
    "Agent and observations": (
        *("level", "observe", "max_steps", "seed", "page_seeds", "retry", "success"),
        *("perturb", "perturb_seed", "off_path", "derived", "on_write"),
    ),
    "Concurrency": ("max_concurrent", "max_concurrent_launch", "browsers"),
    "Replay": ("proxy", "collection", "root", "certs_dir"),
}


def _listed(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    return parse_list(text)


def agent_options_of(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return the values of `--agent-option`; a callback of click."""
    try:
        return parse_pairs(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=Sectioned, sections=SECTIONS)
@click.option("--tasks", "file", required=True, type=EXISTING_FILE,
              help="Task file: WARC-Bench, WebArena or stillweb's own.")  # fmt: skip
@click.option("--agent", required=True, metavar="NAME",
              help="Agent: random, scripted:PATH, openai, or MODULE:NAME of your own.")  # fmt: skip
@click.option("-o", "--agent-option", "agent_options", multiple=True, metavar="KEY=VALUE",
              callback=agent_options_of,
              help="Option of the agent (docs/how-to/rollout.md). Repeatable.")  # fmt: skip
@click.option("--output", required=True, type=FOLDER,
              help="Folder for results and trajectories.")  # fmt: skip
@click.option("--task-ids", default="", callback=_listed, metavar="ID,...",
              help="Play only these tasks: ids, patterns (online.*), numbers, ranges (1,7-12).")  # fmt: skip
@click.option("--sites", "only_sites", default="", callback=_listed, metavar="NAME,...",
              help="Play only tasks on these collections or hosts of start pages.")  # fmt: skip
@click.option("--report", type=FILE,
              help="Write an HTML page: success by family, length and part, with pass@k.")  # fmt: skip
@sites_option
@options_from(BatchOptions)
@click.option("--resume", is_flag=True, help="Continue in the folder: play the episodes without a result.")
@click.option("--only-failed", is_flag=True,
              help="Repeat episodes without a reward; with --resume also missing ones.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the agent.")
@click.option("--success", type=float, default=1.0, show_default=True,
              help="Minimum reward of a successful episode.")  # fmt: skip
@click.option("--proxy", default="", metavar="URL",
              help="Control URL of a replay server.  [default: starts one]")  # fmt: skip
@collections_option
@certs_option
@json_option
@click.pass_context
def rollout(
    ctx: click.Context, /, file: Path, agent: str, output: Path, options: BatchOptions, **given: Any
) -> None:
    """Play tasks with an agent, and store every episode as soon as it ends.

    The folder receives results.jsonl (a line for each episode) and tasks/ID/N/ (result and trajectory). It
    also receives summary.json (success rate with its 95 % bounds, rewards by task, failures by kind).
    Episodes that the browser or the proxy broke are retried. If that fails too they have no reward: they
    never count as 0.

    Ctrl-C cancels running episodes, keeps those that ended and writes the summary; a second Ctrl-C ends the
    program immediately. After either, or a kill, --resume continues without repeating finished episodes.

    Exit status: 0 if every chosen episode has a reward, whatever its value; 1 if one has none (browser,
    proxy, task or agent failed; --only-failed plays them again); 2 wrong use; 130 stopped.

    \b
    Example:
      stillweb rollout --tasks tasks.yaml --agent random --output out --episodes 8
      stillweb rollout --tasks tasks.yaml --agent openai -o model=qwen3-4b --output out \\
          -o base_url=http://127.0.0.1:8000/v1 --max-concurrent 16 --task-ids 'shop.*,7-12'
      stillweb rollout --tasks tasks.yaml --agent agents.mine:solver --output out --only-failed
    """
    tasks = select_tasks(load_tasks(file, sites=given["sites"]), given["task_ids"], given["only_sites"])
    if not tasks:
        raise UsageError(f"{file} has no task", hint="stillweb env tasks FILE lists tasks")
    options = replace(
        options, missing=given["resume"] or not given["only_failed"], failed=given["only_failed"]
    )
    player = load_agent(agent, seed=given["seed"], options=given["agent_options"])
    chosen_tasks = {
        "tasks": {"file": str(file), "sha256": sha256(file.read_bytes()).hexdigest(), "chosen": len(tasks)}
    }
    chosen = {"agent": agent, "agent_options": given["agent_options"], "seed": given["seed"]}
    configuration = {"stillweb": __version__, **chosen_tasks, **chosen, **options.to_json()}
    go_on = given["resume"] or given["only_failed"]
    with BatchFolder.open(output, configuration, go_on=go_on) as folder:
        until_signal(_play(folder, tasks, player, options, given))
        summary = summary_of(folder.results.values(), success=given["success"])
        if given["as_json"]:
            print_json(summary)
        else:
            print_summary(summary)
        if given["report"]:
            from stillweb.trainers.batch.groups import write_rollout_report

            write_rollout_report(summary, f"{file.name}, agent {agent}", given["report"])
        ids = {task.id for task in tasks}
        ctx.exit(1 if any(each.failed for each in folder.results.values() if each.task in ids) else 0)


async def _play(
    folder: BatchFolder, tasks: Sequence[Task], agent: Agent, options: BatchOptions, given: dict[str, Any]
) -> None:
    before = len(folder.results)
    if before:
        echo(f"{before} episodes in {folder.path} already ended", err=True)
    try:
        async with replayed_tasks(tasks, options.collection, given) as proxy:
            with RolloutProgress(given["success"]) as shown:
                await play_tasks(proxy, agent, tasks, folder, options, on_change=shown.change)
    finally:
        folder.write_summary(summary_of(folder.results.values(), success=given["success"]))


@asynccontextmanager
async def replayed_tasks(tasks: Sequence[Task], default: str, given: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yield the URL of the replay server: --proxy, or a new one for the tasks' collections."""
    if given["proxy"]:
        yield given["proxy"]
        return
    names = dict.fromkeys(task.collection or default for task in tasks)
    if "" in names:
        raise UsageError(
            "some tasks name no collection", hint="--collection NAME, or --proxy URL of a replay server"
        )
    collections = [Collection.open(given["root"], name) for name in names]
    async with replayed_together(collections, given["certs_dir"]) as url:
        yield url

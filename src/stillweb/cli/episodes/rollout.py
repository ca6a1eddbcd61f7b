"""`stillweb rollout`: play tasks with an agent, and store each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from stillweb import __version__
from stillweb.cli.console import SectionedCommand, echo, print_json, print_table, until_signal
from stillweb.cli.episodes.shared import RolloutProgress, playing_options, replayed_tasks
from stillweb.cli.options import EXISTING_FILE, FILE, FOLDER, options_from, sites_option
from stillweb.diff.certify.rates import rate
from stillweb.env import Task, load_tasks
from stillweb.env.vector.rollout import Agent
from stillweb.errors import UsageError
from stillweb.options import parse_list
from stillweb.trainers.agents import load_agent
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.results import summary_of
from stillweb.trainers.batch.runner import BatchOptions, select_tasks
from stillweb.trainers.batch.runner import rollout as play_tasks


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


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.option("--tasks", "file", required=True, type=EXISTING_FILE,
              help="Task file: WARC-Bench, WebArena or stillweb's own.")  # fmt: skip
@playing_options
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

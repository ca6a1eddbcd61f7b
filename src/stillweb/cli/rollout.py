"""`stillweb rollout`: tasks played by an agent, kept episode by episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from stillweb import __version__
from stillweb.cli.console import Sectioned, print_json, print_table, progress, stderr, until_signal
from stillweb.cli.options import (
    certs_option,
    collections_option,
    json_option,
    level_option,
    observe_option,
    sites_option,
)
from stillweb.cli.replay.started import replayed_together
from stillweb.collections.layout import Collection
from stillweb.diff.certify.rates import rate
from stillweb.env.tasks.load import Task, load_tasks
from stillweb.env.vector.rollout import Agent
from stillweb.errors import UsageError
from stillweb.trainers.agents import load_agent
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.results import Result, summary_of
from stillweb.trainers.batch.runner import BatchOptions, BatchState, run_batch, select_tasks

__all__ = ["RolloutProgress", "print_summary", "success_line"]


class RolloutProgress:
    """A bar where there is a terminal, a line for each episode where there is none.

    Args:
        success: the reward from which on an episode is one.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def change(self, state: BatchState) -> None:
        """Show how far a batch is."""
        result = state.latest if state.ended > self._ended else None
        if result:
            self._ended = state.ended
            self._count(result)
        if self._bar and self._task is not None:
            told = self._told(state)
            self._bar.update(self._task, description=told, total=state.planned, completed=state.ended)
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

    def _told(self, state: BatchState) -> str:
        parts = [f"{state.running} running", f"{state.steps_per_second:.1f} steps/s"]
        if self._scored:
            parts.append(f"success {self._good / self._scored:.0%}")
        parts += [f"[red]{count} {kind}[/red]" for kind, count in sorted(self._failed.items())]
        return ", ".join(parts)


def _line(result: Result) -> str:
    came = result.errors[-1] if result.reward is None else f"reward {result.reward:g}"
    again = f", attempt {result.attempts}" if result.attempts > 1 else ""
    return f"{result.task} #{result.number}: {result.outcome}, {result.steps} steps{again}, {came}"


def success_line(summary: Mapping[str, Any]) -> str:
    """Return how many episodes succeeded, and how sure that is."""
    told = summary["success"]
    failed = summary["episodes"] - told["of"]
    without = f"; {failed} of {summary['episodes']} episodes have no reward" if failed else ""
    if not told["of"]:
        return f"no episode has a reward{without}"
    found = rate(told["count"], told["of"])
    bounds = f"{found.low:.1%} to {found.high:.1%}"
    return f"success {told['count']} of {told['of']}: {found.share:.1%} (95%: {bounds}){without}"


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the tasks as a table, and what they come to."""
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
    traffic = summary["traffic"]
    stderr().print(
        f"{success_line(summary)}; {summary['steps']} steps, "
        f"{traffic['hits']} hits, {traffic['misses']} misses",
        highlight=False,
        soft_wrap=True,
    )


SECTIONS = {
    "Which episodes": ("task_ids", "only_sites", "sites", "episodes", "resume", "only_failed"),
    "How they are played": ("level", "observe", "max_steps", "seed", "page_seeds", "retries", "success"),
    "How many at once": ("max_concurrent", "max_concurrent_launch", "browsers"),
    "On what": ("proxy", "collection", "root", "certs_dir"),
}


def _listed(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, _listed(ctx, param, text)))
    except ValueError:
        raise click.BadParameter("numbers, separated by commas, such as 7,8,9") from None


def _options(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    told = dict(each.partition("=")[::2] for each in given)
    if not all("=" in each and each.partition("=")[0] for each in given):
        raise click.BadParameter("KEY=VALUE, such as model=qwen3-4b")
    return told


@click.command(cls=Sectioned, sections=SECTIONS)
@click.option("--tasks", "file", required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Task file: WARC-Bench, WebArena or our own.")  # fmt: skip
@click.option("--agent", required=True, metavar="NAME",
              help="random, scripted:PATH, openai, or MODULE:NAME of your own.")  # fmt: skip
@click.option("-o", "--agent-option", "agent_options", multiple=True, metavar="KEY=VALUE", callback=_options,
              help="Of the agent (docs/rollout.md). Repeatable.")  # fmt: skip
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False),
              help="Folder that keeps results and trajectories.")  # fmt: skip
@click.option("--task-ids", default="", callback=_listed, metavar="ID,...",
              help="Only these: ids, patterns (online.*), numbers and ranges (1,2,7-12).")  # fmt: skip
@click.option("--sites", "only_sites", default="", callback=_listed, metavar="NAME,...",
              help="Only tasks on these: collections, or hosts of start pages.")  # fmt: skip
@sites_option
@click.option("--episodes", type=click.IntRange(1), default=1, show_default=True, help="Of each task.")
@click.option("--resume", is_flag=True, help="Go on with what is in the folder: play what has no result yet.")
@click.option("--only-failed", is_flag=True,
              help="Play again what ended without a reward; with --resume what is missing, too.")  # fmt: skip
@level_option
@observe_option("What the agent sees (docs/observations.md). Repeatable.")
@click.option("--max-steps", type=click.IntRange(1), default=30, show_default=True,
              help="Of an episode, where the task does not say.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the agent's draws.")
@click.option("--page-seeds", default="", callback=_numbers, metavar="N,...",
              help="Of the pages, for a task's episodes in turn.  [default: the recording's]")  # fmt: skip
@click.option("--retry", "retries", type=click.IntRange(0), default=2, show_default=True,
              help="Further attempts of what browser or proxy broke; of nothing else.")  # fmt: skip
@click.option("--success", type=float, default=1.0, show_default=True,
              help="Reward from which on an episode is counted as a success.")  # fmt: skip
@click.option("--max-concurrent", type=click.IntRange(1, 256), default=4, show_default=True,
              help="Episodes at once.")  # fmt: skip
@click.option("--max-concurrent-launch", type=click.IntRange(0), default=0,
              help="Episodes that begin at once, with their browsers; 0: all.  [default: 0]")  # fmt: skip
@click.option("--browsers", type=click.IntRange(1), default=1, show_default=True, help="At once.")
@click.option("--proxy", default="", metavar="URL",
              help="A replay server that is running; else the tasks' collections are served.")  # fmt: skip
@click.option("-c", "--collection", default="", metavar="NAME", help="Of tasks that name none.")
@collections_option
@certs_option
@json_option
@click.pass_context
def rollout(ctx: click.Context, /, file: Path, agent: str, output: Path, **given: Any) -> None:
    """Play tasks with an agent, and keep every episode the moment it ends.

    The folder gets results.jsonl (a line for each episode), tasks/ID/N/ (result and trajectory) and
    summary.json (success rate with its 95 % bounds, rewards by task, failures by kind). Episodes that browser
    or proxy broke are tried again and, if that does not help, have no reward: they are never scored 0.

    Ctrl-C leaves running episodes, keeps what has ended and writes the summary; a second one ends it at once.
    After either, or a kill, --resume goes on and plays nothing twice that has ended.

    Exit status: 0 if every chosen episode has a reward, whichever; 1 if one has none (browser, proxy, task or
    agent failed; --only-failed plays them again); 2 wrong use; 130 stopped.

    \b
    Example:
      stillweb rollout --tasks tasks.yaml --agent random --output out --episodes 8
      stillweb rollout --tasks tasks.yaml --agent openai -o model=qwen3-4b --output out \\
          -o base_url=http://127.0.0.1:8000/v1 --max-concurrent 16 --task-ids 'shop.*,7-12'
      stillweb rollout --tasks tasks.yaml --agent agents.mine:solver --output out --only-failed
    """  # noqa: D301
    tasks = select_tasks(load_tasks(file, sites=given["sites"]), given["task_ids"], given["only_sites"])
    if not tasks:
        raise UsageError(f"{file} has no task")
    options = BatchOptions(
        **{name: given[name] for name in _PASSED_ON},
        missing=given["resume"] or not given["only_failed"],
        failed=given["only_failed"],
    )
    player = load_agent(agent, seed=given["seed"], options=given["agent_options"])
    told = {
        "tasks": {"file": str(file), "sha256": sha256(file.read_bytes()).hexdigest(), "chosen": len(tasks)}
    }
    chosen = {"agent": agent, "agent_options": given["agent_options"], "seed": given["seed"]}
    configuration = {"stillweb": __version__, **told, **chosen, **options.to_dict()}
    go_on = given["resume"] or given["only_failed"]
    with BatchFolder.open(output, configuration, go_on=go_on) as folder:
        until_signal(_play(folder, tasks, player, options, given))
        summary = summary_of(folder.results.values(), success=given["success"])
        if given["as_json"]:
            print_json(summary)
        else:
            print_summary(summary)
        ids = {task.id for task in tasks}
        ctx.exit(1 if any(each.failed for each in folder.results.values() if each.task in ids) else 0)


_PASSED_ON = (
    "episodes", "max_concurrent", "max_concurrent_launch", "retries", "page_seeds", "level", "observe",
    "collection", "max_steps", "browsers",
)  # fmt: skip


async def _play(
    folder: BatchFolder, tasks: Sequence[Task], agent: Agent, options: BatchOptions, given: dict[str, Any]
) -> None:
    before = len(folder.results)
    if before:
        stderr().print(f"{before} episodes in {folder.path} have ended already", markup=False)
    try:
        async with _replayed(tasks, given) as proxy:
            with RolloutProgress(given["success"]) as shown:
                await run_batch(proxy, agent, tasks, folder, options, on_change=shown.change)
    finally:
        folder.write_summary(summary_of(folder.results.values(), success=given["success"]))


@asynccontextmanager
async def _replayed(tasks: Sequence[Task], given: dict[str, Any]) -> AsyncIterator[str]:
    """Give the URL of the replay server: the one that was named, or one for the tasks' collections."""
    if given["proxy"]:
        yield given["proxy"]
        return
    names = dict.fromkeys(task.collection or given["collection"] for task in tasks)
    if "" in names:
        raise UsageError(
            "some tasks name no collection", hint="--collection NAME, or --proxy URL of a replay server"
        )
    collections = [Collection.open(given["root"], name) for name in names]
    async with replayed_together(collections, given["certs_dir"]) as url:
        yield url

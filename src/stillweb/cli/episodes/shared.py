"""Options, progress and replay server of the commands that play episodes with an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

import click

from stillweb.cli.console import stderr
from stillweb.cli.options import certs_option, collections_option, json_option, optional_proxy_option
from stillweb.cli.progress import progress
from stillweb.cli.replay.shared import replayed_together
from stillweb.collections.layout import Collection
from stillweb.env import Task
from stillweb.errors import UsageError
from stillweb.options import parse_pairs
from stillweb.trainers.batch.results import Result
from stillweb.trainers.batch.runner import BatchState

F = TypeVar("F", bound=Callable[..., Any])


def playing_options(command: F) -> F:
    """Add the agent, its seed, the reward of a success, and the replay server, as `given`."""
    agent = click.option(
        "--agent",
        required=True,
        metavar="NAME",
        help="Agent: random, scripted:PATH, openai, or MODULE:NAME of your own.",
    )
    options = click.option(
        "-o",
        "--agent-option",
        "agent_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_parsed_pairs,
        help="Option of the agent (docs/how-to/rollout.md). Repeatable.",
    )
    seed = click.option("--seed", type=int, default=0, show_default=True, help="Seed of the agent.")
    success = click.option(
        "--success",
        type=float,
        default=1.0,
        show_default=True,
        help="Minimum reward of a successful episode.",
    )
    server = (json_option, certs_option, collections_option, optional_proxy_option)
    for decorator in (*server, success, seed, options, agent):
        command = decorator(command)
    return command


def _parsed_pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    try:
        return parse_pairs(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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
        parts += [f"{count} {kind}" for kind, count in sorted(self._failed.items())]
        return ", ".join(parts)


def _line(result: Result) -> str:
    outcome = result.errors[-1] if result.reward is None else f"reward {result.reward:g}"
    again = f", attempt {result.attempts}" if result.attempts > 1 else ""
    return f"{result.task} #{result.number}: {result.outcome}, {result.steps} steps{again}, {outcome}"


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

"""What `stillweb rollout` shows: how far it is, on stderr, and what it came to, on stdout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from stillweb.cli.console import print_table, progress, stderr
from stillweb.diff.flake import rate
from stillweb.trainers.batch import BatchState
from stillweb.trainers.batchresult import Result

__all__ = ["Shown", "print_summary", "success_line"]


class Shown:
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

"""`stillweb compare`: two rollouts of the same tasks, task by task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import EXISTING_FOLDER, FILE, json_option
from stillweb.trainers.batch.compare import compare as compare_results
from stillweb.trainers.batch.compare import write_comparison
from stillweb.trainers.batch.folder import results_in


@click.command()
@click.argument("before", type=EXISTING_FOLDER)
@click.argument("after", type=EXISTING_FOLDER)
@click.option("--html", type=FILE, help="Write an HTML page.")
@click.option("--success", type=float, default=1.0, show_default=True,
              help="Minimum reward of a successful episode.")  # fmt: skip
@json_option
def compare(before: Path, after: Path, html: Path | None, success: float, as_json: bool) -> None:
    """Compare two rollouts of the same tasks; BEFORE and AFTER are folders of `stillweb rollout`.

    Tasks are the pairs. The differences have 95 % intervals (bootstrap over tasks) and p-values (sign-flip
    test over tasks). Tasks without a reward on one side are left out and counted. The variance of each
    rollout's rewards is split into tasks, agent and environment; replay keeps the last at 0.

    \b
    Example:
      stillweb compare out/base out/trained --html compare.html
    """
    found = compare_results(results_in(before), results_in(after), success=success)
    if html:
        write_comparison(found, (str(before), str(after)), html)
    if as_json:
        print_json(found)
        return
    rows = [found["all"], *found["families"]]
    columns = ("family", "#tasks", "#before", "#after", "#difference", "95%", "#p")
    print_table(columns, [_row(row) for row in rows if "success" in row])
    print_table(
        ("variance", "#tasks", "#agent", "#environment", "#repeated sequences", "#with a difference"),
        [_variance(*each) for each in zip((before, after), found["variance"], strict=True)],
    )
    left = found["tasks"]
    echo(
        f"{left['paired']} tasks paired; {left['only_before']} only before, {left['only_after']} only after, "
        f"{left['without_reward']} without a reward on one side"
    )


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    found = row["success"]
    shares = (f"{found['before']:.1%}", f"{found['after']:.1%}", f"{found['difference']:+.1%}")
    return (
        row["name"],
        row["tasks"],
        *shares,
        f"{found['low']:+.1%} to {found['high']:+.1%}",
        f"{found['p']:.2g}",
    )


def _variance(folder: Path, found: Mapping[str, Any]) -> tuple[Any, ...]:
    parts = (f"{found[name]:.4f}" for name in ("tasks", "agent", "environment"))
    return (str(folder), *parts, found["repeated"], found["differ"])

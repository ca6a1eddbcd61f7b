"""`stillweb rescore`: compute the rewards of trajectories again from their stored evidence."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import EXISTING, EXISTING_FILE, json_option, sites_option
from stillweb.env import load_tasks
from stillweb.env.trajectories.rescore import Rescored, rescore_all
from stillweb.env.trajectories.trajectory import trajectories_in
from stillweb.errors import UsageError


@click.command()
@click.argument("trajectories", nargs=-1, required=True, type=EXISTING)
@click.option(
    "--tasks",
    "file",
    type=EXISTING_FILE,
    help="Task file to score by, instead of the tasks in the trajectories.",
)
@sites_option
@json_option
def rescore(trajectories: tuple[Path, ...], file: Path | None, sites: dict[str, str], as_json: bool) -> None:
    """Score trajectories again, without a browser, from the evidence stored at their end.

    The command evaluates answers, URLs, texts, requests and downloads again. Results of scripts in the page
    and verdicts of a judge stay as stored; the column "as stored" names them. Episodes that ended with a
    failure have no reward and get none. Exit status 1 if a reward differs, cannot be computed, or a file
    cannot be read.

    \b
    Example:
      stillweb rescore trajectories/
      stillweb rescore trajectories/ --tasks corrected.yaml --json
    """
    paths = [path for each in trajectories for path in trajectories_in(each)]
    if not paths:
        raise UsageError(
            f"no trajectory.jsonl in {', '.join(map(str, trajectories))}",
            hint="give the folder that --trajectories or --output wrote",
        )
    rows = rescore_all(paths, load_tasks(file, sites=sites) if file else ())
    outcomes = Counter(row.outcome for row in rows)
    if as_json:
        print_json({"trajectories": len(rows), **outcomes, "rows": [row.to_dict() for row in rows]})
    else:
        _print_rows(rows)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        echo(f"{len(rows)} trajectories: {counts}", err=True)
    if outcomes["other"] or outcomes["unknown"] or outcomes["unreadable"]:
        sys.exit(1)


def _print_rows(rows: list[Rescored]) -> None:
    print_table(
        ("trajectory", "task", "outcome", "#reward", "#now", "as stored", "detail"),
        (
            (
                row.path.parent.name,
                row.task,
                row.outcome,
                "" if row.reward is None else f"{row.reward:g}",
                "" if row.rescored is None else f"{row.rescored:g}",
                ", ".join(row.stored),
                row.detail,
            )
            for row in rows
        ),
    )

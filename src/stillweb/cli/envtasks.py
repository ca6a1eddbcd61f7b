"""`stillweb env tasks` and `stillweb env miniwob`: what tasks there are, and what they need."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from stillweb.cli.console import print_json, print_table, stderr
from stillweb.cli.options import collections_option, json_option, sites_option
from stillweb.collections.layout import Collection
from stillweb.env.evaluation import Evaluator, evaluator_to_dict
from stillweb.env.miniwob import miniwob_tasks
from stillweb.env.nativetask import native_file
from stillweb.env.task import Task, load_tasks


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@sites_option
@json_option
def tasks(file: Path, sites: dict[str, str], as_json: bool) -> None:
    """List the tasks of a file (WARC-Bench, WebArena or our own), and what scoring them needs.

    A task that needs a judge is scored with EnvOptions(judge=...) only; one that needs the site's API
    cannot be scored on a recording. Neither is ever given a reward of 0 for that.

    \b
    Example:
      stillweb env tasks test.raw.json --site SHOPPING=https://shop.example --site MAP=https://map.example
    """  # noqa: D301
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
    told = ", ".join(f"{count} need {what}" for what, count in sorted(needs.items()))
    stderr().print(f"{len(rows)} tasks: {told}", highlight=False)


def _kinds(task: Task) -> set[str]:
    def within(evaluation: Evaluator) -> set[str]:
        if evaluation.parts_in:
            return {kind for part in evaluation.parts_in for kind in within(part)}
        told = evaluator_to_dict(evaluation)
        return {str(told.get("kind", told["type"]))}

    return within(task.evaluation) if task.evaluation else set()


@click.command()
@click.argument("name")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the problems.")
@click.option("--limit-ms", type=click.IntRange(min=1), help="Of an episode; the pages' own 10 s by default.")
@collections_option
def miniwob(name: str, seed: int, limit_ms: int | None, root: Path) -> None:
    """Print a task file of the MiniWoB++ pages that a collection holds.

    \b
    Example:
      stillweb env miniwob games --seed 3 > games.tasks.json
    """  # noqa: D301
    urls = [page.url for page in Collection.open(root, name).each_page()]
    print_json(native_file(miniwob_tasks(urls, collection=name, seed=seed, limit_ms=limit_ms)))

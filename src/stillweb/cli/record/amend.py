"""`stillweb record amend`: record what a replay missed."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stillweb.cli.console import echo, print_json, print_table, until_signal
from stillweb.cli.options import options_from
from stillweb.cli.progress import progress
from stillweb.cli.record.shared import LISTENING, Addition, addition_options, is_given
from stillweb.record.amend.amend import AmendOptions, AmendReport, FetchOutcome
from stillweb.record.amend.amend import amend as amend_collection
from stillweb.record.amend.plan import read_wanted
from stillweb.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stillweb.collections.misses import Missed


@click.command("amend")
@click.option(
    "--misses",
    "source",
    required=True,
    metavar="FILE",
    help="Requests to fetch: output of `replay misses --out`, a HAR, or a list of URLs; - for stdin.",
)
@options_from(AmendOptions, without=LISTENING)
@addition_options
@click.pass_context
def amend(ctx: click.Context, /, name: str, options: AmendOptions, **given: Any) -> None:
    """Fetch the misses of a replay into a collection, as a new version of it.

    The browser visits missed pages, pinned as the recording was. It sends other missed requests as the client
    did, with the cookies of their page. Existing answers stay the same, and the version before remains
    readable as NAME@1. robots.txt is ignored. Exit status 0 if every miss was recorded, 1 if not, 130 after
    Ctrl-C; the same command then continues.

    \b
    Example:
      stillweb replay misses runs/*.jsonl --unexplained --out misses.jsonl
      stillweb record amend shop --misses misses.jsonl
      echo https://shop.example/sale | stillweb record amend shop --misses -
    """
    addition = Addition.of(name, options.record, given)
    defaults = addition.defaults
    misses, others = _of(name, _wanted(given["source"]))
    if others:
        names = ", ".join(sorted(others))
        echo(f"{others.total()} misses belong to other collections: {names}", err=True)
    page_timeout, retries = options.page_timeout, options.retries
    options = replace(
        options,
        login=addition.login,
        record=addition.record,
        page_timeout=page_timeout if is_given("page_timeout") else defaults.page_timeout or page_timeout,
        retries=retries if is_given("retries") or defaults.retries is None else defaults.retries,
    )
    with progress() as bar:
        task = bar.add_task("fetching", total=None)

        def show(outcome: FetchOutcome, left: int) -> None:
            bar.advance(task)
            done = bar.tasks[0].completed
            bar.update(task, total=done + left, description=f"{outcome.outcome}: {outcome.url[:60]}")

        try:
            report = until_signal(amend_collection(addition.collection, misses, addition.ca, options, show))
        except click.Abort:
            bar.console.print("fetched answers are stored; the same command continues", markup=False)
            raise
    _print_report(report, name, as_json=given["as_json"])
    if any(each.outcome in ("absent", "refused") for each in report.outcomes):
        ctx.exit(1)


def _wanted(source: str) -> list[Missed]:
    with _as_file(source) as path:
        return read_wanted(path)


@contextmanager
def _as_file(source: str) -> Iterator[Path]:
    if source != "-":
        path = Path(source)
        if not path.is_file():
            raise click.UsageError(f"--misses {source}: no such file")
        yield path
        return
    with scratch_folder() as folder:
        path = folder / "stdin"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield path


def _of(name: str, misses: list[Missed]) -> tuple[list[Missed], Counter[str]]:
    """Return the misses of all versions of a collection, and the other collections' names with counts."""
    mine = [each for each in misses if each.collection.partition("@")[0] in ("", name)]
    return mine, Counter(each.collection for each in misses if each not in mine)


def _print_report(report: AmendReport, name: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"collection": name, **asdict(report)})
        return
    counts = Counter(each.outcome for each in report.outcomes)
    title = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "nothing to fetch"
    rows = [
        (each.outcome, each.count, each.status or "-", each.method, each.url, each.reason)
        for each in report.outcomes
    ]
    print_table(("outcome", "#times", "#status", "method", "url", "reason"), rows, title=f"{name}: {title}")
    for note, count in report.notes.items():
        echo(f"  {count} x {note}", err=True)
    if report.kept:
        echo(
            f"{name} is now version {report.version}: {report.captures} captures and {len(report.pages)} "
            f"pages added, environment {report.after[:12]}; version before: {name}@{report.kept}"
        )

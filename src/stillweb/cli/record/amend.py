"""`stillweb record amend`, and what `record crawl --twice` says."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import print_json, print_table, progress, stderr
from stillweb.cli.options import json_option
from stillweb.cli.record.login import login_given, login_options, tell_stranger
from stillweb.cli.record.shared import reach_options, record_options, until_signal
from stillweb.collections.layout import Collection
from stillweb.record.amend.amend import AmendOptions, AmendReport, ErrandOutcome, amend
from stillweb.record.amend.input import read_wanted
from stillweb.record.explore.values import read_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stillweb.collections.misses import Missed


@click.command("amend")
@click.argument("name")
@click.option(
    "--misses",
    "source",
    required=True,
    metavar="FILE",
    help="What to fetch: of `stillweb replay misses --out`, a HAR, or a list of URLs; - for stdin.",
)
@click.option("--unsafe", is_flag=True, help="Send POST, PUT, PATCH, DELETE too: they may change the site.")
@click.option("--scope-any", "any_host", is_flag=True, help="Also ask hosts that nothing was recorded of.")
@login_options
@click.option("--retries", type=click.IntRange(0), default=1, show_default=True, help="Of what failed.")
@click.option(
    "--page-timeout",
    type=click.FloatRange(1),
    default=45.0,
    show_default=True,
    help="Seconds for a navigation or a request.",
)
@click.option(
    "--links",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Addresses at most that are opened, too, because a fetched page leads there (links, GET forms).",
)
@click.option(
    "--values",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What those forms are filled with, as of `record explore`. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be fetched; ask nobody, add nothing.")
@reach_options
@json_option
@click.pass_context
def amend_command(ctx: click.Context, /, **given: Any) -> None:
    """Fetch what a replay missed into a collection, as a new version of it.

    Missed pages are visited by the browser, pinned as the recording was; anything else is asked for as
    the client asked, with the cookies of its page. What the collection answers already it answers as
    before; as it was it stays readable as NAME@1. Robots exclusion is not asked. Exit status 0 if all is
    there, 1 if something is not, 130 after Ctrl-C; the same command then goes on.

    \b
    Example:
      stillweb replay misses runs/*.jsonl --unexplained --out misses.jsonl
      stillweb record amend shop --misses misses.jsonl
      echo https://shop.example/sale | stillweb record amend shop --misses -
    """  # noqa: D301  click reads \b itself
    name = given["name"]
    collection = Collection.open(given["root"], name)
    misses, others = _of(name, _wanted(given["source"]))
    if others:
        named = ", ".join(sorted(others))
        stderr().print(f"{others.total()} misses are of other collections: {named}", markup=False)
    login = login_given(given)
    tell_stranger(collection, login)
    options = AmendOptions(
        record=record_options(given),
        login=login,
        values=read_values(given["values"]),
        **{each: given[each] for each in _NAMES},
    )
    ca = CertAuthority.load_or_init(given["certs_dir"])
    with progress() as bar:
        task = bar.add_task("asking", total=None)

        def show(outcome: ErrandOutcome, left: int) -> None:
            bar.advance(task)
            done = bar.tasks[0].completed
            bar.update(task, total=done + left, description=f"{outcome.outcome}: {outcome.url[:60]}")

        try:
            report = until_signal(amend(collection, misses, ca, options, show))
        except click.Abort:
            bar.console.print("what was fetched is kept; the same command goes on", markup=False)
            raise
    _tell(report, name, as_json=given["as_json"])
    if any(each.outcome in ("absent", "refused") for each in report.outcomes):
        ctx.exit(1)


_NAMES = ("unsafe", "any_host", "retries", "page_timeout", "dry_run", "links")


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
    with tempfile.TemporaryDirectory(prefix="stillweb-") as folder:
        path = Path(folder) / "stdin"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield path


def _of(name: str, misses: list[Missed]) -> tuple[list[Missed], Counter[str]]:
    """Return the misses of a collection, whichever version was served, and the names of others."""
    mine = [each for each in misses if each.collection.partition("@")[0] in ("", name)]
    return mine, Counter(each.collection for each in misses if each not in mine)


def _tell(report: AmendReport, name: str, *, as_json: bool) -> None:
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
    for what, count in report.notes.items():
        click.echo(f"  {count} x {what}", err=True)
    if report.kept:
        click.echo(
            f"{name} is version {report.version} now: {report.captures} captures and {len(report.pages)} "
            f"pages added, environment {report.after[:12]}; as it was: {name}@{report.kept}"
        )

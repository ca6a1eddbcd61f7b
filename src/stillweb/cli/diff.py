"""`stillweb diff`: compare a recording with its replay, page by page."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stillweb.browser.profile import Level
from stillweb.certs import CertAuthority
from stillweb.cli.console import print_json, progress, stderr
from stillweb.cli.options import certs_option, collections_option, json_option
from stillweb.collections.layout import Collection
from stillweb.diff.report import LOWER_IS_BETTER, METRICS, DiffReport, PageDiff, parse_gates, shown
from stillweb.diff.run import DiffOptions
from stillweb.diff.run import diff as compare_pages
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve, why_unsealed

_ROWS = 40  # of a table; the report has all


@dataclass(frozen=True, slots=True)
class Source:
    """Where the replay comes from: a running server, or one that is started for the comparison."""

    proxy: str
    backend: str
    certs_dir: Path


@click.command()
@click.argument("name")
@click.option(
    "--backend",
    type=click.Choice(["native", "pywb"]),
    default="native",
    show_default=True,
    help="Which replay to start, unless --proxy names one.",
)
@click.option("--proxy", default="", metavar="URL", help="A replay server that is running.")
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write index.html and report.json into this folder.",
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Pages at a time.")
@click.option("--limit", type=click.IntRange(1), help="Pages at most.")
@click.option(
    "--level",
    type=click.Choice([Level.CLOCK.value, Level.NETWORK.value]),
    default=Level.CLOCK.value,
    show_default=True,
    help="How far pages are pinned; recordings are made at clock.",
)
@click.option(
    "--fail-under",
    default="",
    metavar="SCORE=LIMIT,...",
    help="Limits that every page must keep, on top of the usual ones; 'none' for no limits.",
)
@json_option
@collections_option
@certs_option
@click.pass_context
def diff(ctx: click.Context, /, name: str, **given: Any) -> None:
    """Visit every page of a recording in its replay and compare what comes.

    Status, requests, visible text, accessibility tree and screenshot of each page are held against
    the baseline that was taken when it was recorded. Exit status 1 if a page breaks a limit.

    \b
    Example:
      stillweb diff shop
      stillweb diff shop --report out/shop --fail-under text=1,screenshot=1
    """  # noqa: D301  click reads \b itself
    options = DiffOptions(
        jobs=given["jobs"],
        limit=given["limit"],
        gates=parse_gates(given["fail_under"]),
        level=Level(given["level"]),
    )
    collection = Collection.open(given["root"], name)
    source = Source(given["proxy"], given["backend"], given["certs_dir"])
    report = asyncio.run(_compare(collection, source, options))
    if folder := given["folder"]:
        report.write_json(folder / "report.json")
        page = report.write_html(folder)
        stderr().print(f"report: {page}", markup=False, soft_wrap=True)
    if given["as_json"]:
        print_json(report.to_dict())
    else:
        print_report(report)
    ctx.exit(report.exit_status)


async def _compare(collection: Collection, source: Source, options: DiffOptions) -> DiffReport:
    async with AsyncExitStack() as stack:
        url = source.proxy or await stack.enter_async_context(_replay(collection, source))
        client = await stack.enter_async_context(ReplayClient(url))
        bar = stack.enter_context(progress())
        total = len(collection.page_list()[: options.limit])
        task = bar.add_task(f"comparing {collection.name}", total=total)

        return await compare_pages(collection, client, options, on_page=lambda page: bar.advance(task))


@asynccontextmanager
async def _replay(collection: Collection, source: Source) -> AsyncIterator[str]:
    """Start a replay of the collection on free ports, sealing it first if need be; yields its URL."""
    ca = CertAuthority.load_or_init(source.certs_dir)
    if why := why_unsealed(collection):
        stderr().print(f"sealing {collection.name}: {why}", markup=False)
        await asyncio.to_thread(ensure_sealed, collection)
    if source.backend == "pywb":
        from stillweb.replay.pywb import serve_pywb  # starts a program that few have

        async with serve_pywb([collection], ca) as server:
            yield server.url
        return
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as native:
        yield native.url


def print_report(report: DiffReport) -> None:
    """Print the scores, the pages that differ, worst first, and a line that sums all up, to stdout."""
    _print_pages(["score", "worst page", "mean", "limit"], list(_spreads(report)))
    telling = [page for page in report.worst_first() if page.compared and not page.identical]
    uncompared = [page for page in report.pages if not page.compared]
    if telling:
        _print_pages(
            ["page", "what differs"], [[_name(page), _told(report, page)] for page in telling[:_ROWS]]
        )
        if report.failing:
            click.echo("* breaks its limit: " + ", ".join(_limits(report)))
    if uncompared:
        rows = [_counted(report, page) for page in uncompared[:_ROWS]]
        _print_pages(["page without a baseline", "status", "asked", "answered", "missed", "noise"], rows)
    for page in uncompared:
        if page.error:
            click.echo(f"not replayed: {page.url}: {page.error}")
    click.echo(f"{report.collection}: {report.summary()} ({report.seconds:.1f} s)")


def _spreads(report: DiffReport) -> Iterator[Sequence[str]]:
    """Yield the rows of the table of scores: name, worst page, mean, limit."""
    for metric, (name, _) in METRICS.items():
        if spread := report.spread(metric):
            worst, mean = spread
            limit = shown(metric, report.gates[metric]) if metric in report.gates else "-"
            average = f"{mean:.1f}" if metric == "misses" else shown(metric, mean)
            yield name, shown(metric, worst), average, limit


def _print_pages(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of pages; numbers to the right, what does not fit is folded."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        if number and len(columns) > 2:
            table.add_column(column, justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold", ratio=1 + number)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(file=sys.stdout, highlight=False).print(table)


def _name(page: PageDiff) -> str:
    return page.url.removeprefix("https://")


def _told(report: DiffReport, page: PageDiff) -> str:
    """Return what is wrong with a page: its error, or the scores that are not perfect."""
    if page.error:
        return f"not replayed*: {page.error}"
    imperfect = [name for name, value in page.scores.items() if value != (name not in LOWER_IS_BETTER)]
    if not imperfect:
        return "states of the accessibility tree or blanks of the text"
    return ", ".join(
        f"{METRICS[name][0]} {_cell(report, page, name)}" for name in METRICS if name in imperfect
    )


def _cell(report: DiffReport, page: PageDiff, name: str) -> str:
    mark = "*" if name in page.failures(report.gates) else ""
    if name == "status" and page.recorded_status != page.replayed_status:
        return f"{page.recorded_status or '-'}>{page.replayed_status or '-'}{mark}"
    if name == "status":
        return f"{page.replayed_status or '-'}{mark}"
    return (shown(name, page.scores[name]) if name in page.scores else "-") + mark


def _counted(report: DiffReport, page: PageDiff) -> list[str]:
    counts = page.counts
    numbers = [str(number) for number in (counts.asked, counts.hit, counts.miss, counts.noise)]
    return [_name(page), _cell(report, page, "status"), *numbers]


def _limits(report: DiffReport) -> list[str]:
    broken = {name for page in report.failing for name in page.failures(report.gates)}
    return [
        f"{METRICS[name][0]} {'≤' if name in LOWER_IS_BETTER else '≥'} {shown(name, report.gates[name])}"
        for name in METRICS
        if name in broken and name in report.gates
    ]

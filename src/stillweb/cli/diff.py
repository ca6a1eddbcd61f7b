"""`stillweb diff`: compare a recording with its replay, or with another recording."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from stillweb.browser.profile import Level
from stillweb.cli.compared import print_report
from stillweb.cli.console import print_json, progress, stderr
from stillweb.cli.options import certs_option, collections_option, json_option
from stillweb.cli.serving import replayed
from stillweb.collections.layout import Collection
from stillweb.collections.versions import open_version
from stillweb.diff.certificate import latest_certificate
from stillweb.diff.report import DiffReport, PageDiff, TraceDiff
from stillweb.diff.run import DiffOptions
from stillweb.diff.run import diff as compare_pages
from stillweb.diff.scores import parse_gates
from stillweb.diff.settings import read_settings
from stillweb.replay import ReplayClient


@dataclass(frozen=True, slots=True)
class Source:
    """Where the replay comes from: a running server, or one that is started for the comparison."""

    proxy: str
    backend: str
    certs_dir: Path


@click.command()
@click.argument("name")
@click.argument("other", required=False)
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
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Pages at a time.  [default: two for each processor]",
)
@click.option("--limit", type=click.IntRange(1), help="Pages at most.")
@click.option(
    "--level",
    type=click.Choice([level.value for level in Level if level is not Level.LIVE]),
    default=Level.CLOCK.value,
    show_default=True,
    help="How far pages are pinned; recordings are made at clock.",
)
@click.option(
    "--fail-under",
    default="",
    metavar="SCORE=LIMIT,...",
    help="Limits that every page must keep, on top of the collection's; 'none' for no limits.",
)
@click.option("--fresh", is_flag=True, help="Begin anew where a comparison was cut short.")
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for state and pictures.  [default: diff/ in the collection]",
)
@json_option
@collections_option
@certs_option
@click.pass_context
def diff(ctx: click.Context, /, name: str, other: str | None, **given: Any) -> None:
    """Visit every page of a recording in its replay and compare what comes.

    Requests and their answers, text, elements, accessibility tree, picture and scripts' complaints of
    each page are held against the baseline that was taken when it was recorded; recorded traces are
    taken again, and their rewards compared. Exit status 1 if a page breaks a limit or a reward differs.

    With OTHER two recordings are compared, without a browser: what changed from NAME to OTHER. Either may
    be NAME@VERSION (see `stillweb collections keep`). Exit status 1 only with --fail-under.

    \b
    Example:
      stillweb diff shop
      stillweb diff shop --report out/shop --fail-under text=1,screenshot=1
      stillweb diff shop@20261101120000 shop
    """  # noqa: D301  click reads \b itself
    collection = open_version(given["root"], other or name)
    options = DiffOptions(
        jobs=given["jobs"] or 2 * (os.cpu_count() or 1),  # while one page waits, another one computes
        limit=given["limit"],
        gates=parse_gates(given["fail_under"], {} if other else read_settings(collection.path).gates),
        level=Level(given["level"]),
        workers=1,
        work=given["work"],
        fresh=given["fresh"],
    )
    if other:
        report = asyncio.run(_between(given["root"], (name, other), options))
    else:
        source = Source(given["proxy"], given["backend"], given["certs_dir"])
        report = asyncio.run(_compare(collection, source, options))
    _write(report, given)
    if given["as_json"]:
        print_json(report.to_dict())
    else:
        print_report(report)
    ctx.exit(report.exit_status)


def _write(report: DiffReport, given: dict[str, Any]) -> None:
    if folder := given["folder"]:
        report.write_json(folder / "report.json")
        pack = report.about.get("environment_id", "")
        page = report.write_html(folder, latest_certificate(given["root"] / report.collection, pack))
        stderr().print(f"report: {page}", markup=False, soft_wrap=True)
    if given["junit"]:
        from stillweb.diff.junit import write_junit  # few ask for it

        write_junit(report, given["junit"])


async def _compare(collection: Collection, source: Source, options: DiffOptions) -> DiffReport:
    async with AsyncExitStack() as stack:
        where = replayed(collection, source.certs_dir, backend=source.backend, proxy=source.proxy)
        url = await stack.enter_async_context(where)
        client = await stack.enter_async_context(ReplayClient(url))
        bar = stack.enter_context(progress(rate="pages"))
        total = len(collection.page_list()[: options.limit])
        task = bar.add_task(f"comparing {collection.name}", total=total)
        report = await compare_pages(collection, client, options, on_page=lambda page: bar.advance(task))
        traces = await _traces(url, collection, options, lambda trace: None)
        return replace(report, traces=traces)


async def _traces(
    url: str, collection: Collection, options: DiffOptions, on_trace: Callable[[TraceDiff], None]
) -> tuple[TraceDiff, ...]:
    if not (collection.path / "traces").is_dir():
        return ()
    from stillweb.diff.traces import diff_traces  # the environment is slow to import

    return await diff_traces(url, collection, level=options.level, on_trace=on_trace)


async def _between(root: Path, names: tuple[str, str], options: DiffOptions) -> DiffReport:
    from stillweb.diff.between import diff_between

    first, second = (open_version(root, name) for name in names)
    with progress(rate="pages") as bar:
        task = bar.add_task(f"comparing {names[0]} with {names[1]}", total=None)
        total = len({p.url for p in first.page_list()} & {p.url for p in second.page_list()})
        bar.update(task, total=total)

        def seen(page: PageDiff) -> None:
            bar.advance(task)

        return await diff_between(first, second, options, names=names, on_page=seen)

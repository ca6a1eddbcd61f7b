"""`stillweb diff`: compare a recording with its replay, or with another recording."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import (
    FILE,
    FOLDER,
    backend_options,
    certs_option,
    collections_option,
    json_option,
    options_from,
)
from stillweb.cli.progress import counting
from stillweb.cli.replay.shared import replayed
from stillweb.collections.layout import Collection
from stillweb.collections.versions import open_version
from stillweb.diff import METRICS, DiffReport, Finding, FindingSeverity, PageDiff, parse_gates
from stillweb.diff.certify.certificate import latest_certificate
from stillweb.diff.compare.run import DiffOptions
from stillweb.diff.compare.run import diff as compare_pages
from stillweb.diff.compare.settings import COUNTS, LOWER_IS_BETTER, read_settings, shown
from stillweb.replay import ReplayClient

_ROWS = 40  # of a table; the report contains all
_FINDINGS = 25


def print_report(report: DiffReport) -> None:
    _print_traces(report)
    print_table(["score", "#worst page", "#mean", "#limit"], list(_spreads(report)))
    different = [page for page in report.worst_first() if page.compared and not page.identical]
    if different:
        rows = [[_name(page), _differences(report, page)] for page in different[:_ROWS]]
        print_table(["page", "what differs"], rows)
        if report.failing:
            echo("* breaks its limit: " + ", ".join(_limits(report)))
    _print_findings(report)
    uncompared = [page for page in report.pages if not page.compared]
    if uncompared:
        rows = [_counted(report, page) for page in uncompared[:_ROWS]]
        columns = ["page without a baseline", "#status", "#requests", "#answered", "#missed", "#noise"]
        print_table(columns, rows)
    for page in uncompared:
        if page.error:
            echo(f"not replayed: {page.url}: {page.error}")
    if derived := report.derived:
        echo(f"{derived} answers are derived from templates of forms, not recorded")
    echo(f"{report.collection}: {report.summary()} ({report.seconds:.1f} s)")


def _print_traces(report: DiffReport) -> None:
    if not report.traces:
        return
    scored = [trace for trace in report.traces if trace.rewards_agree is not None]
    agreed = sum(trace.rewards_agree is True for trace in scored)
    echo(f"rewards: {agreed} of {len(scored)} recorded traces have the same reward in the replay")
    rows = []
    for trace in report.traces[:_ROWS]:
        first = trace.first_difference
        steps = f"{len(trace.steps)} of {trace.recorded_steps or '?'}"
        rewards = [_reward(trace.recorded_reward), _reward(trace.replayed_reward)]
        rows.append([trace.name, steps, *rewards, "-" if first is None else f"step {first}"])
    print_table(["trace", "#steps", "#recorded", "#replayed", "#first difference"], rows)


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _print_findings(report: DiffReport) -> None:
    """Print equal findings once, with the number of their pages and the command that repairs them."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.all_findings():
        groups.setdefault((finding.kind.value, finding.subject), []).append(finding)
    for (kind, subject), found in list(groups.items())[:_FINDINGS]:
        first = found[0]
        mark = {FindingSeverity.ERROR: "!", FindingSeverity.WARNING: "~", FindingSeverity.INFO: " "}[
            first.severity
        ]
        many = f" ({len(found)} pages)" if len(found) > 1 else ""
        echo(f"{mark} {kind}: {subject}{many}\n    {first.explanation}")
        if first.fix:
            echo(f"    fix: {first.fix}")
    if len(groups) > _FINDINGS:
        echo(f"  and {len(groups) - _FINDINGS} more findings: --json or --report has all")
    if report.requests:
        echo(f"{len(report.requests)} requests added, removed or answered differently: --json lists them")


def _spreads(report: DiffReport) -> Iterator[Sequence[str]]:
    """Yield the rows of the table of scores: name, worst page, mean, limit."""
    for metric, (name, _) in METRICS.items():
        if spread := report.spread(metric):
            worst, mean = spread
            limit = shown(metric, report.gates[metric]) if metric in report.gates else "-"
            average = f"{mean:.1f}" if metric in COUNTS else shown(metric, mean)
            yield name, shown(metric, worst), average, limit


def _name(page: PageDiff) -> str:
    return page.url.removeprefix("https://")


def _differences(report: DiffReport, page: PageDiff) -> str:
    if page.error:
        return f"not replayed*: {page.error}"
    imperfect = [name for name, value in page.scores.items() if value != (name not in LOWER_IS_BETTER)]
    if not imperfect:
        return "accessibility states or whitespace only"
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
    numbers = [str(number) for number in (counts.requested, counts.hit, counts.miss, counts.noise)]
    return [_name(page), _cell(report, page, "status"), *numbers]


def _limits(report: DiffReport) -> list[str]:
    broken = {name for page in report.failing for name in page.failures(report.gates)}
    return [
        f"{METRICS[name][0]} {'≤' if name in LOWER_IS_BETTER else '≥'} {shown(name, report.gates[name])}"
        for name in METRICS
        if name in broken and name in report.gates
    ]


@click.command()
@click.argument("name")
@click.argument("other", required=False)
@backend_options
@click.option("--report", "folder", type=FOLDER, help="Write index.html and report.json into this folder.")
@click.option("--junit", type=FILE, help="Write JUnit XML to this file.")
@click.option(
    "--fail-under",
    default="",
    metavar="SCORE=LIMIT,...",
    help="Limits for every page, in addition to those of the collection; 'none' for no limits.",
)
# Twice the processors: while one page waits, another one computes.
@options_from(DiffOptions(jobs=2 * (os.cpu_count() or 1), workers=1))
@json_option
@collections_option
@certs_option
@click.pass_context
def diff(ctx: click.Context, /, name: str, other: str | None, options: DiffOptions, **given: Any) -> None:
    """Visit every page of a recording in its replay, and compare the two.

    For each page the command compares requests and answers, text, elements, accessibility tree, screenshot
    and script errors with the baseline of the recording. It repeats recorded traces and compares their
    rewards. Exit status 1 if a page breaks a limit or a reward differs.

    With OTHER it compares two recordings, without a browser: the changes from NAME to OTHER. Either may be
    NAME@VERSION (see `stillweb collections keep`). Exit status 1 only with --fail-under.

    \b
    Example:
      stillweb diff shop
      stillweb diff shop --report out/shop --fail-under text=1,screenshot=1
      stillweb diff shop@20261101120000 shop
    """
    collection = open_version(given["root"], other or name)
    gates = {} if other else read_settings(collection.path).gates
    options = replace(options, gates=parse_gates(given["fail_under"], gates))
    if other:
        report = asyncio.run(_between(given["root"], (name, other), options))
    else:
        report = asyncio.run(_compare(collection, options, given))
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
        echo(f"report: {page}", err=True)
    if given["junit"]:
        from stillweb.diff.report.junit import write_junit  # rarely needed

        write_junit(report, given["junit"])


async def _compare(collection: Collection, options: DiffOptions, given: dict[str, Any]) -> DiffReport:
    from stillweb.diff.compare.traces import diff_traces  # imports `env`, which is slow

    async with AsyncExitStack() as stack:
        where = replayed(collection, given["certs_dir"], backend=given["backend"], proxy=given["proxy"])
        url = await stack.enter_async_context(where)
        client = await stack.enter_async_context(ReplayClient(url))
        total = len(collection.page_list()[: options.limit])
        on_page = stack.enter_context(counting(f"comparing {collection.name}", total, rate="pages"))
        report = await compare_pages(collection, client, options, on_page=on_page)
        traces = await diff_traces(url, collection, level=options.level, derived=options.derived)
        return replace(report, traces=traces)


async def _between(root: Path, names: tuple[str, str], options: DiffOptions) -> DiffReport:
    from stillweb.diff.compare.between import diff_between

    first, second = (open_version(root, name) for name in names)
    total = len({page.url for page in first.page_list()} & {page.url for page in second.page_list()})
    with counting(f"comparing {names[0]} with {names[1]}", total, rate="pages") as on_page:
        return await diff_between(first, second, options, names=names, on_page=on_page)

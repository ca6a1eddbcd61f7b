"""What a comparison found, on the terminal: rewards, then scores, then what is wrong and what mends it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stillweb.diff.findings import Finding, Severity
from stillweb.diff.report import DiffReport, PageDiff
from stillweb.diff.scores import COUNTS, LOWER_IS_BETTER, METRICS, shown

_ROWS = 40  # of a table; the report has all
_FINDINGS = 25


def print_report(report: DiffReport) -> None:
    """Print a comparison to stdout; what is cut short here is whole in the report."""
    _print_traces(report)
    _table(["score", "worst page", "mean", "limit"], list(_spreads(report)))
    telling = [page for page in report.worst_first() if page.compared and not page.identical]
    if telling:
        rows = [[_name(page), _told(report, page)] for page in telling[:_ROWS]]
        _table(["page", "what differs"], rows)
        if report.failing:
            click.echo("* breaks its limit: " + ", ".join(_limits(report)))
    _print_findings(report)
    uncompared = [page for page in report.pages if not page.compared]
    if uncompared:
        rows = [_counted(report, page) for page in uncompared[:_ROWS]]
        _table(["page without a baseline", "status", "asked", "answered", "missed", "noise"], rows)
    for page in uncompared:
        if page.error:
            click.echo(f"not replayed: {page.url}: {page.error}")
    click.echo(f"{report.collection}: {report.summary()} ({report.seconds:.1f} s)")


def _print_traces(report: DiffReport) -> None:
    if not report.traces:
        return
    told = [trace for trace in report.traces if trace.rewards_agree is not None]
    agreed = sum(trace.rewards_agree is True for trace in told)
    click.echo(f"rewards: {agreed} of {len(told)} recorded traces earn in the replay what they earned then")
    rows = []
    for trace in report.traces[:_ROWS]:
        first = trace.first_difference
        steps = f"{len(trace.steps)} of {trace.recorded_steps or '?'}"
        rewards = [_reward(trace.recorded_reward), _reward(trace.replayed_reward)]
        rows.append([trace.name, steps, *rewards, "-" if first is None else f"step {first}"])
    _table(["trace", "steps", "recorded", "replayed", "first difference"], rows)


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _print_findings(report: DiffReport) -> None:
    """Print equal findings once, with how many pages have them, and the command that mends them."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.all_findings():
        groups.setdefault((finding.kind.value, finding.subject), []).append(finding)
    for (kind, subject), found in list(groups.items())[:_FINDINGS]:
        first = found[0]
        mark = {Severity.ERROR: "!", Severity.WARNING: "~", Severity.INFO: " "}[first.severity]
        many = f" ({len(found)} pages)" if len(found) > 1 else ""
        click.echo(f"{mark} {kind}: {subject}{many}\n    {first.explanation}")
        if first.mend:
            click.echo(f"    mend: {first.mend}")
    if len(groups) > _FINDINGS:
        click.echo(f"  and {len(groups) - _FINDINGS} more findings: --json or --report has all")
    if report.requests:
        click.echo(f"{len(report.requests)} requests added, removed or answered otherwise: --json lists them")


def _spreads(report: DiffReport) -> Iterator[Sequence[str]]:
    """Yield the rows of the table of scores: name, worst page, mean, limit."""
    for metric, (name, _) in METRICS.items():
        if spread := report.spread(metric):
            worst, mean = spread
            limit = shown(metric, report.gates[metric]) if metric in report.gates else "-"
            average = f"{mean:.1f}" if metric in COUNTS else shown(metric, mean)
            yield name, shown(metric, worst), average, limit


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
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

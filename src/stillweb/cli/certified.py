"""Certificates as tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stillweb.diff.certificate import Certificate, TraceResult
from stillweb.diff.divergence import Divergence
from stillweb.diff.verify import Verified

_LINES = 12  # of a difference; the certificate has more


def print_certificate(certificate: Certificate) -> None:
    """Print a row per trace, a row per count of sessions, what differs first, and a line that sums it up."""
    forms = certificate.forms
    columns = ["trace", "#steps", "#runs", "#fail", "#streams", *(f"#{form}" for form in forms)]
    rows = [_trace_row(result, forms) for result in certificate.traces]
    if any(row[-1] for row in rows):
        _table([*columns, "first difference"], rows)
    else:
        _table(columns, [row[:-1] for row in rows])
    _table(
        ["sessions", "#runs", "#differ", "#fail", "#flagged", "#unsettled", "#ms/step", "#p90"],
        _group_rows(certificate),
    )
    for result in certificate.traces:
        if result.divergence:
            _print_divergence(result.divergence)
        if result.error:
            click.echo(f"{result.trace.name}: broken by us: {result.error}")
    click.echo(f"{certificate.collection}: {certificate.summary()} ({certificate.seconds:.1f} s)")


def print_verified(certified: Certificate, here: Certificate, rows: Sequence[Verified]) -> None:
    """Print how each trace of a certificate went here."""
    _table(
        ["trace", "#equal steps", "verdict", "first difference", "why"],
        [
            (
                row.trace,
                f"{row.equal}/{row.steps}",
                row.verdict.value,
                "" if row.step is None else f"step {row.step}: {', '.join(row.forms)}",
                row.why,
            )
            for row in rows
        ],
    )
    for result in here.traces:
        if result.divergence:
            _print_divergence(result.divergence)
    others = here.machine.differs_from(certified.machine)
    click.echo(f"made on {'this kind of machine' if not others else ', '.join(others)}, {certified.made}")


def _trace_row(result: TraceResult, forms: Sequence[str]) -> list[str]:
    divergence = result.divergence
    where = "" if divergence is None else f"step {divergence.step}: {', '.join(divergence.forms)}"
    streams = [str(result.distinct.get(form, "-")) for form in forms]
    counts = [str(value) for value in (len(result.steps), result.runs, result.failed, result.streams)]
    return [result.trace.name, *counts, *streams, where or result.error]


def _group_rows(certificate: Certificate) -> list[list[str]]:
    keys = list(dict.fromkeys((g.jobs, g.loaded) for trace in certificate.traces for g in trace.groups))
    rows = []
    for jobs, loaded in keys:
        groups = [g for t in certificate.traces for g in t.groups if (g.jobs, g.loaded) == (jobs, loaded)]
        sums = [
            sum(getattr(g, name) for g in groups)
            for name in ("runs", "differ", "failed", "flagged", "unsettled")
        ]
        walls = [max(g.median for g in groups), max(g.p90 for g in groups)]
        label = f"{jobs}{', machine loaded' if loaded else ''}"
        rows.append([label, *map(str, sums), *(f"{1000 * wall:.0f}" for wall in walls)])
    return rows


def _print_divergence(divergence: Divergence) -> None:
    action = divergence.action or "reset"
    click.echo(
        f"\n{divergence.trace}, step {divergence.step} ({action}) at {divergence.url}: "
        f"{divergence.runs} runs unlike the reference, {divergence.streams} different streams"
    )
    if divergence.looks_like:
        click.echo(f"  looks like {divergence.looks_like}")
    if divergence.node:
        click.echo(f"  node: {divergence.node}")
    changed = [line for line in divergence.lines if line.kind in "-+"]
    for line in changed[:_LINES]:
        click.echo(f"    {line.kind} {line.text.strip()}")
    if len(changed) > _LINES:
        click.echo(f"    and {len(changed) - _LINES} more lines")
    for place in divergence.places:
        left, top, right, bottom = place.box
        click.echo(f"  pixels: {left},{top} to {right},{bottom}  {place.element}")
    for request in divergence.requests:
        click.echo(f"  request: {request}")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns that begin with # are set to the right, without the sign."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in columns:
        right = column.startswith("#")
        table.add_column(
            column.removeprefix("#"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escape, row))
    # In a pipe there is no width to keep to.
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 200).print(table)

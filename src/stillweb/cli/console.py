"""What commands write with: results to stdout, everything for the human to stderr.

rich is imported by what needs it: it takes a fifth of the start of a replay server, which prints JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task


def stderr() -> Console:
    """Return a console on stderr."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def progress(*, rate: str = "") -> Progress:
    """Return a progress bar on stderr: description, bar, count, time.

    Args:
        rate: what is counted, such as "pages"; then its rate and the time left are shown, too.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.1f} {rate}/s" if speed else f"- {rate}/s")

    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    if rate:
        columns += [Rate(), TextColumn("left:"), TimeRemainingColumn()]
    return Progress(*columns, console=stderr())


def print_json(value: Any) -> None:
    """Print a value as indented JSON to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print a table to stdout; a column whose name starts with `#` is set to the right, without the sign."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    # In a pipe there is no width to keep to, and a URL cut short is of no use to the next program.
    width = None if sys.stdout.isatty() else 300
    Console(file=sys.stdout, highlight=False, width=width).print(table)


def _cell(value: object) -> str:
    """Return a value as people write it; programs ask for `--json`."""
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{key} {_cell(each)}" for key, each in value.items())
        case list() | tuple():
            return ", ".join(_cell(each) for each in value)
        case _:
            return str(value)

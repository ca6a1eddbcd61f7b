"""Terminal output (tables, JSON) and the handling of Ctrl-C and SIGTERM.

All output passes `printable`: URLs, titles and file names come from archives and sites. Control characters in
them would set the title or the clipboard of the terminal.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import click

from stillweb.errors import StillwebError, first_error
from stillweb.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def echo(message: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line to stdout, or to stderr."""
    click.echo(printable(str(message)), err=err, nl=nl)


def stderr() -> Console:
    return _console(sys.stderr)


def stdout(*, width: int | None = None) -> Console:
    """Return a console of a number of columns, by default those of the terminal."""
    return _console(sys.stdout, width)


def _console(file: IO[str], width: int | None = None) -> Console:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return PrintableConsole(file=file, highlight=False, width=width)


class LogFormatter(logging.Formatter):
    """Formatter of log lines whose messages may quote archives and sites."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


_CONTROLS = re.compile("[\x7f-\x9f\ud800-\udfff]")


def echo_first(lines: Sequence[object], most: int, rest: str = "more: --json lists all of them") -> None:
    """Print the first lines to stderr, and the number of the others."""
    for line in lines[:most]:
        echo(line, err=True)
    if len(lines) > most:
        echo(f"and {len(lines) - most} {rest}", err=True)


def print_json(value: Any) -> None:
    """Print a value as indented JSON to stdout."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # JSON escapes C0 already; its own escapes suit the rest.
    click.echo(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print a table to stdout; columns whose name starts with `#` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", header_style="bold")
    for column in columns:
        justify: Literal["right", "left"] = "right" if column.startswith("#") else "left"
        table.add_column(column.removeprefix("#"), justify=justify, overflow="fold")
    for row in rows:
        # Not as text with markup: the brackets of `?ids[b]=1` would be read as a tag.
        table.add_row(*(Text(_cell(value)) for value in row))
    # A pipe has no width, and the next program cannot use a truncated URL.
    width = None if sys.stdout.isatty() else 300
    stdout(width=width).print(table)


def _cell(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{key} {_cell(each)}" for key, each in value.items())
        case list() | tuple():
            return ", ".join(_cell(each) for each in value)
        case _:
            return str(value)


class SectionedCommand(click.Command):
    """A command with its options in sections.

    Args:
        sections: names of parameters by section title, in order; all others come first, as "Options".
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            each.name: each.get_help_record(ctx)
            for each in self.get_params(ctx)
            if isinstance(each, click.Option)
        }
        named = {name for names in self.sections.values() for name in names}
        rest = [name for name in records if name not in named]
        for title, names in {"Options": rest, **self.sections}.items():
            if lines := [line for name in names if (line := records[name])]:
                with formatter.section(title):
                    formatter.write_dl(lines)


T = TypeVar("T")


def on_signals(*, deadline: float | None = None) -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set; a second signal ends the program immediately.

    Args:
        deadline: seconds after the first signal at which the process ends even if code blocks the event
            loop; three times as many if the loop responds, since a loaded machine ends browsers slowly. With
            a deadline the handler runs outside of the loop, and the timer (`faulthandler`) needs neither the
            loop nor the GIL; it writes the stacks of all threads to stderr.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    received = False

    def stop(number: int, *_: Any) -> None:
        nonlocal received
        if received:
            os._exit(128 + number)  # signals have no default action in the first process of a container
        received = True
        if deadline is not None:
            end_after(deadline, 4)
        loop.call_soon_threadsafe(stopped.set)

    def end_after(seconds: float, extensions: int) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.stderr.fileno())
        if extensions:
            loop.call_soon_threadsafe(loop.call_later, 0.5 * seconds, end_after, seconds, extensions - 1)

    for number in (signal.SIGINT, signal.SIGTERM):
        if deadline is None:
            loop.add_signal_handler(number, stop, number)
        else:
            signal.signal(number, stop)
    return stopped


def until_signal(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that the first SIGINT or SIGTERM cancels.

    Raises:
        Abort: if it was cancelled; the command line then ends with status 130.
        StillwebError, OSError: the first one of a task group that failed by such errors only.
    """

    async def under_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # a second signal ends the program
            if task is not None:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await main

    try:
        return asyncio.run(under_signals())
    except asyncio.CancelledError:
        raise click.Abort from None
    except BaseExceptionGroup as group:
        if group.split((StillwebError, OSError))[1]:
            raise
        raise first_error(group) from group

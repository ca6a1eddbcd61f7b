"""Progress bars on stderr; lines where stderr is not a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from stillweb.cli.console import stderr
from stillweb.clock import monotonic

LINE_SECONDS = 10.0  # between two progress lines of a task, where stderr is not a terminal
SILENT_SECONDS = 20.0  # after which a task that does not advance prints a line too


def progress(*, rate: str = "") -> Progress:
    """Return a progress bar on stderr: description, bar, count, time.

    Args:
        rate: unit of the count, such as "pages", to show its rate and the remaining time too.
    """
    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", style="progress.description", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    if rate:
        columns += [_Rate(rate), TextColumn("left:"), TimeRemainingColumn()]
    return _LineProgress(*columns, console=stderr())


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f} {self._unit}/s" if speed else f"- {self._unit}/s")


class _LineProgress(Progress):
    """A bar whose tasks print lines where stderr is not a terminal.

    A line comes every `LINE_SECONDS` while a task advances, every `SILENT_SECONDS` while it does not, and at
    its end.
    """

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        self._is_terminal = console.is_terminal  # `Progress` renders before it has its console
        super().__init__(*columns, console=console)
        self._last: dict[TaskID, float] = {}
        self._stopped = threading.Event()

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._is_terminal:
            yield from super().get_renderables()
        else:
            yield from (Text(_task_line(task)) for task in self.tasks if task.visible and task.description)

    def start(self) -> None:
        super().start()
        if not self._is_terminal:
            # A thread: computations block the event loop, and are what is silent.
            threading.Thread(target=self._print_silent, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._is_terminal or any(self.get_renderables()):
            super().stop()
        else:
            self.live.stop()  # `Progress.stop` prints an empty line here

    def update(self, task_id: TaskID, *args: Any, **fields: Any) -> None:
        super().update(task_id, *args, **fields)
        self._print(self._tasks[task_id], LINE_SECONDS)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._print(self._tasks[task_id], LINE_SECONDS)

    def _print(self, task: Task, seconds: float) -> None:
        """Print a line of a task, if that many seconds have passed since its last one."""
        now = monotonic()
        if self._is_terminal or now - self._last.setdefault(task.id, now) < seconds:
            return
        self._last[task.id] = now
        self.console.print(_task_line(task), markup=False, soft_wrap=True)

    def _print_silent(self) -> None:
        while not self._stopped.wait(SILENT_SECONDS / 4):
            for task in self.tasks:
                if not task.finished:
                    self._print(task, SILENT_SECONDS)


def _task_line(task: Task) -> str:
    total = "" if task.total is None else f" of {task.total:.0f}"
    count = f"{task.completed:.0f}{total}, " if total or task.completed else ""
    return f"{task.elapsed or 0:.0f} s: {count}{task.description}"


@contextmanager
def counting(what: str, total: int | None = None, *, rate: str = "") -> Iterator[Callable[..., None]]:
    """Yield a function that advances a bar by one, whatever its arguments."""
    with progress(rate=rate) as bar:
        task = bar.add_task(what, total=total)
        yield lambda *_: bar.advance(task)


@contextmanager
def file_bar(what: str = "") -> Iterator[Callable[..., None]]:
    """Yield a function that shows how much is done of the total, after the name of the current file, if any.

    One bar for all files: one for each would be slow.
    """
    with progress() as bar:
        task = bar.add_task(what, total=None)

        def show(*progress: Any) -> None:
            *name, done, total = progress
            bar.update(task, description=(name or [what])[0], completed=min(done, total), total=total)

        yield show

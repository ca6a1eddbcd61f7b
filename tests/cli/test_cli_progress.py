from __future__ import annotations

import io

import pytest
from rich.console import Console

from stillweb import clock
from stillweb.cli import progress


@pytest.mark.parametrize(("interval", "lines"), [(0.0, True), (3600.0, False)])
def test_progress_is_printed_as_lines_where_stderr_is_a_file(monkeypatch, capsys, interval, lines) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", interval)

    with progress.progress() as bar:
        task = bar.add_task("exploring", total=200)
        bar.update(task, completed=7, description="3 states, 12 [waiting]")
        bar.advance(task)

    printed = capsys.readouterr().err.splitlines()
    assert any(line.endswith("s: 7 of 200, 3 states, 12 [waiting]") for line in printed) == lines
    ends = sum(line.endswith("s: 8 of 200, 3 states, 12 [waiting]") for line in printed)
    assert ends == (2 if lines else 1)  # the task's end always has a line


def test_a_task_without_a_total_prints_its_count(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)

    with progress.progress() as bar:
        bar.advance(bar.add_task("fetching", total=None))

    assert "0 s: 1, fetching" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("total", [None, 5])
def test_where_stderr_is_a_file_a_task_ends_with_a_line_and_not_with_a_bar(capsys, total) -> None:
    with progress.progress() as bar:
        bar.advance(bar.add_task("round 1: 2 of 37", total=total))

    count = "1 of 5" if total else "1"
    assert capsys.readouterr().err.splitlines() == [f"0 s: {count}, round 1: 2 of 37"]


def test_where_stderr_is_a_file_a_bar_without_tasks_prints_nothing(capsys) -> None:
    with progress.progress():
        pass

    assert capsys.readouterr().err == ""


def test_a_task_that_does_not_advance_prints_a_line_while_code_blocks_the_thread(monkeypatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.02)
    with progress.progress() as bar:
        bar.add_task("forms: 45 fields", total=None)
        poll_now(lambda: " s: forms: 45 fields" in stream.getvalue())
    assert " s: forms: 45 fields" in stream.getvalue()


def test_brackets_in_a_description_are_text_on_a_terminal(monkeypatch) -> None:
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "stderr", lambda: terminal)
    with progress.progress() as bar:
        bar.add_task("https://shop.example/?ids[b]=1&x[/b]=2", total=2)
    assert "?ids[b]=1&x[/b]=2" in stream.getvalue()


def poll_now(holds) -> None:
    """Compute, without a pause, until something holds, for at most 10 seconds."""
    end = clock.monotonic() + 10.0
    while not holds() and clock.monotonic() < end:
        sum(range(10_000))

"""Control characters of archives and sites never reach the terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_archives import ESCAPES, SITE, pair, records, warc

from stillweb.cli import progress
from stillweb.cli.console import LogFormatter, echo, print_json, print_table, stderr
from stillweb.collections.importers.importer import import_files
from stillweb.errors import CollectionError
from stillweb.replay.server.runtime import configure_logging
from stillweb.text import printable

CONTROLS = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0)))).replace("\t", "").replace("\n", "")


def assert_harmless(text: str) -> None:
    assert not set(text) & set(CONTROLS)


def test_printable_keeps_text_and_escapes_controls() -> None:
    assert printable("a\tb\nc é ☃") == "a\tb\nc é ☃"
    assert printable(ESCAPES) == r"\x1b]0;owned\x07\x1b[2J\x9b31m\x85"
    assert printable("\ud800") == r"\ud800"
    assert_harmless(printable(CONTROLS))


def test_tables_lines_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["file", ESCAPES], [[ESCAPES, {"x": [ESCAPES]}]], title=ESCAPES)
    echo(CollectionError(ESCAPES, path=ESCAPES))
    echo(ESCAPES, err=True)
    stderr().print(ESCAPES, markup=False, soft_wrap=True)
    print_json({"title": ESCAPES + "\ud800"})
    out, err = capsys.readouterr()
    assert_harmless(out)
    assert_harmless(err)
    assert "owned" in out
    assert "owned" in err
    assert json.loads(out[out.index('{\n  "title"') :])["title"].startswith(ESCAPES)


def test_brackets_in_a_table_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["url"], [["https://shop.example/?ids[b]=1&x[/b]=2"]], title="a[/b]")
    printed = capsys.readouterr().out
    assert "?ids[b]=1&x[/b]=2" in printed
    assert "a[/b]" in printed


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    with progress.progress() as bars:
        task = bars.add_task(ESCAPES, total=2)
        bars.update(task, completed=1)
    assert "owned" in stream.getvalue()
    assert_harmless(stream.getvalue())


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs(form: str) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure_logging(form, "info", stream=stream)
        logging.getLogger("x").warning("miss of %s", ESCAPES, extra={"url": ESCAPES})
        handler = logging.StreamHandler(stream)
        handler.setFormatter(LogFormatter("%(message)s"))
        root.handlers[:] = [handler]
        logging.getLogger("x").warning(ESCAPES)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert stream.getvalue().count("owned") >= 2
    assert_harmless(stream.getvalue())


def test_an_uncaught_error_of_a_program() -> None:
    code = f"from stillweb.errors import CollectionError; raise CollectionError({ESCAPES!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "owned" in ran.stderr
    assert_harmless(ran.stderr)


def test_a_body_on_a_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    """`collections show URL --body` writes the bytes of the body, except to a terminal."""
    body = f"<p>{ESCAPES}".encode()
    (tmp_path / "a.warc.gz").write_bytes(warc([*records(), *pair("/body", body, "Content-Type: text/html")]))
    import_files([tmp_path / "a.warc.gz"], tmp_path, "x")
    options = [f"{SITE}/body", "--body", "--collections", str(tmp_path)]
    command = [sys.executable, "-m", "stillweb", "collections", "show", "x", *options]
    assert subprocess.run(command, capture_output=True, check=True).stdout == body
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs) as process:
        os.close(theirs)
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "owned" in shown
    assert_harmless(shown)

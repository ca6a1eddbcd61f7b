"""Every command has help with an example, and docs/reference/cli.md is written from it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from commands import stillweb
from stillweb import __version__
from stillweb.cli import COMMANDS, cli
from stillweb.collections.export import export
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response


def _all(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _all(child, (*path, name))


EVERY = list(_all(cli, ()))


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(p) or "stillweb" for p, _ in EVERY])
def test_help_says_what_and_shows_an_example(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert command.help
    if not isinstance(command, click.Group):
        assert "Example" in result.output


def test_the_list_of_commands_needs_no_import_of_them() -> None:
    code = (
        "import sys; from stillweb.cli import cli; cli.main(['--help'], standalone_mode=False); "
        "assert 'playwright' not in sys.modules; assert 'stillweb.cli.record.commands' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for name in COMMANDS:
        assert name in result.stdout


def test_version() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert __version__ in result.output


def test_a_command_ends_without_a_search_for_garbage() -> None:
    """A callback that was registered first runs last: what it counts is left to the collection at exit."""
    left = "import atexit, gc; atexit.register(lambda: print(len(gc.get_objects()) < 1000)); "
    command = [sys.executable, "-c", left + "from stillweb.cli import main; main()", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"


def test_an_unknown_collection_is_a_clear_error_with_status_2(tmp_path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "archive").mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "stillweb", "collections", "show", "shpo", "--collections", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "shpo" in result.stderr
    assert "next:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_full_disk_is_a_clear_error_and_leaves_no_file(tmp_path, command: str) -> None:
    for name in ("site", "other"):
        with CollectionWriter(Collection.create(tmp_path / "root", name)) as writer:
            answer = Response(200, raw_body=os.urandom(20_000))
            writer.write(Exchange(Request("GET", "https://site.example/"), answer, "20260101000000"))
    export(Collection.open(tmp_path / "root", "other"), tmp_path / "other.wacz")
    given = {
        "import": [tmp_path / "other.wacz", "-c", "new"],
        "export": ["site", "-o", tmp_path / "site.wacz"],
    }
    before = sorted(tmp_path.rglob("*"))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        done = stillweb("collections", command, *given[command], "--collections", tmp_path / "root")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "next: free disk space" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write anywhere")
def test_a_folder_of_someone_else_is_a_clear_error(tmp_path):
    collection = Collection.create(tmp_path, "site")
    with CollectionWriter(collection) as writer:
        writer.write(Exchange(Request("GET", "https://site.example/"), Response(200), "20260101000000"))
    collection.path.chmod(0o555)
    # root without its capabilities is stopped by the mode bits like anybody else
    unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    result = subprocess.run(
        [
            *unprivileged,
            sys.executable,
            "-m",
            "stillweb",
            "collections",
            "seal",
            "site",
            "--collections",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "Permission denied" in result.stderr
    assert "next: run as the owner" in result.stderr
    assert "Traceback" not in result.stderr

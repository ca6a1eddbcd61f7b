"""`stillweb setup` finds installed programs; it installs missing ones, or prints the command for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stillweb.cli import setup as module
from stillweb.cli.setup import setup
from stillweb.errors import ProgramNotFound, UsageError
from stillweb.replay.pywb.process import PYWB_LOCK, default_folder


@pytest.fixture
def nowhere(monkeypatch, tmp_path) -> Path:
    """Surroundings in which no browser is found."""
    for name in ("STILLWEB_BROWSER", "STILLWEB_PYWB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "browsers"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.fixture
def commands_run(monkeypatch) -> list[list[str]]:
    """The commands that would be run, as they would change this machine; all fail."""
    commands: list[list[str]] = []

    def run(command: list[str]) -> str:
        commands.append(command)
        return f"{command[0]} failed"

    monkeypatch.setattr(module, "_run", run)
    return commands


def add_program(folder: Path, name: str) -> Path:
    path = folder / "bin" / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_browser_that_is_there_is_named_and_nothing_installed(nowhere, commands_run):
    path = add_program(nowhere, "chromium-headless-shell")
    result = CliRunner().invoke(setup, ["browser"])
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert commands_run == []


def test_without_one_playwright_is_requested_and_then_both_commands_reported(nowhere, commands_run):
    error = CliRunner().invoke(setup, ["browser"]).exception
    assert isinstance(error, ProgramNotFound)
    assert commands_run == [
        [sys.executable, "-m", "playwright", "install", "--with-deps", "chromium-headless-shell"]
    ]
    assert "playwright install" in error.hint
    assert "apt-get install chromium-headless-shell" in error.hint


def test_debians_package_is_the_second_choice_of_root(nowhere, commands_run, monkeypatch):
    add_program(nowhere, "apt-get")
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    CliRunner().invoke(setup, ["browser"])
    assert [command[0] for command in commands_run] == [sys.executable]
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    CliRunner().invoke(setup, ["browser"])
    assert [command[:2] for command in commands_run[2:]] == [["apt-get", "update"], ["apt-get", "install"]]


@pytest.mark.parametrize("user", [0, 1000])
def test_a_library_that_the_driver_lacks_is_installed_or_named(nowhere, commands_run, monkeypatch, user):
    add_program(nowhere, "apt-get")
    add_program(nowhere, "chromium-headless-shell")
    node = add_program(nowhere, "node")
    node.write_text("#!/bin/sh\necho 'libatomic.so.1: cannot open shared object file' >&2\nexit 127\n")
    monkeypatch.setattr("stillweb.browser.driver.compute_driver_executable", lambda: (str(node), "cli.js"))
    monkeypatch.setattr(module.os, "geteuid", lambda: user)
    error = CliRunner().invoke(setup, ["browser"]).exception
    assert isinstance(error, ProgramNotFound)  # the commands of this test install nothing
    assert "libatomic.so.1" in str(error)
    assert [command[-1] for command in commands_run] == (["--quiet", "libatomic1"] if user == 0 else [])


def test_a_folder_in_use_is_not_made_an_environment(nowhere, commands_run):
    (nowhere / "home").mkdir()
    (nowhere / "home" / "thesis.txt").write_text("unique")
    error = CliRunner().invoke(setup, ["pywb", "--path", str(nowhere / "home")]).exception
    assert isinstance(error, UsageError)
    assert (nowhere / "home" / "thesis.txt").exists()
    assert commands_run == []


@pytest.mark.pywb
def test_pywb_is_installed_by_hash_into_a_folder_of_its_own(tmp_path, commands_run):
    error = CliRunner().invoke(setup, ["pywb", "--path", str(tmp_path / "pywb")]).exception
    assert isinstance(error, ProgramNotFound)
    assert (tmp_path / "pywb" / "pyvenv.cfg").exists()
    (command,) = commands_run
    assert Path(command[0]) == tmp_path / "pywb" / "bin" / "python"
    assert command[-3:] == ["--require-hashes", "-r", str(PYWB_LOCK)]


@pytest.mark.pywb
def test_a_pywb_that_is_there_is_left_alone(monkeypatch):
    program = default_folder() / "bin" / "wayback"
    if not program.exists():
        pytest.skip("no pywb at its place; run: stillweb setup pywb")
    made = program.stat().st_mtime_ns
    result = CliRunner().invoke(setup, ["pywb"])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, str(program))
    assert program.stat().st_mtime_ns == made

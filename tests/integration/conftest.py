"""Adapters driven by the real packages of others, each in an environment of its own (`make integration`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from played_tasks import CLICKS, FILLS, servers

REPO = Path(__file__).resolve().parents[2]
SIDES = Path(__file__).resolve().parent / "sides"
VARIABLE = "STILLWEB_INTEGRATION"


@pytest.fixture(scope="session")
def python_of():
    """Find the interpreter of a package's environment."""
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no folder of environments: make integration")

    def find(package: str) -> Path:
        python = Path(os.environ[VARIABLE]) / package / "bin" / "python"
        if not python.is_file():
            pytest.skip(f"no environment of {package}: make integration")
        return python

    return find


@pytest.fixture(scope="session")
def served(python_of, shared, tmp_path_factory):
    """The servers that all packages play on."""
    forms = ("axtree", "screenshot")
    with servers(shared, tmp_path_factory.mktemp("integration"), sessions=4, observe=forms) as running:
        yield running


@pytest.fixture
def run_there(served, python_of):
    """Run a program in a package's environment; return what it printed."""

    def run(package: str, program: Path, *arguments: str, seconds: float = 170.0) -> str:
        shared = os.pathsep.join(str(REPO / folder) for folder in ("bench", "tests/trainers"))
        ended = subprocess.run(
            [python_of(package), program, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "PYTHONPATH": shared, "PYTHONWARNINGS": "ignore"},
            cwd=served.root,
        )
        assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
        return ended.stdout

    return run


@pytest.fixture
def drive(served, run_there):
    """Run a side in its package's environment; return its report."""

    def run(package: str, side: str, seconds: float = 170.0, **given: object) -> dict:
        given = {"replay": served.replay, "rollouts": served.rollouts, "tasks": [CLICKS, FILLS], **given}
        given["examples"] = str(REPO / "examples")
        given["goals"] = {name: served.tasks[name].goal for name in given["tasks"]}
        printed = run_there(package, SIDES / f"{side}.py", json.dumps(given), seconds=seconds)
        return json.loads(printed.strip().splitlines()[-1])

    return run


@pytest.fixture
def example(run_there):
    """Run one of the examples in a package's environment; return what it printed."""

    def run(package: str, name: str, *arguments: str) -> str:
        return run_there(package, REPO / "examples" / name, *arguments)

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reward that each package's own class has reached."""
    played = [report for report in terminalreporter.stats.get("passed", []) if report.when == "call"]
    lines = [
        f"{name} {value}  {report.nodeid}"
        for report in played
        for name, value in report.user_properties
        if report.nodeid.startswith("tests/integration/")
    ]
    if lines:
        terminalreporter.section("rewards")
        terminalreporter.write_line("\n".join(lines))

"""Commands without their extra say which `pip install` helps; scripts end in message and next step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stillweb.cli.extras import extra_not_installed, extras
from stillweb.errors import ReplayUnreachable

HELP = Path(__file__).with_name("installed_help.py")
BLOCK = "import sys; sys.modules[{!r}] = None; from stillweb.cli import main; main()"


def test_the_extras_are_those_of_the_package() -> None:
    assert set(extras()) == {"record", "gym", "serve", "agents", "ray"}
    assert "ahocorasick_rs" in extras()["record"]


def test_other_missing_modules_stay_as_they_are() -> None:
    assert extra_not_installed(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert extra_not_installed(ModuleNotFoundError("no name")) is None


@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [
        ("protego", "record", ["demo"]),
        ("protego", "record", ["record", "crawl", "https://site.test/", "-c", "x"]),
        ("mitmproxy", "record", ["record", "proxy", "-c", "x"]),
        ("ahocorasick_rs", "record", ["record", "login", "https://site.test/", "--save", "x"]),
        ("uvicorn", "serve", ["serve", "http://127.0.0.1:9"]),
    ],
)
def test_one_line_names_the_extra(tmp_path, missing: str, extra: str, arguments: list[str]) -> None:
    command = [sys.executable, "-c", BLOCK.format(missing), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert list(tmp_path.iterdir()) == [], "the error comes before any effect"
    assert "Traceback" not in done.stderr
    first, hint = done.stderr.splitlines()
    assert re.match("stillweb: .*not installed", first)
    assert hint == f"  next: pip install 'stillweb[{extra}]'"


def test_the_help_of_every_command_needs_no_extra() -> None:
    blocked = dict.fromkeys(module for modules in extras().values() for module in modules)
    code = f"import sys, runpy; sys.modules.update({blocked}); runpy.run_path({str(HELP)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["missing"] == {}


SCRIPT = """
import asyncio
from stillweb.env import Env

async def main():
    async with Env("http://127.0.0.1:9", "shop"):
        pass

asyncio.run(main())
"""


def run_script(script: str, **variables: str) -> list[str]:
    """Return what a script prints to stderr; it must fail."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **variables}
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


def test_an_uncaught_error_is_the_script_s_line_its_message_and_the_next_step() -> None:
    message, hint = run_script(SCRIPT)
    assert message.startswith("<string>:6: ReplayUnreachable: no replay server at http://127.0.0.1:9: ")
    assert hint == "  next: stillweb replay NAME"


def test_the_traceback_is_one_and_without_a_chain_if_it_is_wanted() -> None:
    *frames, message, hint = lines = run_script(SCRIPT, STILLWEB_TRACEBACK="1")
    assert message.startswith("stillweb.errors.ReplayUnreachable: no replay server at http://127.0.0.1:9: ")
    assert hint == "next: stillweb replay NAME"
    assert sum("Traceback" in line for line in lines) == 1
    assert not any("httpx" in line for line in lines)
    assert len(frames) < 30


def test_other_errors_and_other_hooks_stay_as_they_are() -> None:
    raising = "from stillweb.errors import UsageError\nUsageError('x')\n"
    assert run_script(raising + "raise ValueError('mine')")[0].startswith("Traceback")
    hook = "import sys\nsys.excepthook = lambda *_: print('my hook', file=sys.stderr)\n"
    assert run_script(hook + raising + "raise UsageError('x')") == ["my hook"]


def test_the_hint_is_no_part_of_the_message() -> None:
    error = ReplayUnreachable("no replay server", hint="stillweb replay NAME")
    assert (str(error), error.hint) == ("no replay server", "stillweb replay NAME")

"""`stillweb setup`: install the browser and pywb, which stillweb runs as separate programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import click

from stillweb.browser.driver import DRIVER_HINT, DRIVER_PACKAGE, driver_failure
from stillweb.browser.launch import find_browser
from stillweb.cli import CommandGroup
from stillweb.cli.console import echo
from stillweb.cli.options import FOLDER
from stillweb.errors import ProgramNotFound, UsageError
from stillweb.replay.pywb.process import PYWB_LOCK, default_folder

APT_PACKAGE = "chromium-headless-shell"
_STDERR = 2  # installers print for people


@click.group(cls=CommandGroup)
def setup() -> None:
    """Install a browser, or pywb in a separate virtual environment.

    \b
    Example:
      stillweb setup browser
      stillweb setup pywb
    """


@setup.command()
def browser() -> None:
    """Print the path of the browser; install Chromium's headless shell if none exists.

    As root on Debian, also installs a library that Playwright's driver needs.

    \b
    Example:
      stillweb setup browser
    """
    if driver_failure():
        _apt_install(DRIVER_PACKAGE)
    if failure := driver_failure():
        raise ProgramNotFound(f"Playwright's driver does not start: {failure}", hint=DRIVER_HINT)
    if _found_browser():
        return
    failures = [_run([sys.executable, "-m", "playwright", "install", "--with-deps", APT_PACKAGE])]
    if failures[0]:
        failures.append(_apt_install(APT_PACKAGE))
    if not _found_browser():
        raise ProgramNotFound(
            "; ".join(filter(None, failures)) or "the browser was installed, but stillweb does not find it",
            hint=f"python -m playwright install --with-deps {APT_PACKAGE}   or, as root on Debian:   "
            f"apt-get install {APT_PACKAGE}",
        )


@setup.command()
@click.option(
    "--path", type=FOLDER, help="Folder of the virtual environment.  [default: in your data folder]"
)
def pywb(path: Path | None) -> None:
    """Install pywb into a separate virtual environment, from a lock file with hashes.

    \b
    Example:
      stillweb setup pywb
      stillweb replay shop --backend pywb
    """
    folder = path or default_folder()
    program = folder / "bin" / "wayback"
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise UsageError(f"{folder} is not empty and not a virtual environment", hint="--path EMPTY_FOLDER")
    if not program.exists() or _run([str(program), "--version"]):
        echo(f"creating {folder}", err=True)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        if failed := _run([*install, "-r", str(PYWB_LOCK)]):
            raise ProgramNotFound(failed, hint="check the network, then: stillweb setup pywb")
    echo(str(program))
    if path is not None:
        echo(f"next: export STILLWEB_PYWB={program.resolve()}", err=True)


def _apt_install(package: str) -> str:
    """Install a package as root on Debian, elsewhere do nothing; return "" or the error."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return ""
    _run(["apt-get", "update", "--quiet"])  # images often have no package lists
    return _run(["apt-get", "install", "--yes", "--no-install-recommends", package])


def _found_browser() -> bool:
    try:
        echo(str(find_browser()))
    except ProgramNotFound:
        return False
    return True


def _run(command: list[str]) -> str:
    """Run a command with its output on stderr; return "" or the error."""
    echo(f"$ {' '.join(command)}", err=True)
    try:
        status = subprocess.run(command, stdout=_STDERR, check=False).returncode
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return f"`{' '.join(command)}` failed with status {status}" if status else ""

"""Commands of `stillweb` in this process: status and output as of the program, without its start.

A start takes up to a second for imports, and its browser is not shared. Programs are for tests of signals,
terminals, environments and imports.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from stillweb.cli import main


def stillweb(*arguments: object, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end; for tests that are no coroutines, since most commands run a loop."""
    command = ["stillweb", *map(str, arguments)]
    status: object = 0
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, CliRunner().isolation(input=typed) as (out, err, _):
        patch.setattr(sys, "argv", command)
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(command, status, out.getvalue().decode(), err.getvalue().decode())

"""Ctrl-C, as a terminal sends it: to every process of the group, Playwright's driver among them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.browser

_PROGRAM = """
import asyncio, signal
from stillweb.browser.launch import launch

async def main():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    async with launch(spki=()) as browser:
        print("up", flush=True)
        await stopped.wait()
        page = await browser.new_page()
        await page.set_content("<title>still there</title>")
        print(await page.title(), flush=True)

asyncio.run(main())
"""


def test_ctrl_c_leaves_the_browser_to_us():
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        os.killpg(program.pid, signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, "still there\n", "")

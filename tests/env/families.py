"""Child processes and their ends, from /proc, and a browser's renderers, from the browser's own report."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from stillweb.polling import poll


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def below(pid):
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += below(int(child))
    return found


async def gone(pids):
    return await poll(lambda: not any(running(pid) for pid in pids), timeout=30)


async def renderers(browser):
    session = await browser.new_browser_cdp_session()
    processes = await session.send("SystemInfo.getProcessInfo")
    await session.detach()
    return [int(each["id"]) for each in processes["processInfo"] if each["type"] == "renderer"]


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

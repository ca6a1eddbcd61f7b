"""Roles of a run's processes (interpreter, driver, browser, renderer, replay), their memory and time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from processmemory import processes

_TICKS = os.sysconf("SC_CLK_TCK")


def role(pid: int) -> str:
    """Return what a process is, "" where it has ended."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    if state == "Z" or not command:
        return ""
    if "run-driver" in command:
        return "driver"
    for part in command.split():
        if part.startswith("--type="):
            return part.removeprefix("--type=")
    if "--remote-debugging-pipe" in command:
        return "browser"
    if "stillweb.replay.workers.worker" in command:
        return "replay worker"
    return "replay" if "stillweb replay" in command else "python"


def roles(parent: int) -> dict[int, str]:
    """Return the roles of a process and all its descendants that have not ended."""
    try:
        found = {pid: role(pid) for pid in processes(parent)}
    except OSError:  # one ended while it was looked at
        return roles(parent)
    return {pid: what for pid, what in found.items() if what}


def pss(parent: int) -> Counter[str]:
    """Return the proportional set size in MiB by role."""
    total: Counter[str] = Counter()
    for pid, what in roles(parent).items():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total[what] += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


def seconds(parent: int) -> Counter[str]:
    """Return the seconds of processor that were used, by role."""
    total: Counter[str] = Counter()
    for pid, what in roles(parent).items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total[what] += (int(fields[11]) + int(fields[12])) / _TICKS
    return total

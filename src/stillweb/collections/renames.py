"""Make names appear and change places for good."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def sync_folder(folder: Path) -> None:
    """Make the names in a folder permanent."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Let two folders change names, in one step where the system can (Linux 3.15, most file systems)."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename and not rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return
    # In between there is none: who is killed here finds the pack missing and seals again.
    between = Path(tempfile.mkdtemp(prefix=f".{other.name}-", dir=other.parent))
    try:
        other.rename(between / "old")
    except OSError:
        between.rmdir()
        raise
    one.rename(other)
    (between / "old").rename(one)
    between.rmdir()

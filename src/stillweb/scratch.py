"""Temporary folders that a killed process does not leave for long.

They can hold a CA's key, the traffic of a login or a browser's profile. A killed process cannot remove its
folders, so the next process of the same user does. The lock on a folder (flock(2)) ends with its process: an
abandoned folder has none.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "stillweb."  # short: a socket path has at most 107 bytes (unix(7))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can read; remove it at the end.

    Raises:
        OSError: if the folder for temporary files cannot be written.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process removed it before the lock
            continue
        _lock(lock)
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # removed meanwhile
            continue
        try:
            if _lock(lock):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _lock(descriptor: int) -> bool:
    """Lock a folder; return False if another process holds it, or the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

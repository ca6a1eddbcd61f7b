"""PEM files on disk; other users can never read the private ones, not even during the write.

A file is written under a temporary name, which `os.open` creates with the final mode and `O_EXCL`, and then
renamed to its target. A reader sees the old file or the new one.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stillweb import clock
from stillweb.errors import CertError

PRIVATE = 0o600
PUBLIC = 0o644


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with `mode` from its first byte on.

    Raises:
        CertError: if the folder cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{clock.new_id()}")
    try:
        # O_NOFOLLOW and O_EXCL: never follow a link that another user has placed.
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise CertError(f"{path}: cannot be written: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can list, if it does not exist.

    Raises:
        CertError: if it cannot be created.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CertError(f"{path}: cannot be created: {error.strerror}") from error


def check_folder(path: Path) -> None:
    """Refuse a folder in which any user could replace the CA.

    Raises:
        CertError: if all users can write to it.
    """
    if path.is_dir() and path.stat().st_mode & stat.S_IWOTH:
        raise CertError(f"{path}: all users can write to this folder", hint=f"chmod o-w {path}")


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that create a CA in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock

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

from stillweb.errors import CertError
from stillweb.files import write_atomically

PRIVATE = 0o600
PUBLIC = 0o644


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with `mode` from its first byte on.

    Raises:
        CertError: if the folder cannot be written.
    """
    try:
        write_atomically(path, content, mode=mode)
    except OSError as error:
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

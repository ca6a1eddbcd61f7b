"""PEM files on disk: private ones are never readable for others, not even for an instant.

A file is written whole under a name of its own, created by `os.open` with its final mode
and `O_EXCL`, and then renamed over its target. A reader finds the old file or the new one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stillweb import clock
from stillweb.errors import CertError

PRIVATE = 0o600
PUBLIC = 0o644


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file in one step, with `mode` from its first byte on.

    Raises:
        CertError: if the folder cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{clock.new_id()}")
    try:
        # O_NOFOLLOW and O_EXCL: never through a link that someone put there.
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
    """Make a folder that only its owner can list, if there is none.

    Raises:
        CertError: if it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CertError(f"{path}: cannot be made a folder: {error.strerror}") from error


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes that make a CA in it at the same time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock

"""Files that appear complete under their name, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stillweb import clock

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Values of `errno` of a write for which there is no space."""


@contextmanager
def replaced(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that takes the name `path` at the end of the block; on an error the old file stays.

    Several processes may write the same path at a time.

    Args:
        mode: permissions from the first byte on; the umask applies.
        durable: whether the content is on the disk before the name refers to it.
    """
    part = path.with_name(f".{path.name}.{clock.new_id()}.part")
    # O_EXCL and O_NOFOLLOW: never follow a link that another user has placed.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file as `replaced` does; create its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path, mode=mode, durable=durable) as file:
        file.write(content)


def copy_folder(source: Path, target: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
    """Copy a folder; an `OSError` keeps its `errno`, which `shutil.copytree` drops."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        else:
            copy(path, place)

"""One recorder at a time: a second, or a repair, would cut off what the first is writing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError

__all__ = ["locked"]


@contextmanager
def locked(collection: Collection) -> Iterator[None]:
    """Keep a collection from whoever else would record into it, repair it or remove it.

    Its folder is locked, so no file is left, and it is free when this process ends, by a kill, too.

    Raises:
        CollectionError: if another holds it.
    """
    folder = os.open(collection.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CollectionError(
                "is being recorded by another process",
                path=collection.path,
                hint="wait for its end, or end it with Ctrl-C",
            ) from None
        except OSError:  # a file system that has no locks, such as some of the network: as it was without
            pass
        yield
    finally:
        os.close(folder)

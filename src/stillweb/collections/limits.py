"""Limits on unpacked data, against decompression bombs in archives.

Data may unpack to 128 MiB in any case, and beyond that to `STILLWEB_MAX_RATIO` (40) times its packed size.
Text and records of real archives pack by factors of 3 to 20; gzip reaches 1,032.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from stillweb.errors import LimitExceeded

__all__ = ["RATIO_VARIABLE", "check_ratio", "max_unpacked", "unpacked_pieces"]

RATIO_VARIABLE = "STILLWEB_MAX_RATIO"
_DEFAULT_RATIO = 40
_ALWAYS = 128 << 20  # bytes
_PIECE = 1 << 20


def max_unpacked(packed: int) -> int:
    """Return the bytes to which packed bytes may unpack."""
    text = os.environ.get(RATIO_VARIABLE, "")
    return max(_ALWAYS, packed * (int(text) if text.isdecimal() else _DEFAULT_RATIO))


def check_ratio(unpacked: int, packed: int, path: Path, what: str) -> None:
    """Raise if data unpacks to more than its packed size allows.

    Raises:
        LimitExceeded: names the file and the part of it.
    """
    if unpacked > max_unpacked(packed):
        raise LimitExceeded(
            f"{what} unpacks to more than {max_unpacked(packed) >> 20} MiB, the limit of the ratio",
            limit="ratio of unpacked to packed size",
            option=RATIO_VARIABLE,
            path=path,
        )


def unpacked_pieces(source: IO[bytes], packed: int, path: Path, what: str) -> Iterator[bytes]:
    """Yield the content of a packed stream.

    Raises:
        LimitExceeded: as `check_ratio`.
    """
    size = 0
    while piece := source.read(_PIECE):
        size += len(piece)
        check_ratio(size, packed, path, what)
        yield piece

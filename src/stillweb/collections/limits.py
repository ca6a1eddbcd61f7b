"""Limits on unpacked data, against decompression bombs in archives.

Data may unpack to 64 MiB in any case, and beyond that to `STILLWEB_MAX_RATIO` (40) times its packed size.
Text and records of real archives pack by factors of 3 to 20; gzip reaches 1,032. The limit applies to each
part and to a file as a whole (`UnpackBudget`), where small parts count with the memory that they take.

Descriptions in JSON (manifests, page lists) may have 32 MiB and 2^20 lists and objects: an empty list takes
two bytes of text and 64 of memory. `STILLWEB_MAX_JSON_MIB` raises both.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stillweb.errors import LimitExceeded

if TYPE_CHECKING:
    from PIL import Image


RATIO_VARIABLE = "STILLWEB_MAX_RATIO"
_DEFAULT_RATIO = 40
_ALWAYS = 64 << 20  # bytes
JSON_VARIABLE = "STILLWEB_MAX_JSON_MIB"
_DEFAULT_JSON = 32
_CONTAINERS_PER_MIB = 1 << 15
MAX_PIXELS = 64_000_000  # a page of 2560 by 25,000 pixels; each takes 4 bytes, and copies are made
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


class UnpackBudget:
    """Unpacked bytes of all parts of a file."""

    def __init__(self, packed: int, path: Path) -> None:
        self._packed, self._path, self._size = packed, path, 0

    def charge(self, size: int) -> None:
        """Add the size of a part.

        Raises:
            LimitExceeded: if the parts unpack to too much together.
        """
        self._size += size
        check_ratio(self._size, self._packed, self._path, "the whole file")


def unpacked_pieces(
    source: IO[bytes] | io.BufferedIOBase, packed: int, path: Path, what: str, *, line_cost: int = 0
) -> Iterator[bytes]:
    """Yield the content of a packed stream.

    Args:
        packed: its packed size.
        path: of the file, for the error.
        what: name of the part, for the error.
        line_cost: memory in bytes that each line takes when it is read.

    Raises:
        LimitExceeded: as `check_ratio`.
    """
    size = 0
    while piece := source.read(_PIECE):
        size += len(piece) + (line_cost * piece.count(b"\n") if line_cost else 0)
        check_ratio(size, packed, path, what)
        yield piece


def load_json(text: bytes, *, path: Path | None = None, containers: int = 0) -> Any:
    """Parse the JSON of a description in an archive.

    Args:
        text: UTF-8.
        path: of the file, for the error.
        containers: number of lists and objects that it may hold in any case. Set it for texts with bodies in
            them, which may also be longer than descriptions.

    Raises:
        ValueError: if it is not JSON, nests too deeply, or has a number of more than 4,300 digits.
        LimitExceeded: if it is too long, or holds too many lists and objects.
    """
    setting = os.environ.get(JSON_VARIABLE, "")
    mib = int(setting) if setting.isdecimal() else _DEFAULT_JSON
    if not containers and len(text) > mib << 20:
        raise _json_limit(f"{len(text)} bytes of JSON, {mib << 20} at most", path)
    most = max(mib * _CONTAINERS_PER_MIB, containers)
    # Brackets in strings count too: descriptions have few.
    if len(text) > most and text.count(b"[") + text.count(b"{") > most:
        raise _json_limit(f"JSON with more than {most} lists and objects", path)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON nests too deeply") from None


def _json_limit(what: str, path: Path | None) -> LimitExceeded:
    return LimitExceeded(what, limit="size of JSON", option=JSON_VARIABLE, path=path)


def open_picture(raw: bytes, *, pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode a picture of an archive.

    Raises:
        ValueError: if it is not a picture, is damaged, or has more pixels than given.
    """
    from PIL import Image  # takes 30 ms to import, and replay reads no pictures

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(raw))
            if image.width * image.height > pixels:
                raise ValueError(f"a picture of {image.width} by {image.height} pixels is too large")
            image.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"not a readable picture ({error})") from error
    return image

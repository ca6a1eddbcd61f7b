"""WARC files that are compressed with Zstandard, as ArchiveTeam and Zeno write them, unpacked for import.

Each record is a frame. A skippable frame before the first one may hold the dictionary of all frames, which
may be compressed itself (iipc/warc-specifications, warc-zstd).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import zstandard

from stillweb.collections.limits import check_ratio
from stillweb.collections.warc.reader import ZSTD_MAGICS
from stillweb.errors import MalformedWarc

_FRAME, _DICTIONARY = ZSTD_MAGICS
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)  # RFC 8878 §3.1.2
_MAX_DICTIONARY = 16 << 20  # bytes; trained dictionaries have about 100 KiB
_MAX_WINDOW = 128 << 20  # bytes; the tools write windows of at most 8 MiB, `zstd --ultra -22` of 128 MiB
_STEP = 1 << 10  # bytes for each call: a block of 4 bytes yields 128 KiB


def unpack_zstd(path: Path, target: Path) -> str:
    """Unpack the frames of a file into a plain WARC; return why the rest could not be read, "" if all was.

    Raises:
        MalformedWarc: if not even the first frame can be read.
        LimitExceeded: if the file unpacks to too much.
    """
    size, packed_size = 0, path.stat().st_size
    with path.open("rb") as packed, target.open("wb") as out:
        try:
            for piece in _pieces(packed):
                size += len(piece)
                check_ratio(size, packed_size, path, "the file")
                out.write(piece)
        except zstandard.ZstdError as error:
            if not out.tell():
                raise MalformedWarc(f"not readable as Zstandard ({error})", path=path) from None
            return str(error)
    return ""


def _pieces(packed: IO[bytes]) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor(dict_data=_dictionary(packed), max_window_size=_MAX_WINDOW)
    rest = packed.read(_STEP)
    while rest:
        if len(rest) < 8:
            rest += packed.read(_STEP)
        if int.from_bytes(rest[:4], "little") in _SKIPPABLE:
            rest = _skip(packed, rest)
            continue
        frame = decoder.decompressobj()
        while not frame.eof:
            if not rest:
                raise zstandard.ZstdError("the file ends within a frame")
            yield frame.decompress(rest)
            rest = b"" if frame.eof else packed.read(_STEP)
        rest = frame.unused_data or packed.read(_STEP)


def _skip(packed: IO[bytes], rest: bytes) -> bytes:
    """Return the bytes behind a skippable frame."""
    end = 8 + int.from_bytes(rest[4:8], "little")
    if end <= len(rest):
        return rest[end:] or packed.read(_STEP)
    packed.seek(end - len(rest), 1)
    return packed.read(_STEP)


def _dictionary(packed: IO[bytes]) -> zstandard.ZstdCompressionDict | None:
    """Return the dictionary before the first frame, and move to that frame."""
    head = packed.read(8)
    if head[:4] != _DICTIONARY:
        packed.seek(0)
        return None
    size = int.from_bytes(head[4:], "little")
    if size > _MAX_DICTIONARY:
        raise zstandard.ZstdError(f"a dictionary of {size} bytes, {_MAX_DICTIONARY} at most")
    stored = packed.read(size)
    if stored[:4] == _FRAME:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(stored)
        stored = reader.read(_MAX_DICTIONARY)
    return zstandard.ZstdCompressionDict(stored)

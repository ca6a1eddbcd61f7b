"""places.bin: the location of each body of a pack, as a segment and an offset.

    header    magic, crc32 of the rest up to the places, number of segments, number of bodies
    segments  name (16 bytes) and size of each; a name of zeros is the pack's own bodies.bin
    places    by number of body: crc32 of its sha256 and place, number of the segment, offset in it

A segment is a magic followed by bodies back to back, in order of arrival (`store`). The pack's digest covers
none of this; it covers a body by its sha256, which is compared when the body is first served. An empty body
has no place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from stillweb.collections.pack import format as form
from stillweb.collections.pack.format import Record, malformed
from stillweb.errors import MalformedPack

OWN = bytes(16)
_HEADER = struct.Struct("<8sIIQ")
_SEGMENT = struct.Struct("<16sQ")
_PLACE = struct.Struct("<IIQ")
_CHECKED_AT = 12  # start of the bytes that the header's check covers
_MAX_SEGMENTS = 1 << 16
MOST_SEGMENTS = 64
"""Maximum number of segments that a new pack names, and that stay mapped: each costs a file descriptor."""


class SegmentName(NamedTuple):
    name: bytes
    size: int

    def file(self, pack: Path, store: Path) -> Path:
        return pack / form.BODIES if self.name == OWN else store / f"{self.name.hex()}.bodies"


def packed_header(segments: Sequence[SegmentName], bodies: int) -> bytes:
    """Return places.bin up to the places."""
    head = _HEADER.pack(form.MAGIC[form.PLACES], 0, len(segments), bodies)
    rest = head[_CHECKED_AT:] + b"".join(_SEGMENT.pack(*each) for each in segments)
    return head[:8] + struct.pack("<I", crc32(rest)) + rest


def packed_place(digest: bytes, segment: int, offset: int) -> bytes:
    return _PLACE.pack(_check(digest, segment, offset), segment, offset)


def _check(digest: bytes, segment: int, offset: int) -> int:
    return crc32(digest + _PLACE.pack(0, segment, offset))


def segments_of(pack: Path) -> list[SegmentName]:
    """Return the segments that a pack names.

    Raises:
        MalformedPack: if its places.bin cannot be read or is damaged.
    """
    file = pack / form.PLACES
    try:
        with file.open("rb") as content:
            head = content.read(_HEADER.size)
            count = _HEADER.unpack(head)[2] if len(head) == _HEADER.size else 0
            names = content.read(_SEGMENT.size * min(count, _MAX_SEGMENTS))
    except OSError as error:
        raise malformed(f"cannot be read ({error.strerror})", file) from error
    if len(head) < _HEADER.size or head[:8] != form.MAGIC[form.PLACES]:
        raise malformed("is not the file that was sealed", file, 0)
    if len(names) != _SEGMENT.size * count or crc32(head[_CHECKED_AT:] + names) != _HEADER.unpack(head)[1]:
        raise malformed("differs from its check", file, 0)
    return [SegmentName(*each) for each in _SEGMENT.iter_unpack(names)]


class PackBodies:
    """The bodies of an open pack."""

    def __init__(self, pack: Path, store: Path, count: int) -> None:
        self._count = count
        self._files = ExitStack()
        self._segments: list[tuple[mmap | None, Path]] = []
        self._file = pack / form.PLACES
        named = segments_of(pack)
        self._at = _HEADER.size + _SEGMENT.size * len(named)
        try:
            self._places = map_file(self._file, self._at + _PLACE.size * count, form.MAGIC[form.PLACES])
            self._files.callback(unmap, self._places)
            for segment in named:
                file = segment.file(pack, store)
                if not file.exists():
                    raise malformed("is missing, but the pack has bodies in it (was it copied alone?)", file)
                mapped = map_file(file, segment.size, form.MAGIC[form.BODIES])
                if len(self._segments) < MOST_SEGMENTS:
                    self._files.callback(unmap, mapped)
                    self._segments.append((mapped, file))
                else:  # of a pack sealed before the number of segments was limited
                    mapped.close()
                    self._segments.append((None, file))
        except MalformedPack:
            self.close()
            raise
        # One bit per verified body. Anonymous memory uses no page before its first write.
        self._seen = mmap(-1, count // 8 + 1)
        self._files.callback(self._seen.close)

    def close(self) -> None:
        """Close the files; existing views stay valid."""
        self._files.close()

    def get(self, record: Record) -> memoryview:
        """Return the body of a record.

        Raises:
            MalformedPack: if it or its place differs from the sealed one; checked on first use.
        """
        number, length = record.body, record.body_length
        if not length:
            return memoryview(b"")
        if number >= self._count:
            raise malformed(f"body {number} of {self._count} does not exist", self._file)
        at = self._at + _PLACE.size * number
        check, segment, offset = _PLACE.unpack_from(self._places, at)
        if check != _check(record.body_sha256, segment, offset) or segment >= len(self._segments):
            raise malformed("place of a body differs from its check", self._file, at)
        content, file = self._segments[segment]
        if content is None:
            body = memoryview(_read(file, offset, length))
        else:
            body = memoryview(content)[offset : offset + length]
        bit = 1 << (number & 7)
        if not self._seen[number >> 3] & bit:
            if sha256(body).digest() != record.body_sha256:
                body.release()
                message = f"body of {record.method} {record.url} differs from its sha256"
                raise malformed(message, file, offset)
            self._seen[number >> 3] |= bit
        return body

    def forget(self) -> None:
        """Verify bodies again on their next use."""
        self._seen[:] = bytes(len(self._seen))


def _read(file: Path, offset: int, length: int) -> bytes:
    try:
        with file.open("rb") as content:
            content.seek(offset)
            return content.read(length)
    except OSError as error:
        raise malformed(f"cannot be read ({error.strerror})", file, offset) from error


def map_file(file: Path, size: int, magic: bytes) -> mmap:
    """Map a file of a pack.

    Raises:
        MalformedPack: if it is missing, or has not the sealed size and magic.
    """
    try:
        with file.open("rb") as content:
            mapped = mmap(content.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise malformed(f"cannot be read ({error})", file) from error
    if len(mapped) != size or mapped[: len(magic)] != magic:
        found = len(mapped)
        mapped.close()
        raise malformed(f"is not the file that was sealed ({found} of {size} bytes)", file, 0)
    return mapped


def unmap(mapped: mmap) -> None:
    """Close an mmap; with existing views, the mapping ends with the last of them."""
    with suppress(BufferError):
        mapped.close()

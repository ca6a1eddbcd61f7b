"""Byte ranges (RFC 9110 §14), as pure functions over numbers and header values.

Only a single range is honoured; a list of ranges gets the whole body, which §14.2 allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"\s*bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", re.IGNORECASE)
_BYTES = re.compile(r"\s*bytes\s*=", re.IGNORECASE)
_CONTENT_RANGE = re.compile(rb"\r\ncontent-range:[ \t]*bytes[ \t]+(\d+)-(\d+)/(\d+)[ \t]*\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `stop` (exclusive) of a body of `total` bytes; empty if not satisfiable."""

    start: int
    stop: int
    total: int

    @property
    def empty(self) -> bool:
        return self.start >= self.stop

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop == self.total

    def holds(self, other: ByteRange) -> bool:
        """Return True if `other` is within this span, of a body of the same length."""
        return self.total == other.total and self.start <= other.start and other.stop <= self.stop


def requested_span(value: str, total: int) -> ByteRange | None:
    """Return the range that a `Range` value requests of a body of `total` bytes; None to ignore it."""
    found = _RANGE.fullmatch(value)
    if found is None or found[1] == found[2] == "" or max(map(len, found.groups())) > 18:
        return None
    if not found[1]:
        return ByteRange(max(0, total - int(found[2])), total, total)
    start = int(found[1])
    last = int(found[2]) if found[2] else total - 1
    if found[2] and last < start:
        return None
    return ByteRange(start, min(last + 1, total), total)


def other_unit(value: str) -> bool:
    """Return True if a `Range` value counts something else than bytes: `items=0-9`, or `0-9` (PostgREST)."""
    return bool(value.strip()) and not _BYTES.match(value)


def recorded_span(head: bytes) -> ByteRange | None:
    """Return the part of its body that a recorded 206 holds; None without a valid `Content-Range`."""
    found = _CONTENT_RANGE.search(head if head.endswith(b"\r\n") else head + b"\r\n")
    return ByteRange(int(found[1]), int(found[2]) + 1, int(found[3])) if found else None

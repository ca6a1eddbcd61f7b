"""Byte ranges (RFC 9110 §14), as pure functions over numbers and header values.

Only a single range is honoured; a list of them gets the whole body, which §14.2 allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Span", "asked_span", "recorded_span"]

_RANGE = re.compile(r"\s*bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", re.IGNORECASE)
_CONTENT_RANGE = re.compile(rb"\r\ncontent-range:[ \t]*bytes[ \t]+(\d+)-(\d+)/(\d+)[ \t]*\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `stop` (excluded) of a body of `total` bytes; empty if nothing can satisfy it."""

    start: int
    stop: int
    total: int

    @property
    def empty(self) -> bool:
        """Whether it holds no byte."""
        return self.start >= self.stop

    @property
    def whole(self) -> bool:
        """Whether it holds every byte."""
        return self.start == 0 and self.stop == self.total

    def holds(self, other: Span) -> bool:
        """Whether `other` lies within, of the same body."""
        return self.total == other.total and self.start <= other.start and other.stop <= self.stop


def asked_span(value: str, total: int) -> Span | None:
    """Return what a `Range` value asks for of a body of `total` bytes; None to ignore the header."""
    found = _RANGE.fullmatch(value)
    if found is None or found[1] == found[2] == "" or max(map(len, found.groups())) > 18:
        return None
    if not found[1]:
        return Span(max(0, total - int(found[2])), total, total)
    start = int(found[1])
    last = int(found[2]) if found[2] else total - 1
    if found[2] and last < start:
        return None
    return Span(start, min(last + 1, total), total)


def recorded_span(head: bytes) -> Span | None:
    """Return what part of its body a recorded 206 holds, by its `Content-Range`; None if it does not say."""
    found = _CONTENT_RANGE.search(head if head.endswith(b"\r\n") else head + b"\r\n")
    return Span(int(found[1]), int(found[2]) + 1, int(found[3])) if found else None

"""What can be wrong with a file of a collection, as values: read, check and import all report these.

A defect never stops a read by itself: readers take a `report` function and go on with what
follows. Where nobody listens, an error becomes a `MalformedWarc`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a defect costs."""

    ERROR = "error"  # something recorded cannot be read, or cannot be served
    WARNING = "warning"  # all is readable by us; other programs or a check of digests may stumble
    NOTICE = "notice"  # an oddity without consequence


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong, where, and the command that repairs it.

    Attributes:
        code: a stable word for scripts, such as `truncated`.
        file: path of the file.
        offset: byte offset in the file as stored (compressed), -1 for the file as a whole.
        what: one clause.
        repair: a command to type; "" where nothing can be repaired.
    """

    severity: Severity
    code: str
    file: str
    offset: int
    what: str
    repair: str = ""

    def __str__(self) -> str:
        place = self.file if self.offset < 0 else f"{self.file}:{self.offset}"
        return f"{self.severity}: {place}: {self.what}"


Report = Callable[[Defect], None]
"""Takes defects as they are found."""

NEEDS_REWRITE = frozenset(
    {
        "plain",
        "not-chunked",
        "split-record",
        "truncated",
        "corrupt",
        "junk",
        "bad-record",
        "bad-length",
        "no-end",
    }
)
"""Codes of defects that a rewrite as one gzip member a record takes away."""

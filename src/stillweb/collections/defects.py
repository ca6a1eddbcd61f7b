"""Defects of a collection's files, as values: read, check and import report them.

A defect does not stop a read: readers take a `report` function and continue. Without one, an error becomes a
`MalformedWarc`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Consequence of a defect."""

    ERROR = "error"  # recorded content cannot be read or served
    WARNING = "warning"  # stillweb reads everything; other programs or a check of digests may fail
    NOTICE = "notice"  # an oddity without consequence


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect, its location, and the command that repairs it.

    Attributes:
        code: a stable word for scripts, such as `truncated`.
        offset: byte offset in the file as stored (compressed), -1 for the whole file.
        what: one clause.
        repair: a command to type; "" if it cannot be repaired.
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
"""Receives defects as they are found."""


def ignore(defect: Defect) -> None:
    """Ignore a defect: it was reported before, or only complete records matter."""


NEEDS_REWRITE = frozenset(
    (
        *("plain", "not-chunked", "split-record", "truncated", "corrupt"),
        *("junk", "bad-record", "bad-length", "no-end"),
    )
)
"""Codes of defects that a rewrite with one gzip member per record removes."""

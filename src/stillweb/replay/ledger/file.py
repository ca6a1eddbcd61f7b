"""A ledger as a file of JSON lines, one for each response, for other processes and later use.

Several processes may append to one file: each line is one write. A server may be killed in the middle of a
line; the next writer then begins a new line, and readers skip and count lines that they cannot parse.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from stillweb.errors import UsageError
from stillweb.http.control import LedgerEntry

_FIELDS = frozenset(each.name for each in fields(LedgerEntry))
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A ledger entry and its session."""

    session: str
    collection: str
    environment_id: str
    entry: LedgerEntry

    def to_json(self) -> str:
        members = asdict(self.entry)
        if not members["asked"]:
            del members["asked"]
        session = {
            "session": self.session,
            "collection": self.collection,
            "environment_id": self.environment_id,
        }
        return json.dumps(session | members, ensure_ascii=True) + "\n"

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> LedgerLine:
        """Parse a line of `to_json`; unknown members are ignored.

        Raises:
            KeyError, TypeError: if it is not one.
        """
        entry = LedgerEntry(**{name: value for name, value in loaded.items() if name in _FIELDS})
        session = (loaded["session"], loaded.get("collection", ""), loaded.get("environment_id", ""))
        return cls(*session, entry)


class LedgerFile:
    """An open ledger file; a context manager. A line is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            if _torn(path):
                self._file.write(b"\n")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: LedgerLine) -> None:
        self._file.write(line.to_json().encode("ascii"))


def _torn(path: Path) -> bool:
    """Return whether a file ends in the middle of a line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class LedgerFileReader:
    """Reader of a ledger file that other processes append to.

    Attributes:
        unreadable: number of lines so far that are not ledger entries.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = 0
        self._at = 0
        self._rest = b""

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete last line: its writer is at work, or was killed."""
        return len(self._rest)

    def read(self) -> Iterator[LedgerLine]:
        """Yield the new lines.

        Raises:
            UsageError: if the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # it was truncated or replaced
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                while block := file.read(_BLOCK):
                    self._at += len(block)
                    *lines, self._rest = (self._rest + block).split(b"\n")
                    yield from filter(None, map(self._line, lines))
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be read ({error.strerror})",
                hint="a server begins with http://; files are written by: stillweb replay NAME --ledger FILE",
            ) from error

    def _line(self, line: bytes) -> LedgerLine | None:
        if not line:
            return None
        try:
            return LedgerLine.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.unreadable += 1
            return None

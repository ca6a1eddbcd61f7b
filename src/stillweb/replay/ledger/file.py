"""The ledger as a file: a line of JSON an answer, for those who look on from outside or come later.

Several processes may append to one file: each line is one write. A server may be killed in the
middle of a line; whoever appends next begins a new one, and readers pass over what is none and
count it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stillweb.errors import UsageError
from stillweb.http.control import LedgerEntry
from stillweb.replay.server.session import Session

__all__ = ["LedgerFile", "LedgerFileReader", "LedgerLine"]

_FIELDS = frozenset(each.name for each in fields(LedgerEntry))
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """An answer, and whose it was."""

    session: str
    collection: str
    environment_id: str
    entry: LedgerEntry

    def to_json(self) -> str:
        """Return it as a line of a ledger file."""
        members = asdict(self.entry)
        if not members["asked"]:
            del members["asked"]
        whose = {
            "session": self.session,
            "collection": self.collection,
            "environment_id": self.environment_id,
        }
        return json.dumps(whose | members, ensure_ascii=True) + "\n"

    @classmethod
    def from_dict(cls, loaded: Mapping[str, Any]) -> LedgerLine:
        """Read what `to_json` made; members that are not known are passed over.

        Raises:
            KeyError, TypeError: if it is none.
        """
        entry = LedgerEntry(**{name: value for name, value in loaded.items() if name in _FIELDS})
        whose = (loaded["session"], loaded.get("collection", ""), loaded.get("environment_id", ""))
        return cls(*whose, entry)


class LedgerFile:
    """An open ledger file; a context manager. Each line is out when `write` returns."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, session: Session, entry: LedgerEntry) -> None:
        """Append an answer of a session."""
        line = LedgerLine(session.id, session.collection, session.pack.environment_id, entry)
        self._file.write(line.to_json().encode("ascii"))


def _torn(path: Path) -> bool:
    """Return whether a file ends within a line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class LedgerFileReader:
    """Reads a ledger file, and what is appended to it since.

    Attributes:
        unreadable: lines that tell of no answer, so far.
        unfinished: bytes of a last line that is not complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = 0
        self._at = 0
        self._rest = b""

    @property
    def unfinished(self) -> int:
        """Bytes of a last line that is not complete: its writer is at work, or was killed."""
        return len(self._rest)

    def read(self) -> Iterator[LedgerLine]:
        """Yield what is there beyond what was yielded.

        Raises:
            UsageError: if the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # it was emptied, or is another one
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

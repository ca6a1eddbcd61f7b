"""Append what is answered to a file, a line of JSON each, for those who look on from outside."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from stillweb.errors import UsageError
from stillweb.replay.session import LedgerEntry

__all__ = ["LedgerFile"]


class LedgerFile:
    """An open ledger file; a context manager. Each line is out when `write` returns."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, session_id: str, entry: LedgerEntry) -> None:
        """Append an answer."""
        line = json.dumps({"session": session_id, **asdict(entry)}, ensure_ascii=True)
        self._file.write(line + "\n")

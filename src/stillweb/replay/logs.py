"""Logs of a server: one line an event, as text for people or as JSON for programs, to stderr.

Events are words with facts beside them (`logger.info("session opened", extra={"session": ...})`); both forms
show the facts. Requests are no events: they are on the ledger, and logged at level `debug` only.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

from pythonjsonlogger.json import JsonFormatter

__all__ = ["Format", "configure"]

Format = Literal["text", "json"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(
    form: Format, level: str, *, worker: int | None = None, stream: TextIO | None = None
) -> logging.Handler:
    """Let all logs of this program go to stderr in one form; return what writes them.

    Args:
        form: text or json.
        level: the least that is logged: debug, info, warning, error.
        worker: number of the worker that this program is, if it is one.
        stream: instead of stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_json(worker) if form == "json" else _Text(worker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "asyncio"):  # between supervisor and workers: no event of ours
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler


def _json(worker: int | None) -> JsonFormatter:
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger", "message": "event"},
        static_fields={} if worker is None else {"worker": worker},
        timestamp=True,
        reserved_attrs=[*_OWN],
    )


class _Text(logging.Formatter):
    """Time, level and event, then the facts as `name=value`."""

    def __init__(self, worker: int | None) -> None:
        where = "" if worker is None else f" [worker {worker}]"
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{where}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without what others hang on to every record (Ray does)."""
        facts = [f"{n}={v}" for n, v in vars(record).items() if n not in _OWN and not n.startswith("_")]
        return " ".join([super().formatMessage(record), *facts])

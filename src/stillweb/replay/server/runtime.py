"""Event loop, log format, background tasks and error messages of the replay processes."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TextIO, TypeVar

from pythonjsonlogger.json import JsonFormatter

from stillweb import errors
from stillweb.errors import ReplayError, StillwebError
from stillweb.text import printable


def error_to_json(error: StillwebError) -> dict[str, str]:
    return {"error": type(error).__name__, "message": str(error), "hint": error.hint}


def error_from_json(loaded: Mapping[str, Any]) -> StillwebError:
    kind = getattr(errors, loaded["error"], ReplayError)
    error = kind(loaded["message"], hint=loaded["hint"])
    assert isinstance(error, StillwebError)
    return error


Format = Literal["text", "json"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(
    form: Format, level: str, *, worker: int | None = None, stream: TextIO | None = None
) -> logging.Handler:
    """Send all logs of this process to stderr in one format; return the handler.

    Args:
        worker: number of this worker; None in other processes.
        stream: replaces stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_json(worker) if form == "json" else _Text(worker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "asyncio"):  # they log requests between supervisor and workers
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
    """Format: time, level and event, then the extra fields as `name=value`."""

    def __init__(self, worker: int | None) -> None:
        where = "" if worker is None else f" [worker {worker}]"
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{where}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without fields that others add to every record (Ray does)."""
        facts = [f"{n}={v}" for n, v in vars(record).items() if n not in _OWN and not n.startswith("_")]
        return " ".join([super().formatMessage(record), *facts])

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record without control characters: URLs come from pages."""
        return printable(super().format(record))


T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # it does not support Windows
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


class Tasks:
    """Background tasks."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends, or until `end`."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        """Cancel the running tasks, and wait until they have ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

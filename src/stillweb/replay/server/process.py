"""The event loop that the programs of this room run on, and what runs on it beside the connections."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TextIO, TypeVar

from pythonjsonlogger.json import JsonFormatter

from stillweb import errors
from stillweb.errors import ReplayError, StillwebError

__all__ = ["Format", "Tasks", "as_told", "configure", "failure", "run"]


def as_told(error: StillwebError) -> dict[str, str]:
    """Return an error as JSON has it."""
    return {"error": type(error).__name__, "message": str(error), "hint": error.hint}


def failure(told: Mapping[str, Any]) -> StillwebError:
    """Return the error that was told of."""
    kind = getattr(errors, told["error"], ReplayError)
    error = kind(told["message"], hint=told["hint"])
    assert isinstance(error, StillwebError)
    return error


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


T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not made for Windows
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


class Tasks:
    """Coroutines under way that nobody waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it, or `end`, ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

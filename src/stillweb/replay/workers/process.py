"""A worker process under its supervisor: start, control requests, death, restart.

A worker that dies is replaced after a pause that doubles with each death in a row (0.1 s to 10 s); ten
seconds of life end the row. The new process has none of the sessions: `cluster` marks them as lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from stillweb import clock
from stillweb.errors import ReplayError, ReplayUnreachable, SessionLost, StillwebError, UsageError
from stillweb.replay.client import ReplayClient
from stillweb.replay.server.metrics import ReplayMetrics, WorkerMetrics
from stillweb.replay.server.runtime import error_from_json
from stillweb.replay.workers.channel import Channel, pair

if TYPE_CHECKING:
    from stillweb.replay.workers.worker import ReplayWorkerConfig


logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LONG_LIFE = 10.0  # seconds after which a death does not count as a failed start
_START = 60.0  # seconds until it is ready, on a busy machine
_MARGIN = 5.0  # seconds beyond the drain until it must have ended


class _Running:
    """One process of a worker, its channel and its control API."""

    def __init__(self, config: ReplayWorkerConfig, process: Process, channel: Channel) -> None:
        assert config.options.private is not None
        self.process = process
        self.channel = channel
        self.client = ReplayClient(f"http://worker-{config.number}", socket=config.options.private)
        self.began = clock.monotonic()


class WorkerProcess:
    """A worker, which is restarted when its process dies.

    Attributes:
        number: from 0.
        given_up: number of requests for a session that were given up, and that it may still answer.
        answered: responses by tier, as reported at its end.
        figures: its last metrics.
    """

    def __init__(self, config: ReplayWorkerConfig, on_death: Callable[[WorkerProcess], int]) -> None:
        self.number = config.number
        self.restarts = 0
        self.deaths = 0
        self.opening = 0
        self.given_up = 0
        self.answered: dict[str, int] = {}
        self.figures = ReplayMetrics()
        self._config = config
        self._on_death = on_death  # returns the number of lost sessions
        self._stopping = asyncio.Event()
        self._row = 0  # of deaths
        self._ending = False  # it reported that it ends
        self._running: _Running | None = None
        self._process: Process | None = None
        self._started: asyncio.Future[dict[str, Any]]
        self._watch: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._ending

    @property
    def shown(self) -> WorkerMetrics:
        (reported,) = self.figures.workers or (WorkerMetrics(),)
        return replace(reported, number=self.number, up=self.alive, restarts=self.restarts)

    @property
    def pid(self) -> int:
        """Process id; 0 without a process."""
        return self._running.process.pid if self._running else 0

    async def start(self) -> None:
        """Start it, and restart it from then on when it dies.

        Raises:
            StillwebError: the reason why it cannot serve.
        """
        running = await self._start()
        self._watch = asyncio.create_task(self._keep_running(running))

    async def _start(self) -> _Running:
        private = self._config.options.private
        assert private is not None
        # A killed worker leaves its socket file, so each process has another name.
        private = private.with_name(f"worker-{self.number}-{self.restarts}")
        config = replace(self._config, options=replace(self._config.options, private=private))
        self._started = asyncio.get_running_loop().create_future()
        self._ending, self.given_up = False, 0
        ours, theirs = pair()
        channel = Channel(ours, on_message=self._on_message, on_closed=lambda: self._on_message(b"{}"))
        with theirs:
            command = (sys.executable, "-m", "stillweb.replay.workers.worker", str(theirs.fileno()))
            process = self._process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, pass_fds=(theirs.fileno(),)
            )
        assert process.stdin is not None
        process.stdin.write(config.pack())
        process.stdin.close()
        try:
            async with asyncio.timeout(_START):
                report = await asyncio.shield(self._started)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            report = await self._started  # the end of the channel
        if "ready" in report:
            self._running = _Running(config, process, channel)
            return self._running
        status = await process.wait()
        channel.close()
        if report:
            raise error_from_json(report)
        raise ReplayError(f"worker {self.number} did not start: {_ending(status)}")

    def _on_message(self, message: bytes) -> None:
        report = json.loads(message)
        self.answered = report.get("answered", self.answered)
        if "ending" in report:
            self._ending = True
            return
        if not self._started.done():
            self._started.set_result(report)

    async def _keep_running(self, running: _Running | None) -> None:
        while running is not None:
            status = await running.process.wait()
            self._running = None
            await running.channel.closed.wait()
            await running.client.aclose()
            if self._stopping.is_set():
                return
            self.deaths += 1
            lost = self._on_death(self)
            facts = {"worker": self.number, "pid": running.process.pid, "end": _ending(status)}
            logger.warning("worker died", extra={**facts, "sessions": lost})
            self._row = 1 if clock.monotonic() - running.began > _LONG_LIFE else self._row + 1
            running = await self._start_again()

    async def _start_again(self) -> _Running | None:
        """Return the new process; None if the supervisor ends."""
        while True:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._row - 1))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return None
            self.restarts += 1
            try:
                running = await self._start()
            except (StillwebError, OSError) as error:
                if self._stopping.is_set():  # it was stopped before it was ready
                    return None
                self._row += 1
                logger.error("worker does not start", extra={"worker": self.number, "error": str(error)})
            else:
                facts = {"worker": self.number, "pid": running.process.pid, "pause": pause}
                logger.warning("worker restarted", extra=facts)
                return running

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a control request and return the reply.

        Raises:
            SessionLost: if the worker has died.
            StillwebError: the error that it replies with.
        """
        if self._running is None:
            raise self.lost()
        try:
            return await self._running.client.ask(method, path, body)
        except ReplayUnreachable as error:
            if isinstance(error.__context__, httpx.TimeoutException):
                raise ReplayError(f"worker {self.number} does not answer") from error
            raise self.lost() from error

    async def close_orphans(self, known: Container[str]) -> None:
        """Close sessions that it opened after their request had been given up: those that are not known.

        Each is looked for until it is found: a worker may open it after it has answered other requests.

        Raises:
            SessionLost, ReplayError: as `ask` does.
        """
        if not self.given_up:
            return
        reply = await self.ask("GET", "/sessions")
        if self.opening > 1:  # some of them will be known in a moment
            return
        for shown in reply["sessions"]:
            if shown["id"] not in known:
                self.given_up = max(0, self.given_up - 1)
                with suppress(UsageError):  # it was closed meanwhile
                    await self.ask("DELETE", f"/sessions/{shown['id']}")

    def lost(self) -> SessionLost:
        message = f"worker {self.number}, which held the session, has died"
        return SessionLost(message, hint="open a new session")

    def hand_over(self, descriptor: int, data: bytes) -> None:
        """Pass a connection on to it, with the bytes that were read."""
        if self._running is not None:
            self._running.channel.hand_over(descriptor, data)

    async def stop(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._process is not None:
            ended: asyncio.Future[Any] = self._watch or asyncio.ensure_future(self._process.wait())
            await asyncio.wait([ended], timeout=self._config.options.drain + _MARGIN)
            self._signal(signal.SIGKILL)
            await ended

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _ending(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"it was ended by signal {-status}"

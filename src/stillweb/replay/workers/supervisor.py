"""A worker as its supervisor sees it: started, asked, found dead, started anew.

A worker that dies is replaced after a pause that doubles with every death in a row (0.1 s to 10 s); a
minute of life ends the row. Its successor knows nothing of its sessions: what becomes of those is the desk's
matter (`cluster`).
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
from typing import Any

import httpx

from stillweb import clock
from stillweb.errors import ReplayError, ReplayUnreachable, SessionLost, StillwebError, UsageError
from stillweb.replay.client import ReplayClient
from stillweb.replay.server.metrics import ReplayMetrics, WorkerMetrics
from stillweb.replay.server.process import failure
from stillweb.replay.workers.channel import Channel, pair
from stillweb.replay.workers.worker import ReplayWorkerConfig

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LONG_LIFE = 10.0  # seconds of a worker that can start, whatever ended it then
_START = 60.0  # seconds that it may take until it is ready: machines are busy
_MARGIN = 5.0  # seconds beyond the drain that a worker may take to end


class _Running:
    """One life of a worker: its program, its channel, its control API."""

    def __init__(self, config: ReplayWorkerConfig, process: Process, channel: Channel) -> None:
        assert config.options.private is not None
        self.process = process
        self.channel = channel
        self.client = ReplayClient(f"http://worker-{config.number}", socket=config.options.private)
        self.began = clock.monotonic()


class Worker:
    """A worker program, again and again.

    Attributes:
        number: from 0.
        restarts: how often it was started anew.
        deaths: how often it was found dead.
        opening: sessions that it is opening.
        unsure: whether it may have opened one that nobody was told of.
        answered: by tier, as it said when it ended.
        figures: as it gave them last.
    """

    def __init__(self, config: ReplayWorkerConfig, on_death: Callable[[Worker], int]) -> None:
        self.number = config.number
        self.restarts = 0
        self.deaths = 0
        self.opening = 0
        self.unsure = False
        self.answered: dict[str, int] = {}
        self.figures = ReplayMetrics()
        self._config = config
        self._on_death = on_death  # returns how many sessions went with it
        self._stopping = asyncio.Event()
        self._row = 0  # of deaths
        self._ending = False  # it was told to end, or to be so by itself
        self._running: _Running | None = None
        self._process: Process | None = None
        self._told: asyncio.Future[dict[str, Any]]
        self._watch: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._running is not None and not self._ending

    @property
    def shown(self) -> WorkerMetrics:
        """What `/metrics` shows of it."""
        (told,) = self.figures.workers or (WorkerMetrics(),)
        return replace(told, number=self.number, up=self.alive, restarts=self.restarts)

    @property
    def pid(self) -> int:
        """Process id of the program; 0 if there is none."""
        return self._running.process.pid if self._running else 0

    async def start(self) -> None:
        """Start it, and keep it running from then on.

        Raises:
            StillwebError: what it cannot serve for.
        """
        running = await self._start()
        self._watch = asyncio.create_task(self._keep_running(running))

    async def _start(self) -> _Running:
        private = self._config.options.private
        assert private is not None
        # A killed worker leaves its socket behind: no two have the same name.
        private = private.with_name(f"worker-{self.number}-{self.restarts}")
        config = replace(self._config, options=replace(self._config.options, private=private))
        self._told = asyncio.get_running_loop().create_future()
        self._ending = self.unsure = False
        ours, theirs = pair()
        channel = Channel(ours, on_message=self._hear, on_closed=lambda: self._hear(b"{}"))
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
                told = await asyncio.shield(self._told)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            told = await self._told  # the end of the channel
        if "ready" in told:
            self._running = _Running(config, process, channel)
            return self._running
        status = await process.wait()
        channel.close()
        if told:
            raise failure(told)
        raise ReplayError(f"worker {self.number} did not start: {_ending(status)}")

    def _hear(self, message: bytes) -> None:
        told = json.loads(message)
        self.answered = told.get("answered", self.answered)
        if "ending" in told:
            self._ending = True
            return
        if not self._told.done():
            self._told.set_result(told)

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
        """Return the successor; None if we are to end."""
        while True:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._row - 1))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return None
            self.restarts += 1
            try:
                running = await self._start()
            except (StillwebError, OSError) as error:
                if self._stopping.is_set():  # it was ended before it was ready
                    return None
                self._row += 1
                logger.error("worker does not start", extra={"worker": self.number, "error": str(error)})
            else:
                facts = {"worker": self.number, "pid": running.process.pid, "pause": pause}
                logger.warning("worker started anew", extra=facts)
                return running

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return what its control API answers.

        Raises:
            SessionLost: if it has died.
            StillwebError: what it answers with.
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
        """Close what it opened when nobody waited for that any more: the sessions that are not known.

        Raises:
            SessionLost, ReplayError: as `ask` does.
        """
        if not self.unsure:
            return
        told = await self.ask("GET", "/sessions")
        if self.opening > 1:  # some of them are about to be known
            return
        self.unsure = False
        for shown in told["sessions"]:
            if shown["id"] not in known:
                with suppress(UsageError):  # it was closed meanwhile
                    await self.ask("DELETE", f"/sessions/{shown['id']}")

    def lost(self) -> SessionLost:
        """Return what is to be said of its sessions once it has died."""
        message = f"worker {self.number}, which kept the session, has died"
        return SessionLost(message, hint="open a new session")

    def hand_over(self, descriptor: int, data: bytes) -> None:
        """Let it take a connection, with what was read from it."""
        if self._running is not None:
            self._running.channel.hand_over(descriptor, data)

    async def stop(self) -> None:
        """Let it finish the answers at hand, and end it."""
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

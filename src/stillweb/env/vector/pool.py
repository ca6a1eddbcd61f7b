"""Browsers for many episodes: a few at once, each for a budget of episodes, replaced when one is lost.

Who plays an episode leases a browser, and releases it when the episode has been left. A browser is

    STARTING -> SERVING -> DRAINING -> ENDED
                   `----------`------> LOST -> ENDED

SERVING until its budget of episodes has begun; then DRAINING: it takes no new leases, the running
episodes end on it, and it ends with the last of them. LOST when it disconnects (it crashed, or its
driver did) or does not answer; its episodes fail where they stand, and the next lease is on another
browser. Each browser has a Playwright driver of its own, so that a lost driver takes one browser
with it and a drained browser gives back the driver's memory, too. One task keeps each browser from
its start to its end; `close` waits for all of them. For what the operating system must do: `kin`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from playwright.async_api import Browser, CDPSession
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.driver import as_playwright_error
from stillweb.browser.launch import launch
from stillweb.errors import EnvClosed, InfraError, StillwebError

__all__ = ["BrowserLease", "BrowserPool", "BrowserProcess", "BrowserState", "PoolOptions", "kin_of"]

_PROFILE = "--user-data-dir="
_PROFILE_NAME = "playwright_chromiumdev_profile-"  # Playwright's own, in the folder for temporary files


@dataclass(slots=True)
class BrowserProcess:
    """A browser's processes.

    Attributes:
        browser: pid of the browser.
        driver: pid of the Playwright driver that started it; 0 where that is not known.
        profile: the browser's folder, None where that is not known.
    """

    browser: int
    driver: int
    profile: Path | None
    _session: CDPSession
    _descriptors: tuple[int, ...] = ()

    async def answers(self, seconds: float) -> bool:
        """Return whether driver and browser answer within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                with as_playwright_error():
                    await self._session.send("Browser.getVersion")
        except (TimeoutError, PlaywrightError):
            return False
        return True

    def kill(self, *, driver: bool) -> None:
        """End the browser at once, and its driver, too, if that does not end by itself."""
        for descriptor in self._descriptors[: None if driver else 1]:
            if descriptor < 0:
                continue
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended

    def watch(self, ended: Callable[[], None]) -> None:
        """Have `ended` called when either ends; Playwright does not tell that its driver has."""
        loop = asyncio.get_running_loop()
        for descriptor in self._descriptors:
            if descriptor >= 0:
                loop.add_reader(descriptor, self._ended, descriptor, ended)

    def _ended(self, descriptor: int, ended: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        ended()

    async def forget(self) -> None:
        """Let go of the descriptors, and remove what a killed driver left on disk."""
        for descriptor in self._descriptors:
            if descriptor >= 0:
                asyncio.get_running_loop().remove_reader(descriptor)
                os.close(descriptor)
        self._descriptors = ()
        if self.profile is not None:
            await asyncio.to_thread(shutil.rmtree, self.profile, ignore_errors=True)


async def kin_of(browser: Browser) -> BrowserProcess:
    """Find the processes of a browser that was just started.

    Raises:
        playwright.async_api.Error: if it is gone again.
    """
    session = await browser.new_browser_cdp_session()
    told = await session.send("SystemInfo.getProcessInfo")
    pid = next(int(each["id"]) for each in told["processInfo"] if each["type"] == "browser")
    driver = _child_above(pid)
    descriptors = tuple(_open(each) for each in (pid, driver))
    return BrowserProcess(pid, driver, _profile(pid), session, descriptors)


def _child_above(pid: int) -> int:
    """Return the child of ours from which a process comes; 0 if there is none."""
    while pid > 1:
        parent = _parent(pid)
        if parent == os.getpid():
            return pid
        pid = parent
    return 0


def _parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])  # proc(5): state, ppid, ...


def _profile(pid: int) -> Path | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for part in command.replace("\0", " ").split():
        path = Path(part.removeprefix(_PROFILE))
        if part.startswith(_PROFILE) and path.name.startswith(_PROFILE_NAME):
            return path
    return None


def _open(pid: int) -> int:
    """Return a descriptor of a process, -1 where there is none."""
    if not pid or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # gone again
        return -1


logger = logging.getLogger(__name__)

_START_SECONDS = 60.0  # it takes half of one; a machine under load may need more
_END_SECONDS = 20.0  # `launch` gives the browser 10 of them
_ANSWER_SECONDS = 15.0
_AT_ONCE = "it ended as soon as it had started"


class BrowserState(StrEnum):
    """Where a browser of a pool stands."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How many browsers, and how long each serves.

    Attributes:
        browsers: at once, not counting those that drain.
        episodes: that begin on a browser before it is replaced; browsers grow with what they have shown.
        executable: the browser to start; `stillweb.browser.find_browser` otherwise.
        headless: whether it has no window.
        exact: for level `exact`, and for no other.
    """

    browsers: int = 1
    episodes: int = 500
    executable: Path | None = None
    headless: bool = True
    exact: bool = False


Prepare = Callable[[Browser], Awaitable[None]]


async def _as_it_is(_: Browser) -> None:
    return


class _BrowserSlot:
    """One browser, and the task that keeps it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = BrowserState.STARTING
        self.begun = 0
        self.live = 0
        self.browser: Browser | None = None
        self.kin: BrowserProcess | None = None
        self.task: asyncio.Task[None] | None = None
        self.started = asyncio.Event()
        self._ending = asyncio.Event()
        self._hangs = False

    async def keep(self, launching: Callable[[], Any], prepare: Prepare) -> None:
        """Start the browser, keep it until it shall end or is lost, end it."""
        stack = AsyncExitStack()
        try:
            async with asyncio.timeout(_START_SECONDS):
                self.browser = browser = await stack.enter_async_context(launching())
                self.kin = await kin_of(browser)
                await prepare(browser)
            browser.on("disconnected", lambda _: self.lose("it disconnected"))
            self.kin.watch(lambda: self.lose("it or its driver ended"))
            if not browser.is_connected():
                self.lose(_AT_ONCE)
            if self.state is BrowserState.STARTING:
                self.state = BrowserState.SERVING
            self.started.set()
            await self._ending.wait()
        finally:
            await self._end(stack)

    async def _end(self, stack: AsyncExitStack) -> None:
        if self.kin and self.state is BrowserState.LOST:
            self.kin.kill(driver=self._hangs)
        leaving = asyncio.ensure_future(stack.aclose())
        if not (await asyncio.wait([leaving], timeout=_END_SECONDS))[0] and self.kin:
            logger.warning("a browser did not end and is killed", extra={"browser": self.number})
            self.kin.kill(driver=True)
        await leaving
        if self.kin:
            await self.kin.forget()
        self.state = BrowserState.ENDED

    def lose(self, why: str, *, hangs: bool = False) -> None:
        """Note that it is of no use any more."""
        self._hangs = hangs
        if self.state is not BrowserState.ENDED and not self._ending.is_set():
            logger.warning("a browser was lost", extra={"browser": self.number, "why": why})
            self.state = BrowserState.LOST
            self._ending.set()

    def drain(self) -> None:
        """Take no more leases, and end with the last of those there are."""
        if self.state in (BrowserState.STARTING, BrowserState.SERVING):
            self.state = BrowserState.DRAINING
        self.end_if_drained()

    def end_if_drained(self) -> None:
        if self.state is BrowserState.DRAINING and not self.live:
            self._ending.set()

    def end(self) -> None:
        self._ending.set()


class BrowserLease:
    """A browser for episodes, one after the other; release it when the last one has been left."""

    def __init__(self, kept: _BrowserSlot, browser: Browser, budget: int) -> None:
        self._kept = kept
        self._budget = budget
        self._released = False
        self.browser = browser

    @property
    def number(self) -> int:
        """Which browser of the pool it is, counted from 0 over the pool's life."""
        return self._kept.number

    @property
    def state(self) -> BrowserState:
        """Where the browser stands."""
        return self._kept.state

    def renew(self) -> bool:
        """Begin another episode on the same browser; False if it takes none any more."""
        if self._released or self._kept.state is not BrowserState.SERVING:
            return False
        self._kept.begun += 1
        if self._kept.begun >= self._budget:
            self._kept.drain()
        return True

    async def examine(self) -> None:
        """Have the browser replaced if it does not answer; call it after an episode that failed."""
        kept = self._kept
        asked = kept.kin is not None and kept.state in (BrowserState.SERVING, BrowserState.DRAINING)
        if asked and kept.kin is not None and not await kept.kin.answers(_ANSWER_SECONDS):
            kept.lose(f"it did not answer within {_ANSWER_SECONDS:g} s", hangs=True)

    def release(self) -> None:
        """Give the browser back. Twice is once."""
        if not self._released:
            self._released = True
            self._kept.live -= 1
            self._kept.end_if_drained()


class BrowserPool:
    """Browsers to lease; use it as a context manager, or close it.

    Args:
        spki: hashes of the public keys to trust (`ReplayInfo.spki`).
        options: see `PoolOptions`.
        prepare: what is to be awaited with each browser before it serves.
    """

    def __init__(
        self, spki: Sequence[str], options: PoolOptions | None = None, *, prepare: Prepare | None = None
    ) -> None:
        self._spki = tuple(spki)
        self._prepare = prepare or _as_it_is
        self._options = options or PoolOptions()
        self._kept: list[_BrowserSlot] = []
        self._closed = False
        self.started = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def browsers(self) -> list[dict[str, Any]]:
        """Return the browsers that have not ended: number, state, episodes begun, leases, pids."""
        return [
            {
                "number": kept.number,
                "state": kept.state.value,
                "episodes": kept.begun,
                "leases": kept.live,
                "pid": kept.kin.browser if kept.kin else 0,
                "driver_pid": kept.kin.driver if kept.kin else 0,
            }
            for kept in self._kept
        ]

    async def lease(self) -> BrowserLease:
        """Return the least busy browser that takes new episodes, started if need be.

        Raises:
            EnvClosed: if the pool is closed.
            ProgramNotFound: if there is no browser.
            InfraError: if it does not start.
        """
        if self._closed:
            raise EnvClosed("this pool of browsers is closed")
        kept = self._choose()
        kept.live += 1
        kept.begun += 1
        if kept.begun >= self._options.episodes:
            kept.drain()
        try:
            return BrowserLease(kept, await self._started(kept), self._options.episodes)
        except BaseException:
            kept.live -= 1
            kept.end_if_drained()
            raise

    async def close(self) -> None:
        """End all browsers, whatever runs on them, and wait until they have ended."""
        self._closed = True
        for kept in self._kept:
            kept.end()
        tasks = [kept.task for kept in self._kept if kept.task]
        if tasks:
            await asyncio.wait(tasks)

    def _choose(self) -> _BrowserSlot:
        taking = [kept for kept in self._kept if kept.state in (BrowserState.STARTING, BrowserState.SERVING)]
        least = min(taking, key=lambda kept: (kept.live, kept.number), default=None)
        if least is not None and (not least.live or len(taking) >= self._options.browsers):
            return least
        return self._start()

    def _start(self) -> _BrowserSlot:
        kept = _BrowserSlot(self.started)
        self.started += 1
        self._kept.append(kept)
        kept.task = asyncio.ensure_future(kept.keep(self._launching, self._prepare))
        kept.task.add_done_callback(lambda _: self._ended(kept))
        return kept

    def _launching(self) -> Any:
        chosen = self._options
        return launch(
            spki=self._spki, executable=chosen.executable, headless=chosen.headless, exact=chosen.exact
        )

    def _ended(self, kept: _BrowserSlot) -> None:
        self._kept.remove(kept)
        failure = None if kept.task is None or kept.task.cancelled() else kept.task.exception()
        if failure is not None:
            logger.warning("a browser failed", extra={"browser": kept.number, "error": str(failure)})

    async def _started(self, kept: _BrowserSlot) -> Browser:
        """Wait until a browser has started.

        A driver that dies while it starts makes Playwright raise a bare Exception, so that whatever ended
        the keeping task is told as what it is: no browser, and our fault.
        """
        assert kept.task is not None
        starting = asyncio.ensure_future(kept.started.wait())
        try:
            await asyncio.wait([starting, kept.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
        if self._closed:
            raise EnvClosed("the pool of browsers was closed while one started")
        if kept.browser is not None and kept.state in (BrowserState.SERVING, BrowserState.DRAINING):
            return kept.browser
        failure = kept.task.exception() if kept.task.done() else None
        if isinstance(failure, StillwebError):
            raise failure
        what = _AT_ONCE
        if failure is not None:
            told = failure.message if isinstance(failure, PlaywrightError) else str(failure)
            what = told or type(failure).__name__
        raise InfraError(f"a browser did not start: {what.partition(chr(10))[0]}", hint="reset") from failure

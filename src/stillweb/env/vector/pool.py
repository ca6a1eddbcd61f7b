"""Pool of browsers: each serves a budget of episodes and is replaced when it is lost.

An episode leases a browser and releases it at its end. The states of a browser are

    STARTING -> SERVING -> DRAINING -> ENDED
                   `----------`------> LOST -> ENDED

A browser is SERVING until its budget of episodes has begun. Then it is DRAINING: it takes no new leases, and
ends with the last running episode. It is LOST when it disconnects (it or its driver crashed) or does not
answer. Its episodes fail, and the next lease is on another browser. Each browser has a Playwright driver of
its own, so that a lost driver affects one browser, and a drained browser frees the driver's memory. One task
runs each browser from start to end; `close` waits for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import psutil
from playwright.async_api import Browser, CDPSession
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.driver import as_playwright_error
from stillweb.browser.launch import launch
from stillweb.errors import EnvClosed, InfraError, StillwebError
from stillweb.options import Option
from stillweb.text import first_line

logger = logging.getLogger(__name__)

_PROFILE = "--user-data-dir="
_PROFILE_NAME = "playwright_chromiumdev_profile-"  # Playwright's own, in the folder for temporary files
_START_SECONDS = 60.0  # it takes half a second; a machine under load may need more
_END_SECONDS = 20.0  # `launch` gives the browser 10 of them
_ANSWER_SECONDS = 15.0
_ENDED_EARLY = "it ended as soon as it had started"


@dataclass(slots=True)
class BrowserProcess:
    """The operating system's view of a browser and of the Playwright driver that started it.

    Attributes:
        driver: None if it is not known.
        profile: the browser's profile folder if Playwright made it, otherwise None.
    """

    browser: psutil.Process
    driver: psutil.Process | None
    profile: Path | None
    _session: CDPSession
    _descriptors: list[int] = field(default_factory=list)

    @classmethod
    async def of(cls, browser: Browser) -> BrowserProcess:
        """Find the processes of a browser that was just started.

        Raises:
            playwright.async_api.Error, psutil.Error: if it has ended again.
        """
        session = await browser.new_browser_cdp_session()
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        process = psutil.Process(next(int(each["id"]) for each in processes if each["type"] == "browser"))
        ancestors = [process, *process.parents()]
        driver = next((each for each in ancestors if each.ppid() == os.getpid()), None)
        return cls(process, driver, _profile(process), session)

    async def answers(self, seconds: float) -> bool:
        """Return True if driver and browser answer within this time."""
        try:
            async with asyncio.timeout(seconds):
                with as_playwright_error():
                    await self._session.send("Browser.getVersion")
        except (TimeoutError, PlaywrightError):
            return False
        return True

    def kill(self, *, driver: bool) -> None:
        """Kill the browser, and its driver if that hangs, too."""
        for process in (self.browser, self.driver if driver else None):
            if process:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` when either process ends; Playwright does not report the end of its driver."""
        if not hasattr(os, "pidfd_open"):
            return
        for process in filter(None, (self.browser, self.driver)):
            try:
                descriptor = os.pidfd_open(process.pid)
            except OSError:  # it has ended
                ended()
                continue
            self._descriptors.append(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._on_end, descriptor, ended)

    def _on_end(self, descriptor: int, ended: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        ended()

    async def release(self) -> None:
        """Close the descriptors, and remove the profile that a killed driver left on disk."""
        while self._descriptors:
            descriptor = self._descriptors.pop()
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        if self.profile is not None:
            await asyncio.to_thread(shutil.rmtree, self.profile, ignore_errors=True)


def _profile(process: psutil.Process) -> Path | None:
    for part in " ".join(process.cmdline()).split():
        path = Path(part.removeprefix(_PROFILE))
        if part.startswith(_PROFILE) and path.name.startswith(_PROFILE_NAME):
            return path
    return None


class BrowserState(StrEnum):
    """State of a pool's browser."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Number and lifetime of a pool's browsers.

    Attributes:
        episodes: episodes that begin on a browser before it is replaced; a browser's memory grows with use.
        executable: browser to start; the default is `stillweb.browser.find_browser`.
        exact: True for level `exact`, False for the others.
    """

    browsers: Annotated[
        int, Option("Browsers that share the sessions, not counting those that drain.", min=1, max=64)
    ] = 1
    episodes: int = 500
    executable: Path | None = None
    headless: bool = True
    exact: bool = False


Prepare = Callable[[Browser], Awaitable[None]]


async def _unprepared(_: Browser) -> None:
    return


class _BrowserSlot:
    """One browser and the task that runs it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = BrowserState.STARTING
        self.begun = 0
        self.live = 0
        self.browser: Browser | None = None
        self.process: BrowserProcess | None = None
        self.task: asyncio.Task[None] | None = None
        self.started = asyncio.Event()
        self._ending = asyncio.Event()
        self._hangs = False

    async def run(self, launching: Callable[[], Any], prepare: Prepare) -> None:
        """Start the browser, wait until it must end or is lost, end it."""
        stack = AsyncExitStack()
        try:
            async with asyncio.timeout(_START_SECONDS):
                self.browser = browser = await stack.enter_async_context(launching())
                self.process = await BrowserProcess.of(browser)
                await prepare(browser)
            browser.on("disconnected", lambda _: self.lose("it disconnected"))
            self.process.watch(lambda: self.lose("it or its driver ended"))
            if not browser.is_connected():
                self.lose(_ENDED_EARLY)
            if self.state is BrowserState.STARTING:
                self.state = BrowserState.SERVING
            self.started.set()
            await self._ending.wait()
        finally:
            await self._end(stack)

    async def _end(self, stack: AsyncExitStack) -> None:
        if self.process and self.state is BrowserState.LOST:
            self.process.kill(driver=self._hangs)
        leaving = asyncio.ensure_future(stack.aclose())
        if not (await asyncio.wait([leaving], timeout=_END_SECONDS))[0] and self.process:
            logger.warning("browser did not end, it is killed", extra={"browser": self.number})
            self.process.kill(driver=True)
        await leaving
        if self.process:
            await self.process.release()
        self.state = BrowserState.ENDED

    def lose(self, why: str, *, hangs: bool = False) -> None:
        self._hangs = hangs
        if self.state is not BrowserState.ENDED and not self._ending.is_set():
            logger.warning("browser was lost", extra={"browser": self.number, "why": why})
            self.state = BrowserState.LOST
            self._ending.set()

    def drain(self) -> None:
        """Take no more leases, and end with the last lease."""
        if self.state in (BrowserState.STARTING, BrowserState.SERVING):
            self.state = BrowserState.DRAINING
        self.end_if_drained()

    def end_if_drained(self) -> None:
        if self.state is BrowserState.DRAINING and not self.live:
            self._ending.set()

    def end(self) -> None:
        self._ending.set()


class BrowserLease:
    """A leased browser for successive episodes; call `release` after the last one."""

    def __init__(self, slot: _BrowserSlot, browser: Browser, budget: int) -> None:
        self._slot = slot
        self._budget = budget
        self._released = False
        self.browser = browser

    @property
    def number(self) -> int:
        """Serial number of the browser in its pool, from 0."""
        return self._slot.number

    @property
    def state(self) -> BrowserState:
        return self._slot.state

    def renew(self) -> bool:
        """Begin another episode on the same browser; return False if the browser takes no more."""
        if self._released or self._slot.state is not BrowserState.SERVING:
            return False
        self._slot.begun += 1
        if self._slot.begun >= self._budget:
            self._slot.drain()
        return True

    async def examine(self) -> None:
        """Have the browser replaced if it does not answer; call this after an episode that failed."""
        slot = self._slot
        if slot.process is None or slot.state not in (BrowserState.SERVING, BrowserState.DRAINING):
            return
        if not await slot.process.answers(_ANSWER_SECONDS):
            slot.lose(f"it did not answer within {_ANSWER_SECONDS:g} s", hangs=True)

    def release(self) -> None:
        """Return the browser to the pool; a second call has no effect."""
        if not self._released:
            self._released = True
            self._slot.live -= 1
            self._slot.end_if_drained()


class BrowserPool:
    """Pool of browsers; use it as a context manager, or close it.

    Args:
        spki: hashes of the public keys to trust (`ReplayInfo.spki`).
        replay: URL of the replay server, if it may be on another machine.
        prepare: coroutine function that is awaited with each new browser before its first lease.
    """

    def __init__(
        self,
        spki: Sequence[str],
        options: PoolOptions | None = None,
        *,
        replay: str = "",
        prepare: Prepare | None = None,
    ) -> None:
        self._spki = tuple(spki)
        self._replay = replay
        self._prepare = prepare or _unprepared
        self._options = options or PoolOptions()
        self._slots: list[_BrowserSlot] = []
        self._closed = False
        self.started = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def browsers(self) -> list[dict[str, Any]]:
        """Return the browsers that have not ended: number, state, episodes begun, leases, pids."""
        return [
            {
                "number": slot.number,
                "state": slot.state.value,
                "episodes": slot.begun,
                "leases": slot.live,
                "pid": slot.process.browser.pid if slot.process else 0,
                "driver_pid": slot.process.driver.pid if slot.process and slot.process.driver else 0,
            }
            for slot in self._slots
        ]

    async def lease(self) -> BrowserLease:
        """Lease the least busy browser that takes new episodes; start one if necessary.

        Raises:
            EnvClosed: if the pool is closed.
            ProgramNotFound: if there is no browser.
            InfraError: if it does not start.
        """
        if self._closed:
            raise EnvClosed("this BrowserPool is closed")
        slot = self._choose()
        slot.live += 1
        slot.begun += 1
        if slot.begun >= self._options.episodes:
            slot.drain()
        try:
            return BrowserLease(slot, await self._started(slot), self._options.episodes)
        except BaseException:
            slot.live -= 1
            slot.end_if_drained()
            raise

    def trust(self, spki: Sequence[str]) -> None:
        """Have browsers that trust other keys replaced after their last lease."""
        if tuple(spki) != self._spki:
            self._spki = tuple(spki)
            for slot in self._slots:
                slot.drain()

    async def close(self) -> None:
        """End all browsers, with the episodes on them, and wait until they have ended."""
        self._closed = True
        for slot in self._slots:
            slot.end()
        tasks = [slot.task for slot in self._slots if slot.task]
        if tasks:
            await asyncio.wait(tasks)

    def _choose(self) -> _BrowserSlot:
        taking = [slot for slot in self._slots if slot.state in (BrowserState.STARTING, BrowserState.SERVING)]
        least = min(taking, key=lambda slot: (slot.live, slot.number), default=None)
        if least is not None and (not least.live or len(taking) >= self._options.browsers):
            return least
        return self._start()

    def _start(self) -> _BrowserSlot:
        slot = _BrowserSlot(self.started)
        self.started += 1
        self._slots.append(slot)
        slot.task = asyncio.ensure_future(slot.run(self._launching, self._prepare))
        slot.task.add_done_callback(lambda _: self._ended(slot))
        return slot

    def _launching(self) -> Any:
        chosen = self._options
        return launch(
            spki=self._spki,
            replay=self._replay,
            executable=chosen.executable,
            headless=chosen.headless,
            exact=chosen.exact,
        )

    def _ended(self, slot: _BrowserSlot) -> None:
        self._slots.remove(slot)
        failure = None if slot.task is None or slot.task.cancelled() else slot.task.exception()
        if failure is not None:
            logger.warning("browser failed", extra={"browser": slot.number, "error": str(failure)})

    async def _started(self, slot: _BrowserSlot) -> Browser:
        """Wait until a browser has started.

        Playwright raises a bare Exception if its driver dies during the start. Therefore every failure of the
        browser's task becomes an `InfraError` here.
        """
        assert slot.task is not None
        starting = asyncio.ensure_future(slot.started.wait())
        try:
            await asyncio.wait([starting, slot.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
        if self._closed:
            raise EnvClosed("the BrowserPool was closed while a browser started")
        if slot.browser is not None and slot.state in (BrowserState.SERVING, BrowserState.DRAINING):
            return slot.browser
        failure = slot.task.exception() if slot.task.done() else None
        if isinstance(failure, StillwebError):
            raise failure
        what = _ENDED_EARLY
        if failure is not None:
            message = failure.message if isinstance(failure, PlaywrightError) else str(failure)
            what = message or type(failure).__name__
        raise InfraError(f"a browser did not start: {first_line(what)}", hint="reset") from failure

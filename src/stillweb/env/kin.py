"""The operating system's side of a browser: its pid and its driver's, so that neither can stay behind.

Playwright's driver ends when the pipe to its standard input closes, and a browser when its driver's
pipe does; so whichever of the three dies, even by SIGKILL, those below it end by themselves (held by
`tests/env/test_pool.py`). What a pipe does not end is a driver or browser that hangs: these
are killed, by descriptors of the very processes (pidfd), since a number may be another's by then. A
killed driver also leaves its browser's profile on disk, which is removed here.

On systems without /proc and pidfd only what Playwright itself ends is ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, CDPSession
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.driver import as_playwright_error

__all__ = ["Kin", "kin_of"]

_PROFILE = "--user-data-dir="
_PROFILE_NAME = "playwright_chromiumdev_profile-"  # Playwright's own, in the folder for temporary files


@dataclass(slots=True)
class Kin:
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


async def kin_of(browser: Browser) -> Kin:
    """Find the processes of a browser that was just started.

    Raises:
        playwright.async_api.Error: if it is gone again.
    """
    session = await browser.new_browser_cdp_session()
    told = await session.send("SystemInfo.getProcessInfo")
    pid = next(int(each["id"]) for each in told["processInfo"] if each["type"] == "browser")
    driver = _child_above(pid)
    descriptors = tuple(_open(each) for each in (pid, driver))
    return Kin(pid, driver, _profile(pid), session, descriptors)


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

"""Start of the Playwright driver, and signatures of its errors."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from playwright._impl._driver import compute_driver_executable
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Playwright, async_playwright

from stillweb.errors import InfraError
from stillweb.text import first_line

_VERSION_SECONDS = 10.0

DRIVER_PACKAGE = "libatomic1"
"""Debian's package of a library that Node.js needs and small images lack."""
DRIVER_HINT = f"install the library that it names; on Debian: apt-get install {DRIVER_PACKAGE}"

DOWNLOAD = "Download is starting"
"""Text in the error of a navigation whose response is a download."""


def is_driver_gone(error: BaseException) -> bool:
    """Return True if an error says that the driver's pipe is closed.

    Playwright fails its calls once it has noticed that. Before, a call writes into the pipe: asyncio's own
    loop drops the data, uvloop raises a bare RuntimeError (uvloop/handles/handle.pyx, `_ensure_alive`).
    """
    return isinstance(error, RuntimeError) and "the handler is closed" in str(error)


def failed_visit(error: Exception) -> str:
    """Return in one line why a page could not be opened."""
    return first_line(error).removeprefix("Page.goto: ") or "the browser failed"


@asynccontextmanager
async def playwright_driver() -> AsyncIterator[Playwright]:
    """Start the driver, a Node.js program in Playwright's package.

    Raises:
        InfraError: if it does not start, with what the system reports.
    """
    async with AsyncExitStack() as stack:
        try:
            playwright = await stack.enter_async_context(async_playwright())
        except Exception as error:
            if type(error) is not Exception:  # Playwright's class for a driver that ended while it started
                raise
            raise InfraError(
                f"Playwright's driver did not start: {await asyncio.to_thread(driver_failure) or error}",
                hint=DRIVER_HINT,
            ) from error
        yield playwright


def driver_failure() -> str:
    """Return what the driver's program prints if it cannot run, "" if it can."""
    command = [compute_driver_executable()[0], "--version"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ended.stderr.strip() if ended.returncode else ""


@contextmanager
def as_playwright_error() -> Iterator[None]:
    """Convert the errors of a driver that has ended to Playwright's own error class."""
    try:
        yield
    except RuntimeError as error:
        if not is_driver_gone(error):
            raise
        raise PlaywrightError(f"the driver has ended: {error}") from error

"""Error signatures of the Playwright driver: its process has ended, or a navigation became a download."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.async_api import Error as PlaywrightError

__all__ = ["DOWNLOAD", "as_playwright_error", "is_driver_gone"]

DOWNLOAD = "Download is starting"
"""Text in the error of a navigation whose response is a download."""


def is_driver_gone(error: BaseException) -> bool:
    """Return True if an error says that the driver's pipe is closed.

    Playwright fails its calls once it has noticed that. Before, a call writes into the pipe: asyncio's own
    loop drops the data, uvloop raises a bare RuntimeError (uvloop/handles/handle.pyx, `_ensure_alive`).
    """
    return isinstance(error, RuntimeError) and "the handler is closed" in str(error)


@contextmanager
def as_playwright_error() -> Iterator[None]:
    """Convert the errors of a driver that has ended to Playwright's own error class."""
    try:
        yield
    except RuntimeError as error:
        if not is_driver_gone(error):
            raise
        raise PlaywrightError(f"the driver has ended: {error}") from error

"""What a Playwright driver says: that it has died, that a navigation became a download."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.async_api import Error as PlaywrightError

__all__ = ["DOWNLOAD", "as_playwright_error", "is_driver_gone"]

DOWNLOAD = "Download is starting"
"""In the error of a navigation whose answer is a file to save."""


def is_driver_gone(error: BaseException) -> bool:
    """Return whether an error says that nobody reads the driver's pipe any more.

    Playwright fails its calls once it has noticed. Until then a call writes into the pipe: asyncio's own loop
    drops what is written, uvloop raises a bare RuntimeError (uvloop/handles/handle.pyx, `_ensure_alive`).
    """
    return isinstance(error, RuntimeError) and "the handler is closed" in str(error)


@contextmanager
def as_playwright_error() -> Iterator[None]:
    """Have a driver that is gone told as Playwright tells it once it has noticed."""
    try:
        yield
    except RuntimeError as error:
        if not is_driver_gone(error):
            raise
        raise PlaywrightError(f"the driver has ended: {error}") from error

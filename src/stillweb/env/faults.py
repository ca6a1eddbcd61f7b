"""Whose fault it is: what browser, proxy and clock do to an episode is ours, and never a reward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Error as PlaywrightError

from stillweb.browser.driver import is_driver_gone
from stillweb.browser.line import CdpError
from stillweb.errors import InfraError, PeerError, PortInUse, ReplayError

__all__ = ["infra", "told_as_ours"]


@asynccontextmanager
async def infra(what: str, seconds: float) -> AsyncIterator[None]:
    """Tell every failure of browser and proxy as what it is: ours."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InfraError(f"{what} did not end within {seconds:g} s") from error
    except (PlaywrightError, CdpError, PeerError, ReplayError, PortInUse, RuntimeError) as error:
        ours = told_as_ours(what, error)
        if ours is error:
            raise
        raise ours from error


def told_as_ours(what: str, error: BaseException) -> BaseException:
    """Return a failure of browser or proxy as an `InfraError`; what is none, as it is."""
    if isinstance(error, PlaywrightError | CdpError):
        return InfraError(f"{what}: the browser failed: {error.message.partition(chr(10))[0]}")
    if isinstance(error, PeerError | ReplayError | PortInUse):
        return InfraError(f"{what}: {error}", hint=error.hint)
    if is_driver_gone(error):
        return InfraError(f"{what}: the browser failed: its driver has ended")
    return error

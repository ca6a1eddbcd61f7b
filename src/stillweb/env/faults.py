"""Whose fault it is: what browser, proxy and clock do to an episode is ours, and never a reward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Error as PlaywrightError

from stillweb.errors import InfraError, PeerError, PortInUse, ReplayError

__all__ = ["infra"]


@asynccontextmanager
async def infra(what: str, seconds: float) -> AsyncIterator[None]:
    """Tell every failure of browser and proxy as what it is: ours."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InfraError(f"{what} did not end within {seconds:g} s") from error
    except PlaywrightError as error:
        raise InfraError(f"{what}: the browser failed: {error.message.partition(chr(10))[0]}") from error
    except (PeerError, ReplayError, PortInUse) as error:
        raise InfraError(f"{what}: {error}", hint=error.hint) from error

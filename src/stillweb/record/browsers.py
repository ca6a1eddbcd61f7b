"""The browser of a crawl, and another one when it has ended: one page must not end them all."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from playwright.async_api import Browser

from stillweb.browser.launch import launch
from stillweb.certs import CertAuthority
from stillweb.errors import RecordError

__all__ = ["Browsers"]

_MOST_ENDS = 10  # a machine on which browsers end this often has another trouble than its pages


class Browsers:
    """One browser at a time; use it as an asynchronous context.

    Args:
        ca: whom the browser trusts.
        executable: None to look for one.
    """

    def __init__(self, ca: CertAuthority, executable: Path | None = None) -> None:
        self._ca, self._executable = ca, executable
        self._browser: Browser | None = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._ends = 0

    async def __aenter__(self) -> Self:
        await self.get()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def get(self) -> Browser:
        """Return the browser that runs.

        Raises:
            RecordError: if too many have ended.
            InfraError: if none starts.
        """
        async with self._starting:
            if self._browser is not None and not self._browser.is_connected():
                self._ends += 1
                if self._ends >= _MOST_ENDS:
                    raise RecordError(
                        f"the browser ended {self._ends} times", hint="the same with --append goes on"
                    )
                self._browser = None
                await self._stack.aclose()
            if self._browser is None:
                made = launch(spki=self._ca.spki_hashes(), executable=self._executable)
                self._browser = await self._stack.enter_async_context(made)
            return self._browser

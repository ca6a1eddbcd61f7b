"""The tabs of an episode, and what its pages do beside being pages.

Pages open popups, ask in dialogs, start downloads and crash; all of that arrives as browser
events at any time. They are taken down here in the order of their arrival, and handed out at
the end of the step: popups as tabs that become the active one, dialogs as answered, downloads
with their digest. The answers to dialogs are fixed, so that an episode does not depend on
who watches: alerts and questions are accepted, a prompt gets its own default, leaving a page is allowed.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Page
from playwright.async_api import Dialog as PlaywrightDialog
from playwright.async_api import Download as PlaywrightDownload
from playwright.async_api import Error as PlaywrightError

from stillweb.errors import InfraError

__all__ = ["Dialog", "Download", "Tabs"]

DOWNLOAD_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog that a page opened, as it was answered."""

    kind: str
    message: str
    answer: str

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON for `info`."""
        return {"kind": self.kind, "message": self.message, "answer": self.answer}


@dataclass(frozen=True, slots=True)
class Download:
    """A file that a page offered. `error` says why it did not arrive."""

    url: str
    filename: str
    size: int = 0
    sha256: str = ""
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON for `info`."""
        return {
            "url": self.url,
            "filename": self.filename,
            "size": self.size,
            "sha256": self.sha256,
            "error": self.error,
        }


class Tabs:
    """The open pages of a context in the order of opening, one of them active."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._pages: list[Page] = []
        self._visited: list[Page] = []  # the active page last
        self._dialogs: list[Dialog] = []
        self._downloads: list[PlaywrightDownload] = []
        self._crashed = ""
        context.on("page", self._opened)
        context.on("dialog", self._asked)
        for page in context.pages:
            self._opened(page)

    @property
    def pages(self) -> tuple[Page, ...]:
        """The open pages."""
        return tuple(self._pages)

    @property
    def active(self) -> Page:
        """The page that actions go to.

        Raises:
            InfraError: if a page crashed or none is open.
        """
        if self._crashed:
            raise InfraError(f"the page {self._crashed} crashed")
        if not self._visited:
            raise InfraError("no page is open")
        return self._visited[-1]

    def activate(self, page: Page) -> None:
        """Make a page the active one."""
        if page in self._visited:
            self._visited.remove(page)
        self._visited.append(page)

    async def ensure_one(self) -> None:
        """Open an empty tab if the last one was closed, as a browser window would end."""
        if not self._visited:
            await self._context.new_page()

    def take_dialogs(self) -> tuple[Dialog, ...]:
        """Return the dialogs since the last call."""
        taken, self._dialogs = tuple(self._dialogs), []
        return taken

    async def take_downloads(self) -> tuple[Download, ...]:
        """Return the downloads since the last call, once they have arrived."""
        taken, self._downloads = self._downloads, []
        return tuple([await _arrived(download) for download in taken])

    def _opened(self, page: Page) -> None:
        if page in self._pages:
            return
        self._pages.append(page)
        self.activate(page)
        page.on("close", self._closed)
        page.on("crash", self._on_crash)
        page.on("download", self._downloads_append)

    def _closed(self, page: Page) -> None:
        for pages in (self._pages, self._visited):
            if page in pages:
                pages.remove(page)

    def _on_crash(self, page: Page) -> None:
        self._crashed = page.url

    def _downloads_append(self, download: PlaywrightDownload) -> None:
        self._downloads.append(download)

    async def _asked(self, dialog: PlaywrightDialog) -> None:
        answer = dialog.default_value if dialog.type == "prompt" else "accepted"
        self._dialogs.append(Dialog(dialog.type, dialog.message, answer))
        try:
            await dialog.accept(*([dialog.default_value] if dialog.type == "prompt" else []))
        except PlaywrightError:
            # The page went away with its dialog open; then nobody waits for the answer.
            return


async def _arrived(download: PlaywrightDownload) -> Download:
    found = Download(download.url, download.suggested_filename)
    try:
        async with asyncio.timeout(DOWNLOAD_SECONDS):
            path = Path(await download.path())
            body = await asyncio.to_thread(path.read_bytes)
    except TimeoutError:
        return Download(found.url, found.filename, error=f"did not arrive within {DOWNLOAD_SECONDS:g} s")
    except PlaywrightError as error:
        return Download(found.url, found.filename, error=error.message.partition("\n")[0])
    return Download(found.url, found.filename, len(body), hashlib.sha256(body).hexdigest())

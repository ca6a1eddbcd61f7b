"""Tabs of an episode, and its pages' popups, dialogs, downloads, file choosers and crashes.

These arrive as browser events at any time. They are collected in order of arrival and returned at the end of
the step: popups as tabs, of which the last becomes active, dialogs with their answers, downloads with their
digests. The answers to dialogs are fixed: alerts and confirmations are accepted, a prompt gets its default,
leaving a page is allowed. `DialogAnswers` changes them, and the action `dialog` determines the answer to the
next dialog.

A page that opens tabs, dialogs or downloads without end would take the memory of all sessions. Beyond a limit
its context is closed, and the episode ends with an InfraError that names the limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from playwright.async_api import BrowserContext, Page
from playwright.async_api import Dialog as PlaywrightDialog
from playwright.async_api import Download as PlaywrightDownload
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.state import state_of
from stillweb.errors import InfraError
from stillweb.files import replaced
from stillweb.text import first_line

DOWNLOAD_SECONDS = 20.0
_DOWNLOAD_EVENT_SECONDS = 5.0  # CDP reports a download a moment before Playwright does
MAX_TABS, MAX_DIALOGS, MAX_DOWNLOADS = 64, 200, 100  # open simultaneously; in a step; in a step
_CLOSE_MS = 1000  # CDP reports a closed page a moment before Playwright does


@dataclass(frozen=True, slots=True)
class DialogAnswers:
    """Answers to dialogs.

    Attributes:
        confirm: whether confirmations are accepted.
        prompt: text for prompts; None is the prompt's default.
        beforeunload: whether leaving a page with a `beforeunload` dialog is accepted.
    """

    confirm: bool = True
    prompt: str | None = None
    beforeunload: bool = True


@dataclass(frozen=True, slots=True)
class Chooser:
    """A file chooser that a page or a click opened; it was cancelled.

    Attributes:
        multiple: whether it accepts several files.
    """

    multiple: bool


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog and its answer.

    Attributes:
        kind: `alert`, `confirm`, `prompt`, `beforeunload`, or `validation`: the browser's message about an
            invalid field, which level EXACT reports and does not show.
    """

    kind: str
    message: str
    answer: str


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A downloaded file.

    Attributes:
        error: reason why it did not arrive, "" if it did.
        path: copy named by its digest, if `EnvOptions.downloads` is set.
    """

    url: str
    filename: str
    size: int = 0
    sha256: str = ""
    error: str = ""
    path: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "filename": self.filename,
            "size": self.size,
            "sha256": self.sha256,
            "error": self.error,
            "path": str(self.path) if self.path else "",
        }


class Tabs:
    """Open pages of a context in the order of opening, one of them active."""

    def __init__(self, context: BrowserContext) -> None:
        self._answers = DialogAnswers()
        self._folder: Path | None = None
        self._context = context
        self._next_answer: tuple[bool, str | None] | None = None
        self._intercepted: WeakSet[Page] = WeakSet()
        self._choosers: list[Chooser] = []
        self._pages: list[Page] = []
        self._visited: list[Page] = []  # the active page last
        self._dialogs: list[Dialog] = []
        self._downloads: list[PlaywrightDownload] = []
        self._download_event = asyncio.Event()
        self._count = 0  # downloads that Playwright reported
        self._crashed = ""
        self._excess = ""
        self._ending: asyncio.Future[None] | None = None
        context.on("page", self._opened)
        context.on("dialog", self._on_dialog)
        for page in context.pages:
            self._opened(page)

    @property
    def pages(self) -> tuple[Page, ...]:
        return tuple(self._pages)

    @property
    def active(self) -> Page:
        """The active page.

        Raises:
            InfraError: if a page crashed or none is open.
        """
        self.check()
        return self._visited[-1]

    def check(self) -> None:
        """Raise InfraError if a page crashed or exceeded a limit, or none is open."""
        if self._excess:
            raise InfraError(f"a page exceeded a limit of its episode: {self._excess}")
        if self._crashed:
            raise InfraError(f"the page {self._crashed} crashed")
        if not self._visited:
            raise InfraError("no page is open")

    def activate(self, page: Page) -> None:
        if page in self._visited:
            self._visited.remove(page)
        self._visited.append(page)

    async def ensure_one(self) -> None:
        """Open an empty tab if the last tab was closed.

        Raises:
            InfraError: if the context was closed because a page exceeded a limit.
        """
        if self._excess:
            self.check()
        if not self._visited:
            await self._context.new_page()

    def configure(self, answers: DialogAnswers, downloads: Path | None) -> None:
        """Set the answers to dialogs, and the folder for copies of downloads."""
        self._answers, self._folder = answers, downloads

    async def attend(self, page: Page) -> None:
        """Cancel and report the file choosers of a page."""
        if page in self._intercepted:
            return
        self._intercepted.add(page)
        probe = await PageProbe.of(page)
        probe.hear("Page.fileChooserOpened", self._on_chooser)
        await probe.send("Page.setInterceptFileChooserDialog", enabled=True, cancel=True)

    def answer_next(self, *, accept: bool, text: str | None) -> None:
        """Set the answer to the next dialog."""
        self._next_answer = (accept, text)

    async def take_events(self) -> dict[str, list[dict[str, Any]]]:
        """Return dialogs, choosers and downloads since the last call, for `info`; wait for downloads."""
        await self._await_downloads()
        dialogs, self._dialogs = self._dialogs + self._refusals(), []
        choosers, self._choosers = self._choosers, []
        downloads, self._downloads = self._downloads, []
        return {
            "dialogs": [asdict(dialog) for dialog in dialogs],
            "choosers": [asdict(chooser) for chooser in choosers],
            "downloads": [(await _arrived(download, self._folder)).to_dict() for download in downloads],
        }

    def _refusals(self) -> list[Dialog]:
        """Return the browser's messages about invalid fields, which level EXACT collects, as dialogs."""
        exact = state_of(self._context).exact
        if exact is None:
            return []
        refusals, exact.refusals = exact.refusals, []
        return [Dialog("validation", message, "dismissed") for message in refusals]

    async def _await_downloads(self) -> None:
        """Wait at level EXACT until Playwright has reported all downloads that the browser has begun."""
        exact = state_of(self._context).exact
        with suppress(TimeoutError):
            async with asyncio.timeout(_DOWNLOAD_EVENT_SECONDS):
                while exact and self._count < len(exact.downloads):
                    self._download_event.clear()
                    await self._download_event.wait()
        self._count = max(self._count, len(exact.downloads) if exact else 0)

    def _opened(self, page: Page) -> None:
        if page in self._pages:
            return
        self._pages.append(page)
        if len(self._pages) > MAX_TABS:
            self._exceed(f"more than {MAX_TABS} open tabs")
        self.activate(page)
        page.on("close", self._closed)
        page.on("crash", self._on_crash)
        page.on("download", self._on_download)

    def _closed(self, page: Page) -> None:
        for pages in (self._pages, self._visited):
            if page in pages:
                pages.remove(page)

    def _on_crash(self, page: Page) -> None:
        self._crashed = page.url

    def _on_download(self, download: PlaywrightDownload) -> None:
        self._downloads.append(download)
        if len(self._downloads) > MAX_DOWNLOADS:
            self._exceed(f"more than {MAX_DOWNLOADS} downloads in a step")
        self._count += 1
        self._download_event.set()

    def _exceed(self, limit: str) -> None:
        if not self._excess:
            self._excess = limit
            self._ending = asyncio.ensure_future(self._close_context())

    async def _close_context(self) -> None:
        with suppress(PlaywrightError):
            await self._context.close(reason="a page exceeded a limit")

    def _on_chooser(self, event: dict[str, Any]) -> None:
        self._choosers.append(Chooser(event["mode"] != "selectSingle"))

    async def _on_dialog(self, dialog: PlaywrightDialog) -> None:
        accept, text = self._answer(dialog)
        prompted = accept and dialog.type == "prompt"
        self._dialogs.append(
            Dialog(dialog.type, dialog.message, text if prompted else "accepted" if accept else "dismissed")
        )
        if len(self._dialogs) > MAX_DIALOGS:
            self._exceed(f"more than {MAX_DIALOGS} dialogs in a step")
        try:
            await (dialog.accept(*([text] if prompted else [])) if accept else dialog.dismiss())
        except PlaywrightError:
            return  # the page was closed with its dialog open

    def _answer(self, dialog: PlaywrightDialog) -> tuple[bool, str]:
        chosen, self._next_answer = self._next_answer, None
        defaults = {"confirm": self._answers.confirm, "beforeunload": self._answers.beforeunload}
        accept, text = chosen or (defaults.get(dialog.type, True), self._answers.prompt)
        return accept, dialog.default_value if text is None else text


async def closed_itself(page: Page) -> bool:
    """Return True if a page that failed was closed, and the browser is still connected."""
    if not page.is_closed():
        try:
            await page.wait_for_event("close", timeout=_CLOSE_MS)
        except PlaywrightError:
            return False
    browser = page.context.browser
    return browser is not None and browser.is_connected()


async def _arrived(download: PlaywrightDownload, folder: Path | None) -> DownloadedFile:
    url, name = download.url, download.suggested_filename
    try:
        async with asyncio.timeout(DOWNLOAD_SECONDS):
            path = Path(await download.path())
            size, digest = await asyncio.to_thread(_measured, path)
    except TimeoutError:
        return DownloadedFile(url, name, error=f"did not arrive within {DOWNLOAD_SECONDS:g} s")
    except PlaywrightError as error:
        return DownloadedFile(url, name, error=first_line(error))
    copy = await asyncio.to_thread(_copy, path, folder / digest) if folder else None
    return DownloadedFile(url, name, size, digest, path=copy)


def _measured(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> Path:
    """Copy a file atomically, unless the target exists."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as file, replaced(target, durable=False) as part:
            shutil.copyfileobj(file, part)
    return target

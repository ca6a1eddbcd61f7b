"""The tabs of an episode, and what its pages do beside being pages.

Pages open popups, ask in dialogs, start downloads and crash; all of that arrives as browser
events at any time. They are taken down here in the order of their arrival, and handed out at
the end of the step: popups as tabs that become the active one, dialogs as answered, downloads
with their digest. The answers to dialogs are fixed, so that an episode does not depend on
who watches: alerts and questions are accepted, a prompt gets its own default, leaving a page is
allowed; or what `DialogAnswers` say, or the action `dialog` for the dialog that comes next.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from playwright.async_api import BrowserContext, Page
from playwright.async_api import Dialog as PlaywrightDialog
from playwright.async_api import Download as PlaywrightDownload
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.context import state_of
from stillweb.errors import InfraError

__all__ = ["Chooser", "Dialog", "DialogAnswers", "DownloadedFile", "Tabs", "closed_itself"]

DOWNLOAD_SECONDS = 20.0
_TOLD_SECONDS = 5.0  # a download is known to its CDP session a moment before it is to Playwright
_CLOSE_MS = 1000  # a closed page is known to its CDP session a moment before it is to Playwright


@dataclass(frozen=True, slots=True)
class DialogAnswers:
    """How dialogs are answered.

    Attributes:
        confirm: whether questions are answered with yes.
        prompt: what is entered where a text is asked for; None enters what the page suggests.
        beforeunload: whether a page that asks whether to be left is left.
    """

    confirm: bool = True
    prompt: str | None = None
    beforeunload: bool = True


@dataclass(frozen=True, slots=True)
class Chooser:
    """A file chooser that a page opened by itself, or by a click: it was cancelled.

    Attributes:
        multiple: whether it would take several files.
    """

    multiple: bool

    def to_dict(self) -> dict[str, bool]:
        """Return it as JSON for `info`."""
        return {"multiple": self.multiple}


@dataclass(frozen=True, slots=True)
class Dialog:
    """A dialog that a page opened, as it was answered.

    Attributes:
        kind: `alert`, `confirm`, `prompt`, `beforeunload`, or `validation`: the browser's own complaint about
            a field, which at level EXACT is told and not shown.
    """

    kind: str
    message: str
    answer: str

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON for `info`."""
        return {"kind": self.kind, "message": self.message, "answer": self.answer}


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file that a page offered. `error` says why it did not arrive.

    Attributes:
        path: where it is kept, by its digest, if the environment keeps downloads.
    """

    url: str
    filename: str
    size: int = 0
    sha256: str = ""
    error: str = ""
    path: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON for `info`."""
        return {
            "url": self.url,
            "filename": self.filename,
            "size": self.size,
            "sha256": self.sha256,
            "error": self.error,
            "path": str(self.path) if self.path else "",
        }


class Tabs:
    """The open pages of a context in the order of opening, one of them active."""

    def __init__(self, context: BrowserContext) -> None:
        self._answers = DialogAnswers()
        self._folder: Path | None = None
        self._context = context
        self._next_answer: tuple[bool, str | None] | None = None
        self._attended: WeakSet[Page] = WeakSet()
        self._choosers: list[Chooser] = []
        self._pages: list[Page] = []
        self._visited: list[Page] = []  # the active page last
        self._dialogs: list[Dialog] = []
        self._downloads: list[PlaywrightDownload] = []
        self._told = asyncio.Event()  # of another download
        self._count = 0  # of downloads told
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
        self.check()
        return self._visited[-1]

    def check(self) -> None:
        """Check that there is a page to act on.

        Raises:
            InfraError: if a page crashed or none is open.
        """
        if self._crashed:
            raise InfraError(f"the page {self._crashed} crashed")
        if not self._visited:
            raise InfraError("no page is open")

    def activate(self, page: Page) -> None:
        """Make a page the active one."""
        if page in self._visited:
            self._visited.remove(page)
        self._visited.append(page)

    async def ensure_one(self) -> None:
        """Open an empty tab if the last one was closed, as a browser window would end."""
        if not self._visited:
            await self._context.new_page()

    def configure(self, answers: DialogAnswers, downloads: Path | None) -> None:
        """Say how dialogs are answered, and which folder keeps downloads, each under its SHA-256."""
        self._answers, self._folder = answers, downloads

    async def attend(self, page: Page) -> None:
        """Have file choosers of a page cancelled and told of, as nobody sits there to answer them."""
        if page in self._attended:
            return
        self._attended.add(page)
        probe = await PageProbe.of(page)
        probe.hear("Page.fileChooserOpened", self._on_chooser)
        await probe.send("Page.setInterceptFileChooserDialog", enabled=True, cancel=True)

    def answer_next(self, *, accept: bool, text: str | None) -> None:
        """Say how the dialog that comes next is answered, whatever is usual."""
        self._next_answer = (accept, text)

    async def take_events(self) -> dict[str, list[dict[str, Any]]]:
        """Return, for `info`, what pages did beside being pages since the last call; wait for downloads."""
        await self._meet_downloads()
        dialogs, self._dialogs = self._dialogs + self._refusals(), []
        choosers, self._choosers = self._choosers, []
        downloads, self._downloads = self._downloads, []
        return {
            "dialogs": [dialog.to_dict() for dialog in dialogs],
            "choosers": [chooser.to_dict() for chooser in choosers],
            "downloads": [(await _arrived(download, self._folder)).to_dict() for download in downloads],
        }

    def _refusals(self) -> list[Dialog]:
        """Return, as dialogs, what the browser said at level EXACT of fields that it would not send."""
        exact = state_of(self._context).exact
        if exact is None:
            return []
        refusals, exact.refusals = exact.refusals, []
        return [Dialog("validation", message, "dismissed") for message in refusals]

    async def _meet_downloads(self) -> None:
        """Wait until Playwright has told of all downloads that the browser has begun, at level EXACT."""
        exact = state_of(self._context).exact
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_SECONDS):
                while exact and self._count < len(exact.downloads):
                    self._told.clear()
                    await self._told.wait()
        self._count = max(self._count, len(exact.downloads) if exact else 0)

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
        self._count += 1
        self._told.set()

    def _on_chooser(self, event: dict[str, Any]) -> None:
        self._choosers.append(Chooser(event["mode"] != "selectSingle"))

    async def _asked(self, dialog: PlaywrightDialog) -> None:
        accept, text = self._answer(dialog)
        prompted = accept and dialog.type == "prompt"
        self._dialogs.append(
            Dialog(dialog.type, dialog.message, text if prompted else "accepted" if accept else "dismissed")
        )
        try:
            await (dialog.accept(*([text] if prompted else [])) if accept else dialog.dismiss())
        except PlaywrightError:
            # The page went away with its dialog open; then nobody waits for the answer.
            return

    def _answer(self, dialog: PlaywrightDialog) -> tuple[bool, str]:
        chosen, self._next_answer = self._next_answer, None
        usual = {"confirm": self._answers.confirm, "beforeunload": self._answers.beforeunload}
        accept, text = chosen or (usual.get(dialog.type, True), self._answers.prompt)
        return accept, dialog.default_value if text is None else text


async def closed_itself(page: Page) -> bool:
    """Return whether a page that failed was merely closed, as pages may close themselves."""
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
        return DownloadedFile(url, name, error=error.message.partition("\n")[0])
    kept = await asyncio.to_thread(_keep, path, folder / digest) if folder else None
    return DownloadedFile(url, name, size, digest, path=kept)


def _measured(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _keep(path: Path, kept: Path) -> Path:
    """Copy a file to where it is kept; whoever looks there meanwhile finds all of it or none."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=".", delete=False) as part:
            shutil.copyfile(path, part.name)
        Path(part.name).replace(kept)
    return kept

"""The clipboard of a context: Chromium has one for all contexts of a browser.

Without this module a page would paste what another session, or an earlier episode, has copied. So a context
keeps the text that its pages copied. Before keys that may paste, a page in another context writes it to the
browser's clipboard. No other session presses such keys meanwhile. Copies are seen by their events,
which keys and `execCommand` cause. A text that a page writes by `navigator.clipboard` causes none, and is not
pasted. Formats other than plain text are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from playwright.async_api import Browser, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.connection import connection_of, has_connection
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.input.pointer import holds_modifier
from stillweb.browser.profile import Level
from stillweb.browser.state import state_of
from stillweb.errors import InfraError

_KEYS = frozenset({"c", "x", "v", "C", "X", "V", "KeyC", "KeyX", "KeyV", "Insert", "Delete"})
_OWN_PAGE = "https://clipboard.invalid/"  # the API needs a secure context; nothing is requested
_WRITE = """async (text) => {
  await navigator.clipboard.writeText(text);
  return navigator.clipboard.readText(); // by the same pipe, so the browser has the text afterwards
}"""


@dataclass(slots=True)
class _SharedClipboard:
    """The clipboard of a browser."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    page: Page | None = None

    async def write(self, browser: Browser, text: str) -> None:
        if self.page is None or self.page.is_closed():
            # `open_context` identifies a new context by comparing lists.
            async with connection_of(browser).contexts if has_connection(browser) else nullcontext():
                context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
            page = await context.new_page()
            await page.route("**/*", lambda route: route.fulfill(body="<p>", content_type="text/html"))
            await page.goto(_OWN_PAGE)
            self.page = page
            browser.once("disconnected", _forget)
        await self.page.evaluate(_WRITE, text)


_shared: WeakKeyDictionary[Browser, _SharedClipboard] = WeakKeyDictionary()


def _forget(browser: Browser) -> None:
    """Drop a clipboard whose page would keep its browser from being collected."""
    _shared.pop(browser, None)


@asynccontextmanager
async def own_clipboard(page: Page, keys: str) -> AsyncIterator[None]:
    """Let keys that are pressed meanwhile copy or paste with the clipboard of the page's context.

    Raises:
        InfraError: if the clipboard cannot be written.
    """
    browser, state = page.context.browser, state_of(page.context)
    is_chord = keys.rpartition("+")[2] in _KEYS and ("+" in keys or holds_modifier(page))
    if browser is None or state.pinning.level is Level.LIVE or not is_chord:
        yield
        return
    shared = _shared.setdefault(browser, _SharedClipboard())
    async with shared.lock:
        await _note_copies(page)
        try:
            await shared.write(browser, state.clipboard)
        except PlaywrightError as error:
            raise InfraError(f"the clipboard was not written: {error.message}", hint="reset") from error
        yield
        await _note_copies(page)


async def _note_copies(page: Page) -> None:
    """Store the newest text that a page of the context has copied."""
    copies: list[tuple[float, str]] = []
    for each in page.context.pages:
        with suppress(FrameGone, InfraError):  # closed meanwhile
            probe = await PageProbe.of(each)
            copies += filter(None, await probe.evaluate_all("eye.copied()", await probe.frames()))
    if copies:
        state_of(page.context).clipboard = max(copies)[1]

"""A page as text, as HTML and as a screenshot.

None of them changes the page: text and HTML are read in the isolated world. The style that hides the caret
for a screenshot is a constructed sheet of that world, removed immediately afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.state import state_of
from stillweb.errors import InfraError, UsageError
from stillweb.text import well_formed
from stillweb.urls import BlobNumbers

_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
_TALLEST = 16_384  # CSS px, height limit of a screenshot: the largest texture that Chromium draws in software
_CAP = 15.0  # seconds; a screenshot takes about a tenth of one


async def page_address(page: Page) -> str:
    """Return a page's URL.

    At level EXACT it comes from the browser itself: Playwright may learn of a navigation only after the page
    has settled on a busy machine.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    if state_of(page.context).exact is None:
        return page.url
    return (await (await PageProbe.of(page)).frames())[0].url


async def page_title(page: Page) -> str:
    """Return the title of the document at `page_address`.

    Raises:
        InfraError: if the page is closed, has crashed or keeps navigating.
    """
    if state_of(page.context).exact is None:
        return well_formed(await page.title())
    return await _read(page, "document.title")


async def page_text(page: Page) -> str:
    """Return the visible text of a page and its frames; blanks and empty lines are collapsed.

    Blob URLs are numbered in order.

    Raises:
        InfraError: if the page is closed, has crashed or keeps navigating.
    """
    probe = await PageProbe.of(page)
    for _ in range(5):
        texts = await probe.evaluate_all("eye.text()", await probe.frames())
        if texts[0] is not None:
            text = "\n\n".join(text for text in texts if text)
            return _normalised(BlobNumbers().write(well_formed(text)))
        await probe.arrived(3.0)  # the main document has gone: its text is unknown, not ""
    raise InfraError(f"{page.url}: documents kept changing while they were read")


async def page_html(page: Page) -> str:
    """Return the serialised DOM of a page's main frame; blob URLs are numbered in order.

    Raises:
        InfraError: if the page is closed, has crashed or keeps navigating.
    """
    return BlobNumbers().write(await _read(page, "eye.html()"))


async def _read(page: Page, expression: str) -> str:
    probe = await PageProbe.of(page)
    for _ in range(5):
        try:
            return well_formed(str(await probe.evaluate(expression)))
        except FrameGone:
            await probe.arrived(3.0)
    raise InfraError(f"{page.url}: documents kept changing while they were read")


async def screenshot(page: Page, *, full_page: bool = False, cap: float = _CAP) -> bytes:
    """Return a PNG of the viewport: no caret, endless animations at their beginning.

    Args:
        page: of a context opened by `open_context`.
        full_page: the whole page, up to 16,384 px.
        cap: seconds at most.

    Raises:
        InfraError: if the browser does not draw in time, or the page is closed or has crashed.
        UsageError: for the whole page at level EXACT.
    """
    probe = await PageProbe.of(page)
    # The same pixels in half the time, in a file 25 % larger.
    wanted = {"format": "png", "captureBeyondViewport": full_page, "optimizeForSpeed": True}
    try:
        async with asyncio.timeout(cap):
            exact = state_of(page.context).exact is not None  # at EXACT nothing moves, and no caret exists
            if not exact:
                await probe.evaluate_all("eye.hold(true)", await probe.frames())
            if full_page:
                size = (await probe.send("Page.getLayoutMetrics"))["cssContentSize"]
                wanted["clip"] = {
                    "x": 0,
                    "y": 0,
                    "width": size["width"],
                    "height": min(size["height"], _TALLEST),
                    "scale": 1,
                }
            picture = await _capture(probe, wanted)
            if not exact:
                await probe.evaluate_all("eye.hold(false)", await probe.frames())
    except TimeoutError as error:
        raise InfraError(f"{page.url}: no screenshot within {cap:g} s") from error
    except FrameGone as error:
        raise InfraError(f"{page.url}: the page went away while a screenshot was taken") from error
    return base64.b64decode(picture)


async def _capture(probe: PageProbe, wanted: dict[str, Any]) -> str:
    exact = state_of(probe.page.context).exact
    if exact is None:
        return str((await probe.send("Page.captureScreenshot", **wanted))["data"])
    if wanted["captureBeyondViewport"]:
        # A frame shows the viewport; a larger viewport would be a resize that the page sees.
        raise UsageError(
            "at level 'exact' a screenshot shows the viewport only", hint="full_page=False, or level 'clock'"
        )
    return await exact.frames.screenshot(probe.cdp)


def _normalised(text: str) -> str:
    lines = (_BLANKS.sub(" ", line).strip() for line in text.replace("\r", "").split("\n"))
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()

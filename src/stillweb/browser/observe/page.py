"""A page as text, as HTML and as pixels.

None of them touches the page: text and HTML are read from the isolated world, and the style that
hides the caret for a screenshot is in a constructed sheet of that world, gone right afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.context import state_of
from stillweb.errors import InfraError, UsageError
from stillweb.text import well_formed

_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")
# Its name is another one each time.
_BLOB = re.compile(r"(blob:[^\s\"'<>/]*//[^\s\"'<>/]*/)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TALLEST = 16_384  # CSS px of a page's picture: the largest texture that Chromium draws in software
_CAP = 15.0  # seconds; a screenshot takes a tenth of one


async def page_address(page: Page) -> str:
    """Return a page's address.

    At level EXACT the browser itself is asked: Playwright hears of a navigation by a way of its own, on a
    busy machine after the page has settled here.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    if state_of(page.context).world is None:
        return page.url
    return (await (await PageProbe.of(page)).frames())[0].url


async def page_title(page: Page) -> str:
    """Return a page's title; of the same document as `page_address`.

    Raises:
        InfraError: if the page is closed or has crashed, or does not stay.
    """
    if state_of(page.context).world is None:
        return well_formed(await page.title())
    return await _read(page, "document.title")


async def page_text(page: Page) -> str:
    """Return the text that a page shows, its frames' after its own; blanks and empty lines collapsed.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    probe = await PageProbe.of(page)
    for _ in range(5):
        told = await probe.evaluate_all("eye.text()", await probe.frames())
        if told[0] is not None:
            return _normalised(well_formed("\n\n".join(text for text in told if text)))
        await probe.arrived(3.0)  # the document itself went away: its text is not "", it is not known
    raise InfraError(f"{page.url}: documents came and went too fast to be read")


async def page_html(page: Page) -> str:
    """Return the DOM of a page's main frame, serialised; addresses of blobs are numbered in their order.

    Raises:
        InfraError: if the page is closed or has crashed, or does not stay.
    """
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"{found[1]}{numbers.setdefault(found[0], len(numbers) + 1)}"

    return _BLOB.sub(numbered, await _read(page, "eye.html()"))


async def _read(page: Page, expression: str) -> str:
    """Return a text of a page's main frame; where its document goes away, the next one is asked."""
    probe = await PageProbe.of(page)
    for _ in range(5):
        try:
            return well_formed(str(await probe.evaluate(expression)))
        except FrameGone:
            await probe.arrived(3.0)
    raise InfraError(f"{page.url}: documents came and went too fast to be read")


async def screenshot(page: Page, *, full_page: bool = False, cap: float = _CAP) -> bytes:
    """Return a picture of the viewport as PNG: no caret, and animations that never end at their beginning.

    Args:
        page: of a context opened by `open_context`.
        full_page: whether to show the whole page, its first 16,384 px at most.
        cap: seconds at most.

    Raises:
        InfraError: if the browser does not draw in time, or the page is closed or has crashed.
        UsageError: if the whole page is asked for at level EXACT.
    """
    probe = await PageProbe.of(page)
    # The same picture in half the time, in a file a quarter larger.
    wanted = {"format": "png", "captureBeyondViewport": full_page, "optimizeForSpeed": True}
    try:
        async with asyncio.timeout(cap):
            stepped = state_of(page.context).world is not None  # nothing moves there, and there is no caret
            if not stepped:
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
            if not stepped:
                await probe.evaluate_all("eye.hold(false)", await probe.frames())
    except TimeoutError as error:
        raise InfraError(f"{page.url}: no screenshot within {cap:g} s") from error
    except FrameGone as error:
        raise InfraError(f"{page.url}: the page went away while a screenshot was taken") from error
    return base64.b64decode(picture)


async def _capture(probe: PageProbe, wanted: dict[str, Any]) -> str:
    world = state_of(probe.page.context).world
    if world is None:
        return str((await probe.send("Page.captureScreenshot", **wanted))["data"])
    if wanted["captureBeyondViewport"]:
        # A frame shows the viewport; to make that larger would be a resize that the page sees.
        raise UsageError(
            "at level 'exact' a screenshot shows the viewport only", hint="full_page=False, or level 'clock'"
        )
    return await world.picture(probe.line)


def _normalised(text: str) -> str:
    lines = (_BLANKS.sub(" ", line).strip() for line in text.replace("\r", "").split("\n"))
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()

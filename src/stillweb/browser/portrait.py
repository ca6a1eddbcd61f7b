"""All that is compared of a page, taken at once and in one order: at its recording and at its replay."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.async_api import Page

from stillweb.browser import Bids, axtree, page_text, screenshot
from stillweb.browser.outline import outline


@dataclass(frozen=True, slots=True)
class Portrait:
    """What a page looks like.

    Attributes:
        url: where it has arrived.
        picture: PNG of the viewport.
        text: what it shows (`page_text`).
        axtree: flattened accessibility tree.
        dom: its elements and where they stand (`outline`).
    """

    url: str = ""
    picture: bytes = b""
    text: str = ""
    axtree: str = ""
    dom: str = ""


async def portrait(page: Page) -> Portrait:
    """Return what a page looks like now; settle it first.

    Raises:
        InfraError: if the page is closed or has crashed, or does not stay.
    """
    tree = await axtree(page, Bids())
    text = await page_text(page)
    dom = await outline(page)
    return Portrait(page.url, await screenshot(page), text, tree.text, dom)

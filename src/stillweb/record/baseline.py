"""A page as it looked when it was recorded: what `stillweb diff` holds a replay against.

Taken when the page has settled and before it is scrolled, since that is the state that a replay
reaches by loading the page alone. `resources.json` lists every request up to then, in order.
"""

from __future__ import annotations

import json
from pathlib import Path

from playwright.async_api import Page as BrowserPage

from stillweb.browser.activity import Activity
from stillweb.browser.axtree import Bids, axtree
from stillweb.browser.observe import page_text, screenshot

SCREENSHOT, TEXT, AXTREE, RESOURCES = "screenshot.png", "text.txt", "axtree.txt", "resources.json"


async def take_baseline(page: BrowserPage, activity: Activity, folder: Path) -> None:
    """Write the page's picture, text, accessibility tree and list of requests into a new folder."""
    resources = json.dumps(resource_list(activity), indent=1) + "\n"
    tree = await axtree(page, Bids())
    text = await page_text(page)
    picture = await screenshot(page)
    _write(folder, {SCREENSHOT: picture, TEXT: text, AXTREE: tree.text, RESOURCES: resources})


def _write(folder: Path, files: dict[str, bytes | str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def resource_list(activity: Activity) -> list[dict[str, object]]:
    """Return the requests of a context so far, in the order they were made."""
    return [
        {
            "url": request.url,
            "method": request.method,
            "type": request.resource_type,
            "status": request.status,
            "failed": request.failure,
        }
        for request in activity.requests
    ]

"""While a page is acted on, nothing leads away from it: navigations and popups are stopped and counted.

The page's documents are held up by CDP `Fetch`, for requests of documents alone, so that the browser's
cache stays on. A stopped navigation asks the site for nothing. A popup is closed as soon as it is
there; its first request may have gone out, and is recorded like any other. Forms are stopped by
`behaviours.js`. Scripts may send what they like by `fetch`: a menu that is loaded by POST could not be
told from an order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.probe import FrameGone, Probe
from stillweb.errors import InfraError
from stillweb.record.behaviours import Deeds

_DOCUMENTS = [{"urlPattern": "*", "resourceType": "Document", "requestStage": "Request"}]


@asynccontextmanager
async def staying(page: Page, probe: Probe, deeds: Deeds) -> AsyncIterator[None]:
    """Keep a page where it is, and alone, while within."""
    main = (await probe.frames())[0].id
    tasks: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def decide(event: dict[str, Any]) -> None:
        with suppress(FrameGone, InfraError):  # the page has gone, and its request with it
            if event["frameId"] == main or event["request"]["method"] != "GET":
                deeds.count("stopped", "navigations")
                await probe.send("Fetch.failRequest", requestId=event["requestId"], errorReason="Aborted")
            else:
                await probe.send("Fetch.continueRequest", requestId=event["requestId"])

    async def shut(popup: Page) -> None:
        deeds.count("stopped", "popups")
        with suppress(PlaywrightError):
            await popup.close()

    def on_page(popup: Page) -> None:
        spawn(shut(popup))

    probe.hear("Fetch.requestPaused", lambda event: spawn(decide(event)))
    await probe.send("Fetch.enable", patterns=_DOCUMENTS)
    page.context.on("page", on_page)
    try:
        yield
    finally:
        page.context.remove_listener("page", on_page)
        while tasks:
            await asyncio.wait(list(tasks))
        with suppress(FrameGone, InfraError):  # closed by itself
            await probe.send("Fetch.disable")

"""One page of a crawl: load, settle, take the baseline, scroll, collect links.

Each page gets a browser context of its own: no cookies, storage or HTTP cache of the pages
before it. A replay that loads the page alone, with the same seed and clock, then asks for
exactly what was recorded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page as BrowserPage
from playwright.async_api import TimeoutError as PlaywrightTimeout

from stillweb.browser.activity import Activity, is_ours
from stillweb.browser.context import open_context
from stillweb.browser.probe import FrameGone, Probe
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.browser.witness import Witness
from stillweb.clock import now, perf
from stillweb.errors import InfraError
from stillweb.record.baseline import take_baseline
from stillweb.record.frontier import Visit
from stillweb.record.scope import page_links
from stillweb.urls import to_timestamp

_SCROLL_STEPS = 40  # viewports at most, for pages that grow as long as they are scrolled
_SETTLE_CAP = 30.0  # real seconds; a live site is slower than its replay
_FRAME_PATIENCE = 5.0  # seconds for one script in one frame, which may be busy
_LAST_ANSWERS = 5.0  # seconds for answers that are under way when the page is left


# Both scripts run in an isolated world: the page can neither see nor break them.
# Through open shadow roots, in tree order. getAttribute, since `href` of an SVG link is no string.
_LINKS = """(() => {
  const found = [];
  const walk = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.matches("a[href], area[href]")) {
        found.push([element.getAttribute("href"), document.baseURI]);
      }
      if (element.shadowRoot) walk(element.shadowRoot);
    }
  };
  walk(document);
  return found;
})()"""

# An intersection observer tells of the next frame even while the page's clock stands still.
_SCROLL = """(async (top) => {
  const root = document.scrollingElement || document.documentElement;
  if (!root) return [0, 0];
  window.scrollTo({top, behavior: "instant"});
  await new Promise((resolve) => {
    const observer = new IntersectionObserver(() => { observer.disconnect(); resolve(); });
    observer.observe(root);
  });
  return [root.scrollHeight, window.innerHeight];
})(%d)"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all pages of a crawl share.

    Attributes:
        proxy: URL of the recording proxy.
        profile, pinning: what their contexts are told.
        page_timeout: seconds for a navigation.
        retries: further attempts at a navigation that failed.
        at_rest: told of the WebSockets and requests of a page that has settled; within it nothing new comes.
    """

    proxy: str
    profile: Profile
    pinning: Pinning
    page_timeout: float
    retries: int
    at_rest: Callable[[Iterable[str]], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Visited:
    """What came of a visit.

    Attributes:
        visit: the page asked for.
        timestamp: 14 digits, when it was asked for.
        status: HTTP status of its document, 0 if there was no answer.
        title: "" if it has none.
        links: pages that it links to, in document order.
        error: why it could not be loaded, "" if it could.
        unsettled: why it did not come to rest, "" if it did.
        disturbed: whether browser or machine, not the site, made a request fail.
    """

    visit: Visit
    timestamp: str
    status: int = 0
    title: str = ""
    links: tuple[str, ...] = ()
    error: str = ""
    unsettled: str = ""
    disturbed: bool = False


async def visit_page(browser: Browser, setting: Setting, visit: Visit, baseline: Path) -> Visited:
    """Visit a page, again if it fails, and write its baseline."""
    for attempt in range(setting.retries + 1):
        visited = await _attempt(browser, setting, visit, baseline)
        well = not visited.error and not visited.disturbed
        if well or attempt == setting.retries or not browser.is_connected():
            break
    return visited


async def _attempt(browser: Browser, setting: Setting, visit: Visit, baseline: Path) -> Visited:
    timestamp = to_timestamp(now())
    try:
        context = await open_context(
            browser, proxy=setting.proxy, profile=setting.profile, pinning=setting.pinning
        )
    except PlaywrightError as error:
        return Visited(visit, timestamp, error=_first_line(error))
    try:
        return await _load(context, setting, visit, timestamp, baseline)
    except (PlaywrightError, InfraError) as error:
        return Visited(visit, timestamp, error=_first_line(error))
    finally:
        with suppress(PlaywrightError):  # the browser is gone already
            await context.close()


async def _load(
    context: BrowserContext, setting: Setting, visit: Visit, timestamp: str, baseline: Path
) -> Visited:
    witness = Witness(context)
    activity = witness.activity
    page = await context.new_page()
    began = perf()
    await _navigate(page, visit.url, setting.page_timeout)
    witness.load_ms = 1000 * (perf() - began)
    rest = await settle(page, activity, cap=_SETTLE_CAP)
    open_ones = [*activity.websockets, *(each.url for each in activity.requests if not each.ended)]
    with setting.at_rest(open_ones):
        await take_baseline(page, witness, rest, baseline)
    probe = await Probe.of(page)
    await _scroll_through(probe)
    await settle(page, activity)
    links = await _links(probe)
    title = await page.title()
    status = _document_status(activity)
    with suppress(TimeoutError):  # what has not come by then is cut off, and not recorded
        await asyncio.wait_for(activity.idle(), _LAST_ANSWERS)
    await witness.close()
    return Visited(
        visit,
        timestamp,
        status,
        title,
        tuple(links),
        unsettled="" if rest.settled else rest.reason,
        disturbed=any(is_ours(entry.failure) for entry in activity.requests),
    )


async def _navigate(page: BrowserPage, url: str, timeout: float) -> None:
    try:
        await page.goto(url, wait_until="load", timeout=timeout * 1000)
    except PlaywrightTimeout:
        if page.url == "about:blank":
            raise
        # The document is there; something in it never ends loading. `settle` will say so.


def _document_status(activity: Activity) -> int:
    """Return the status of the page's document, redirects followed; 0 if there was no answer."""
    found = (entry.status for entry in activity.requests if entry.resource_type == "document")
    return next((status for status in found if status and not 300 <= status < 400), 0)


async def _scroll_through(probe: Probe) -> None:
    """Scroll to the end a screen at a time, so that what loads when it comes into view does, and back."""
    top = 0
    for _ in range(_SCROLL_STEPS):
        height, step = await _patiently(probe.evaluate(_SCROLL % top)) or (0, 0)
        top += step
        if step <= 0 or top >= height:
            break
    await _patiently(probe.evaluate(_SCROLL % 0))


async def _links(probe: Probe) -> list[str]:
    """Return the pages that the frames link to, each once, parents before children."""
    found = await _patiently(probe.evaluate_all(_LINKS, await probe.frames())) or []
    return page_links((href, base) for frame in found for href, base in frame or ())


async def _patiently(evaluation: Coroutine[Any, Any, Any]) -> Any:
    """Return what a script gives; None where its frame has gone or does not answer."""
    try:
        async with asyncio.timeout(_FRAME_PATIENCE):
            return await evaluation
    except (FrameGone, InfraError, TimeoutError):
        return None


def _first_line(error: PlaywrightError | InfraError) -> str:
    return str(error).partition("\n")[0].removeprefix("Page.goto: ") or "the browser failed"

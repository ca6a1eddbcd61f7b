"""One page of a crawl: load, settle, take the baseline, do what a visitor might, collect links.

Each page gets a browser context of its own: no cookies, storage or HTTP cache of the pages
before it. A replay that loads the page alone, with the same seed and clock, then asks for
exactly what was recorded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from playwright.async_api import Browser, BrowserContext, Download, Request
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page as BrowserPage
from playwright.async_api import TimeoutError as PlaywrightTimeout

from stillweb.browser.activity import Activity, is_ours
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.context import open_context
from stillweb.browser.driver import DOWNLOAD
from stillweb.browser.observe.recorder import BodyDigestCache, PageRecorder, request_list
from stillweb.browser.observe.snapshot import take_snapshot
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import Settled, settle
from stillweb.clock import now, perf
from stillweb.collections.baselines import RecordedResponse, write_baseline
from stillweb.errors import InfraError
from stillweb.model import BUSY, VISITED_AGAIN
from stillweb.record.behaviors.actions import behave
from stillweb.record.behaviors.behaviors import FRAME_PATIENCE, BehaviorOptions, BehaviorTarget, in_words
from stillweb.record.crawl.frontier import Visit
from stillweb.record.crawl.scope import LEADS_TO, page_url
from stillweb.record.login.run import LoginCheck, LoginSession
from stillweb.urls import to_timestamp


async def take_baseline(page: BrowserPage, witness: PageRecorder, rest: Settled, folder: Path) -> None:
    """Write what the page looks like and what led to it into a new folder."""
    pending = witness.pending()
    requests = request_list(await witness.requests())
    seen = await take_snapshot(page)
    write_baseline(
        folder,
        seen.picture,
        {"text": seen.text, "axtree": seen.axtree, "dom": seen.dom},
        requests,
        RecordedResponse(seen.url, rest.settled, rest.reason, pending, witness.complaints, witness.load_ms),
    )


_FOR_BEHAVIOURS = 0.75  # of a page's time may be gone when the last of them ends
_FOR_NAVIGATION, _FOR_SETTLING, _FOR_VISIT = 0.5, 1 / 3, 0.9  # of a page's time, at most
_CLOSE_SECONDS = 15.0
_AFTER_A_BREAK = 2.0  # seconds for the end of a navigation whose document has failed
_ABORTED = "net::ERR_ABORTED"  # by the page itself, which goes elsewhere
_LAST_ANSWERS = 5.0  # seconds for answers that are under way when the page is left


# In an isolated world: the page can neither see nor break it. Through open shadow roots, in tree order.
_LINKS = f"""(() => {{
  {LEADS_TO}
  const found = [];
  const walk = (root) => {{
    for (const element of root.querySelectorAll("*")) {{
      if (element.matches("a[href], area[href]")) {{
        found.push(leadsTo(element, element.getAttribute("href")));
      }}
      if (element.shadowRoot) walk(element.shadowRoot);
    }}
  }};
  walk(document);
  return found;
}})()"""


@dataclass(frozen=True, slots=True)
class CrawlContext:
    """What all pages of a crawl share.

    Attributes:
        proxy: URL of the recording proxy.
        profile, pinning: what their contexts are told.
        page_timeout: seconds for one attempt at a page, all in all.
        retries: further attempts at a page that failed.
        conduct: what is done with a page after its baseline was taken.
        login: what every page's context starts with; None where nobody is logged in.
        same: answers whose digests need not be asked for again.
        baseline: whether what a page looks like is kept.
        at_rest: told of the WebSockets and requests of a page that has settled; within it nothing new comes.
    """

    proxy: str
    profile: Profile
    pinning: Pinning
    page_timeout: float
    retries: int
    at_rest: Callable[[Iterable[str]], AbstractContextManager[None]]
    conduct: BehaviorOptions = field(default_factory=BehaviorOptions)
    login: LoginSession | None = None
    same: BodyDigestCache | None = None
    baseline: bool = True

    @property
    def hold(self) -> LoginCheck:
        """What contexts of the recording are opened with."""
        return LoginCheck(self.proxy, self.profile, self.pinning)


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
        deeds: what was done with it (`Deeds.to_dict`).
        cut: what of the visit had to be left out, "" if nothing.
        retried: why the attempt before this one failed, "" if this is the first.
        is_file: whether it is no page but a file to save, which has come whole.
    """

    visit: Visit
    timestamp: str
    status: int = 0
    title: str = ""
    links: tuple[str, ...] = ()
    error: str = ""
    unsettled: str = ""
    disturbed: bool = False
    deeds: Mapping[str, Any] = field(default_factory=dict)
    cut: str = ""
    retried: str = ""
    is_file: bool = False


def extra_of(visited: Visited, again: str = "") -> dict[str, str]:
    """Return what a page's entry says besides what every tool knows.

    Args:
        visited: what came of its visit.
        again: why an earlier crawl may have visited it.
    """
    said = {"unsettled": visited.unsettled, "cut": visited.cut, "behaviours": in_words(visited.deeds)}
    said[VISITED_AGAIN] = visited.retried or again
    return {name: value for name, value in said.items() if value}


async def visit_page(browser: Browser, setting: CrawlContext, visit: Visit, baseline: Path) -> Visited:
    """Visit a page, again if it fails or the site is too busy; write its baseline, unless none is wanted."""
    retried = ""
    for attempt in range(setting.retries + 1):
        visited = replace(await _attempt(browser, setting, visit, baseline), retried=retried)
        wrong = _why_again(visited)
        if not wrong or attempt == setting.retries or not browser.is_connected():
            break
        retried = wrong
    return visited


def _why_again(visited: Visited) -> str:
    """Return why a page is to be visited again; "" if all went well."""
    if visited.error or visited.disturbed:
        return visited.error or "the machine's network changed"
    return f"status {visited.status}" if visited.status in BUSY else ""


async def _attempt(browser: Browser, setting: CrawlContext, visit: Visit, baseline: Path) -> Visited:
    timestamp = to_timestamp(now())
    try:
        context = await open_context(
            browser,
            proxy=setting.proxy,
            profile=setting.profile,
            pinning=setting.pinning,
            storage_state=setting.login.state if setting.login else None,
        )
    except PlaywrightError as error:
        return Visited(visit, timestamp, error=_first_line(error))
    try:
        async with asyncio.timeout(setting.page_timeout):
            return await _load(browser, context, setting, visit, baseline)
    except TimeoutError:
        return Visited(visit, timestamp, error=f"not through after {setting.page_timeout:g} s")
    except (PlaywrightError, InfraError) as error:
        return Visited(visit, timestamp, error=_first_line(error))
    finally:
        await _close(browser, context)


async def _close(browser: Browser, context: BrowserContext) -> None:
    """Close a context; a browser that does not is ended, since the page would go on in it for ever."""
    with suppress(PlaywrightError):  # the browser is gone already
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await context.close()
        except TimeoutError:
            await browser.close()


async def _load(
    browser: Browser, context: BrowserContext, setting: CrawlContext, visit: Visit, baseline: Path
) -> Visited:
    timestamp = to_timestamp(now())
    witness = PageRecorder(context, setting.same, bodies=setting.baseline)
    activity = witness.activity
    page = await context.new_page()
    download: asyncio.Future[Download] = asyncio.get_running_loop().create_future()

    def begun(it: Download) -> None:  # a function: Playwright marks its listeners, and no built-in can be
        download.set_result(it)

    page.once("download", begun)
    began = perf()
    end = asyncio.get_running_loop().time() + _FOR_VISIT * setting.page_timeout
    try:
        loaded = await _navigate(page, visit.url, _FOR_NAVIGATION * setting.page_timeout)
    except PlaywrightError as error:
        if DOWNLOAD not in error.message:
            raise
        return await _saved(await download, visit, timestamp)
    witness.load_ms = 1000 * (perf() - began)
    if not loaded and (lost := _lost_document(page.url, activity)):
        return Visited(visit, timestamp, error=lost)
    rest = await settle(page, activity, cap=_FOR_SETTLING * setting.page_timeout)
    open_ones = [*activity.websockets, *(each.url for each in activity.requests if not each.ended)]
    with setting.at_rest(open_ones):
        if setting.baseline:
            await take_baseline(page, witness, rest, baseline)
    if setting.login:
        await setting.login.see(browser, setting.hold, page)
    probe = await PageProbe.of(page)
    links = dict.fromkeys(await _links(probe))

    async def gather() -> None:
        links.update(dict.fromkeys(await _links(probe)))

    left = _FOR_BEHAVIOURS * setting.page_timeout - (perf() - began)
    stage = BehaviorTarget(page, probe, activity, setting.conduct, gather, seconds=left)
    title = cut = ""
    try:
        async with asyncio.timeout_at(end):
            await behave(stage)
            title = await page.title()
    except TimeoutError:
        cut = f"not through after {_FOR_VISIT * setting.page_timeout:g} s"
    deeds = stage.deeds
    status = _document_status(activity)
    patience = min(_LAST_ANSWERS, (1 - _FOR_VISIT) / 2 * setting.page_timeout)
    with suppress(TimeoutError):  # what has not come by then is cut off, and not recorded
        await asyncio.wait_for(activity.idle(), patience)
    lost = _lost_document(page.url, activity)
    await witness.close()
    return Visited(
        visit,
        timestamp,
        status,
        title,
        tuple(links),
        error=lost,
        unsettled="" if rest.settled else rest.reason,
        disturbed=any(is_ours(entry.failure) for entry in activity.requests),
        deeds=deeds.to_dict(),
        cut=cut,
    )


async def _saved(download: Download, visit: Visit, timestamp: str) -> Visited:
    """Have a file come whole: the browser drops it with its context, and then it would not be recorded."""
    if failure := await download.failure():
        return Visited(visit, timestamp, error=f"its download failed: {failure}")
    await download.delete()
    return Visited(visit, timestamp, is_file=True)


async def _navigate(page: BrowserPage, url: str, timeout: float) -> bool:
    """Go to a page; return whether it has told that it is loaded."""
    broken = asyncio.Event()

    def failed(request: Request) -> None:
        if request.failure != _ABORTED and _is_main_document(page, request):
            broken.set()

    page.on("requestfailed", failed)
    going = asyncio.create_task(page.goto(url, wait_until="load", timeout=timeout * 1000))
    breaking = asyncio.create_task(broken.wait())
    try:
        await asyncio.wait({going, breaking}, return_when=asyncio.FIRST_COMPLETED)
        if not going.done():  # a document that broke off may never be told to be loaded
            await asyncio.wait({going}, timeout=_AFTER_A_BREAK)
        if not going.done():
            return False
        await going
    except PlaywrightTimeout:
        if page.url == "about:blank":
            raise PlaywrightTimeout(f"no document after {timeout:g} s") from None
        return False  # something in it never ends loading
    finally:
        page.remove_listener("requestfailed", failed)
        for task in (going, breaking):
            task.cancel()
        await asyncio.gather(going, breaking, return_exceptions=True)
    return True


def _is_main_document(page: BrowserPage, request: Request) -> bool:
    try:
        return request.is_navigation_request() and request.frame == page.main_frame
    except PlaywrightError:  # its frame is not there yet, or has gone
        return False


def _document_status(activity: Activity) -> int:
    """Return the status of the page's document, redirects followed; 0 if there was no answer."""
    found = (entry.status for entry in activity.requests if entry.resource_type == "document")
    return next((status for status in found if status and not 300 <= status < 400), 0)


def _lost_document(url: str, activity: Activity) -> str:
    """Return why the document that a page shows has not come whole, and so is not recorded; "" if it has.

    A page that has gone to an address of its own (`pushState`) shows none that was asked for by that.
    """
    place = urldefrag(url).url
    found = [
        entry
        for entry in activity.requests
        if entry.resource_type == "document" and urldefrag(entry.url).url == place
    ]
    if not found or any(entry.ended and not entry.failure for entry in found):
        return ""
    return next(
        (entry.failure for entry in found if entry.failure),
        "its document does not end, or a script in it loops",
    )


async def _links(probe: PageProbe) -> list[str]:
    """Return the pages that the frames link to, each once, parents before children."""
    found = await _patiently(probe.evaluate_all(_LINKS, await probe.frames())) or []
    urls = (page_url(url) for frame in found for url in frame or ())
    return list(dict.fromkeys(url for url in urls if url is not None))


async def _patiently(evaluation: Coroutine[Any, Any, Any]) -> Any:
    """Return what a script gives; None where its frame has gone or does not answer."""
    try:
        async with asyncio.timeout(FRAME_PATIENCE):
            return await evaluation
    except (FrameGone, InfraError, TimeoutError):
        return None


def _first_line(error: PlaywrightError | InfraError) -> str:
    return str(error).partition("\n")[0].removeprefix("Page.goto: ") or "the browser failed"

"""One page visit: load, settle, take the baseline, run the behaviors, collect links.

Each page gets its own browser context, without cookies, storage or HTTP cache of earlier pages. A replay that
loads the page alone, with the same seed and clock, sends exactly the recorded requests.
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
from stillweb.browser.driver import DOWNLOAD, failed_visit
from stillweb.browser.observe.recorder import BodyDigestCache, PageRecorder, request_list
from stillweb.browser.observe.snapshot import take_snapshot
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import Settled, settle
from stillweb.clock import now, perf
from stillweb.collections.baselines import RecordedResponse, write_baseline
from stillweb.errors import InfraError
from stillweb.model import BUSY, VISITED_AGAIN
from stillweb.polling import poll
from stillweb.record.behaviors.behaviors import FRAME_TIMEOUT, BehaviorTarget, behave, describe_actions
from stillweb.record.behaviors.options import BehaviorOptions
from stillweb.record.crawl.frontier import Visit
from stillweb.record.crawl.scope import LEADS_TO, page_url
from stillweb.record.login.run import ContextSettings, LoginSession
from stillweb.urls import to_timestamp


async def take_baseline(page: BrowserPage, recorder: PageRecorder, rest: Settled, folder: Path) -> None:
    """Write a page's appearance and requests into a new folder."""
    pending = recorder.pending()
    requests = request_list(await recorder.requests())
    seen = await take_snapshot(page)
    write_baseline(
        folder,
        seen.picture,
        {"text": seen.text, "axtree": seen.axtree, "dom": seen.dom},
        requests,
        RecordedResponse(seen.url, rest.settled, rest.reason, pending, recorder.complaints, recorder.load_ms),
    )


_BEHAVIOR_SHARE = 0.75  # share of a page's timeout by which the last behavior ends
_NAVIGATION_SHARE, _SETTLE_SHARE, _VISIT_SHARE = 0.5, 1 / 3, 0.9  # of a page's timeout
_SOCKET_SHARE = 0.2  # of a page's timeout, for the frames that follow a page's first ones
_SOCKET_QUIET_SECONDS = 2.0  # a site that works longer on a frame than this counts as done
_CLOSE_SECONDS = 15.0
_AFTER_FAILURE = 2.0  # seconds for a navigation to end after its document failed
_ABORTED = "net::ERR_ABORTED"  # the page itself navigates elsewhere
_DRAIN_SECONDS = 5.0  # for responses in flight when the page is left


# Runs in an isolated world, which the page cannot observe. Includes open shadow roots, in tree order.
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
    """Settings that all pages of a crawl share.

    Attributes:
        proxy: URL of the recording proxy.
        page_timeout: seconds for one attempt at a page.
        retries: further attempts at a page that failed.
        at_rest: called with the open sockets and streams of a settled page; holds them back within its
            context.
        behaviors: actions on a page after its baseline.
        login: login with which every context starts; None to stay anonymous.
        baseline: store the page's appearance.
    """

    proxy: str
    profile: Profile
    pinning: Pinning
    page_timeout: float
    retries: int
    at_rest: Callable[[Iterable[str]], AbstractContextManager[None]]
    behaviors: BehaviorOptions = field(default_factory=BehaviorOptions)
    login: LoginSession | None = None
    digests: BodyDigestCache | None = None
    baseline: bool = True

    @property
    def context_settings(self) -> ContextSettings:
        return ContextSettings(self.proxy, self.profile, self.pinning)


@dataclass(frozen=True, slots=True)
class Visited:
    """Outcome of a visit.

    Attributes:
        visit: the requested page.
        timestamp: 14 digits, the start of the visit.
        status: HTTP status of the document, 0 without a response.
        title: title of the page, "" if it has none.
        links: pages that it links to, in document order.
        error: why it could not be loaded, "" if it could.
        unsettled: why it did not settle, "" if it did.
        disturbed: whether browser or machine, not the site, made a request fail.
        actions: counts of the behaviors (`BehaviorReport.to_dict`).
        cut: which part of the visit was skipped, "" if none.
        retried: why the previous attempt failed, "" for the first attempt.
        is_file: whether the URL is a complete download instead of a page.
    """

    visit: Visit
    timestamp: str
    status: int = 0
    title: str = ""
    links: tuple[str, ...] = ()
    error: str = ""
    unsettled: str = ""
    disturbed: bool = False
    actions: Mapping[str, Any] = field(default_factory=dict)
    cut: str = ""
    retried: str = ""
    is_file: bool = False


def extra_of(visited: Visited, again: str = "") -> dict[str, str]:
    """Return the additional members of a page's entry.

    Args:
        again: why an earlier crawl may have visited it.
    """
    extra = {
        "unsettled": visited.unsettled,
        "cut": visited.cut,
        "behaviors": describe_actions(visited.actions),
    }
    extra[VISITED_AGAIN] = visited.retried or again
    return {name: value for name, value in extra.items() if value}


async def visit_page(browser: Browser, setting: CrawlContext, visit: Visit, baseline: Path) -> Visited:
    """Visit a page, again if it fails or the site is busy; write its baseline unless disabled."""
    retried = ""
    for attempt in range(setting.retries + 1):
        visited = replace(await _attempt(browser, setting, visit, baseline), retried=retried)
        wrong = _retry_reason(visited)
        if not wrong or attempt == setting.retries or not browser.is_connected():
            break
        retried = wrong
        await next_second()
    return visited


async def next_second() -> None:
    """Wait until captures get a later timestamp than those of an abandoned visit.

    Timestamps have whole seconds, and a pack omits the documents that are older than the last visit
    (`stillweb.collections.pack.seal`).
    """
    second = to_timestamp(now())
    await poll(lambda: to_timestamp(now()) > second, timeout=2)


def _retry_reason(visited: Visited) -> str:
    """Return why a page must be visited again; "" if it need not."""
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
        return Visited(visit, timestamp, error=failed_visit(error))
    try:
        async with asyncio.timeout(setting.page_timeout):
            return await _load(browser, context, setting, visit, baseline)
    except TimeoutError:
        return Visited(visit, timestamp, error=f"not complete after {setting.page_timeout:g} s")
    except (PlaywrightError, InfraError) as error:
        return Visited(visit, timestamp, error=failed_visit(error))
    finally:
        await _close(browser, context)


async def _close(browser: Browser, context: BrowserContext) -> None:
    """Close a context; close the browser if the context does not close, because its page would run on."""
    with suppress(PlaywrightError):  # the browser has ended
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await context.close()
        except TimeoutError:
            await browser.close()


async def _load(
    browser: Browser, context: BrowserContext, setting: CrawlContext, visit: Visit, baseline: Path
) -> Visited:
    timestamp = to_timestamp(now())
    recorder = PageRecorder(context, setting.digests, bodies=setting.baseline)
    activity = recorder.activity
    page = await context.new_page()
    began = perf()
    end = asyncio.get_running_loop().time() + _VISIT_SHARE * setting.page_timeout
    loaded = await _navigate(page, visit.url, _NAVIGATION_SHARE * setting.page_timeout)
    if isinstance(loaded, Download):
        return await _await_download(loaded, visit, timestamp)
    recorder.load_ms = 1000 * (perf() - began)
    if not loaded and (missing := _missing_document(page.url, activity)):
        return Visited(visit, timestamp, error=missing)
    rest = await _settled(page, activity, setting.page_timeout)
    with setting.at_rest(_open_connections(activity)):
        if setting.baseline:
            await take_baseline(page, recorder, rest, baseline)
    if setting.login:
        await setting.login.check_page(browser, setting.context_settings, page)
    left = _BEHAVIOR_SHARE * setting.page_timeout - (perf() - began)
    used = await _use(page, activity, setting, left, end)
    status = _document_status(activity)
    timeout = min(_DRAIN_SECONDS, (1 - _VISIT_SHARE) / 2 * setting.page_timeout)
    with suppress(TimeoutError):  # responses that take longer are cut off and not recorded
        await asyncio.wait_for(activity.idle(), timeout)
    missing = _missing_document(page.url, activity)
    await recorder.close()
    return Visited(
        visit,
        timestamp,
        status,
        used.title,
        used.links,
        error=missing,
        unsettled="" if rest.settled else rest.reason,
        disturbed=any(is_ours(entry.failure) for entry in activity.requests),
        actions=used.actions,
        cut=used.cut,
    )


@dataclass(frozen=True, slots=True)
class _UsedPage:
    """Links and title of a page after the behaviors, counts of these, and why they were cut off."""

    links: tuple[str, ...]
    title: str
    actions: dict[str, Any]
    cut: str


async def _use(
    page: BrowserPage, activity: Activity, setting: CrawlContext, seconds: float, end: float
) -> _UsedPage:
    """Run the behaviors on a settled page, for some seconds and at most until `end` of the loop's time."""
    probe = await PageProbe.of(page)
    links = dict.fromkeys(await _links(probe))

    async def gather() -> None:
        links.update(dict.fromkeys(await _links(probe)))

    target = BehaviorTarget(page, probe, activity, setting.behaviors, gather, seconds=seconds)
    title = cut = ""
    try:
        async with asyncio.timeout_at(end):
            await behave(target)
            title = await page.title()
    except TimeoutError:
        cut = f"not complete after {_VISIT_SHARE * setting.page_timeout:g} s"
    return _UsedPage(tuple(links), title, target.report.to_dict(), cut)


def _open_connections(activity: Activity) -> list[str]:
    """Return the URLs of the WebSockets, and of the requests whose responses have not ended."""
    return [*activity.websockets, *(each.url for each in activity.requests if not each.ended)]


async def _settled(page: BrowserPage, activity: Activity, timeout: float) -> Settled:
    rest = await settle(page, activity, cap=_SETTLE_SHARE * timeout)
    return await _sockets_settled(page, activity, rest, timeout) if activity.websockets else rest


async def _sockets_settled(page: BrowserPage, activity: Activity, rest: Settled, timeout: float) -> Settled:
    """Wait for the answers to a page's first frames, which `settle` waits for only briefly.

    An answer that arrives later counts as unprompted, and replay holds it back
    (docs/decisions/0016-frames.md).
    """
    if not await activity.sockets_quiet(_SOCKET_QUIET_SECONDS, _SOCKET_SHARE * timeout):
        return rest
    return await settle(page, activity, cap=_SOCKET_SHARE * timeout)


async def _await_download(download: Download, visit: Visit, timestamp: str) -> Visited:
    """Wait for a complete download: the browser drops it with its context, and it would not be recorded."""
    if failure := await download.failure():
        return Visited(visit, timestamp, error=f"its download failed: {failure}")
    await download.delete()
    return Visited(visit, timestamp, is_file=True)


async def _navigate(page: BrowserPage, url: str, timeout: float) -> bool | Download:
    """Go to a page; return whether its load event fired, or the download that came instead of a page."""
    download: asyncio.Future[Download] = asyncio.get_running_loop().create_future()

    def begun(it: Download) -> None:  # a function, because Playwright sets attributes on listeners
        download.set_result(it)

    page.once("download", begun)
    try:
        return await _fires_load(page, url, timeout)
    except PlaywrightError as error:
        if DOWNLOAD not in error.message:
            raise
        return await download


async def _fires_load(page: BrowserPage, url: str, timeout: float) -> bool:
    broken = asyncio.Event()

    def failed(request: Request) -> None:
        if request.failure != _ABORTED and _is_main_document(page, request):
            broken.set()

    page.on("requestfailed", failed)
    going = asyncio.create_task(page.goto(url, wait_until="load", timeout=timeout * 1000))
    breaking = asyncio.create_task(broken.wait())
    try:
        await asyncio.wait({going, breaking}, return_when=asyncio.FIRST_COMPLETED)
        if not going.done():  # the load event of a truncated document may never fire
            await asyncio.wait({going}, timeout=_AFTER_FAILURE)
        if not going.done():
            return False
        await going
    except PlaywrightTimeout:
        if page.url == "about:blank":
            raise PlaywrightTimeout(f"no document after {timeout:g} s") from None
        return False  # one of its resources never finishes loading
    finally:
        page.remove_listener("requestfailed", failed)
        for task in (going, breaking):
            task.cancel()
        await asyncio.gather(going, breaking, return_exceptions=True)
    return True


def _is_main_document(page: BrowserPage, request: Request) -> bool:
    try:
        return request.is_navigation_request() and request.frame == page.main_frame
    except PlaywrightError:  # its frame does not exist yet, or no longer
        return False


def _document_status(activity: Activity) -> int:
    """Return the status of the page's document after redirects; 0 without a response."""
    found = (entry.status for entry in activity.requests if entry.resource_type == "document")
    return next((status for status in found if status and not 300 <= status < 400), 0)


def _missing_document(url: str, activity: Activity) -> str:
    """Return why a page's document is incomplete and so not recorded; "" if it is complete.

    A page that changed its URL with `pushState` has no document of that URL.
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
    """Return the distinct links of all frames, parents before children."""
    found = await _with_timeout(probe.evaluate_all(_LINKS, await probe.frames())) or []
    urls = (page_url(url) for frame in found for url in frame or ())
    return list(dict.fromkeys(url for url in urls if url is not None))


async def _with_timeout(evaluation: Coroutine[Any, Any, Any]) -> Any:
    """Return the value of a script; None if its frame has gone or does not respond."""
    try:
        async with asyncio.timeout(FRAME_TIMEOUT):
            return await evaluation
    except (FrameGone, InfraError, TimeoutError):
        return None

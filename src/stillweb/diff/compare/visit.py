"""Visit a page in a replay as it was recorded, and collect the data to compare.

A visit repeats the recording with the same code in `stillweb.browser`: a new context with the recorded
profile, seed and time, one navigation, `settle`, then a snapshot. Each visit has its own replay session, so
carts and polling start from their first recorded response. The browser's request list is joined with the
session's ledger, which has the tier and reason of each response.

A page that cannot be opened is a finding, not an exception. Only a lost browser or replay server ends the
comparison.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from playwright.async_api import Browser, BrowserContext
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page as BrowserPage
from playwright.async_api import TimeoutError as PlaywrightTimeout

from stillweb import clock
from stillweb.browser import Level, Pinning, Profile, Requested, open_context, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.driver import failed_visit
from stillweb.browser.observe.recorder import PageRecorder
from stillweb.browser.observe.snapshot import PageSnapshot, boxes_of, take_snapshot
from stillweb.browser.settle import CAP
from stillweb.collections.manifest import Manifest, storage_state_of
from stillweb.diff.compare.metrics import Fetch
from stillweb.diff.compare.settings import DiffSettings
from stillweb.errors import InfraError
from stillweb.model import GUESSES, Page, Tier
from stillweb.replay import LedgerEntry, OpenSession, ReplayClient
from stillweb.text import well_formed
from stillweb.urls import from_timestamp, wire_url

_TEXTS = """(() => {
  const lines = [];
  const silent = new Set(["script", "style", "noscript", "template", "title"]);
  const walk = (node) => {
    if (node.nodeType === 3) {
      const text = node.data.trim();
      if (text) lines.push(text);
      return;
    }
    if (node.nodeType === 1 && silent.has(node.localName)) return;
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) walk(child);
  };
  if (document.documentElement) walk(document.documentElement);
  return lines.join("\\n");
})()"""


async def document_text(page: BrowserPage) -> str:
    """Return every text of a page, one per line, followed by the texts of its frames.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    probe = await PageProbe.of(page)
    texts = await probe.evaluate_all(_TEXTS, await probe.frames())
    return well_formed("\n".join(text for text in texts if text))


# Chromium aborts pending requests when a network interface appears or disappears (a container starts). The
# archive is not the cause, so the page is visited again.
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
_VISITS = 3

# Real seconds, twice the limit of a recording, so that a loaded machine does not cut off a comparison.
_SETTLE_CAP = 60.0

_NOT_AS_RECORDED = frozenset({Tier.MISS, Tier.NOISE, Tier.DERIVED, *GUESSES})

_EMPTY = PageSnapshot()


@dataclass(frozen=True, slots=True)
class ReplayedPage:
    """Data collected from a page in the replay.

    Attributes:
        status: status of the document after redirects; 0 if there was no response.
        document_text: every text of the document, only if the baseline's program stores that.
        masked: boxes of the elements that the collection's settings mask.
        error: why the page could not be opened, "" if it could.
        disturbed: whether a network change aborted one of its requests.
    """

    status: int = 0
    snapshot: PageSnapshot = _EMPTY
    fetches: tuple[Fetch, ...] = ()
    complaints: tuple[str, ...] = ()
    document_text: str = ""
    masked: tuple[tuple[int, int, int, int], ...] = ()
    load_ms: float = 0.0
    notes: tuple[str, ...] = ()
    error: str = ""
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class VisitSetup:
    """Settings that all visits of a comparison share."""

    collection: str
    manifest: Manifest
    client: ReplayClient
    browser: Browser
    settings: DiffSettings
    level: Level
    page_timeout: float
    has_ledger: bool
    derived: bool = False

    def pinning(self, page: Page) -> Pinning:
        # An archive that was recorded unpinned is pinned to the page's own time.
        return Pinning(self.level, self.manifest.seed, _start(self.manifest.recorded_at or page.timestamp))

    def profile(self, page: Page) -> Profile:
        """Return the recorded browser profile, with the viewport of the page's own screenshot if known."""
        profile = Profile.from_dict(self.manifest.profile)
        width, _, height = page.extra.get("viewport", "").partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            return profile
        return replace(profile, viewport=(int(width), int(height)))


def _start(timestamp: str) -> datetime:
    return from_timestamp(timestamp) if timestamp else clock.now()


async def visit_page(setup: VisitSetup, page: Page) -> ReplayedPage:
    """Visit a page, repeatedly if a network change disturbs the visit.

    Raises:
        InfraError: if the browser died, or the pack is damaged.
        ReplayUnreachable: if the server does not respond.
    """
    for _ in range(_VISITS):
        seen = await _visit(setup, page)
        if _NETWORK_CHANGED not in seen.error and not seen.disturbed:
            break
    return seen


async def _visit(setup: VisitSetup, page: Page) -> ReplayedPage:
    session = await setup.client.open_session(setup.collection)
    try:
        if setup.derived:
            await setup.client.answer_unrecorded(session.id, derived=True)
        return await _visit_in_session(setup, page, session)
    finally:
        await setup.client.close_session(session.id)


async def _visit_in_session(setup: VisitSetup, page: Page, session: OpenSession) -> ReplayedPage:
    try:
        context = await open_context(
            setup.browser,
            proxy=session.proxy,
            profile=setup.profile(page),
            pinning=setup.pinning(page),
            storage_state=storage_state_of(setup.manifest.extra),
        )
    except PlaywrightError as error:
        raise InfraError(f"the browser died: {failed_visit(error)}", hint="stillweb doctor") from error
    try:
        seen, requests = await _collect(context, page, setup)
    finally:
        with suppress(PlaywrightError):  # the browser is already closed
            await context.close()
    if not setup.browser.is_connected():
        raise InfraError(f"the browser died at {page.url}", hint="stillweb doctor")
    ledger = (await setup.client.ledger(session.id)).entries if setup.has_ledger else None
    if fault := next((entry for entry in ledger or () if entry.tier == Tier.FAULT), None):
        raise InfraError(f"{fault.method} {fault.url}: {fault.reason}", hint="stillweb collections seal NAME")
    fetches = join_ledger(requests, ledger)
    if seen.error and (why := next((each.reason for each in fetches if each.tier == Tier.MISS), "")):
        seen = replace(seen, error=f"{seen.error}: {why}")
    disturbed = any(_NETWORK_CHANGED in request.failure for request in requests)
    return replace(seen, status=_status(requests), fetches=fetches, disturbed=disturbed)


async def _collect(
    context: BrowserContext, page: Page, setup: VisitSetup
) -> tuple[ReplayedPage, list[Requested]]:
    recorder = PageRecorder(context)
    try:
        tab = await context.new_page()
        began = clock.perf()
        await _navigate(tab, page.url, setup)
        recorder.load_ms = 1000 * (clock.perf() - began)
        cap = CAP if setup.level is Level.EXACT else _SETTLE_CAP  # at EXACT `settle` waits six times as long
        settled = await settle(tab, recorder.activity, cap=cap)
        requests = await recorder.requests()  # as in the recording, the list ends when the page has settled
        snapshot = await take_snapshot(tab)
        text = await document_text(tab) if "recordedBy" in page.extra else ""
        selectors = setup.settings.selectors(page.url)
        masked = await boxes_of(tab, selectors) if selectors else []
    except (PlaywrightError, InfraError) as error:
        return ReplayedPage(error=failed_visit(error)), list(recorder.activity.requests)
    finally:
        await recorder.close()
    notes = () if settled.settled else (f"the page did not settle: {settled.reason}",)
    seen = ReplayedPage(
        snapshot=snapshot,
        complaints=recorder.complaints,
        document_text=text,
        masked=tuple(masked),
        load_ms=recorder.load_ms,
        notes=notes,
    )
    return seen, requests


async def _navigate(tab: BrowserPage, url: str, setup: VisitSetup) -> None:
    try:
        # At EXACT responses and page loads are held back until `settle` releases them.
        until: Literal["commit", "load"] = "commit" if setup.level is Level.EXACT else "load"
        await tab.goto(url, wait_until=until, timeout=setup.page_timeout * 1000)
    except PlaywrightTimeout:
        if tab.url == "about:blank":
            raise
        # The document is loaded, but a resource of it is still loading. `settle` reports that.


def _status(requests: Iterable[Requested]) -> int:
    found = (request.status for request in requests if request.resource_type == "document")
    return next((status for status in found if status and not 300 <= status < 400), 0)


def join_ledger(requests: Iterable[Requested], ledger: Sequence[LedgerEntry] | None) -> tuple[Fetch, ...]:
    """Return the browser's requests, each with the tier and reason from the ledger.

    Some requests are only in the ledger (those of workers and of the browser itself). They are added unless
    they were answered as recorded, so no miss is lost. Without a ledger, status 404 and failed requests count
    as misses; the baseline then shows whether a miss is explained.
    """
    unmatched: dict[tuple[str, str], deque[LedgerEntry]] = defaultdict(deque)
    for entry in ledger or ():
        unmatched[entry.method, wire_url(entry.url)].append(entry)
    requests = list(requests)
    first = min((request.started for request in requests), default=0.0)
    fetches = []
    for request in requests:
        entries = unmatched[request.method, wire_url(request.url)]
        answered = entries.popleft() if entries else None
        fetches.append(_fetch(request, answered, first, guess_misses=ledger is None))
    ledger_only = sorted(
        (entry for entries in unmatched.values() for entry in entries), key=lambda entry: entry.seq
    )
    fetches += [
        Fetch(e.url, e.method, e.resource or "other", e.status, e.tier, e.reason)
        for e in ledger_only
        if e.tier in _NOT_AS_RECORDED
    ]
    return tuple(fetches)


def _fetch(request: Requested, answered: LedgerEntry | None, first: float, *, guess_misses: bool) -> Fetch:
    status = 0 if request.failure else request.status
    tier = answered.tier if answered else ""
    if guess_misses and status in (0, 404):
        tier = Tier.MISS.value
    return Fetch(
        wire_url(request.url),
        request.method,
        request.resource_type,
        status,
        tier,
        answered.reason if answered else "",
        request.body,
        round(1000 * (request.started - first), 1),
        round(1000 * max(0.0, request.finished - request.started), 1),
    )

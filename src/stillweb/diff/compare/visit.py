"""Visit a page in a replay, exactly as it was recorded, and note all that can be compared.

A visit repeats what the recording did, by the same code in `stillweb.browser`: a fresh context
with the recorded profile, seed and time, one navigation, `settle`, then a portrait. It has a replay
session of its own, so that carts and polls begin at their beginning. What the browser tells of
its requests is joined with the session's ledger, which says how each was answered and why.

A page that cannot be opened is a finding, not an exception; only a browser or replay server that
is gone ends the comparison.
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
from stillweb.browser.observe.recorder import PageRecorder
from stillweb.browser.observe.snapshot import PageSnapshot, boxes_of, take_snapshot
from stillweb.browser.settle import CAP
from stillweb.collections.manifest import Manifest, storage_state_of
from stillweb.diff.compare.metrics import Fetch
from stillweb.diff.compare.settings import Settings
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
    """Return every text of a page, a line each, its frames' behind its own.

    Raises:
        InfraError: if the page is closed or has crashed.
    """
    probe = await PageProbe.of(page)
    told = await probe.evaluate_all(_TEXTS, await probe.frames())
    return well_formed("\n".join(text for text in told if text))


# Chromium gives up what is in flight when an interface comes or goes (a container starts): the
# machine's doing, not the archive's, so the page is visited again.
_MACHINE = "ERR_NETWORK_CHANGED"
_VISITS = 3

# Real seconds, twice what a recording has: a comparison that they cut off tells of the machine's load.
_SETTLE_CAP = 60.0

_LOOSE = frozenset({Tier.MISS, Tier.NOISE, *GUESSES})


_NOTHING = PageSnapshot()


@dataclass(frozen=True, slots=True)
class ReplayedPage:
    """What a page looks like in the replay.

    Attributes:
        status: of its document, redirects followed; 0 if there was no answer.
        document_text: every text of the document, where the baseline is of a program that keeps that.
        masked: boxes of the elements that the collection's settings mask.
        error: why it could not be opened, "" if it could.
        disturbed: whether the machine cut off a request of it.
    """

    status: int = 0
    portrait: PageSnapshot = _NOTHING
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
    """What all visits of a comparison share."""

    collection: str
    manifest: Manifest
    client: ReplayClient
    browser: Browser
    settings: Settings
    level: Level
    page_timeout: float
    has_ledger: bool

    def pinning(self, page: Page) -> Pinning:
        """Return what the page's recording was pinned to; its own time where nobody pinned it."""
        return Pinning(self.level, self.manifest.seed, _start(self.manifest.recorded_at or page.timestamp))

    def profile(self, page: Page) -> Profile:
        """Return what the recording's browser looked like; the viewport is that of the page's picture."""
        profile = Profile.from_dict(self.manifest.profile)
        width, _, height = page.extra.get("viewport", "").partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            return profile
        return replace(profile, viewport=(int(width), int(height)))


def _start(timestamp: str) -> datetime:
    return from_timestamp(timestamp) if timestamp else clock.now()


async def look_at(scene: VisitSetup, page: Page) -> ReplayedPage:
    """Visit a page, again if the machine disturbed it.

    Raises:
        InfraError: if the browser is gone, or the pack is damaged.
        ReplayUnreachable: if the server is gone.
    """
    for _ in range(_VISITS):
        seen = await _visit(scene, page)
        if _MACHINE not in seen.error and not seen.disturbed:
            break
    return seen


async def _visit(scene: VisitSetup, page: Page) -> ReplayedPage:
    session = await scene.client.open_session(scene.collection)
    try:
        return await _visit_by(scene, page, session)
    finally:
        await scene.client.close_session(session.id)


async def _visit_by(scene: VisitSetup, page: Page, session: OpenSession) -> ReplayedPage:
    try:
        context = await open_context(
            scene.browser,
            proxy=session.proxy,
            profile=scene.profile(page),
            pinning=scene.pinning(page),
            storage_state=storage_state_of(scene.manifest.extra),
        )
    except PlaywrightError as error:
        raise InfraError(f"the browser is gone: {_first_line(error)}", hint="stillweb env check") from error
    try:
        seen, requests = await _look(context, page, scene)
    finally:
        with suppress(PlaywrightError):  # the browser is gone already
            await context.close()
    if not scene.browser.is_connected():
        raise InfraError(f"the browser died at {page.url}", hint="stillweb env check")
    ledger = (await scene.client.ledger(session.id)).entries if scene.has_ledger else None
    if fault := next((entry for entry in ledger or () if entry.tier == Tier.FAULT), None):
        raise InfraError(f"{fault.method} {fault.url}: {fault.reason}", hint="stillweb collections seal NAME")
    fetches = join_ledger(requests, ledger)
    if seen.error and (why := next((each.reason for each in fetches if each.tier == Tier.MISS), "")):
        seen = replace(seen, error=f"{seen.error}: {why}")
    disturbed = any(_MACHINE in request.failure for request in requests)
    return replace(seen, status=_status(requests), fetches=fetches, disturbed=disturbed)


async def _look(
    context: BrowserContext, page: Page, scene: VisitSetup
) -> tuple[ReplayedPage, list[Requested]]:
    witness = PageRecorder(context)
    try:
        tab = await context.new_page()
        began = clock.perf()
        await _navigate(tab, page.url, scene)
        witness.load_ms = 1000 * (clock.perf() - began)
        rest = await settle(tab, witness.activity, cap=_settle_cap(scene.level))
        requests = await witness.requests()  # the baseline's list ends where the page had settled, too
        shown = await take_snapshot(tab)
        text = await document_text(tab) if "recordedBy" in page.extra else ""
        selectors = scene.settings.selectors(page.url)
        masked = await boxes_of(tab, selectors) if selectors else []
    except (PlaywrightError, InfraError) as error:
        return ReplayedPage(error=_first_line(error)), list(witness.activity.requests)
    finally:
        await witness.close()
    notes = () if rest.settled else (f"did not settle: {rest.reason}",)
    seen = ReplayedPage(
        portrait=shown,
        complaints=witness.complaints,
        document_text=text,
        masked=tuple(masked),
        load_ms=witness.load_ms,
        notes=notes,
    )
    return seen, requests


def _settle_cap(level: Level) -> float:
    return CAP if level is Level.EXACT else _SETTLE_CAP  # at EXACT `settle` grants six times as much


async def _navigate(tab: BrowserPage, url: str, scene: VisitSetup) -> None:
    try:
        # At EXACT no answer comes, and no page loads, before `settle` lets it.
        until: Literal["commit", "load"] = "commit" if scene.level is Level.EXACT else "load"
        await tab.goto(url, wait_until=until, timeout=scene.page_timeout * 1000)
    except PlaywrightTimeout:
        if tab.url == "about:blank":
            raise
        # The document is there; something in it never ends loading. `settle` will say so.


def _status(requests: Iterable[Requested]) -> int:
    """Return the status of the page's document, redirects followed; 0 if there was no answer."""
    found = (request.status for request in requests if request.resource_type == "document")
    return next((status for status in found if status and not 300 <= status < 400), 0)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("Page.goto: ") or "the browser failed"


def join_ledger(requests: Iterable[Requested], ledger: Sequence[LedgerEntry] | None) -> tuple[Fetch, ...]:
    """Return the requests that the browser told of, each with how replay answered it.

    Requests that only the ledger knows (of workers, or of the browser itself) are added where
    they were not answered from the archive as recorded: no miss is lost. Without a ledger a 404
    and a failure count as misses; whether they are explained, the baseline says.
    """
    pool: dict[tuple[str, str], deque[LedgerEntry]] = defaultdict(deque)
    for entry in ledger or ():
        pool[entry.method, wire_url(entry.url)].append(entry)
    requests = list(requests)
    first = min((request.started for request in requests), default=0.0)
    fetches = []
    for request in requests:
        entries = pool[request.method, wire_url(request.url)]
        answered = entries.popleft() if entries else None
        fetches.append(_fetch(request, answered, first, guess_misses=ledger is None))
    unseen = sorted((entry for entries in pool.values() for entry in entries), key=lambda entry: entry.seq)
    fetches += [
        Fetch(e.url, e.method, e.resource or "other", e.status, e.tier, e.reason)
        for e in unseen
        if e.tier in _LOOSE
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

"""Visit every page of a collection in a replay and hold it against its baseline.

A visit repeats what the recording did, by the same code in `stillweb.browser`: a fresh context
with the recorded profile, seed and time, one navigation, `settle`, then a look. It has a replay
session of its own, so that carts and polls begin at their beginning. What the browser tells of
its requests is joined with the session's ledger, which says how each was answered and why.

A page that cannot be opened is a finding, not an exception; only a browser or replay server that
is gone ends the comparison.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from playwright.async_api import Browser, BrowserContext
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page as BrowserPage
from playwright.async_api import TimeoutError as PlaywrightTimeout

from stillweb import clock
from stillweb.browser import (
    Activity,
    Bids,
    Level,
    Pinning,
    Profile,
    Requested,
    axtree,
    launch,
    open_context,
    page_text,
    screenshot,
    settle,
)
from stillweb.collections.absent import RESOURCES, read_resources
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.diff.metrics import (
    Fetch,
    axtree_scores,
    line_diff,
    match_resources,
    resource_score,
    text_scores,
    without_ids,
)
from stillweb.diff.pixels import compare_pictures
from stillweb.diff.report import DEFAULT_GATES, DiffReport, PageDiff, Pictures
from stillweb.errors import CollectionError, InfraError, StillwebError
from stillweb.model import GUESSES, Page, Tier
from stillweb.replay import LedgerEntry, OpenSession, ReplayClient
from stillweb.urls import from_timestamp, wire_url

# Written by `stillweb.record.baseline`; `diff` reads what it needs and knows nothing of recording.
SCREENSHOT, TEXT, AXTREE = "screenshot.png", "text.txt", "axtree.txt"

# Chromium gives up what is in flight when an interface comes or goes (a container starts): the
# machine's doing, not the archive's, so the page is visited again.
_MACHINE = "ERR_NETWORK_CHANGED"
_VISITS = 3

_LOOSE = frozenset({Tier.MISS, Tier.NOISE, *GUESSES})


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """How to compare.

    Attributes:
        jobs: pages at a time; the result does not depend on it.
        limit: pages at most, in the collection's order; None for all.
        gates: limits that every page must keep.
        level: how far pages are pinned; the baseline was recorded at CLOCK.
        page_timeout: seconds for a navigation.
        browser: the browser's executable; None to look for one.
    """

    jobs: int = 2
    limit: int | None = None
    gates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_GATES))
    level: Level = Level.CLOCK
    page_timeout: float = 45.0
    browser: Path | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a page looked like when it was recorded."""

    picture: bytes
    text: str
    axtree: str
    fetches: tuple[Fetch, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page looks like in the replay; `disturbed` if the machine cut off a request of it."""

    status: int = 0
    picture: bytes = b""
    text: str = ""
    axtree: str = ""
    fetches: tuple[Fetch, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    disturbed: bool = False


async def diff(
    collection: Collection,
    client: ReplayClient,
    options: DiffOptions | None = None,
    *,
    on_page: Callable[[PageDiff], None] | None = None,
) -> DiffReport:
    """Compare the pages of a collection with what a replay server makes of them.

    Args:
        collection: whose pages and baselines are read.
        client: of a server that serves the collection under the same name.
        options: how to compare.
        on_page: told of each page when it is compared, in order of completion.

    Raises:
        ReplayUnreachable: if the server is not there.
        CollectionNotFound: if it does not serve the collection.
        CollectionError: if the collection lists no pages.
        InfraError: if the browser cannot be started or dies.
    """
    options = options or DiffOptions()
    began = clock.perf()
    info = await client.info()
    manifest = collection.manifest()
    pages = collection.page_list()[: options.limit]
    if not pages:
        raise CollectionError(
            f"{collection.name} lists no pages, so that there is nothing to compare",
            path=collection.pages,
            hint=f"stillweb collections show {collection.name} --captures",
        )
    async with launch(spki=info.spki, executable=options.browser) as browser:
        has_ledger = info.features.get("ledger", False)
        setting = _Setting(collection, manifest, client, browser, options, has_ledger)
        found = await _all_pages(setting, pages, on_page or (lambda page: None))
    about = {
        "environment_id": info.collections.get(collection.name, ""),
        "backend": info.backend,
        "level": options.level.value,
        "seed": str(manifest.seed),
        "recorded_at": f"{from_timestamp(manifest.recorded_at):%Y-%m-%d %H:%M:%S} UTC"
        if manifest.recorded_at
        else "",
        "compared_at": f"{clock.now():%Y-%m-%d %H:%M:%S} UTC",
    }
    return DiffReport(collection.name, tuple(found), options.gates, about, clock.perf() - began)


def read_baseline(folder: Path) -> Baseline:
    """Read the baseline of a page.

    Raises:
        CollectionError: if a file is missing or is not what it should be.
    """
    try:
        fetches = tuple(Fetch(r.url, r.method, r.type, r.status) for r in read_resources(folder / RESOURCES))
        return Baseline(
            (folder / SCREENSHOT).read_bytes(),
            (folder / TEXT).read_text("utf-8"),
            (folder / AXTREE).read_text("utf-8"),
            fetches,
        )
    except FileNotFoundError as error:
        raise CollectionError("the baseline lacks a file", path=error.filename) from error
    except ValueError as error:
        raise CollectionError(f"the baseline cannot be read: {error}", path=folder) from error


def join_ledger(requests: Iterable[Requested], ledger: Sequence[LedgerEntry] | None) -> tuple[Fetch, ...]:
    """Return the requests that the browser told of, each with how replay answered it.

    Requests that only the ledger knows (of workers, or of the browser itself) are added where
    they were not answered from the archive as recorded: no miss is lost. Without a ledger a 404
    and a failure count as misses; whether they are explained, the baseline says.
    """
    pool: dict[tuple[str, str], deque[LedgerEntry]] = defaultdict(deque)
    for entry in ledger or ():
        pool[entry.method, wire_url(entry.url)].append(entry)
    fetches = []
    for request in requests:
        entries = pool[request.method, wire_url(request.url)]
        answered = entries.popleft() if entries else None
        status = 0 if request.failure else request.status
        tier = answered.tier if answered else ""
        if ledger is None and status in (0, 404):
            tier = Tier.MISS.value
        fetches.append(
            Fetch(
                wire_url(request.url), request.method, request.resource_type, status, tier,
                answered.reason if answered else "",
            )
        )  # fmt: skip
    unseen = sorted((entry for entries in pool.values() for entry in entries), key=lambda entry: entry.seq)
    fetches += [
        Fetch(e.url, e.method, e.resource or "other", e.status, e.tier, e.reason)
        for e in unseen
        if e.tier in _LOOSE
    ]
    return tuple(fetches)


def compare(page: Page, baseline: Baseline | None, seen: Seen) -> PageDiff:
    """Hold what was seen against a page's baseline. Blocks for up to a second over the pictures."""
    rows = match_resources(baseline.fetches if baseline else (), seen.fetches)
    result = PageDiff(
        id=page.id,
        url=page.url,
        title=page.title,
        compared=baseline is not None,
        recorded_status=page.status,
        replayed_status=seen.status,
        resources=tuple(rows),
        pictures=Pictures(replayed=seen.picture),
        notes=seen.notes,
        error=seen.error,
    )
    scores: dict[str, float] = {}
    if page.status:
        scores["status"] = float(page.status == seen.status)
    counts = result.counts
    if baseline is None:
        scores["hits"] = counts.hit / (counts.hit + counts.miss) if counts.hit + counts.miss else 1.0
        return replace(result, scores=scores)
    scores["resources"] = resource_score(rows)
    scores["text"], scores["order"] = text_scores(baseline.text, seen.text)
    scores["axtree"], scores["interactive"] = axtree_scores(baseline.axtree, seen.axtree)
    pixels = compare_pictures(baseline.picture, seen.picture)
    scores["screenshot"] = pixels.score
    scores["hits"] = counts.hit / (counts.hit + counts.miss) if counts.hit + counts.miss else 1.0
    scores["misses"] = float(sum(row.unexplained for row in rows))
    scores["fuzzy"] = sum(row.tier in GUESSES for row in rows) / max(1, counts.asked)
    return replace(
        result,
        scores=scores,
        text=line_diff(baseline.text, seen.text),
        axtree=line_diff(without_ids(baseline.axtree), without_ids(seen.axtree)),
        pixels=pixels,
        pictures=Pictures(baseline.picture, seen.picture, pixels.overlay),
        notes=seen.notes + ((pixels.note,) if pixels.note and not seen.error else ()),
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all pages of a comparison share."""

    collection: Collection
    manifest: Manifest
    client: ReplayClient
    browser: Browser
    options: DiffOptions
    has_ledger: bool

    def pinning(self, page: Page) -> Pinning:
        """Return what the page's recording was pinned to; its own time where nobody pinned it."""
        start = _start(self.manifest.recorded_at or page.timestamp)
        return Pinning(self.options.level, self.manifest.seed, start)


def _start(timestamp: str) -> datetime:
    return from_timestamp(timestamp) if timestamp else clock.now()


async def _all_pages(
    setting: _Setting, pages: Sequence[Page], on_page: Callable[[PageDiff], None]
) -> list[PageDiff]:
    found: dict[int, PageDiff] = {}
    waiting = deque(enumerate(pages))

    async def work() -> None:
        while waiting:
            index, page = waiting.popleft()
            page = page if page.id else replace(page, id=f"page-{index + 1}")
            found[index] = await _one_page(setting, page)
            on_page(found[index])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, min(setting.options.jobs, len(pages)))):
                group.create_task(work())
    except ExceptionGroup as group:
        ours, _ = group.split(StillwebError)
        raise (ours or group).exceptions[0] from None
    return [found[index] for index in sorted(found)]


async def _one_page(setting: _Setting, page: Page) -> PageDiff:
    began = clock.perf()
    folder = setting.collection.baseline / page.baseline if page.baseline else None
    baseline = read_baseline(folder) if folder else None
    for _ in range(_VISITS):
        seen = await _visit(setting, page)
        if _MACHINE not in seen.error and not seen.disturbed:
            break
    result = await asyncio.to_thread(compare, page, baseline, seen)
    return replace(result, seconds=clock.perf() - began)


async def _visit(setting: _Setting, page: Page) -> Seen:
    session = await setting.client.open_session(setting.collection.name)
    try:
        return await _visit_by(setting, page, session)
    finally:
        await setting.client.close_session(session.id)


async def _visit_by(setting: _Setting, page: Page, session: OpenSession) -> Seen:
    profile = Profile.from_dict(setting.manifest.profile)
    try:
        context = await open_context(
            setting.browser, proxy=session.proxy, profile=profile, pinning=setting.pinning(page)
        )
    except PlaywrightError as error:
        raise InfraError(f"the browser is gone: {_first_line(error)}", hint="stillweb env check") from error
    try:
        seen, activity = await _look(context, page, setting.options)
    finally:
        with suppress(PlaywrightError):  # the browser is gone already
            await context.close()
    if not setting.browser.is_connected():
        raise InfraError(f"the browser died at {page.url}", hint="stillweb env check")
    ledger = (await setting.client.ledger(session.id)).entries if setting.has_ledger else None
    if fault := next((entry for entry in ledger or () if entry.tier == Tier.FAULT), None):
        raise InfraError(f"{fault.method} {fault.url}: {fault.reason}", hint="stillweb collections seal NAME")
    fetches = join_ledger(activity.requests, ledger)
    if seen.error and (why := next((each.reason for each in fetches if each.tier == Tier.MISS), "")):
        seen = replace(seen, error=f"{seen.error}: {why}")
    disturbed = any(_MACHINE in request.failure for request in activity.requests)
    return replace(seen, status=_status(activity), fetches=fetches, disturbed=disturbed)


async def _look(context: BrowserContext, page: Page, options: DiffOptions) -> tuple[Seen, Activity]:
    activity = Activity(context)
    try:
        tab = await context.new_page()
        await _navigate(tab, page.url, options.page_timeout)
        rest = await settle(tab, activity)
        requests = len(activity.requests)
        tree = await axtree(tab, Bids())
        text = await page_text(tab)
        picture = await screenshot(tab)
        del activity.requests[requests:]  # the baseline's list ends where the page had settled, too
    except (PlaywrightError, InfraError) as error:
        return Seen(error=_first_line(error)), activity
    finally:
        activity.close()
    notes = () if rest.settled else (f"did not settle: {rest.reason}",)
    return Seen(picture=picture, text=text, axtree=tree.text, notes=notes), activity


async def _navigate(tab: BrowserPage, url: str, timeout: float) -> None:
    try:
        await tab.goto(url, wait_until="load", timeout=timeout * 1000)
    except PlaywrightTimeout:
        if tab.url == "about:blank":
            raise
        # The document is there; something in it never ends loading. `settle` will say so.


def _status(activity: Activity) -> int:
    """Return the status of the page's document, redirects followed; 0 if there was no answer."""
    found = (request.status for request in activity.requests if request.resource_type == "document")
    return next((status for status in found if status and not 300 <= status < 400), 0)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("Page.goto: ") or "the browser failed"

"""A recording by crawl: pages in breadth-first order, each through the recording proxy.

The collection is valid at every moment: WARC records are appended whole, a page is listed when
it is complete, and the manifest says `partial` until the crawl has reached its end. A crawl that
is cancelled (Ctrl-C) still writes its index, as the writer does when it is closed. All pages are
pinned to one seed and one start of the clock, which the manifest keeps: replay and comparison
load them with the same.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from playwright.async_api import Browser

from stillweb.browser.launch import browser_build, launch
from stillweb.certs import CertAuthority
from stillweb.clock import perf
from stillweb.collections.layout import Collection
from stillweb.collections.writer import CollectionWriter
from stillweb.errors import RecordError, UpstreamUnreachable
from stillweb.model import Page
from stillweb.record.frontier import CrawlState, Frontier, Visit
from stillweb.record.options import CrawlOptions
from stillweb.record.proxy import RecordingProxy, recording_proxy
from stillweb.record.recording import begin, pinning_of, read_state, write_state
from stillweb.record.scope import Scope
from stillweb.record.visit import Setting, Visited, visit_page
from stillweb.urls import host_of


@dataclass(frozen=True, slots=True)
class CrawlEvent:
    """How far a crawl is; sent after each page.

    Attributes:
        url: the page that is through.
        error: why it could not be recorded, "" if it was.
        pages, queued, failed: recorded, still to visit, and not loaded.
        exchanges, body_bytes: written so far.
    """

    url: str
    error: str
    pages: int
    queued: int
    failed: int
    exchanges: int
    body_bytes: int


@dataclass(slots=True)
class CrawlReport:
    """What a crawl has recorded.

    Attributes:
        seeds: in wire spelling.
        pages: of the whole collection; those of this crawl in the order of its queue.
        failed_pages: URL -> why it could not be loaded.
        failed_requests: URL -> why the site gave no answer.
        notes: what passed without being recorded, with counts.
        exchanges, body_bytes, captures: written; captures in the index of the whole collection.
    """

    seeds: tuple[str, ...] = ()
    pages: list[Page] = field(default_factory=list)
    failed_pages: dict[str, str] = field(default_factory=dict)
    failed_requests: dict[str, str] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    exchanges: int = 0
    body_bytes: int = 0
    captures: int = 0


_SPARING = 20  # lists grow with the crawl: write them for at most a twentieth of the time

_DOWNLOAD = "Download is starting"  # Playwright's words

OnEvent = Callable[[CrawlEvent], None]


async def crawl(
    seeds: Sequence[str],
    collection: Collection,
    ca: CertAuthority,
    options: CrawlOptions,
    on_event: OnEvent = lambda event: None,
) -> CrawlReport:
    """Record the seeds, and what they lead to, into a collection.

    A collection that has pages already keeps them, and its clock, seed and profile count; a
    crawl that was stopped, or reached its limit, goes on.

    Raises:
        UpstreamUnreachable: if none of the seeds answered.
        RecordError: if an exchange could not be written, or the browser ended.
    """
    scope = Scope.of(options.scope, seeds, options.include, options.exclude)
    state = read_state(collection)
    before = _before(collection, state)
    prior = collection.manifest()
    profile = options.profile.to_dict() | {"browser": browser_build(options.browser).version}
    manifest = begin(collection, seed=options.seed, profile=profile)
    report = CrawlReport(seeds=scope.seeds, pages=before)
    frontier: Frontier[Visited] = Frontier(
        scope,
        depth=options.depth,
        limit=options.limit,
        state=state,
        recorded={page.url for page in before},
    )
    with CollectionWriter(collection) as writer:
        async with (
            recording_proxy(writer, ca, options.record) as recording,
            launch(spki=ca.spki_hashes(), executable=options.browser) as browser,
        ):
            setting = Setting(
                recording.url, *pinning_of(manifest), options.page_timeout, options.retries, recording.at_rest
            )
            run = _Run(collection, browser, recording, setting, frontier, report, on_event)
            await run.visit_all(options.jobs)
    report.captures = sum(1 for _ in collection.captures())
    if not any(page.seed and page.url in scope.seeds for page in report.pages):
        if before:
            collection.write_manifest(prior)  # it is what it was
        raise _unreachable(scope.seeds[0], report)
    collection.write_manifest(replace(manifest, state="complete"))
    return report


def _before(collection: Collection, state: CrawlState) -> list[Page]:
    """Return the pages there are, but for one that was listed just before a kill: it is visited again."""
    again = {_page_id(visit) for visit in state.queue[state.through :]}
    return [page for page in collection.page_list() if page.id not in again]


def _page_id(visit: Visit) -> str:
    return f"page-{visit.index + 1:04d}"


@dataclass(slots=True)
class _Run:
    """One crawl under way: some pages at a time, listed in the frontier's order."""

    collection: Collection
    browser: Browser
    recording: RecordingProxy
    setting: Setting
    frontier: Frontier[Visited]
    report: CrawlReport
    on_event: OnEvent
    written: float = 0.0
    cost: float = 0.0

    async def visit_all(self, jobs: int) -> None:
        running: dict[asyncio.Task[Visited], Visit] = {}
        try:
            while True:
                while len(running) < jobs and (visit := self.frontier.take()):
                    running[asyncio.create_task(self._visit(visit))] = visit
                if not running:
                    break
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    self._list(self.frontier.put(running.pop(task), task.result()))
                self._check()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._drop_baselines(running.values())
            self._list(self.frontier.rest())  # a crawl that goes on visits these again
            self._write()
            self._account()

    async def _visit(self, visit: Visit) -> Visited:
        folder = self.collection.baseline / _page_id(visit)
        return await visit_page(self.browser, self.setting, visit, folder)

    def _check(self) -> None:
        self.recording.check()
        if not self.browser.is_connected():
            raise RecordError("the browser ended", hint="stillweb record crawl ... --append")

    def _list(self, outcomes: Sequence[Visited]) -> None:
        for visited in outcomes:
            if visited.error:
                self._drop_baselines([visited.visit])
                self.report.failed_pages[visited.visit.url] = self._why(visited)
            else:
                self.report.pages.append(self._page(visited))
        if outcomes and perf() - self.written > _SPARING * self.cost:
            self._write()
        for visited in outcomes:
            self.on_event(self._event(visited))

    def _drop_baselines(self, visits: Iterable[Visit]) -> None:
        for visit in visits:
            shutil.rmtree(self.collection.baseline / _page_id(visit), ignore_errors=True)

    def _write(self) -> None:
        started = perf()
        self.collection.write_pages(self.report.pages)
        write_state(self.collection, self.frontier.state)
        self.written = perf()
        self.cost = self.written - started

    def _page(self, visited: Visited) -> Page:
        page_id = _page_id(visited.visit)
        return Page(
            url=visited.visit.url,
            timestamp=visited.timestamp,
            title=visited.title,
            id=page_id,
            seed=visited.visit.seed,
            depth=visited.visit.depth,
            status=visited.status,
            baseline=page_id,
            extra={"unsettled": visited.unsettled} if visited.unsettled else {},
        )

    def _why(self, visited: Visited) -> str:
        return self.recording.failed.get(visited.visit.url, visited.error)

    def _event(self, visited: Visited) -> CrawlEvent:
        return CrawlEvent(
            url=visited.visit.url,
            error=visited.error and self._why(visited),
            pages=len(self.report.pages),
            queued=self.frontier.waiting,
            failed=len(self.report.failed_pages),
            exchanges=self.recording.exchanges,
            body_bytes=self.recording.body_bytes,
        )

    def _account(self) -> None:
        self.report.failed_requests = dict(self.recording.failed)
        self.report.notes = dict(self.recording.notes)
        self.report.exchanges = self.recording.exchanges
        self.report.body_bytes = self.recording.body_bytes


def _unreachable(seed: str, report: CrawlReport) -> UpstreamUnreachable:
    why = report.failed_pages.get(seed, "no answer")
    if "ertificate" in why:
        hint = "if the site has a CA of its own: --upstream-ca ITS-CA.pem"
    elif "Name or service" in why or "resolution" in why:
        hint = f"check the name, or say where the site is: --resolve '{host_of(seed)}=127.0.0.1:8443'"
    elif _DOWNLOAD in why:
        return UpstreamUnreachable(
            f"{seed} is no page but a file to download", hint="stillweb record proxy -c NAME records files"
        )
    else:
        hint = f"check that the site is up: curl -v {seed}"
    return UpstreamUnreachable(f"{seed} cannot be reached: {why}", hint=hint)

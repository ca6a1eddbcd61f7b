"""Recording by crawl: pages in breadth-first order, each through the recording proxy.

The collection is valid at every moment. WARC records are appended whole, a page is listed when it is
complete, and the manifest says `partial` and the reason until the crawl ends. A cancelled crawl (Ctrl-C)
still writes its index. All pages are pinned to one seed and one start time, which the manifest stores: replay
and diff load them equally.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from playwright.async_api import Browser

from stillweb.browser.launch import browser_build, launch
from stillweb.certs import CertAuthority
from stillweb.clock import monotonic, perf
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.transports import learn_transports
from stillweb.collections.manifest import LOGIN, Manifest, with_login
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError, UpstreamUnreachable
from stillweb.files import DISK_FULL
from stillweb.model import Page
from stillweb.record.behaviors.behaviors import total
from stillweb.record.behaviors.options import BehaviorOptions
from stillweb.record.crawl.fetch import Fetcher, Robots, Sitemaps, sitemaps_of
from stillweb.record.crawl.frontier import CrawlState, Frontier, Visit
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.crawl.scope import Scope, seed_url
from stillweb.record.crawl.visit import CrawlContext, Visited, extra_of, next_second, visit_page
from stillweb.record.defaults import write_defaults
from stillweb.record.login.renewed import knowing_login
from stillweb.record.login.run import LoginSession, log_in, log_in_separately, redacted_state
from stillweb.record.login.steps import Login
from stillweb.record.options import CrawlOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.recording import (
    PAGE_LIMIT,
    STOPPED,
    begin,
    pinning_of,
    read_state,
    repair_archive,
    write_state,
)
from stillweb.record.redaction.redactor import secrets_of
from stillweb.urls import host_of, wire_url


@dataclass(frozen=True, slots=True)
class CrawlLimits:
    """Limits of one run; None for no limit.

    Attributes:
        seconds: seconds after which no further page starts.
        size: bytes of response bodies, as received, after which no further page starts.
    """

    seconds: float | None = None
    size: int | None = None

    def reached(self, seconds: float, size: int) -> str:
        """Return the limit that was reached, as given; "" if none was."""
        if self.seconds is not None and seconds >= self.seconds:
            return f"--time-limit {self.seconds:g}"
        if self.size is not None and size >= self.size:
            return f"--size-limit {self.size}"
        return ""

    def left(self, seconds: float) -> float | None:
        """Return the seconds left; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - seconds)


@dataclass(slots=True)
class Pace:
    """Minimum distance between pages of one host.

    Attributes:
        delay: seconds between the starts of two pages of one host.
    """

    delay: float = 0.0
    _begun: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, delay: float, rate: float | None) -> Pace:
        """Return the slower of a delay in seconds and a rate in pages per minute."""
        return cls(max(delay, 60.0 / rate if rate else 0.0))

    def wait(self, host: str, now: float, site_delay: float = 0.0) -> float:
        """Return the seconds until a page of a host may start; `site_delay` is the host's own minimum."""
        if host not in self._begun:
            return 0.0
        return max(0.0, self._begun[host] + max(self.delay, site_delay) - now)

    def begin(self, host: str, now: float) -> None:
        self._begun[host] = now


_MAX_RESTARTS = 10  # more crashes than this have another cause than the pages


class Browsers:
    """One browser, restarted after a crash; an asynchronous context manager.

    Args:
        executable: None to look for one.
    """

    def __init__(self, ca: CertAuthority, executable: Path | None = None) -> None:
        self._ca, self._executable = ca, executable
        self._browser: Browser | None = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._ends = 0

    async def __aenter__(self) -> Self:
        await self.get()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def get(self) -> Browser:
        """Return the running browser.

        Raises:
            RecordError: if browsers crashed too often.
            InfraError: if none starts.
        """
        async with self._starting:
            if self._browser is not None and not self._browser.is_connected():
                self._ends += 1
                if self._ends >= _MAX_RESTARTS:
                    raise RecordError(
                        f"the browser crashed {self._ends} times",
                        hint="the same command with --append continues",
                    )
                self._browser = None
                await self._stack.aclose()
            if self._browser is None:
                made = launch(spki=self._ca.spki_hashes(), executable=self._executable)
                self._browser = await self._stack.enter_async_context(made)
            return self._browser


_WRITE_SHARE = 20  # the lists grow with the crawl: write them for at most 1/20 of the time
_ATTEMPTS = 2  # browser crashes before a page is given up

_FORBIDDEN = "robots.txt forbids it"
_RESUMED = "the crawl was resumed"
_LOG_OUT = r"(?i)(?<![a-z])(?:log|sign)[-_]?(?:out|off)(?![a-z])|abmelden|deconnexion"


def page_id(visit: Visit) -> str:
    """Return the id of a page, which is also the name of its baseline folder."""
    return f"page-{visit.index + 1:04d}"


@dataclass(slots=True)
class CrawlRun:
    """One crawl; it fills the report while it runs.

    Attributes:
        queued_before: URLs in the queue of an earlier crawl, which may have visited them in part.
    """

    collection: Collection
    browsers: Browsers
    recording: RecordingProxy
    context: CrawlContext
    frontier: Frontier[Visited]
    report: CrawlReport
    on_event: Callable[[CrawlEvent], None]
    queued_before: frozenset[str] = frozenset()
    through: int = 0
    written: float = 0.0
    cost: float = 0.0
    began: float = field(default_factory=monotonic)
    running: dict[asyncio.Task[Visited], Visit] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    async def visit_all(self, options: CrawlOptions, robots: Robots | None) -> None:
        """Visit the pages of the frontier.

        Raises:
            RecordError: if an exchange could not be written, or browsers crash repeatedly.
        """
        limits = CrawlLimits(options.time_limit, options.size_limit)
        pace = Pace.of(options.delay, options.rate)
        write_state(self.collection, self.frontier.state)  # a kill may precede the first list of pages
        self.recording.on_warning.append(lambda text: self.warnings.append(text))
        fault = asyncio.create_task(self.recording.broken())
        try:
            if self.queued_before:
                await next_second()
            while True:
                wait = await self._begin(options.jobs, limits, pace, robots)
                if not self.running and wait is None:
                    break
                await asyncio.wait({fault, *self.running}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                self._end()
                self.recording.check()
            if not self.report.stopped and self.frontier.cut:
                self.report.stopped = f"{PAGE_LIMIT} {options.limit}"
        finally:
            await self._shut_down(fault)

    async def _begin(self, jobs: int, limits: CrawlLimits, pace: Pace, robots: Robots | None) -> float | None:
        """Start as many pages as allowed; return the seconds until the next, None if no time limits it."""
        while len(self.running) < jobs and (visit := self.frontier.next):
            spent = monotonic() - self.began
            self.report.stopped = limits.reached(spent, self.recording.body_bytes)
            if self.report.stopped:
                return None
            site_delay = 0.0
            if robots:
                if not visit.seed and not await robots.allows(visit.url):
                    self._skip(visit)
                    continue
                site_delay = await robots.delay(visit.url)
            host, now = host_of(visit.url), monotonic()
            if wait := pace.wait(host, now, site_delay):
                left = limits.left(spent)
                return wait if left is None else min(wait, left)
            pace.begin(host, now)
            self.frontier.take()
            self.running[asyncio.create_task(self._visit(visit))] = visit
        return None

    def _skip(self, visit: Visit) -> None:
        self.frontier.take()
        self.frontier.exclude_from_limit()
        self._list(self.frontier.put(visit, Visited(visit, "", error=_FORBIDDEN)))

    def _end(self) -> None:
        """Process the completed pages in the order in which they started."""
        for task in [task for task in self.running if task.done()]:
            self._list(self.frontier.put(self.running.pop(task), task.result()))

    async def _shut_down(self, fault: asyncio.Task[None]) -> None:
        for task in (fault, *self.running):
            task.cancel()
        await asyncio.gather(fault, *self.running, return_exceptions=True)
        self.report.failed_requests = dict(self.recording.failed)
        self.report.notes = dict(self.recording.notes)
        self.report.versions = dict(self.recording.versions)
        self.report.files_left = list(self.frontier.files_left)
        self.report.exchanges = self.recording.exchanges
        self.report.body_bytes = self.recording.body_bytes
        self._drop_baselines(self.running.values())
        self._list(self.frontier.rest())  # a resumed crawl visits these again
        self._write()

    async def _visit(self, visit: Visit) -> Visited:
        folder = self.collection.baseline / page_id(visit)
        ended = ""
        for _ in range(_ATTEMPTS):
            browser = await self.browsers.get()
            visited = await visit_page(browser, self.context, visit, folder)
            visited = replace(visited, retried=visited.retried or ended)
            self.recording.sweep(folder)
            if browser.is_connected() or not visited.error:
                return visited
            ended = visited.error
            await next_second()
        return replace(visited, error=f"the browser crashed: {visited.error}")

    def _list(self, outcomes: Sequence[Visited]) -> None:
        for visited in outcomes:
            url = visited.visit.url
            if visited.error == _FORBIDDEN:
                self.report.forbidden.append(url)
                continue
            self.through += 1
            if visited.retried:
                self.report.retried_pages[url] = visited.retried
            if visited.error:
                self._drop_baselines([visited.visit])
                self.report.failed_pages[url] = self._why(visited)
            elif visited.is_file:
                self.frontier.exclude_from_limit()
                self.report.failed_pages.pop(url, None)
                self.report.files.append(url)
            else:
                self.report.failed_pages.pop(url, None)
                again = _RESUMED if url in self.queued_before else ""
                self.report.pages.append(_page(visited, again, baseline=self.context.baseline))
                self.report.behaviors = total((self.report.behaviors, visited.actions))
        if outcomes and perf() - self.written > _WRITE_SHARE * self.cost:
            self._write()
        for visited in outcomes:
            if visited.error != _FORBIDDEN:
                self.on_event(self._event(visited))

    def _drop_baselines(self, visits: Iterable[Visit]) -> None:
        for visit in visits:
            shutil.rmtree(self.collection.baseline / page_id(visit), ignore_errors=True)

    def _write(self) -> None:
        started = perf()
        self.collection.write_pages(self.report.pages)
        write_state(self.collection, self.frontier.state)
        self.written = perf()
        self.cost = self.written - started

    def _why(self, visited: Visited) -> str:
        return self.recording.failed.get(wire_url(visited.visit.url), visited.error)

    def _event(self, visited: Visited) -> CrawlEvent:
        return CrawlEvent(
            url=visited.visit.url,
            error=visited.error and self._why(visited),
            pages=len(self.report.pages),
            queued=self.frontier.waiting,
            failed=len(self.report.failed_pages),
            exchanges=self.recording.exchanges,
            body_bytes=self.recording.body_bytes,
            per_minute=60 * self.through / max(monotonic() - self.began, 1e-3),
            retried=visited.retried,
            files=len(self.report.files),
            warnings=self._take_warnings(),
        )

    def _take_warnings(self) -> tuple[str, ...]:
        taken, self.warnings = tuple(self.warnings), []
        return taken


def _page(visited: Visited, again: str, *, baseline: bool) -> Page:
    name = page_id(visited.visit)
    return Page(
        url=visited.visit.url,
        timestamp=visited.timestamp,
        title=visited.title,
        id=name,
        seed=visited.visit.seed,
        depth=visited.visit.depth,
        status=visited.status,
        baseline=name if baseline else "",
        extra=extra_of(visited, again),
    )


OnEvent = Callable[[CrawlEvent], None]
OnStage = Callable[[str], None]


async def crawl(
    seeds: Sequence[str],
    collection: Collection,
    ca: CertAuthority,
    options: CrawlOptions,
    on_event: OnEvent = lambda event: None,
    on_stage: OnStage = lambda what: None,
) -> CrawlReport:
    """Record the seeds and the pages that they link to.

    A collection with pages keeps them, and its clock, seed and profile apply. A crawl that was stopped or
    reached a limit continues.

    Args:
        on_event: called after each page.
        on_stage: called with a description of each step before the first page and after the last.

    Raises:
        UpstreamUnreachable: if no seed responded.
        RecordError: if something could not be written, or browsers crash repeatedly.
        CollectionError: if another process records into the collection.
    """
    try:
        with locked(collection):
            return await _Crawl(seeds, collection, ca, options, on_event, on_stage).run()
    except OSError as error:
        raise _write_error(collection, error) from error
    except RecordError as error:
        if isinstance(error.__cause__, OSError):
            raise _write_error(collection, error.__cause__) from error
        raise


class _Crawl:
    """A crawl from the first write into its collection to the last."""

    def __init__(
        self,
        seeds: Sequence[str],
        collection: Collection,
        ca: CertAuthority,
        options: CrawlOptions,
        on_event: OnEvent,
        on_stage: OnStage,
    ) -> None:
        self._collection = collection
        self._ca = ca
        self._options = options
        self._on_event = on_event
        self._on_stage = on_stage
        # A link that logs out would end the login of all later pages.
        exclude = (*options.exclude, *((_LOG_OUT,) if options.login else ()))
        self._scope = Scope.of(options.scope, seeds, options.include, exclude)
        self._state = read_state(collection)
        self._prior = collection.manifest()
        self._prior_pages = _prior_pages(collection, self._state)
        self._report = CrawlReport(seeds=self._scope.seeds, pages=list(self._prior_pages))
        self._session: LoginSession | None = None
        self._manifest: Manifest

    async def run(self) -> CrawlReport:
        self._begin()
        if self._options.login:
            await self._log_in(self._options.login)
        with CollectionWriter(self._collection) as writer:
            await self._record(writer)
        return self._finish()

    def _begin(self) -> None:
        options, collection = self._options, self._collection
        profile = options.profile.to_dict() | {"browser": browser_build(options.browser).version}
        manifest = begin(collection, seed=options.seed, profile=profile)
        self._manifest = _with_stop_reason(manifest, "interrupted")  # valid if the process is killed
        collection.write_manifest(self._manifest)
        write_defaults(collection, options)
        self._report.repaired = repair_archive(collection, self._prior)

    async def _log_in(self, login: Login) -> None:
        """Log in, and write the redacted login into the manifest."""
        self._on_stage("logging in")
        session = self._session = await log_in_separately(
            self._ca,
            replace(login, retries=self._options.retries),
            pinning_of(self._manifest),
            self._scope.seeds[0],
            self._options.record,
            executable=self._options.browser,
        )
        record = knowing_login(self._options.record, self._collection, session)
        self._options = replace(self._options, record=record)
        state = redacted_state(session.state, secrets_of(self._collection, record.secrets))
        indicator = session.login.indicator
        shown = indicator.model_dump(exclude_defaults=True) | {"at": session.at} if indicator else {}
        self._manifest = with_login(self._manifest, session.login.kind, shown, state)
        self._collection.write_manifest(self._manifest)

    async def _record(self, writer: CollectionWriter) -> None:
        """Visit the pages, then record the steps of a new login."""
        options, session = self._options, self._session
        frontier = self._frontier()
        async with AsyncExitStack() as stack:
            robots = None
            if options.robots or options.sitemap is not None:
                robots = Robots(await stack.enter_async_context(Fetcher(options.record)))
            if robots and options.sitemap is not None:
                self._on_stage("reading the sitemap")
                frontier.add(await self._sitemap_pages(robots, options.sitemap))
            recording = await stack.enter_async_context(recording_proxy(writer, self._ca, options.record))
            browsers = await stack.enter_async_context(Browsers(self._ca, options.browser))
            context = self._context(recording)
            run = CrawlRun(
                self._collection,
                browsers,
                recording,
                context,
                frontier,
                self._report,
                self._on_event,
                queued_before=frozenset(visit.url for visit in self._state.queue),
            )
            self._on_stage("recording")
            began = perf()
            await run.visit_all(options, robots if options.robots else None)
            if session and session.login.steps and LOGIN not in self._prior.extra:
                self._on_stage("recording the login")
                await self._record_login(await browsers.get(), context, session.login)
            self._report.seconds = perf() - began

    def _frontier(self) -> Frontier[Visited]:
        return Frontier(
            self._scope,
            depth=self._options.depth,
            limit=self._options.limit,
            files=self._options.files,
            state=self._state,
            recorded={page.url for page in self._prior_pages},
        )

    def _context(self, recording: RecordingProxy) -> CrawlContext:
        options = self._options
        profile, pinning = pinning_of(self._manifest)
        return CrawlContext(
            proxy=recording.url,
            profile=profile,
            pinning=pinning,
            page_timeout=options.page_timeout,
            retries=options.retries,
            at_rest=recording.at_rest,
            behaviors=BehaviorOptions(options.behaviors, options.budget),
            login=self._session,
            digests=recording.digests,
            baseline=options.baseline,
        )

    async def _sitemap_pages(self, robots: Robots, sitemap: str) -> list[str]:
        """Return the pages of a sitemap; of the sitemaps of the seeds' sites if `sitemap` is empty."""
        starts = [seed_url(sitemap)] if sitemap else await sitemaps_of(robots, self._scope.seeds)
        sitemaps = Sitemaps()
        await sitemaps.walk(robots.fetcher, starts)
        self._report.sitemaps |= sitemaps.problems
        return sitemaps.pages

    async def _record_login(self, browser: Browser, context: CrawlContext, login: Login) -> None:
        """Record the login steps after all pages: see `stillweb.record.login.run`."""
        try:
            await log_in(browser, context.context_settings, login)
        except RecordError as error:
            self._report.notes[f"login not recorded: {error}"] = 1

    def _finish(self) -> CrawlReport:
        collection, report, seeds = self._collection, self._report, self._scope.seeds
        learn_transports(collection)
        report.captures = sum(1 for _ in collection.captures())
        if report.stopped and not report.pages:
            raise RecordError(
                f"{report.stopped} ended the crawl before its first page", hint="a larger limit"
            )
        if not report.stopped and not any(page.seed and page.url in seeds for page in report.pages):
            if self._prior_pages:
                collection.write_manifest(self._prior)  # nothing has changed
            raise _unreachable(seeds[0], report)
        collection.write_manifest(_with_stop_reason(self._manifest, report.stopped))
        return report


def _with_stop_reason(manifest: Manifest, why: str) -> Manifest:
    """Return a manifest with the reason of an early end; "" for none.

    A crawl of as many pages as the user wanted (`--limit`) is complete, although --append continues it.
    """
    extra = {name: value for name, value in manifest.extra.items() if name != STOPPED}
    if why:
        extra[STOPPED] = why
    state = "partial" if why and not why.startswith(PAGE_LIMIT) else "complete"
    return replace(manifest, state=state, extra=extra)


def _prior_pages(collection: Collection, state: CrawlState) -> list[Page]:
    """Return the listed pages except those that a killed crawl listed too early: they are visited again."""
    again = {page_id(visit) for visit in state.queue[state.through :]}
    return [page for page in collection.page_list() if page.id not in again]


def _write_error(collection: Collection, error: OSError) -> RecordError:
    target = error.filename or collection.path
    why = os.strerror(error.errno).lower() if error.errno else str(error)
    hint = "what was recorded is valid; the same command with --append continues"
    if error.errno in DISK_FULL:
        hint = "free disk space: " + hint
    return RecordError(f"cannot write to {target}: {why}", hint=hint)


def _unreachable(seed: str, report: CrawlReport) -> UpstreamUnreachable:
    if seed in report.files:
        return UpstreamUnreachable(
            f"{seed} is a download, not a page", hint="stillweb record proxy -c NAME records downloads"
        )
    why = report.failed_pages.get(seed, "no response")
    if "--allow-private" in why:
        why, _, hint = why.partition("; ")
    elif "ertificate" in why:
        hint = "if the site uses its own CA: --upstream-ca ITS-CA.pem"
    elif "Name or service" in why or "resolution" in why:
        hint = f"check the name, or give the address: --resolve '{host_of(seed)}=127.0.0.1:8443'"
    else:
        hint = f"check that the site is up: curl -v {seed}"
    return UpstreamUnreachable(f"{seed} cannot be reached: {why}", hint=hint)

"""A crawl under way: some pages at a time, listed in the frontier's order, until its end or a limit.

Nothing is polled: the loop waits for pages, for a fault of the recording, and for the moment at which the
next page may be begun.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from playwright.async_api import Browser

from stillweb.browser.launch import launch
from stillweb.certs import CertAuthority
from stillweb.clock import monotonic, perf
from stillweb.collections.layout import Collection
from stillweb.errors import RecordError
from stillweb.model import Page
from stillweb.record.behaviors.behaviors import total
from stillweb.record.crawl.fetch import Robots
from stillweb.record.crawl.frontier import Frontier, Visit
from stillweb.record.crawl.report import CrawlEvent, CrawlReport
from stillweb.record.crawl.visit import CrawlContext, Visited, extra_of, visit_page
from stillweb.record.options import CrawlOptions
from stillweb.record.proxy.proxy import RecordingProxy
from stillweb.record.recording import write_state
from stillweb.urls import host_of

__all__ = ["Browsers", "CrawlLimits", "CrawlRun", "Pace", "page_id"]


@dataclass(frozen=True, slots=True)
class CrawlLimits:
    """What may be used up in one run; None for no limit.

    Attributes:
        seconds: after which no further page is begun.
        size: bytes of response bodies, as received, after which none is.
    """

    seconds: float | None = None
    size: int | None = None

    def reached(self, seconds: float, size: int) -> str:
        """Return the limit that was reached, as it was given; "" if none was."""
        if self.seconds is not None and seconds >= self.seconds:
            return f"--time-limit {self.seconds:g}"
        if self.size is not None and size >= self.size:
            return f"--size-limit {self.size}"
        return ""

    def left(self, seconds: float) -> float | None:
        """Return the seconds that are left; None if there is no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - seconds)


@dataclass(slots=True)
class Pace:
    """When the next page of a host may be begun.

    Attributes:
        delay: seconds between the beginnings of two pages of one host.
    """

    delay: float = 0.0
    _begun: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, delay: float, rate: float | None) -> Pace:
        """Return the slower of a delay in seconds and a rate in pages a minute."""
        return cls(max(delay, 60.0 / rate if rate else 0.0))

    def wait(self, host: str, now: float, asked: float = 0.0) -> float:
        """Return the seconds until a page of a host may be begun; `asked`: the delay that the host wants."""
        if host not in self._begun:
            return 0.0
        return max(0.0, self._begun[host] + max(self.delay, asked) - now)

    def begin(self, host: str, now: float) -> None:
        """Note that a page of a host is begun."""
        self._begun[host] = now


_MOST_ENDS = 10  # a machine on which browsers end this often has another trouble than its pages


class Browsers:
    """One browser at a time; use it as an asynchronous context.

    Args:
        ca: whom the browser trusts.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def get(self) -> Browser:
        """Return the browser that runs.

        Raises:
            RecordError: if too many have ended.
            InfraError: if none starts.
        """
        async with self._starting:
            if self._browser is not None and not self._browser.is_connected():
                self._ends += 1
                if self._ends >= _MOST_ENDS:
                    raise RecordError(
                        f"the browser ended {self._ends} times", hint="the same with --append goes on"
                    )
                self._browser = None
                await self._stack.aclose()
            if self._browser is None:
                made = launch(spki=self._ca.spki_hashes(), executable=self._executable)
                self._browser = await self._stack.enter_async_context(made)
            return self._browser


_SPARING = 20  # lists grow with the crawl: write them for at most a twentieth of the time
_BROWSERS = 2  # that a page may end before it is given up

_FORBIDDEN = "robots.txt forbids it"
_WENT_ON = "the crawl went on"


def page_id(visit: Visit) -> str:
    """Return the name of a page, and of its baseline's folder."""
    return f"page-{visit.index + 1:04d}"


@dataclass(slots=True)
class CrawlRun:
    """One crawl; the report is filled while it runs.

    Attributes:
        queued_before: URLs that the crawl before had in its queue; it may have visited them in part.
    """

    collection: Collection
    browsers: Browsers
    recording: RecordingProxy
    setting: CrawlContext
    frontier: Frontier[Visited]
    report: CrawlReport
    on_event: Callable[[CrawlEvent], None]
    queued_before: frozenset[str] = frozenset()
    through: int = 0
    written: float = 0.0
    cost: float = 0.0
    began: float = field(default_factory=monotonic)
    running: dict[asyncio.Task[Visited], Visit] = field(default_factory=dict)

    async def visit_all(self, options: CrawlOptions, robots: Robots | None) -> None:
        """Visit what the frontier hands out.

        Raises:
            RecordError: if an exchange could not be written, or browsers end again and again.
        """
        limits = CrawlLimits(options.time_limit, options.size_limit)
        pace = Pace.of(options.delay, options.rate)
        write_state(self.collection, self.frontier.state)  # a kill may come after the first list of pages
        fault = asyncio.create_task(self.recording.broken())
        try:
            while True:
                wait = await self._begin(options.jobs, limits, pace, robots)
                if not self.running and wait is None:
                    break
                await asyncio.wait({fault, *self.running}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                self._end()
                self.recording.check()
            if not self.report.stopped and self.frontier.cut:
                self.report.stopped = f"--limit {options.limit}"
        finally:
            await self._leave(fault)

    async def _begin(self, jobs: int, limits: CrawlLimits, pace: Pace, robots: Robots | None) -> float | None:
        """Begin as many pages as may be; return the seconds until another may be, None if no time decides."""
        while len(self.running) < jobs and (visit := self.frontier.next):
            spent = monotonic() - self.began
            self.report.stopped = limits.reached(spent, self.recording.body_bytes)
            if self.report.stopped:
                return None
            asked = 0.0
            if robots:
                if not visit.seed and not await robots.allows(visit.url):
                    self._pass_over(visit)
                    continue
                asked = await robots.delay(visit.url)
            host, now = host_of(visit.url), monotonic()
            if wait := pace.wait(host, now, asked):
                left = limits.left(spent)
                return wait if left is None else min(wait, left)
            pace.begin(host, now)
            self.frontier.take()
            self.running[asyncio.create_task(self._visit(visit))] = visit
        return None

    def _pass_over(self, visit: Visit) -> None:
        self.frontier.take()
        self.frontier.spare()
        self._list(self.frontier.put(visit, Visited(visit, "", error=_FORBIDDEN)))

    def _end(self) -> None:
        """Take in the pages that are through, in the order in which they were begun."""
        for task in [task for task in self.running if task.done()]:
            self._list(self.frontier.put(self.running.pop(task), task.result()))

    async def _leave(self, fault: asyncio.Task[None]) -> None:
        for task in (fault, *self.running):
            task.cancel()
        await asyncio.gather(fault, *self.running, return_exceptions=True)
        self.report.failed_requests = dict(self.recording.failed)
        self.report.notes = dict(self.recording.notes)
        self.report.files_left = list(self.frontier.files_left)
        self.report.exchanges = self.recording.exchanges
        self.report.body_bytes = self.recording.body_bytes
        self._drop_baselines(self.running.values())
        self._list(self.frontier.rest())  # a crawl that goes on visits these again
        self._write()

    async def _visit(self, visit: Visit) -> Visited:
        folder = self.collection.baseline / page_id(visit)
        ended = ""
        for _ in range(_BROWSERS):
            browser = await self.browsers.get()
            visited = await visit_page(browser, self.setting, visit, folder)
            visited = replace(visited, retried=visited.retried or ended)
            self.recording.sweep(folder)
            if browser.is_connected() or not visited.error:
                return visited
            ended = visited.error
        return replace(visited, error=f"the browser ended at it: {visited.error}")

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
                self.frontier.spare()
                self.report.failed_pages.pop(url, None)
                self.report.files.append(url)
            else:
                self.report.failed_pages.pop(url, None)
                again = _WENT_ON if url in self.queued_before else ""
                self.report.pages.append(_page(visited, again, baseline=self.setting.baseline))
                self.report.behaviours = total((self.report.behaviours, visited.deeds))
        if outcomes and perf() - self.written > _SPARING * self.cost:
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
            per_minute=60 * self.through / max(monotonic() - self.began, 1e-3),
            retried=visited.retried,
            files=len(self.report.files),
        )


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

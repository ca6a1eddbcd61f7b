"""The crawl queue: breadth first, in an order that does not depend on the number of concurrent pages. Pure.

Pages leave the queue in order, and their links join it in the order of the pages: the outcome of a page that
finished early waits for those before it. So queue, ids and page list are equal for any number of jobs.

The queue holds every page found, also those beyond the limit of this crawl: `state` lets a later crawl
continue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stillweb.record.crawl.scope import Scope, is_file


@dataclass(frozen=True, slots=True)
class Visit:
    """A page to visit.

    Attributes:
        index: position in the queue, from 0.
        url: URL in wire spelling.
        depth: number of links between a seed and the page.
    """

    index: int
    url: str
    depth: int
    seed: bool


class VisitOutcome(Protocol):
    """The part of a visit's outcome that the frontier uses."""

    @property
    def links(self) -> Iterable[str]:
        """Links of the page in document order and wire spelling."""


T = TypeVar("T", bound=VisitOutcome)


@dataclass(frozen=True, slots=True)
class CrawlState:
    """State from which a later crawl continues.

    Attributes:
        queue: every page found, in order.
        through: number of pages visited, from the start of the queue.
    """

    queue: tuple[Visit, ...] = ()
    through: int = 0


class Frontier(Generic[T]):
    """Queue of the pages to visit, and the order of their outcomes.

    Args:
        scope: which links are in scope; its seeds are queued.
        depth: maximum depth of queued pages.
        limit: maximum number of pages to hand out.
        files: queue links to downloads, too.
        state: state of an earlier crawl.
        recorded: URLs of pages recorded earlier; other visited URLs failed and may be queued again.

    Attributes:
        files_left: links in scope to downloads that are not queued, in the order of discovery.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        depth: int | None = None,
        limit: int | None = None,
        files: bool = False,
        state: CrawlState = CrawlState(),
        recorded: Collection[str] = (),
    ) -> None:
        self._scope = scope
        self._depth = depth
        self._files = files
        self.files_left: dict[str, None] = {}
        self._queue = list(state.queue)
        self._taken = self._in_order = state.through
        self._end = None if limit is None else state.through + limit
        self._waiting_outcomes: dict[int, T] = {}
        self._known = {
            visit.url for visit in self._queue if visit.index >= state.through or visit.url in recorded
        }
        for url in scope.seeds:
            self._add(url, depth=0, seed=True)

    @property
    def waiting(self) -> int:
        """Number of known pages not handed out yet."""
        found = len(self._queue)
        return max(0, (found if self._end is None else min(found, self._end)) - self._taken)

    @property
    def state(self) -> CrawlState:
        return CrawlState(tuple(self._queue), self._in_order)

    @property
    def cut(self) -> bool:
        """Whether the limit withholds pages."""
        return self._end is not None and self._taken >= self._end and len(self._queue) > self._end

    @property
    def next(self) -> Visit | None:
        return self._queue[self._taken] if self.waiting else None

    def take(self) -> Visit | None:
        """Hand out the next page; None if there is none at present."""
        visit = self.next
        if visit is not None:
            self._taken += 1
        return visit

    def add(self, urls: Iterable[str]) -> None:
        """Queue in-scope pages from another source than a page, such as a sitemap."""
        for url in urls:
            self._add_link(url, depth=0)

    def exclude_from_limit(self) -> None:
        """Do not count a handed-out page towards the limit."""
        if self._end is not None:
            self._end += 1

    def put(self, visit: Visit, outcome: T) -> list[T]:
        """Store the outcome of a visit; return the outcomes that are next in order."""
        self._waiting_outcomes[visit.index] = outcome
        ready = []
        while self._in_order in self._waiting_outcomes:
            outcome = self._waiting_outcomes.pop(self._in_order)
            parent = self._queue[self._in_order]
            self._in_order += 1
            self._follow(parent, outcome.links)
            ready.append(outcome)
        return ready

    def rest(self) -> list[T]:
        """Return the outcomes that still wait, in order; for a stopped crawl."""
        return [self._waiting_outcomes[index] for index in sorted(self._waiting_outcomes)]

    def _follow(self, parent: Visit, links: Iterable[str]) -> None:
        if self._depth is not None and parent.depth >= self._depth:
            return
        for url in links:
            self._add_link(url, depth=parent.depth + 1)

    def _add_link(self, url: str, *, depth: int) -> None:
        if not self._scope.contains(url):
            return
        if self._files or url in self._known or not is_file(url):
            self._add(url, depth=depth, seed=False)
        else:
            self.files_left[url] = None

    def _add(self, url: str, *, depth: int, seed: bool) -> None:
        if url not in self._known:
            self._known.add(url)
            self._queue.append(Visit(len(self._queue), url, depth, seed))

"""The crawl's queue: breadth first, in an order that does not depend on how many pages run at a time.

Pages are handed out in queue order. What they link to joins the queue in the order of the pages
too: the outcome of a page that overtook an earlier one is held until that one's is known. So
queue, ids and the list of pages are the same for any number of jobs.

The queue holds all that was found, also beyond the limit of this crawl: `state` is what a later
crawl goes on from. Pure.
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
        index: place in the queue, from 0.
        url: in wire spelling.
        depth: links away from a seed.
        seed: whether it was given, not found.
    """

    index: int
    url: str
    depth: int
    seed: bool


class VisitOutcome(Protocol):
    """What a visit brought, as far as the frontier needs it."""

    @property
    def links(self) -> Iterable[str]:
        """Where the page links to, in document order and wire spelling."""


T = TypeVar("T", bound=VisitOutcome)


@dataclass(frozen=True, slots=True)
class CrawlState:
    """What a crawl leaves to the next one.

    Attributes:
        queue: every page found, in order.
        through: how many of them, from the first on, were visited.
    """

    queue: tuple[Visit, ...] = ()
    through: int = 0


class Frontier(Generic[T]):
    """Queue of the pages to visit, and the order of what came of them.

    Args:
        scope: which links count; its seeds are queued.
        depth: of the pages to queue at most.
        limit: pages to hand out at most.
        files: whether links to files to save are queued, too.
        state: of the crawl before.
        recorded: URLs of the pages recorded before; others that were visited failed, and may be
            queued anew.

    Attributes:
        files_left: links in scope to files, where those are not queued, in the order of finding.
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
        self._held: dict[int, T] = {}
        self._known = {
            visit.url for visit in self._queue if visit.index >= state.through or visit.url in recorded
        }
        for url in scope.seeds:
            self._add(url, depth=0, seed=True)

    @property
    def waiting(self) -> int:
        """How many pages are still to be handed out, as far as is known."""
        found = len(self._queue)
        return max(0, (found if self._end is None else min(found, self._end)) - self._taken)

    @property
    def state(self) -> CrawlState:
        """What a later crawl goes on from."""
        return CrawlState(tuple(self._queue), self._in_order)

    @property
    def cut(self) -> bool:
        """Whether the limit keeps pages from being handed out."""
        return self._end is not None and self._taken >= self._end and len(self._queue) > self._end

    @property
    def next(self) -> Visit | None:
        """The page that `take` would hand out."""
        return self._queue[self._taken] if self.waiting else None

    def take(self) -> Visit | None:
        """Hand out the next page; None if there is none at the moment."""
        visit = self.next
        if visit is not None:
            self._taken += 1
        return visit

    def add(self, urls: Iterable[str]) -> None:
        """Queue pages that were found elsewhere than on a page, as in a sitemap, if they are in scope."""
        for url in urls:
            self._found(url, depth=0)

    def spare(self) -> None:
        """Do not count a page that was handed out towards the limit: it is not visited."""
        if self._end is not None:
            self._end += 1

    def put(self, visit: Visit, outcome: T) -> list[T]:
        """Take in what came of a visit; return the outcomes that are now next in order."""
        self._held[visit.index] = outcome
        ready = []
        while self._in_order in self._held:
            outcome = self._held.pop(self._in_order)
            parent = self._queue[self._in_order]
            self._in_order += 1
            self._follow(parent, outcome.links)
            ready.append(outcome)
        return ready

    def rest(self) -> list[T]:
        """Return the outcomes still held, in order; for a crawl that was stopped."""
        return [self._held[index] for index in sorted(self._held)]

    def _follow(self, parent: Visit, links: Iterable[str]) -> None:
        if self._depth is not None and parent.depth >= self._depth:
            return
        for url in links:
            self._found(url, depth=parent.depth + 1)

    def _found(self, url: str, *, depth: int) -> None:
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

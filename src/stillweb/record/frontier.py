"""The crawl's queue: breadth first, in an order that does not depend on how many pages run at a time.

Pages are handed out in queue order. What they link to joins the queue in the order of the pages
too: the outcome of a page that overtook an earlier one is held until that one's is known. So
queue, ids and the list of pages are the same for any number of jobs. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stillweb.record.scope import Scope


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


class Outcome(Protocol):
    """What a visit brought, as far as the frontier needs it."""

    @property
    def links(self) -> Iterable[str]:
        """Where the page links to, in document order and wire spelling."""


T = TypeVar("T", bound=Outcome)


class Frontier(Generic[T]):
    """Queue of the pages to visit, and the order of what came of them.

    Attributes:
        known: URLs that were queued, or were recorded before (when appending).
    """

    def __init__(
        self, scope: Scope, *, depth: int | None = None, limit: int | None = None, known: Iterable[str] = ()
    ) -> None:
        self.known = set(known)
        self._scope = scope
        self._depth = depth
        self._limit = limit
        self._queue: list[Visit] = []
        self._taken = 0
        self._held: dict[int, T] = {}
        self._in_order = 0
        for url in scope.seeds:
            self._add(url, depth=0, seed=True)

    @property
    def waiting(self) -> int:
        """How many pages of the queue were not handed out yet."""
        return len(self._queue) - self._taken

    def take(self) -> Visit | None:
        """Hand out the next page; None if there is none at the moment."""
        if not self.waiting:
            return None
        self._taken += 1
        return self._queue[self._taken - 1]

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
            if self._scope.contains(url):
                self._add(url, depth=parent.depth + 1, seed=False)

    def _add(self, url: str, *, depth: int, seed: bool) -> None:
        full = self._limit is not None and len(self._queue) >= self._limit
        if full or url in self.known:
            return
        self.known.add(url)
        self._queue.append(Visit(len(self._queue), url, depth, seed))

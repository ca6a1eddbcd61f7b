"""Order of the URLs to fetch: next is the one that a random visitor is most likely to reach. Pure.

Each fetched page hands its weight on to what it leads to (PageRank by residuals; Andersen, Chung and Lang
2006). Weight that reaches a page after it was fetched is handed on too: links of a much visited page come
early. URLs of equal weight come in the order in which they were found.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DAMPING = 0.85
"""Share of a page's weight that its links receive; the rest is a visitor who leaves."""

_AGAIN = 1.25  # growth of a weight after which it is sorted in again
_NEGLIGIBLE = 1e-6  # weight that is not handed on alone: cycles of links would hand it on without end
_WORTH = 8.0  # a fetched page hands on what it received since if that is this much of a waiting URL's weight


@dataclass(slots=True, eq=False)
class Pending:
    """A URL to fetch, and the page that led to it.

    Attributes:
        weight: everything that it has received.
        late: weight received since it handed its weight on.
        leads, shares: what it leads to, and the share of each.
        queued: weight by which it is sorted.
        number: order of arrival.
        request: how it is sent, None for a document.
    """

    url: str
    referer: str
    weight: float = 0.0
    taken: bool = False
    late: float = 0.0
    leads: tuple[Pending, ...] = ()
    shares: tuple[float, ...] = ()
    queued: float = 0.0
    number: int = 0
    request: Any = None


@dataclass(slots=True)
class HarvestFrontier:
    """URLs to fetch, each once; and weights of what else pages lead to, such as forms."""

    waiting: int = 0
    _known: dict[str, Pending] = field(default_factory=dict)
    _others: dict[Hashable, Pending] = field(default_factory=dict)
    _heap: list[tuple[float, int, Pending]] = field(default_factory=list)

    def add(self, url: str, referer: str, weight: float, request: Any = None) -> None:
        """Add a URL, or weight to one that waits."""
        pending = self._at(url, referer)
        pending.request = request
        pending.weight += weight
        self._sort_in(pending)

    def lead(
        self,
        page: Pending,
        urls: Iterable[str] | Mapping[str, float],
        others: Mapping[Hashable, float] | None = None,
    ) -> None:
        """Hand the weight of a fetched page on.

        Args:
            urls: where it leads, with the share of each; in equal shares if none are given.
            others: what else it leads to, see `weight_of`.
        """
        shares = urls if isinstance(urls, Mapping) else {}
        distinct = [url for url in dict.fromkeys(urls) if url != page.url]
        others = others or {}
        equal = 1 / len(distinct) if distinct else 0.0
        page.leads = (*(self._at(url, page.url) for url in distinct), *map(self._other, others))
        page.shares = (*(shares.get(url, equal) for url in distinct), *others.values())
        self._pass_on(page, page.weight)
        page.late = 0.0

    def take(self) -> Pending | None:
        """Return the URL of the largest weight, None if nothing waits."""
        first = self._first()
        if first is not None:
            heapq.heappop(self._heap)
            first.queued = 0.0
            first.taken = True
            self.waiting -= 1
        return first

    def peek(self) -> float:
        """Return about the largest weight that waits."""
        first = self._first()
        return first.queued if first else 0.0

    def _first(self) -> Pending | None:
        """Return the first URL to fetch; what is sorted before it hands its late weight on."""
        while self._heap and self.waiting:
            queued, _, pending = self._heap[0]
            if -queued == pending.queued and not pending.taken:
                return pending
            heapq.heappop(self._heap)
            if -queued == pending.queued:
                pending.queued = 0.0
                late, pending.late = pending.late, 0.0
                self._pass_on(pending, late)
        return None

    def weight_waiting(self) -> float:
        """Return the weight of all documents that wait."""
        return sum(each.weight for each in self._known.values() if not each.taken and each.request is None)

    def knows(self, url: str) -> bool:
        """Return whether a URL was added, or a page led to it."""
        return url in self._known

    def weight_of(self, other: Hashable) -> float:
        """Return the weight that pages have handed to something that is not a URL."""
        pending = self._others.get(other)
        return pending.weight if pending else 0.0

    def add_other(self, other: Hashable, weight: float) -> None:
        """Add weight to something that is not a URL."""
        self._other(other).weight += weight

    def mark_taken(self, url: str) -> Pending:
        """Return a URL as fetched, with the weight that it has received so far."""
        pending = self._at(url, "")
        if not pending.taken:
            pending.taken, pending.queued = True, 0.0
            self.waiting -= 1
        return pending

    def waiting_urls(self) -> list[tuple[str, str, float]]:
        """Return (URL, referer, weight) of the documents that wait, in the order of arrival."""
        waiting = (each for each in self._known.values() if not each.taken and each.request is None)
        return [(each.url, each.referer, each.weight) for each in waiting]

    def _at(self, url: str, referer: str) -> Pending:
        pending = self._known.get(url)
        if pending is None:
            pending = self._known[url] = Pending(url, referer, number=len(self._known))
            self.waiting += 1
        return pending

    def _other(self, key: Hashable) -> Pending:
        pending = self._others.get(key)
        if pending is None:
            pending = self._others[key] = Pending("", "", taken=True)
        return pending

    def _pass_on(self, page: Pending, weight: float) -> None:
        for pending, share in zip(page.leads, page.shares, strict=True):
            received = DAMPING * weight * share
            pending.weight += received
            pending.late += received
            self._sort_in(pending)

    def _sort_in(self, pending: Pending) -> None:
        weight = pending.weight
        if pending.taken:
            if not pending.leads or not pending.url:
                return
            weight = pending.late * max(pending.shares) * _WORTH
            if weight < _NEGLIGIBLE:
                return
        if weight > _AGAIN * pending.queued:
            pending.queued = weight
            heapq.heappush(self._heap, (-weight, pending.number, pending))

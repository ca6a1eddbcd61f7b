"""Which URL is fetched next: the one that a random visitor is most likely to reach. Pure.

Each fetched page hands its weight on to the URLs it leads to, in equal parts (PageRank without iteration;
Brin and Page 1998). URLs of equal weight come in the order in which they were found.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["HarvestFrontier", "Pending"]

DAMPING = 0.85
"""Share of a page's weight that its links receive; the rest is a visitor who leaves."""


@dataclass(slots=True)
class Pending:
    """A URL to fetch, and the page that led to it."""

    url: str
    referer: str
    weight: float = 0.0
    taken: bool = False


@dataclass(slots=True)
class HarvestFrontier:
    """URLs to fetch, each once."""

    _known: dict[str, Pending] = field(default_factory=dict)
    _heap: list[tuple[float, int, str]] = field(default_factory=list)
    waiting: int = 0

    def add(self, url: str, referer: str, weight: float) -> None:
        """Add a URL, or weight to one that waits."""
        pending = self._known.get(url)
        if pending is None:
            pending = self._known[url] = Pending(url, referer)
            self.waiting += 1
        pending.weight += weight
        if not pending.taken:
            heapq.heappush(self._heap, (-pending.weight, len(self._known), url))

    def lead(self, page: Pending, urls: Iterable[str]) -> None:
        """Hand the weight of a fetched page on to the URLs it leads to."""
        distinct = [url for url in dict.fromkeys(urls) if url != page.url]
        for url in distinct:
            self.add(url, page.url, DAMPING * page.weight / len(distinct))

    def take(self) -> Pending | None:
        """Return the URL of the largest weight, None if nothing waits."""
        while self._heap:
            weight, _, url = heapq.heappop(self._heap)
            pending = self._known[url]
            if not pending.taken and -weight == pending.weight:
                pending.taken = True
                self.waiting -= 1
                return pending
        return None

    def waiting_urls(self) -> list[tuple[str, str, float]]:
        """Return (URL, referer, weight) of what waits, in the order of arrival."""
        return [(each.url, each.referer, each.weight) for each in self._known.values() if not each.taken]

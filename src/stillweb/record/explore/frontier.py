"""Which state is explored next: the one that somebody who clicks about is most likely to come to. Pure.

Every state that was entered hands the weight it has on to what its controls lead to, in equal parts. From the
pages of the crawl this goes outwards, and of states equally far it takes those first that many ways lead to.
What can only be reached by changing the site has a queue of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stillweb.browser.input.walker import Act

__all__ = ["KEPT", "ExploreFrontier", "FrontierState"]

KEPT = 0.85  # of a weight that is handed on: who walks about begins anew now and then


@dataclass(frozen=True, slots=True)
class FrontierState:
    """A state to enter.

    Attributes:
        path: the acts that lead to it from an empty tab.
        mutated: whether one of them changes the site.
        state: its digest where it was seen, "" where nobody has been yet.
        base: where the last act was not tried yet: digest of the state that offers it.
        told: of that act, for people.
        trying: whether it was entered before, and its controls are to be tried now.
    """

    path: tuple[Act, ...]
    mutated: bool = False
    state: str = ""
    base: str = ""
    told: str = ""
    trying: bool = False

    @classmethod
    def at(cls, url: str) -> FrontierState:
        """Return the place at an address."""
        return cls((Act("open", value=url),))

    @property
    def url(self) -> str:
        """Its address, where it is one; "" where more than that leads to it."""
        return self.path[0].value if len(self.path) == 1 and self.path[0].do == "open" else ""

    @property
    def key(self) -> object:
        """What two ways to one place have in common."""
        place = self.url or self.state or self.path
        return ("trying", place) if self.trying else place


@dataclass(slots=True)
class _Waiting:
    place: FrontierState
    number: int
    weight: float = 0.0
    taken: bool = False


@dataclass(slots=True)
class ExploreFrontier:
    """States to enter, each once."""

    _known: dict[object, _Waiting] = field(default_factory=dict)
    _noted: dict[str, float] = field(default_factory=dict)
    _heaps: tuple[list[tuple[float, int, object]], list[tuple[float, int, object]]] = field(
        default_factory=lambda: ([], [])
    )

    def __len__(self) -> int:
        return sum(not each.taken for each in self._known.values())

    def seed(self, urls: Sequence[str]) -> None:
        """Add the pages to begin with."""
        for url in urls:
            self.add(FrontierState.at(url), 1.0 / len(urls))

    def add(self, place: FrontierState, weight: float) -> None:
        """Add a state, or weight to one that waits. One that was taken stays so."""
        waiting = self._known.setdefault(place.key, _Waiting(place, len(self._known)))
        waiting.weight += weight
        if not waiting.taken:
            entry = (-waiting.weight, waiting.number, place.key)
            heapq.heappush(self._heaps[waiting.place.mutated], entry)

    def take(self, *, mutated: bool) -> tuple[FrontierState, float] | None:
        """Return the next state that changes the site, or does not, and its weight; None if there is none."""
        heap = self._heaps[mutated]
        while heap:
            weight, _, key = heapq.heappop(heap)
            waiting = self._known[key]
            if not waiting.taken and -weight == waiting.weight:  # else it has grown since
                waiting.taken = True
                return waiting.place, waiting.weight
        return None

    def note(self, url: str, weight: float) -> None:
        """Take note of an address that is to be opened only: `likeliest` has it, `take` has not."""
        self._noted[url] = self._noted.get(url, 0.0) + weight

    def likeliest(self, passed: Callable[[str], bool]) -> tuple[str, float] | None:
        """Return the likeliest address that nobody has entered yet, and its weight; None if there is none.

        Args:
            passed: tells whether an address is passed over.
        """
        weights = dict(self._noted)
        for each in self._known.values():
            if each.place.url and not (each.taken or each.place.trying or each.place.mutated):
                weights[each.place.url] = weights.get(each.place.url, 0.0) + each.weight
        found = ((-weight, url) for url, weight in weights.items() if not passed(url))
        best = min(found, default=None)
        return None if best is None else (best[1], -best[0])

    def mark(self, place: FrontierState) -> float:
        """Count a state as taken, as it was by a run before; return its weight."""
        waiting = self._known.setdefault(place.key, _Waiting(place, len(self._known)))
        waiting.taken = True
        return waiting.weight

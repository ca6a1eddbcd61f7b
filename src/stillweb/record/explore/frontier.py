"""Order of exploration: the state that a random visitor is most likely to reach comes first. Pure.

Each entered state passes its weight on to the targets of its controls, in equal parts. Weights spread from
the crawled pages; among states at equal distance, those with more incoming controls come first. States that
can only be reached by changing the site have their own queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stillweb.browser.input.walker import Act

DAMPING = 0.85  # share of a weight that is passed on: a visitor starts anew now and then


@dataclass(frozen=True, slots=True)
class FrontierState:
    """A state to enter.

    Attributes:
        path: actions that lead to it from an empty tab.
        mutated: whether one of them changes the site.
        state: digest of the state; "" before it was entered.
        base: digest of the state that offers the last action, if that is still untried.
        description: the last action in words.
        trying: whether the state was entered before and its controls are tried now.
    """

    path: tuple[Act, ...]
    mutated: bool = False
    state: str = ""
    base: str = ""
    description: str = ""
    trying: bool = False

    @classmethod
    def at(cls, url: str) -> FrontierState:
        return cls((Act("open", value=url),))

    @property
    def url(self) -> str:
        """URL of the state; "" if it takes more than a URL to reach it."""
        return self.path[0].value if len(self.path) == 1 and self.path[0].do == "open" else ""

    @property
    def key(self) -> object:
        """Identity of the state, independent of the path to it."""
        target = self.url or self.state or self.path
        return ("trying", target) if self.trying else target


@dataclass(slots=True)
class _Waiting:
    target: FrontierState
    number: int
    weight: float = 0.0
    taken: bool = False


@dataclass(slots=True)
class ExploreFrontier:
    """States to enter, each once, by weight."""

    _known: dict[object, _Waiting] = field(default_factory=dict)
    _noted: dict[str, float] = field(default_factory=dict)
    _heaps: tuple[list[tuple[float, int, object]], list[tuple[float, int, object]]] = field(
        default_factory=lambda: ([], [])
    )

    def __len__(self) -> int:
        return sum(not each.taken for each in self._known.values())

    def seed(self, urls: Sequence[str]) -> None:
        for url in urls:
            self.add(FrontierState.at(url), 1.0 / len(urls))

    def add(self, target: FrontierState, weight: float) -> None:
        """Add a state, or weight to a waiting one. A taken state stays taken."""
        waiting = self._known.setdefault(target.key, _Waiting(target, len(self._known)))
        waiting.weight += weight
        if not waiting.taken:
            entry = (-waiting.weight, waiting.number, target.key)
            heapq.heappush(self._heaps[waiting.target.mutated], entry)

    def take(self, *, mutated: bool) -> tuple[FrontierState, float] | None:
        """Return the next state of one queue and its weight; None if the queue is empty."""
        heap = self._heaps[mutated]
        while heap:
            weight, _, key = heapq.heappop(heap)
            waiting = self._known[key]
            if not waiting.taken and -weight == waiting.weight:  # else a newer entry has its current weight
                waiting.taken = True
                return waiting.target, waiting.weight
        return None

    def note(self, url: str, weight: float) -> None:
        """Add weight to a URL that may only be opened: `likeliest` returns it, `take` does not."""
        self._noted[url] = self._noted.get(url, 0.0) + weight

    def likeliest(self, excluded: Callable[[str], bool]) -> tuple[str, float] | None:
        """Return the URL with the most weight that was not entered, and its weight; None if there is none."""
        weights = dict(self._noted)
        for each in self._known.values():
            if each.target.url and not (each.taken or each.target.trying or each.target.mutated):
                weights[each.target.url] = weights.get(each.target.url, 0.0) + each.weight
        found = ((-weight, url) for url, weight in weights.items() if not excluded(url))
        best = min(found, default=None)
        return None if best is None else (best[1], -best[0])

    def mark(self, target: FrontierState) -> float:
        """Mark a state as taken by an earlier run; return its weight."""
        waiting = self._known.setdefault(target.key, _Waiting(target, len(self._known)))
        waiting.taken = True
        return waiting.weight

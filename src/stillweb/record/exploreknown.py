"""What an exploration knows to be recorded, and which controls do the same wherever they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stillweb.urls import wire_url

__all__ = ["PROVEN", "Asked", "Known"]

PROVEN = 2  # pages on which a control did the same

Asked = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Did:
    asked: frozenset[tuple[str, str]]
    stayed: bool
    states: set[str] = field(default_factory=set)
    steady: bool = True


class Known:
    """Addresses that are recorded, and what controls did.

    Args:
        urls: of the captures there are.
    """

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._urls = {wire_url(url) for url in urls}
        self._did: dict[str, _Did] = {}

    def add(self, url: str) -> None:
        """Take note that an address was recorded."""
        self._urls.add(wire_url(url))

    def __contains__(self, url: str) -> bool:
        return wire_url(url) in self._urls

    def did(self, same: str, state: str, asked: Asked, *, stayed: bool) -> None:
        """Take note of what a control did in a state."""
        requests = frozenset(asked)
        known = self._did.setdefault(same, _Did(requests, stayed))
        known.states.add(state)
        known.steady = known.steady and known.asked == requests and known.stayed == stayed

    def does(self, same: str, *, proven: int = PROVEN) -> Asked | None:
        """Return what a control asks for wherever it is; None where that has to be seen.

        Args:
            same: what the control is on every page.
            proven: pages on which it must have done the same.
        """
        known = self._did.get(same)
        if known is None or not known.steady or len(known.states) < proven:
            return None
        return tuple(sorted(known.asked))

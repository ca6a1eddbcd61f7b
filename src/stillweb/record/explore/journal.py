"""What an exploration writes down as it goes: the map, line by line, and what is recorded by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

from stillweb.browser.activity import Requested
from stillweb.browser.input.controls import PageState
from stillweb.collections.reachability import Reach, ReachedState, Tried, to_line
from stillweb.record.explore.options import ExploreEvent, ExploreReport
from stillweb.record.explore.plan import ActionPlan, Link, OfferedAction
from stillweb.record.proxy.proxy import RecordingProxy
from stillweb.urls import wire_url

__all__ = ["PROVEN", "RECORDED", "WAITING", "Asked", "ExplorationJournal", "RecordedActions"]

PROVEN = 2  # pages on which a control did the same

Asked = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Did:
    asked: frozenset[tuple[str, str]]
    stayed: bool
    states: set[str] = field(default_factory=set)
    steady: bool = True


class RecordedActions:
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


WAITING = "not come to"
RECORDED = "recorded"
_LISTED = 60  # requests of one act
_ABORTED = "ERR_ABORTED"  # what became a download, or was overtaken: the proxy knows whether it was recorded


class ExplorationJournal:
    """The account of one run.

    Args:
        reach: the map so far; added to.
        known: what is recorded; added to.
        lines: the file of the map.
        report: added to.
        recording: by which everything passes.
        on_event: told after each act.
    """

    def __init__(
        self,
        reach: Reach,
        known: RecordedActions,
        lines: TextIO,
        report: ExploreReport,
        recording: RecordingProxy,
        on_event: Callable[[ExploreEvent], None],
    ) -> None:
        self.reach = reach
        self.known = known
        self.report = report
        self._lines = lines
        self._recording = recording
        self._on_event = on_event

    def write(self, line: ReachedState | Tried) -> None:
        """Add a line to the map and its file."""
        self.reach.add(line)
        self._lines.write(to_line(line))
        self._lines.flush()

    def tried(self, tried: Tried) -> None:
        """Write down what came of an act, of its requests the first ones."""
        self.write(replace(tried, requests=tried.requests[:_LISTED]))

    def leave(self, state: PageState, what: OfferedAction | Link, how: str, asked: Asked = ()) -> None:
        """Write down that something is not tried, unless the map says what came of it."""
        if not self.reach.tried(state.digest, what.act.to_dict()):
            self.write(Tried(state.digest, what.act.to_dict(), what.told, asked, how=how))

    def knows(self, state: PageState, offer: OfferedAction) -> bool:
        """Return whether it is known from other pages what an offer does; then it is written down so."""
        # What a form asks for by its address and its fields is the same wherever it stands.
        asked = self.known.does(offer.same, proven=1 if offer.act.do == "submit" else PROVEN)
        if asked is None:
            return False
        self.leave(state, offer, RECORDED, asked)
        return True

    def knows_all(self, state: PageState, plan: ActionPlan) -> bool:
        """Return whether nothing of a plan is left to be tried; what is known is written down."""
        return all(
            [
                self.reach.tried(state.digest, each.act.to_dict()) or self.knows(state, each)
                for each in plan.offers
            ]
        )

    def recorded(self, requests: Sequence[Requested]) -> tuple[Asked, Asked]:
        """Take note of what was recorded; return what was asked for, and of that what was not answered."""
        recording = self._recording
        asked, unanswered = [], []
        for request in requests:
            url = wire_url(request.url)
            asked.append((request.method, url))
            lost = request.failure and _ABORTED not in request.failure
            if lost or url in recording.failed or url in recording.aborted:
                unanswered.append((request.method, url))
            elif request.method == "GET":
                self.known.add(url)
        return tuple(dict.fromkeys(asked)), tuple(dict.fromkeys(unanswered))

    def count(self, told: str, waiting: int) -> None:
        """Count an act, and tell of it."""
        self.report.acts += 1
        self._tell(told, waiting)

    def count_opened(self, url: str, waiting: int) -> None:
        """Count a link that was only opened, and tell of it."""
        self.report.opened += 1
        self._tell(f"open only {url}", waiting)

    def _tell(self, told: str, waiting: int) -> None:
        self._on_event(
            ExploreEvent(told, self.report.acts, len(self.reach.states), waiting, self._recording.body_bytes)
        )

    def close(self, waiting: int) -> None:
        """Say of each link that waited whether it was come to, and sum up."""
        for tried in list(self.reach.actions.values()):
            if tried.how == WAITING and any(url in self.known for _, url in tried.requests):
                self.write(Tried(tried.state, tried.action, tried.told, tried.requests, how=RECORDED))
        self.report.waiting = waiting
        self.report.exchanges = self._recording.exchanges
        self.report.body_bytes = self._recording.body_bytes

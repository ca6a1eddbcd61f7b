"""What an exploration writes down as it goes: the map, line by line, and what is recorded by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO

from stillweb.browser.activity import Requested
from stillweb.browser.controls import State
from stillweb.collections.reachability import Reach, ReachedState, Tried, to_line
from stillweb.record.exploreknown import PROVEN, Asked, Known
from stillweb.record.exploreoptions import ExploreEvent, ExploreReport
from stillweb.record.exploreplan import Link, Offer, Plan
from stillweb.record.proxy import RecordingProxy
from stillweb.urls import wire_url

__all__ = ["RECORDED", "WAITING", "Book"]

WAITING = "not come to"
RECORDED = "recorded"
_LISTED = 60  # requests of one act
_ABORTED = "ERR_ABORTED"  # what became a download, or was overtaken: the proxy knows whether it was recorded


class Book:
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
        known: Known,
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

    def leave(self, state: State, what: Offer | Link, how: str, asked: Asked = ()) -> None:
        """Write down that something is not tried, unless the map says what came of it."""
        if not self.reach.tried(state.digest, what.act.to_dict()):
            self.write(Tried(state.digest, what.act.to_dict(), what.told, asked, how=how))

    def knows(self, state: State, offer: Offer) -> bool:
        """Return whether it is known from other pages what an offer does; then it is written down so."""
        # What a form asks for by its address and its fields is the same wherever it stands.
        asked = self.known.does(offer.same, proven=1 if offer.act.do == "submit" else PROVEN)
        if asked is None:
            return False
        self.leave(state, offer, RECORDED, asked)
        return True

    def knows_all(self, state: State, plan: Plan) -> bool:
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

"""Journal of an exploration: the map, written line by line, and what is recorded so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO

from stillweb.browser.activity import Requested
from stillweb.browser.input.controls import PageState
from stillweb.collections.reachability import ReachabilityMap, ReachedState, TriedAction, to_line
from stillweb.record.explore.options import ExploreEvent, ExploreReport
from stillweb.record.explore.plan import ActionPlan, Link, OfferedAction
from stillweb.record.proxy.running import RecordingProxy
from stillweb.urls import page_address, wire_url

PROVEN = 2  # pages on which a control must have had the same effect

RequestList = tuple[tuple[str, str], ...]  # (method, URL) pairs


@dataclass(slots=True)
class _Effect:
    requests: frozenset[tuple[str, str]]
    stayed: bool
    states: set[str] = field(default_factory=set)
    constant: bool = True


class RecordedActions:
    """Recorded URLs, and the effects of controls.

    Args:
        urls: URLs of the existing captures.
    """

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._urls = {wire_url(url) for url in urls}
        self._effects: dict[str, _Effect] = {}

    def add(self, url: str) -> None:
        self._urls.add(wire_url(url))

    def add_page(self, url: str) -> None:
        """Note that a page was opened: a hash route is recorded then, although no request has its URL."""
        if (address := page_address(url)) != wire_url(url):
            self._urls.add(address)

    def __contains__(self, url: str) -> bool:
        return page_address(url) in self._urls

    def add_effect(self, identity: str, state: str, requests: RequestList, *, stayed: bool) -> None:
        """Note the effect of a control in a state."""
        sent = frozenset(requests)
        known = self._effects.setdefault(identity, _Effect(sent, stayed))
        known.states.add(state)
        known.constant = known.constant and known.requests == sent and known.stayed == stayed

    def effect(self, identity: str, *, proven: int = PROVEN) -> RequestList | None:
        """Return the requests that a control sends on every page; None if they are not known yet.

        Args:
            identity: identity of the control across pages.
            proven: number of pages on which it must have had the same effect.
        """
        known = self._effects.get(identity)
        if known is None or not known.constant or len(known.states) < proven:
            return None
        return tuple(sorted(known.requests))


WAITING = "not come to"
RECORDED = "recorded"
_LISTED = 60  # requests listed for one action
_ABORTED = "ERR_ABORTED"  # a download, or superseded: the proxy knows whether it was recorded


class ExplorationJournal:
    """Journal of one run.

    Args:
        reach: map so far; extended.
        known: what is recorded; extended.
        lines: file of the map.
        report: updated.
        on_event: called after each action.
    """

    def __init__(
        self,
        reach: ReachabilityMap,
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

    def write(self, line: ReachedState | TriedAction) -> None:
        self.reach.add(line)
        self._lines.write(to_line(line))
        self._lines.flush()

    def tried(self, tried: TriedAction) -> None:
        """Write the outcome of an action, with its first requests."""
        self.write(replace(tried, requests=tried.requests[:_LISTED]))

    def leave(
        self, state: PageState, what: OfferedAction | Link, how: str, requests: RequestList = ()
    ) -> None:
        """Write that an action is not tried, unless the map has its outcome."""
        if not self.reach.tried(state.digest, what.act.to_dict()):
            self.write(TriedAction(state.digest, what.act.to_dict(), what.description, requests, how=how))

    def knows(self, state: PageState, offer: OfferedAction) -> bool:
        """Return True if the effect of an action is known from other pages, and write it into the map."""
        # The request of a form follows from its URL and its fields, on any page.
        requests = self.known.effect(offer.identity, proven=1 if offer.act.do == "submit" else PROVEN)
        if requests is None:
            return False
        self.leave(state, offer, RECORDED, requests)
        return True

    def knows_all(self, state: PageState, plan: ActionPlan) -> bool:
        """Return True if nothing of a plan remains to be tried; write what is known into the map."""
        return all(
            [
                self.reach.tried(state.digest, each.act.to_dict()) or self.knows(state, each)
                for each in plan.offers
            ]
        )

    def recorded(self, requests: Sequence[Requested]) -> tuple[RequestList, RequestList]:
        """Note what was recorded; return all requests, and those without a response."""
        recording = self._recording
        sent, unanswered = [], []
        for request in requests:
            url = wire_url(request.url)
            sent.append((request.method, url))
            lost = request.failure and _ABORTED not in request.failure
            if lost or url in recording.failed or url in recording.aborted:
                unanswered.append((request.method, url))
            elif request.method == "GET":
                self.known.add(url)
        return tuple(dict.fromkeys(sent)), tuple(dict.fromkeys(unanswered))

    def count(self, description: str, waiting: int) -> None:
        """Count an action and report progress."""
        self.report.acts += 1
        self._report(description, waiting)

    def count_opened(self, url: str, waiting: int) -> None:
        """Count a link that was only opened, and report progress."""
        self.report.opened += 1
        self._report(f"open only {url}", waiting)

    def _report(self, description: str, waiting: int) -> None:
        states, size = len(self.reach.states), self._recording.body_bytes
        self._on_event(ExploreEvent(description, self.report.acts, states, waiting, size))

    def close(self, waiting: int) -> None:
        """Write for each waiting link whether it was recorded meanwhile, and complete the report."""
        for tried in list(self.reach.actions.values()):
            if tried.how == WAITING and any(url in self.known for _, url in tried.requests):
                self.write(
                    TriedAction(tried.state, tried.action, tried.description, tried.requests, how=RECORDED)
                )
        self.report.waiting = waiting
        self.report.exchanges = self._recording.exchanges
        self.report.body_bytes = self._recording.body_bytes

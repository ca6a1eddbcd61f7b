"""Order of requests at level EXACT: no two responses of a context race.

CDP Fetch pauses every request before it is sent. When the context is idle, one paused request is released;
the next one follows when its response has been processed and the context is idle again. The order depends on
the page alone, not on the machine: first what pages wait for (documents, styles, data), then what has a lower
priority (asynchronous scripts, scripts and styles after a picture), then images. The imports of a module come
first: of several graphs that wait for one module, Blink continues in the order of memory addresses
(ModuleMap::Entry), so one graph is loaded before the next one begins. Within a group, requests that were made
after fewer responses come first, then the order is that of URL, body and requester. The browser delays only
the latter two groups, while a document's head loads.

This module keeps the state of the requests. It knows neither CDP nor a clock; `ExactContext` drives it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

# Requests whose end is not awaited: pages get nothing of a report's response, and streams end when the page
# ends them.
_REPORTS = frozenset({"ping", "cspviolationreport"})
_UNTIL_RESPONSE = frozenset({"eventsource", "media", "websocket", *_REPORTS})
OF_SCRIPTS = frozenset({"xhr", "fetch"})
"""Types of requests that scripts send."""
_IMAGES = frozenset({"image", "font", "media", "texttrack", "prefetch", *_REPORTS})
_LOOP = 300  # requests to one path at one instant, besides images
_POLLS = 20  # of them one after the other, from which on a script waits
_POLL_MS = 1000  # of the page's clock that it waits
_LOADS = 10  # documents of one path at one instant that a page gets


class RequestLoop(Exception):
    """A page repeats a request without a pause, so that its clock would not reach the next instant."""


class RequestStage(StrEnum):
    """Progress of a request."""

    SENT = "sent"  # reported by the page; not paused yet, or served from the page's memory
    PAUSED = "paused"
    RELEASED = "released"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that has not ended.

    Attributes:
        key: CDP Network identifier.
        kind: resource type, lower case.
        round: number of responses released before its first report.
        fetch_id: CDP Fetch identifier, once paused.
        owner: session that paused it.
        responded: whether its response has begun.
        received: number of reports of its body.
        late: whether the browser may delay it while a document's head loads.
        precedence: of scripts: 0 for a static import, 1 for a preload, 2 for others.
        frame: CDP identifier of a document's frame.
        source: the requesting frame or worker, for messages.
        reported: whether `Activity` lists it.
        requester: name of the worker that made it; documents come first.
        requester_known: whether `requester` is final.
        moved: set when it has ended, is paused again, or is no longer awaited.
    """

    key: str
    url: str
    method: str
    kind: str
    round: int
    body: str = ""
    stage: RequestStage = RequestStage.SENT
    fetch_id: str = ""
    owner: object = None
    responded: bool = False
    received: int = 0
    late: bool = False
    precedence: int = 2
    fragment: str = ""
    frame: str = ""
    source: str = ""
    reported: bool = False
    requester: tuple[str, int] = ("", 0)
    requester_known: bool = False
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def rank(self) -> tuple[int, int, int, str, str, str, tuple[str, int]]:
        """Sort key among paused requests."""
        return (self.group, self.precedence, self.round, self.url, self.method, self.body, self.requester)

    @property
    def group(self) -> int:
        """0 for what the browser sends immediately, 1 for what it may delay, 2 for images."""
        return 2 if self.is_image else int(self.late)

    @property
    def is_report(self) -> bool:
        """Whether its response is awaited for the order of requests only: no page gets it."""
        return self.kind in _REPORTS

    @property
    def is_image(self) -> bool:
        """Whether scripts seldom depend on it: images, fonts, media and the like."""
        return self.kind in _IMAGES


class RequestScheduler:
    """State of a context's requests.

    Attributes:
        round: number of released responses.
        progress: set at every change; waiting code clears it.
    """

    def __init__(self) -> None:
        self.round = 0
        self.progress = asyncio.Event()
        self._requests: dict[str, PendingRequest] = {}
        self._postponed: list[tuple[int, PendingRequest]] = []
        self._loaded_at = 0  # ms since the start of the page's clock
        self._loads: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # then, by page and path
        self._refused = ""  # path of a document that a page no longer got

    @property
    def next_due(self) -> int | None:
        """Time at which a postponed request is to be sent, in ms since the start of the page's clock."""
        return min((due for due, _ in self._postponed), default=None)

    def postpone(self, request: PendingRequest, now: int) -> None:
        """Store a paused request that was ended here; it is not awaited until `resume` adds it again."""
        request.stage, request.reported = RequestStage.PAUSED, False
        self._postponed.append((now + _POLL_MS, request))

    def may_load(self, document: PendingRequest, now: int) -> bool:
        """Return False if a page loads documents of one path without end at this instant.

        Such a page reloads itself, or two pages lead to each other. It then stays where it is. The parts of a
        redirect have one key.
        """
        if now != self._loaded_at:
            self._loaded_at = now
            self._loads.clear()
        path = path_of(document.url)
        loads = self._loads[document.frame, path]
        loads.add(document.key)
        if len(loads) <= _LOADS:
            return True
        self._refused = path
        return False

    def check_loads(self) -> None:
        """Raise an error if a page was refused a document since the last call.

        Raises:
            RequestLoop: if it was.
        """
        if path := self._refused:
            self._refused = ""
            self._loads.clear()
            raise RequestLoop(f"{path} was loaded {_LOADS} times at one instant, and then no more")

    def resume(self, now: int) -> None:
        """Add the postponed requests that are due."""
        self._requests |= {each.key: each for due, each in self._postponed if due <= now}
        self._postponed = [(due, each) for due, each in self._postponed if due > now]

    @property
    def open(self) -> list[PendingRequest]:
        """The requests that have not ended, oldest first."""
        return list(self._requests.values())

    def get(self, key: str) -> PendingRequest | None:
        """Return a request that has not ended."""
        return self._requests.get(key)

    def unreported(self) -> list[PendingRequest]:
        """Return the requests that `Activity` does not list yet, in the order of their release."""
        new = (request for request in self._requests.values() if not request.reported)
        return sorted(new, key=lambda request: request.rank)

    def sent(self, key: str, url: str, method: str, kind: str, body: str = "") -> PendingRequest:
        """Add a reported request; a known one was redirected, or paused before its report."""
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = PendingRequest(key, url, method, kind, self.round, body)
        elif request.stage is RequestStage.RELEASED:  # a redirect: it will be paused again
            request.url, request.method = url, method
            request.stage, request.responded = RequestStage.SENT, False
        self.progress.set()
        return request

    def paused(self, request: PendingRequest, fetch_id: str, owner: object) -> None:
        """The browser has paused a request."""
        request.stage, request.fetch_id, request.owner = RequestStage.PAUSED, fetch_id, owner
        request.moved.set()
        self.progress.set()

    def responded(self, key: str) -> None:
        """The head of a response has arrived."""
        if request := self._requests.get(key):
            request.responded = True
            if request.kind in _UNTIL_RESPONSE:
                self.ended(key)
            self.progress.set()

    def ended(self, key: str) -> PendingRequest | None:
        """Remove a request that has finished or failed; return it unless it had ended before."""
        self._postponed = [each for each in self._postponed if each[1].key != key]
        if request := self._requests.pop(key, None):
            request.stage = RequestStage.ENDED
            request.moved.set()
        self.progress.set()
        return request

    def unaccounted(self) -> list[PendingRequest]:
        """Return requests that may or may not be paused yet.

        A request whose preflight is paused or released will be paused after it. Requests of a later group
        than a paused one do not matter yet; browsers delay them while a document's head loads.
        """
        requests = self._requests.values()
        preflights = {
            each.url for each in requests if each.method == "OPTIONS" and each.stage is not RequestStage.SENT
        }
        first = min((each.group for each in requests if each.stage is RequestStage.PAUSED), default=2)
        return [
            each
            for each in requests
            if each.stage is RequestStage.SENT and each.url not in preflights and each.group <= first
        ]

    def ambiguous(self) -> list[PendingRequest]:
        """Return paused requests whose order depends on a report that has not arrived."""
        paused = [request for request in self._requests.values() if request.stage is RequestStage.PAUSED]
        equal = Counter(request.rank[:-1] for request in paused)
        return [
            request
            for request in paused
            if not request.requester_known
            and (equal[request.rank[:-1]] > 1 or (request.kind == "script" and len(paused) > 1))
        ]

    def released(self) -> list[PendingRequest]:
        """Return the requests that were released and have not ended."""
        return [request for request in self._requests.values() if request.stage is RequestStage.RELEASED]

    def next_paused(self) -> PendingRequest | None:
        """Return the request to release next."""
        paused = [request for request in self._requests.values() if request.stage is RequestStage.PAUSED]
        return min(paused, key=lambda request: request.rank) if paused else None

    def release(self, request: PendingRequest, *, counts: bool = True) -> None:
        """Mark a request as released; it starts a new round if it `counts`."""
        self.round += counts
        request.stage = RequestStage.RELEASED
        request.moved.clear()


class RepeatedPaths:
    """Requests to each path at one instant."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._rounds: defaultdict[str, set[int]] = defaultdict(set)

    def count(self, request: PendingRequest) -> bool:
        """Count a request; return whether it is a poll: one of many by a script, each sent after an answer.

        A server holds a long poll open; replay answers it immediately, so that the script sends the next one.

        Raises:
            RequestLoop: if the page sends requests to its path without end.
        """
        path = path_of(request.url)
        self._rounds[path].add(request.round)
        if request.kind in OF_SCRIPTS and len(self._rounds[path]) > _POLLS:
            return True
        self._sent[path] += not request.is_image
        if self._sent[path] > _LOOP:
            raise RequestLoop(f"{path} was requested {_LOOP} times at one instant")
        return False


def path_of(url: str) -> str:
    """Return a URL without its query: repeated requests are counted by it."""
    return url.partition("?")[0]

"""A recording proxy that runs: what it has seen, what is under way, and whether it still writes."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.errors import RecordError
from stillweb.record.proxy.flows import EventStream, Socket, socket_url
from stillweb.record.proxy.samebodies import SameBodies
from stillweb.urls import wire_url

__all__ = ["RecordingProxy", "RequestAccount", "RequestOutcome", "RequestRecord"]

KEPT = 20_000  # entries of a ledger


class RequestOutcome(StrEnum):
    """What became of a request."""

    RECORDED = "recorded"
    FAILED = "failed"  # the site gave no whole answer
    ABORTED = "aborted"  # the client did not wait for the whole answer
    TOO_LONG = "too long"  # passed on, and not recorded
    OPEN = "open"  # when the recording ended


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that is over.

    Attributes:
        status: of the answer, 0 if there was none.
        reason: why it is not recorded, "" if it is.
        size: bytes of the answer's body as received.
        ms: since the request began.
        protocol: as spoken with the site.
        port: of the listener by which it came.
        resource, referer: as the client told them.
    """

    method: str
    url: str
    outcome: RequestOutcome
    status: int = 0
    reason: str = ""
    size: int = 0
    ms: float = 0.0
    protocol: str = ""
    port: int = 0
    resource: str = ""
    referer: str = ""


@dataclass(slots=True)
class RequestAccount:
    """What a session asked for, the oldest forgotten first.

    Attributes:
        counts: requests by outcome, over all that ever were.
    """

    counts: Counter[str] = field(default_factory=Counter)
    _entries: deque[tuple[int, RequestRecord]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _total: int = 0

    def add(self, passed: RequestRecord) -> None:
        """Enter a request."""
        self._total += 1
        self.counts[passed.outcome.value] += 1
        self._entries.append((self._total, passed))

    @property
    def total(self) -> int:
        """How many requests there were."""
        return self._total

    def to_dict(self, after: int = 0) -> dict[str, Any]:
        """Return the ledger beyond request number `after`, as JSON has it."""
        recorded = self.counts[RequestOutcome.RECORDED.value]
        return {
            "entries": list(_entries(self._entries, after)),
            "counts": {"recorded": recorded, "miss": self._total - recorded},
            "dropped": self._total - len(self._entries),
            "closed": False,
        }


def _entries(kept: Iterable[tuple[int, RequestRecord]], after: int) -> Iterable[dict[str, Any]]:
    for number, passed in kept:
        if number > after:
            yield {
                "seq": number,
                "method": passed.method,
                "url": passed.url,
                "status": passed.status,
                "tier": "recorded" if passed.outcome is RequestOutcome.RECORDED else "miss",
                "reason": passed.reason,
                "bytes": passed.size,
                "ms": round(passed.ms, 1),
                "resource": passed.resource,
                "referer": passed.referer,
            }


class RecordingProxy:
    """What a recording proxy has seen so far.

    Attributes:
        url: what to give to a browser as its proxy, or to an `Env`.
        exchanges, body_bytes: written so far; bytes of response bodies as received.
        failed: URL -> why the site did not answer; not recorded.
        aborted: URLs whose answer the browser did not wait for; not recorded.
        notes: one line for each kind of traffic that passed through without being recorded.
        streams, sockets: event streams and WebSockets that are open, by flow.
        account: what became of each request.
        same: answers that were always the same.
        told: called with each request that is over.
        warned: called with what a person at the terminal should know.
        sweep: takes secrets out of the baseline of a page that is through.
    """

    def __init__(self) -> None:
        self.url = ""
        self.exchanges = 0
        self.body_bytes = 0
        self.failed: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.notes: dict[str, int] = {}
        self.streams: dict[str, EventStream] = {}
        self.sockets: dict[str, Socket] = {}
        self.account = RequestAccount()
        self.same = SameBodies()
        self.told: list[Callable[[RequestRecord], None]] = []
        self.warned: list[Callable[[str], None]] = []
        self.sweep: Callable[[Path], None] = lambda folder: None
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight: dict[str, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = asyncio.Event()
        self._begun = asyncio.Event()
        self._last = clock.monotonic()

    @property
    def in_flight(self) -> int:
        """How many requests wait for the rest of their answer; endless streams are not counted."""
        return len(self._in_flight)

    def in_flight_by(self, port: int) -> int:
        """Return how many of those came by a port."""
        return sum(by == port for by in self._in_flight.values())

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def quiet(self, seconds: float) -> None:
        """Wait until no request has been in flight for so long, from the first one on."""
        await self._begun.wait()
        while True:
            await self._idle.wait()
            left = self._last + seconds - clock.monotonic()
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._busy.wait()

    async def broken(self) -> None:
        """Wait until an exchange cannot be written.

        Raises:
            RecordError: then.
        """
        await asyncio.shield(self._fault)

    def check(self) -> None:
        """Raise the error that `broken` waits for, if it has come.

        Raises:
            RecordError: if an exchange could not be written.
        """
        if self._fault.done():
            self._fault.result()

    def fail(self, error: Exception) -> None:
        """Remember the first exchange that could not be written, and why."""
        if not self._fault.done():
            failure = RecordError(
                f"an exchange could not be written: {error!r}", hint="what was recorded before is valid"
            )
            failure.__cause__ = error
            self._fault.set_exception(failure)
            self._fault.exception()  # else asyncio complains where nobody waits for it

    def note(self, what: str) -> None:
        """Count something that passed through without being recorded."""
        self.notes[what] = self.notes.get(what, 0) + 1

    def warn(self, what: str) -> None:
        """Count something that a person should look after, and tell of it."""
        self.note(what)
        for heard in self.warned:
            heard(what)

    def over(self, passed: RequestRecord) -> None:
        """Enter a request that is over."""
        self.account.add(passed)
        if passed.outcome is RequestOutcome.FAILED:
            self.failed[passed.url] = passed.reason
        elif passed.outcome is RequestOutcome.ABORTED:
            self.aborted.add(passed.url)
        elif passed.outcome is RequestOutcome.TOO_LONG:
            self.note(f"{passed.reason}, not recorded")
        elif passed.outcome is RequestOutcome.OPEN:
            self.note("not over when the recording ended, not recorded")
        for heard in self.told:
            heard(passed)

    @contextmanager
    def at_rest(self, urls: Iterable[str]) -> Iterator[None]:
        """Note that a page has settled which has opened these event streams and WebSockets.

        Within the context WebSockets bring it nothing new, so that what it shows can be written down. Of
        several of one URL it is the one that was opened first: pages settle in the order of their visits.
        """
        live: list[tuple[str, EventStream | Socket]]
        live = [(wire_url(each.flow.request.url), each) for each in self.streams.values()]
        live += [(socket_url(each.flow), each) for each in self.sockets.values()]
        mine: list[EventStream | Socket] = []
        for url in map(wire_url, urls):
            found = next((each for place, each in live if place == url and each.rest_ms is None), None)
            if found is not None:
                found.rest()
                mine.append(found)
        try:
            yield
        finally:
            for each in mine:
                if isinstance(each, Socket):
                    each.go_on()

    def begin(self, flow_id: str, port: int = 0) -> None:
        """Count a request as in flight."""
        self._in_flight[flow_id] = port
        self._idle.clear()
        self._busy.set()
        self._begun.set()

    def end(self, flow_id: str) -> None:
        """Count a request as no longer in flight."""
        if self._in_flight.pop(flow_id, None) is not None:
            self._last = clock.monotonic()
        if not self._in_flight:
            self._busy.clear()
            self._idle.set()

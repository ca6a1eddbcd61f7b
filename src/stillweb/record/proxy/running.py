"""State of a running recording proxy: completed requests, requests in flight, and its first fault."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from stillweb import clock
from stillweb.browser.activity import Requested
from stillweb.errors import LimitExceeded, RecordError
from stillweb.http.codec import decoded_body
from stillweb.http.control import Ledger, LedgerEntry
from stillweb.model import MUTATIONS, Exchange, Response, header
from stillweb.record.proxy.flows import EventStream, Socket, request_url, socket_url
from stillweb.urls import wire_url

_DIFFERENT = b""
_NO_TEXT = frozenset(("image", "font"))


class ProxyDigestCache:
    """Digests by URL, valid while all responses to the URL were equal.

    A URL with a response in flight has no valid digest: the browser may finish before the proxy sees a
    difference.
    """

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._fingerprints: dict[str, bytes] = {}
        self._digests: dict[tuple[str, str], str] = {}

    def begin(self, url: str) -> None:
        self._in_flight[url] += 1

    def end(self, url: str, fingerprint: bytes = _DIFFERENT) -> None:
        """Note the end of a request; leave `fingerprint` out if the response was incomplete."""
        self._in_flight[url] -= 1
        if not self._in_flight[url]:
            del self._in_flight[url]
        if self._fingerprints.setdefault(url, fingerprint) != fingerprint:
            self._fingerprints[url] = _DIFFERENT

    def recall(self, entry: Requested) -> str:
        """Return the browser's digest of a response body, "" if it is not certain."""
        url = wire_url(entry.url)
        return self._digests.get((url, entry.resource_type), "") if self._is_same(url) else ""

    def learn(self, entry: Requested, body: bytes) -> None:
        """Store the digest that the browser computed for a body."""
        url = wire_url(entry.url)
        if self._is_same(url) and (entry.resource_type in _NO_TEXT or body.isascii()):
            self._digests[url, entry.resource_type] = entry.body

    def _is_same(self, url: str) -> bool:
        return bool(self._fingerprints.get(url)) and url not in self._in_flight


def response_fingerprint(exchange: Exchange) -> bytes:
    """Return a digest of all that determines the decoded body: method, status, type, coding, bytes."""
    request, response = exchange.request, exchange.response
    fields = (header(response.headers, name) for name in ("content-type", "content-encoding"))
    made = hashlib.sha256(
        "\n".join((request.method, str(response.status), *fields)).encode("utf-8", "replace")
    )
    made.update(b"\n" + response.raw_body)
    return made.digest()


LEDGER_ENTRIES = 20_000
_CODE = frozenset(("script", "style", "worker", "sharedworker", "serviceworker"))
_CHANGED = "pages recorded before may fail in a replay; record again when the site no longer changes"


class RequestOutcome(StrEnum):
    """Outcome of a request."""

    RECORDED = "recorded"
    FAILED = "failed"  # the site sent no complete response
    ABORTED = "aborted"  # the client did not wait for the complete response
    TOO_LONG = "too long"  # passed through without being recorded
    OPEN = "open"  # in flight when the recording ended


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A completed request.

    Attributes:
        status: HTTP status, 0 without a response.
        reason: why it is not recorded, "" if it is.
        size: bytes of the response body as received.
        protocol: HTTP version spoken with the site.
        port: port of the listener that accepted it.
        resource, referer: the client's Sec-Fetch-Dest and Referer fields.
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
    """Ledger of a session's requests; the oldest entries are dropped first.

    Attributes:
        counts: all requests by outcome, dropped entries included.
        writes: number of requests that may have changed the site.
    """

    counts: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    _entries: deque[tuple[int, RequestRecord]] = field(default_factory=lambda: deque(maxlen=LEDGER_ENTRIES))
    _total: int = 0

    def add(self, record: RequestRecord) -> None:
        self._total += 1
        self.counts[record.outcome.value] += 1
        self.writes += record.method in MUTATIONS
        self._entries.append((self._total, record))

    @property
    def total(self) -> int:
        return self._total

    def ledger(self, after: int = 0) -> Ledger:
        """Return the ledger beyond request number `after`."""
        recorded = self.counts[RequestOutcome.RECORDED.value]
        return Ledger(
            entries=tuple(_entry(number, each) for number, each in self._entries if number > after),
            counts={"recorded": recorded, "miss": self._total - recorded},
            dropped=self._total - len(self._entries),
        )


def _entry(number: int, record: RequestRecord) -> LedgerEntry:
    return LedgerEntry(
        seq=number,
        method=record.method,
        url=record.url,
        status=record.status,
        tier="recorded" if record.outcome is RequestOutcome.RECORDED else "miss",
        reason=record.reason,
        bytes=record.size,
        ms=round(record.ms, 1),
        resource=record.resource,
        referer=record.referer,
    )


class RecordingProxy:
    """State of a recording proxy.

    Attributes:
        url: proxy URL for a browser or an `Env`.
        exchanges, body_bytes: written so far; bytes of response bodies as received.
        failed: URL -> why the site did not respond; not recorded.
        aborted: URLs whose response the browser did not wait for; not recorded.
        notes: counts of traffic that passed through without being recorded, by description.
        streams, sockets: open event streams and WebSockets, by flow.
        account: ledger of all requests.
        digests: cache of body digests.
        versions: scripts and style sheets with more than one body in this recording -> number of bodies.
        on_request: callbacks for each completed request.
        on_warning: callbacks for messages to the user.
        sweep: removes late secrets from the baseline of a completed page.
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
        self.digests = ProxyDigestCache()
        self.versions: dict[str, int] = {}
        self._bodies: dict[str, set[bytes]] = {}
        self.on_request: list[Callable[[RequestRecord], None]] = []
        self.on_warning: list[Callable[[str], None]] = []
        self.sweep: Callable[[Path], None] = lambda folder: None
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight: dict[str, int] = {}
        self._mutations_at = ("", 0)  # timestamp of the last mutation, and its number within that second
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = asyncio.Event()
        self._begun = asyncio.Event()
        self._last = clock.monotonic()

    def mark_mutation(self, at: str, *, beacon: bool) -> None:
        """Note in all open streams and sockets that a mutation is passed on.

        Args:
            at: timestamp of its capture.
            beacon: whether no page can read the response; such a mutation has no effect on a page.
        """
        self._mutations_at = (at, self._mutations_at[1] + 1 if at == self._mutations_at[0] else 0)
        if not beacon:
            for stream in self.streams.values():
                stream.mark_mutation(*self._mutations_at)
            for socket in self.sockets.values():
                socket.mark_mutation(*self._mutations_at)

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for the rest of their response; endless streams do not count."""
        return len(self._in_flight)

    def in_flight_by(self, port: int) -> int:
        """Return the number of requests in flight of one listener port."""
        return sum(by == port for by in self._in_flight.values())

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def quiet(self, seconds: float) -> None:
        """Wait until no request was in flight for some seconds, counted from the first request on."""
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
        """Wait for the first exchange that cannot be written, then raise.

        Raises:
            RecordError: always.
        """
        await asyncio.shield(self._fault)

    def check(self) -> None:
        """Raise the error of `broken` if there is one.

        Raises:
            RecordError: if an exchange could not be written.
        """
        if self._fault.done():
            self._fault.result()

    def fail(self, error: Exception) -> None:
        """Store the first failure to write an exchange."""
        if not self._fault.done():
            failure = RecordError(
                f"an exchange could not be written: {error!r}", hint="what was recorded before is valid"
            )
            failure.__cause__ = error
            self._fault.set_exception(failure)
            self._fault.exception()  # else asyncio logs it as never retrieved

    def note(self, what: str) -> None:
        """Count traffic that passed through without being recorded."""
        self.notes[what] = self.notes.get(what, 0) + 1

    def warn(self, what: str) -> None:
        """Count a condition that the user should examine, and report it."""
        self.note(what)
        for listener in self.on_warning:
            listener(what)

    def note_version(self, url: str, resource: str, response: Response) -> None:
        """Note a body of a script or style sheet; warn if the URL had another body before.

        Decoded bodies are compared: servers that compress each response anew write the time into the header
        of gzip (RFC 1952 §2.3.1).

        Pages recorded with one body may fail with another: replay may combine a page with a later script.

        Args:
            url: URL of the response.
            resource: the client's Sec-Fetch-Dest.
        """
        if resource not in _CODE:
            return
        body = response.raw_body
        with suppress(LimitExceeded):
            body = decoded_body(response) or body
        bodies = self._bodies.setdefault(url, set())
        bodies.add(hashlib.sha256(body).digest())
        if len(bodies) > 1 and len(bodies) != self.versions.get(url):
            self.versions[url] = len(bodies)
            if len(bodies) == 2:
                for listener in self.on_warning:
                    listener(f"{url} has changed during the recording: {_CHANGED}")

    def finish(self, record: RequestRecord) -> None:
        """Enter a completed request."""
        self.account.add(record)
        if record.outcome is RequestOutcome.FAILED:
            self.failed[record.url] = record.reason
        elif record.outcome is RequestOutcome.ABORTED:
            self.aborted.add(record.url)
        elif record.outcome is RequestOutcome.TOO_LONG:
            self.note(f"{record.reason}, not recorded")
        elif record.outcome is RequestOutcome.OPEN:
            self.note("not complete when the recording ended, not recorded")
        for listener in self.on_request:
            listener(record)

    @contextmanager
    def at_rest(self, urls: Iterable[str]) -> Iterator[None]:
        """Mark the open event streams and WebSockets of a page that has settled.

        Within the context the page's WebSockets deliver nothing, so that its baseline can be taken. Among
        several of one URL the first opened is marked: pages settle in the order of their visits.
        """
        live: list[tuple[str, EventStream | Socket]]
        live = [(request_url(each.flow), each) for each in self.streams.values()]
        live += [(socket_url(each.flow), each) for each in self.sockets.values()]
        settled: list[EventStream | Socket] = []
        for url in map(wire_url, urls):
            found = next((each for place, each in live if place == url and each.rest_ms is None), None)
            if found is not None:
                found.mark_settled()
                settled.append(found)
        try:
            yield
        finally:
            for each in settled:
                if isinstance(each, Socket):
                    each.resume()

    def begin(self, flow_id: str, port: int = 0) -> None:
        self._in_flight[flow_id] = port
        self._idle.clear()
        self._busy.set()
        self._begun.set()

    def end(self, flow_id: str) -> None:
        if self._in_flight.pop(flow_id, None) is not None:
            self._last = clock.monotonic()
        if not self._in_flight:
            self._busy.clear()
            self._idle.set()

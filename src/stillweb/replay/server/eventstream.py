"""Replay of a recorded event stream: its pieces, and an end only where the site made one. Pure.

A page reopens an `EventSource` forever when it ends. So a stream that the page or the end of the recording
cut off stays open after its last event. One that the site ended is an ordinary response. The next
connection takes the next recording with the same Last-Event-ID. Past the last one, a page that opens the
stream from the start gets it again, left open; one that continues after an event gets an open stream
without events, as from a site that has none.

At pace `none` an EventSource immediately gets what it got before its page had settled, and no more. Events
that the site sent after a mutation are released once the session has made that mutation (`gates`).

A script that reads a stream by `fetch` waits for its end and requests it once: it gets the stream as
recorded. Without timing (archives of other tools) an EventSource gets everything immediately, and no end.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from stillweb.collections.pack.frames import of_cookies, open_chunks, stream_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import EVENT_STREAM, Chunks, ConnectionEnd
from stillweb.http.codec import accepts
from stillweb.matching.captures import Entry
from stillweb.matching.resolver import Policy, SessionState
from stillweb.model import Match, Request, Tier, header
from stillweb.replay.server import answer as answers
from stillweb.replay.server.answer import PreparedResponse, ScriptedResponse
from stillweb.replay.server.gates import Gate, gates_of
from stillweb.replay.server.pageclock import MessageCounts, PageClock, Released

_END = b"0\r\n\r\n"
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


@dataclass(frozen=True, slots=True)
class _Recording:
    """The recording for a connection.

    Attributes:
        repeated: whether the session got it before.
        one_of_many: whether the pack has several.
    """

    stream: bytes
    timing: Chunks
    reason: str
    entry: Entry
    repeated: bool = False
    one_of_many: bool = False


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """Bytes in chunked coding, the seconds at which they are due, and the mutation that they wait for."""

    seconds: float
    data: bytes
    gate: Gate | None = None


def answer(
    request: Request, match: Match, entry: Entry, pack: Pack, state: SessionState, policy: Policy
) -> tuple[Match, PreparedResponse]:
    """Return match and response of a request that was resolved to an event stream.

    Args:
        match: as resolved.
        state: counts them, and has the session's mutations.
        policy: has the pace.
    """
    decodable = accepts(header(request.headers, "accept-encoding"), entry.encoding)
    if request.method != entry.method or not decodable:
        return match, answers.recorded(request, entry)
    opens = _is_event_source(request)
    recording = _next(request, entry, pack, state) if opens else _same(request, entry, pack)
    if recording is None:
        return match, answers.recorded(request, entry)
    paced = policy.pace == "recorded"
    timing = recording.timing
    gates = _gates(recording, pack, policy) if opens else []
    later: list[tuple[int, bytes]] = []
    if opens and not paced and not gates:
        recording, later = _until_rest(recording)
    ends = recording.timing.end is ConnectionEnd.SITE and not recording.repeated
    tier = Tier.SEQUENCE if recording.one_of_many and match.tier is Tier.EXACT else match.tier
    reason = "; ".join(filter(None, (match.reason, recording.reason, "" if ends else "left open")))
    match = replace(match, tier=tier, reason=reason, stable=False)
    if ends and not paced and not gates:
        body = replace(entry, head=recording.entry.head, body=memoryview(recording.stream))
        return match, answers.recorded(request, body)
    if gates and not paced:
        pieces = _gated(recording.stream, timing, gates, ends=ends)
    else:
        pieces = _pieces(recording.stream, recording.timing, gates, ends=ends, paced=paced)
    head = bytes(recording.entry.head) + b"Transfer-Encoding: chunked\r\n"
    script = StreamScript(pieces, ends=ends, state=lambda: state, later=later)
    if opens:
        script.traffic = MessageCounts("stream", sent=-1 if entry.encoding else 0)
    return match, ScriptedResponse(entry.status, head, recording.stream, script=script)


def _is_event_source(request: Request) -> bool:
    # HTML §9.2.2: an EventSource sends this and nothing else.
    return request.method == "GET" and header(request.headers, "accept").strip().lower() == EVENT_STREAM


def _gates(recording: _Recording, pack: Pack, policy: Policy) -> list[Gate]:
    timing = recording.timing
    if not timing.chunks:
        return []
    end = timing.end_ms if timing.end is ConnectionEnd.SITE else timing.chunks[-1].ms
    return gates_of(recording.entry, timing.marks, end, pack, policy)


def _next(request: Request, entry: Entry, pack: Pack, state: SessionState) -> _Recording:
    """Return the next connection in the sequence."""
    last = header(request.headers, "last-event-id")
    found = [pack.entry(row) for row in pack.lookup(stream_key(entry.url, entry.key, last))]
    turns = of_cookies(found, request)
    count = len(turns)
    used = sum(state.uses.get(each.order, 0) for each in turns)
    if last and used >= count:
        return _Recording(b"", Chunks(), f"past the end: nothing recorded after event {last!r}", entry)
    if not count:
        return _Recording(bytes(entry.body), Chunks(), "recorded without timing", entry)
    chosen = turns[min(used, count - 1)]
    state.uses[chosen.order] = state.uses.get(chosen.order, 0) + 1
    timing, stream = open_chunks(bytes(chosen.body))
    reason = f"connection {used + 1} of {count}" if count > 1 else ""
    if used >= count:
        reason = f"past the end: {'its only' if count == 1 else f'the last of {count}'} connection again"
    return _Recording(stream, timing, reason, chosen, repeated=used >= count, one_of_many=count > 1)


def _until_rest(recording: _Recording) -> tuple[_Recording, list[tuple[int, bytes]]]:
    """Split a recording where the page had settled: later events show another time.

    Returns:
        The recording until then, and the later pieces with their ms from there.
    """
    timing = recording.timing
    if timing.rest_ms is None or timing.end_ms <= timing.rest_ms:
        return recording, []
    early = tuple(chunk for chunk in timing.chunks if chunk.ms <= timing.rest_ms)
    at = sum(chunk.size for chunk in early)
    first = replace(
        recording, stream=recording.stream[:at], timing=Chunks(early, ConnectionEnd.OPEN, timing.rest_ms)
    )
    later = []
    for chunk in timing.chunks[len(early) :]:
        later.append((chunk.ms - timing.rest_ms, recording.stream[at : at + chunk.size]))
        at += chunk.size
    return first, later


def _same(request: Request, entry: Entry, pack: Pack) -> _Recording | None:
    """Return the timing of the response that was resolved to."""
    last = header(request.headers, "last-event-id")
    for row in pack.lookup(stream_key(entry.url, entry.key, last)):
        found = pack.entry(row)
        timing, stream = open_chunks(bytes(found.body))
        if stream == entry.body:
            return _Recording(stream, timing, "", found)
    return None


def _pieces(
    stream: bytes, chunks: Chunks, gates: Sequence[Gate], *, ends: bool, paced: bool
) -> list[TimedChunk]:
    """Return the pieces in chunked coding (RFC 9112 §7.1), with the seconds at which they are due."""
    end = _END if ends else b""
    if not paced:
        return [TimedChunk(0.0, _chunk(stream) + end)]
    pieces, at = [], 0
    for chunk in chunks.chunks:
        data = _chunk(stream[at : at + chunk.size])
        pieces.append(TimedChunk(chunk.ms / 1000, data, _before(gates, chunk.ms)))
        at += chunk.size
    pieces.append(TimedChunk(chunks.end_ms / 1000, _chunk(stream[at:]) + end, _before(gates, chunks.end_ms)))
    return pieces


def _gated(stream: bytes, chunks: Chunks, gates: Sequence[Gate], *, ends: bool) -> list[TimedChunk]:
    """Return one piece for each gate; events after the page had settled wait for the next gate."""
    order: list[Gate | None] = [None, *gates]
    parts: list[list[bytes]] = [[] for _ in order]
    at, rest = 0, chunks.rest_ms
    for chunk in chunks.chunks:
        part = order.index(_before(gates, chunk.ms))
        cause = order[part]
        if rest is not None and chunk.ms > rest and (cause is None or cause.ms <= rest):
            part += 1
        if part < len(parts):
            parts[part].append(stream[at : at + chunk.size])
        at += chunk.size
    pieces = [TimedChunk(0.0, _chunk(b"".join(part)), gate) for part, gate in zip(parts, order, strict=True)]
    return [*pieces, TimedChunk(0.0, _END, gates[-1])] if ends else pieces


def _before(gates: Sequence[Gate], ms: int) -> Gate | None:
    """Return the last gate at or before a time."""
    return next((gate for gate in reversed(gates) if gate.ms <= ms), None)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


def _body(coded: bytes) -> bytes:
    """Return the bytes that chunked coding holds."""
    out, at = [], 0
    while at < len(coded):
        end = coded.index(b"\r\n", at)
        size = int(coded[at:end], 16)
        out.append(coded[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(out)


class _EventCounter:
    """Counts the events of a stream that a browser dispatches (HTML §9.2.6): those with data."""

    def __init__(self) -> None:
        self._line = b""
        self._has_data = False

    def feed(self, data: bytes) -> int:
        """Return the number of events that end in these bytes."""
        count = 0
        *lines, self._line = _LINE_END.split(self._line + data)
        for line in lines:
            if line:
                self._has_data |= line.partition(b":")[0] == b"data"
                continue
            count += self._has_data
            self._has_data = False
        return count


class StreamScript:
    """Pieces, as a `Script`.

    Attributes:
        clock: of the session's page.
    """

    def __init__(
        self,
        pieces: Iterable[TimedChunk],
        *,
        ends: bool,
        state: Callable[[], SessionState] = SessionState,
        later: Iterable[tuple[int, bytes]] = (),
    ) -> None:
        self.closed = False
        self.traffic = MessageCounts()
        self._held: Released[bytes] = Released()
        self._held.put(list(later))
        self.clock = PageClock()
        self._events = _EventCounter()
        self._pieces = deque(pieces)
        self._ends = ends
        self._state = state
        self._begun: float | None = None

    @property
    def next_ms(self) -> int | None:
        return self._held.next_ms

    @property
    def next_due(self) -> float | None:
        """Time of the next piece; None if none is left, or if the next one waits for a mutation."""
        return self._pieces[0].seconds + (self._begun or 0.0) if self._pieces and self._is_open() else None

    def _is_open(self) -> bool:
        gate = self._pieces[0].gate
        return gate is None or gate.is_open(self._state())

    def due(self, now: float) -> bytes:
        """Return the pieces that are due; the first call sets the beginning."""
        if self._begun is None:
            self._begun = now
        out = []
        while self._pieces and self._pieces[0].seconds + self._begun <= now and self._is_open():
            out.append(self._pieces.popleft().data)
        out += [_chunk(data) for data in self._held.take(self.clock.due_ms)]
        self.closed = self._ends and not self._pieces
        if self.traffic.kind and self.traffic.sent >= 0:
            self.traffic.sent += sum(self._events.feed(_body(data)) for data in out)
        return b"".join(out)

    def receive(self, text: bytes, now: float) -> bytes:
        """Ignore bytes of the client: it has nothing to say during a response."""
        return self.due(now)

"""A recorded event stream, played to a page: its pieces, and an end only where the site made one. Pure.

A page opens an `EventSource` again for ever when it ends, so a stream that the page itself or the end
of the recording cut off stays open behind its last event. One that the site ended is an ordinary
answer. The next connection takes the next recording made with the same Last-Event-ID. Past
the last a page that opens the stream from the start gets it again, left open; one that goes on after an event
gets an open stream without events, as from a site that has none.

At pace `none` an EventSource is given at once what it was given before its page had settled, and no more.

Who reads a stream by `fetch` waits for its end and asks no second time: it gets it ended as recorded.
Without timing (archives of other tools) an EventSource gets all at once, and no end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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

__all__ = ["EVENT_STREAM", "StreamScript", "answer"]


@dataclass(frozen=True, slots=True)
class _Recording:
    """What a connection is answered with.

    Attributes:
        again: whether it was given before.
        told_apart: whether there are others.
    """

    stream: bytes
    timing: Chunks
    reason: str
    entry: Entry
    again: bool = False
    told_apart: bool = False


def answer(
    request: Request, match: Match, entry: Entry, pack: Pack, state: SessionState, policy: Policy
) -> tuple[Match, PreparedResponse]:
    """Return match and answer of a request that was resolved to an event stream.

    Args:
        request: as asked.
        match: as resolved.
        entry: that it was resolved to.
        pack: holds its recordings with timing.
        state: counts them.
        policy: says at which pace.
    """
    decodable = accepts(header(request.headers, "accept-encoding"), entry.encoding)
    if request.method != entry.method or not decodable:
        return match, answers.recorded(request, entry)
    opens = _is_event_source(request)
    recording = _next(request, entry, pack, state) if opens else _same(request, entry, pack)
    if recording is None:
        return match, answers.recorded(request, entry)
    paced = policy.pace == "recorded"
    if opens and not paced:
        recording = _until_rest(recording)
    ends = recording.timing.end is ConnectionEnd.SITE and not recording.again
    tier = Tier.SEQUENCE if recording.told_apart and match.tier is Tier.EXACT else match.tier
    reason = "; ".join(filter(None, (match.reason, recording.reason, "" if ends else "left open")))
    match = replace(match, tier=tier, reason=reason, stable=False)
    if ends and not paced:
        body = replace(entry, head=recording.entry.head, body=memoryview(recording.stream))
        return match, answers.recorded(request, body)
    pieces = _pieces(recording.stream, recording.timing, ends=ends, paced=paced)
    head = bytes(recording.entry.head) + b"Transfer-Encoding: chunked\r\n"
    return match, ScriptedResponse(
        entry.status, head, recording.stream, script=StreamScript(pieces, ends=ends)
    )


def _is_event_source(request: Request) -> bool:
    # HTML §9.2.2: an EventSource sends this and nothing else.
    return request.method == "GET" and header(request.headers, "accept").strip().lower() == EVENT_STREAM


def _next(request: Request, entry: Entry, pack: Pack, state: SessionState) -> _Recording:
    """Return the connection whose turn it is."""
    last = header(request.headers, "last-event-id")
    held = [pack.entry(row) for row in pack.lookup(stream_key(entry.url, entry.key, last))]
    turns = of_cookies(held, request)
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
    return _Recording(stream, timing, reason, chosen, again=used >= count, told_apart=count > 1)


def _until_rest(recording: _Recording) -> _Recording:
    """Return what came before the page had settled: what came later shows another time than the page's."""
    timing = recording.timing
    if timing.rest_ms is None or timing.end_ms <= timing.rest_ms:
        return recording
    kept = tuple(chunk for chunk in timing.chunks if chunk.ms <= timing.rest_ms)
    stream = recording.stream[: sum(chunk.size for chunk in kept)]
    return replace(recording, stream=stream, timing=Chunks(kept, ConnectionEnd.OPEN, timing.rest_ms))


def _same(request: Request, entry: Entry, pack: Pack) -> _Recording | None:
    """Return the timing of the answer that was resolved to."""
    last = header(request.headers, "last-event-id")
    for row in pack.lookup(stream_key(entry.url, entry.key, last)):
        held = pack.entry(row)
        timing, stream = open_chunks(bytes(held.body))
        if stream == entry.body:
            return _Recording(stream, timing, "", held)
    return None


def _pieces(stream: bytes, chunks: Chunks, *, ends: bool, paced: bool) -> list[tuple[float, bytes]]:
    """Return the pieces in chunked coding (RFC 9112 §7.1), with the seconds at which they go out."""
    if not paced:
        return [(0.0, b"".join((_chunk(stream), b"0\r\n\r\n" if ends else b"")))]
    pieces, at = [], 0
    for chunk in chunks.chunks:
        pieces.append((chunk.ms / 1000, _chunk(stream[at : at + chunk.size])))
        at += chunk.size
    pieces.append((chunks.end_ms / 1000, _chunk(stream[at:]) + (b"0\r\n\r\n" if ends else b"")))
    return pieces


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


class StreamScript:
    """Pieces, as a `Script`."""

    def __init__(self, pieces: Iterable[tuple[float, bytes]], *, ends: bool) -> None:
        self.closed = False
        self._pieces = deque(pieces)
        self._ends = ends
        self._begun: float | None = None

    @property
    def next_due(self) -> float | None:
        """When the next piece goes out; None if none is left."""
        return self._pieces[0][0] + (self._begun or 0.0) if self._pieces else None

    def due(self, now: float) -> bytes:
        """Return the pieces that shall go out by now; the first call sets the beginning."""
        if self._begun is None:
            self._begun = now
        out = []
        while self._pieces and self._pieces[0][0] + self._begun <= now:
            out.append(self._pieces.popleft()[1])
        self.closed = self._ends and not self._pieces
        return b"".join(out)

    def receive(self, text: bytes, now: float) -> bytes:
        """Pass over what comes: the client has nothing to say while it is answered."""
        return self.due(now)

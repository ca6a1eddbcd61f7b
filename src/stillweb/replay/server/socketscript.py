"""Frames of a recorded WebSocket, and when they are due.

Frames that the site sent after a frame of the page are released once the page has sent it. Frames after a
mutation are released once the session has made it (docs/decisions/0016-frames.md). A page that sends what
another recording of the URL holds gets the rest of that recording. Sans I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from stillweb.collections.warc.frames import BINARY, CLOSE, TEXT, ConnectionEnd, Frame, Frames
from stillweb.replay.server.calls import ConnectionCalls, NumberedCalls
from stillweb.replay.server.gates import Gate, SessionGates
from stillweb.replay.server.pageclock import MessageCounts, Released

LARGEST = 64 * 1024 * 1024
"""Largest message of a page, in bytes; a larger one ends the connection (RFC 6455 §7.4.1, 1009)."""


_PAUSE_MS = 2000
"""Pause after which a frame is no longer part of the answer to a cause."""

_ANSWER_MS = 30_000
"""The same for the first frame: a site may take its time."""

_SWITCH_FRAMES = 16
_SWITCH_BYTES = 64 * 1024
"""Frames of a page, and size of one, from which on the page stays with its recording."""

Recording = tuple[Frames, SessionGates]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Frames that the site sent after a frame of the page or a mutation; None is the handshake."""

    after: Frame | Gate | None
    replies: tuple[Frame, ...]


class _FrameSequence:
    """The recorded frames, cut into turns, and the turns that were reached."""

    def __init__(
        self,
        frames: Iterable[Frame],
        gates: SessionGates,
        same: Callable[[Frame, Frame], bool],
        calls: NumberedCalls | None,
    ) -> None:
        self._same = same
        self.calls = ConnectionCalls(calls) if calls else None
        self._gates = gates
        self._turns = list(_turns(frames, gates.gates))
        self._at = 0
        self._early: set[int] = set()  # turns whose cause has come, beyond `_at`
        self._closed = [place for place, turn in enumerate(self._turns) if isinstance(turn.after, Gate)]

    @property
    def first(self) -> _Turn:
        return self._turns[0]

    @property
    def over(self) -> bool:
        return self._at + 1 == len(self._turns)

    def take(self, frame: Frame) -> list[_Turn] | None:
        """Return the turns that a frame of the page releases; None if the frame was not recorded."""
        wanted = self.calls.wanted(frame) if self.calls else None
        for place in range(self._at + 1, len(self._turns)):
            expected = self._turns[place].after
            if place in self._early or not isinstance(expected, Frame):
                continue
            if self._is_call(expected, wanted) or self._same(expected, frame):
                self._early.add(place)
                if self.calls:
                    self.calls.take(expected, frame)
                return self._reached()
        return None

    def _is_call(self, recorded: Frame, wanted: bytes | None) -> bool:
        if self.calls is None or wanted is None:
            return False
        return self.calls.calls.commands.get(recorded.payload) == wanted

    def open_gates(self) -> list[_Turn]:
        """Return the turns that the session's mutations release."""
        for place in tuple(self._closed):
            gate = self._turns[place].after
            if isinstance(gate, Gate) and self._gates.is_open(gate):
                self._closed.remove(place)
                self._early.add(place)
        return self._reached()

    def _reached(self) -> list[_Turn]:
        reached = []
        while self._at + 1 in self._early:
            self._at += 1
            turn = self._turns[self._at]
            if self.calls:
                turn = replace(turn, replies=tuple(map(self.calls.as_called, turn.replies)))
            reached.append(turn)
        return reached


def _turns(frames: Iterable[Frame], gates: Iterable[Gate]) -> Iterable[_Turn]:
    after: Frame | Gate | None = None
    replies: list[Frame] = []
    waiting = deque(gates)
    for frame in frames:
        while waiting and waiting[0].ms <= frame.ms:
            yield _Turn(after, tuple(replies))
            after, replies = waiting.popleft(), []
        if not frame.sent:
            replies.append(frame)
            continue
        yield _Turn(after, tuple(replies))
        if frame.opcode == CLOSE:
            return  # the page may close at any time
        after, replies = frame, []
    yield _Turn(after, tuple(replies))


class SocketScript:
    """An accepted connection, as a `Script`.

    Args:
        same: returns whether a frame of the page is a recorded one.
        missed: takes number, frame and reason of a frame that was not recorded.
        deflate: the compression that was negotiated.
        paced: whether to keep the recorded pauses.
        gates: the recorded mutations while the connection was open, and the page's clock.

    Attributes:
        others: returns the other recordings of the URL.
    """

    def __init__(
        self,
        frames: Frames,
        same: Callable[[Frame, Frame], bool],
        missed: Callable[[int, Frame, str], None],
        *,
        deflate: PerMessageDeflate | None = None,
        paced: bool = False,
        gates: SessionGates | None = None,
    ) -> None:
        self.closed = False
        self.traffic = MessageCounts("socket")
        self._socket = Connection(ConnectionType.SERVER, [deflate] if deflate else [])
        gates = gates or SessionGates()
        self._calls: NumberedCalls | None = None
        self._sequence = _FrameSequence(frames.frames, gates, same, None)
        self._clock = gates.page_clock
        self._same = same
        self._missed = missed
        self.others: Callable[[], Iterable[Recording]] = tuple
        self._sent: list[Frame] | None = []  # by the page; None once it stays with its recording
        self._drops = frames.end is ConnectionEnd.SITE
        self._paced = paced
        self._rest_ms = frames.rest_ms
        self._held: Released[Frame] = Released()  # received after the page had settled, or later than a cause
        self._queue: deque[tuple[float, Frame]] = deque()
        self._message = bytearray()  # not a list: pieces may be empty, and of any number
        self._count = 0
        self._begun = False

    def number_calls(self, calls: NumberedCalls | None) -> None:
        """Reply to the numbered commands of the URL's recordings in any order; before the first frame."""
        self._calls = calls
        self._sequence.calls = ConnectionCalls(calls) if calls else None

    @property
    def next_ms(self) -> int | None:
        return self._held.next_ms

    @property
    def next_due(self) -> float | None:
        """Time of the next frame; None if the page or the session decides, or nothing is left."""
        return self._queue[0][0] if self._queue and not self.closed else None

    def due(self, now: float) -> bytes:
        """Return the frames that are due; the first call begins the connection."""
        if not self._begun:
            self._begun = True
            self._enqueue(self._sequence.first, now)
        for turn in self._sequence.open_gates():
            self._enqueue(turn, now)
        self._queue.extend((now, frame) for frame in self._held.take(self._clock.due_ms))
        out = []
        while self._queue and self._queue[0][0] <= now:
            out.append(self._send(self._queue.popleft()[1]))
        self._drop_if_over()
        return b"".join(out)

    def receive(self, text: bytes, now: float) -> bytes:
        out: list[bytes] = []
        if self.closed:
            return b""
        try:
            self._socket.receive_data(text)
            for event in self._socket.events():
                out.append(self._take(event, now))
        except LocalProtocolError:  # bytes behind the page's close
            self.closed = True
        out.append(self.due(now))
        return b"".join(out)

    def _enqueue(self, turn: _Turn, now: float) -> None:
        begun = turn.after.ms if turn.after else 0
        held = self._held.take_all()
        due = list(turn.replies)
        if not self._paced and self._rest_ms is not None:
            count, since = _burst(due, begun, self._rest_ms)
            self._held.put([(frame.ms - since, frame) for frame in due[count:]])
            if begun <= self._rest_ms or self._clock.ms is not None:
                due = due[:count]
            else:
                self._held.take_all()
        # After the frames that still wait: frames never overtake each other.
        earliest = max(now, self._queue[-1][0]) if self._queue else now
        for frame in [*held, *due]:
            pause = max(0, frame.ms - begun) / 1000 if self._paced else 0
            earliest = max(earliest, now + pause)
            self._queue.append((earliest, frame))

    def _send(self, frame: Frame) -> bytes:
        if self._socket.state is not ConnectionState.OPEN:
            return b""
        self.traffic.sent += frame.opcode != CLOSE
        return self._socket.send(_event(frame))

    def _drop_if_over(self) -> None:
        """Drop the connection as the site did, once all frames are sent."""
        if self._drops and not self._queue and not self._held and self._sequence.over:
            self.closed = self._socket.state is ConnectionState.OPEN or self.closed

    def _take(self, event: Event, now: float) -> bytes:
        match event:
            case Message():
                return self._piece(event, now)
            case Ping():
                return self._socket.send(event.response())
            case CloseConnection():
                self.closed = True
                state = self._socket.state
                if state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                    return self._socket.send(event.response())
        return b""

    def _piece(self, event: Message[Any], now: float) -> bytes:
        text = isinstance(event.data, str)
        piece = event.data.encode("utf-8") if isinstance(event.data, str) else bytes(event.data)
        self._message += piece
        if len(self._message) > LARGEST:
            self.closed = True
            return self._socket.send(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
        if event.message_finished:
            payload, self._message = bytes(self._message), bytearray()
            self._frame(Frame(0, True, TEXT if text else BINARY, payload), now)
        return b""

    def _frame(self, frame: Frame, now: float) -> None:
        self._count += 1
        self.traffic.received += 1
        over = self._sequence.over
        turns = self._sequence.take(frame)
        if turns is None:
            turns = self._switch(frame)
        if turns is None and self._reply(frame, now):
            return
        if turns is None:
            self._missed(self._count, frame, "past the end of the recording" if over else "not as recorded")
        elif self._sent is not None:
            self._sent.append(frame)
            if len(self._sent) >= _SWITCH_FRAMES or len(frame.payload) > _SWITCH_BYTES:
                self._sent = None
        for turn in turns or ():
            self._enqueue(turn, now)

    def _reply(self, frame: Frame, now: float) -> bool:
        """Reply to a numbered command that another recording, or this one earlier, holds."""
        reply = self._sequence.calls.reply(frame) if self._sequence.calls else None
        if reply is None:
            return False
        earliest = max(now, self._queue[-1][0]) if self._queue else now
        self._queue.append((earliest, reply))
        return True

    def _switch(self, frame: Frame) -> list[_Turn] | None:
        """Continue with another recording that holds all frames of the page; return the turns of the last.

        A page may name itself in its first frame, by the session that an earlier answer gave to it. Each
        recorded visit has another name. Only this frame shows which visit's answer the page has.
        """
        if self._sent is None:
            return None
        for frames, gates in self.others():
            sequence = _FrameSequence(frames.frames, gates, self._same, self._calls)
            sequence.open_gates()  # what the page has received by now is from the recording before
            turns = [sequence.take(each) for each in (*self._sent, frame)]
            if None not in turns:
                self._sequence, self._rest_ms, self._held = sequence, frames.rest_ms, Released()
                self._drops = frames.end is ConnectionEnd.SITE
                return turns[-1]
        return None


def _burst(frames: Sequence[Frame], begun: int, rest_ms: int) -> tuple[int, int]:
    """Return how many frames belong to their cause, and the time in ms from which the later ones count.

    Args:
        frames: that the site sent after a cause.
        begun: time of the cause in ms.
        rest_ms: time at which the page had settled.
    """
    if begun <= rest_ms:
        return sum(frame.ms <= rest_ms for frame in frames), rest_ms
    last = begun
    for count, frame in enumerate(frames):
        if frame.ms - last > (_PAUSE_MS if count else _ANSWER_MS):
            return count, last
        last = frame.ms
    return len(frames), last


def _event(frame: Frame) -> Event:
    if frame.opcode == TEXT:
        return TextMessage(data=frame.payload.decode("utf-8", "replace"))
    if frame.opcode == CLOSE:
        code = int.from_bytes(frame.payload[:2], "big") if len(frame.payload) > 1 else 1005
        return CloseConnection(code=code, reason=frame.payload[2:].decode("utf-8", "replace") or None)
    return BytesMessage(data=frame.payload)

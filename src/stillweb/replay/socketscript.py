"""A recorded WebSocket, played to a page: told what came, it says what goes out. Sans-io.

The recording is cut at the page's frames. What the site sent before the first goes out with the answer
to the handshake; what it sent after the page's n-th goes out when that has come: the same opcode and the
same payload, JSON by value, volatile parts aside. A frame that is expected only later is kept for its
turn, since pages send from several places at once. One that is expected nowhere is a miss on
the ledger, and the script waits, as a site that is slow: nothing is ever answered that was
not an answer to this. The page closes when it likes, the site only as recorded.

At pace `none` all that is due goes out at once, but for what the site sent by itself after the page had
settled: that waits for the page's next frame, as the page would else show another time than
the recording's. At `recorded` all goes out with the recorded pauses, on the clock of the machine.
docs/decisions/0016-frames.md has the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from stillweb.collections.frames import BINARY, CLOSE, TEXT, End, Frame, Frames

__all__ = ["LARGEST", "SocketScript"]

LARGEST = 64 * 1024 * 1024
"""Bytes of a page's message; a larger one ends the connection (RFC 6455 §7.4.1, 1009)."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the site sent after a frame of the page; None stands for the handshake."""

    after: Frame | None
    replies: tuple[Frame, ...]


class _Story:
    """The recorded frames, cut into turns, and how far the page has come."""

    def __init__(self, frames: Iterable[Frame], same: Callable[[Frame, Frame], bool]) -> None:
        self._same = same
        self._turns = list(_turns(frames))
        self._at = 0
        self._early: set[int] = set()

    @property
    def first(self) -> _Turn:
        return self._turns[0]

    @property
    def over(self) -> bool:
        """Whether every turn has come."""
        return self._at + 1 == len(self._turns)

    def take(self, frame: Frame) -> list[_Turn] | None:
        """Return the turns that a frame of the page brings on; None if nothing expects it."""
        for place in range(self._at + 1, len(self._turns)):
            expected = self._turns[place].after
            if place not in self._early and expected is not None and self._same(expected, frame):
                self._early.add(place)
                return self._come()
        return None

    def _come(self) -> list[_Turn]:
        came = []
        while self._at + 1 in self._early:
            self._at += 1
            came.append(self._turns[self._at])
        return came


def _turns(frames: Iterable[Frame]) -> Iterable[_Turn]:
    after: Frame | None = None
    replies: list[Frame] = []
    for frame in frames:
        if not frame.sent:
            replies.append(frame)
            continue
        yield _Turn(after, tuple(replies))
        if frame.opcode == CLOSE:
            return  # the page's to say, at any time
        after, replies = frame, []
    yield _Turn(after, tuple(replies))


class SocketScript:
    """A connection that was accepted, as a `Script`."""

    def __init__(
        self,
        frames: Frames,
        same: Callable[[Frame, Frame], bool],
        missed: Callable[[int, Frame, str], None],
        *,
        deflate: PerMessageDeflate | None = None,
        paced: bool = False,
    ) -> None:
        self.closed = False
        self._socket = Connection(ConnectionType.SERVER, [deflate] if deflate else [])
        self._story = _Story(frames.frames, same)
        self._missed = missed
        self._drops = frames.end is End.SITE
        self._paced = paced
        self._rest_ms = frames.rest_ms
        self._held: list[Frame] = []
        self._queue: deque[tuple[float, Frame]] = deque()
        self._message = bytearray()  # no list: pieces may be empty, and of any number
        self._count = 0
        self._begun = False

    @property
    def next_due(self) -> float | None:
        """When the next frame goes out; None if that hangs on the page, or nothing is left."""
        return self._queue[0][0] if self._queue and not self.closed else None

    def due(self, now: float) -> bytes:
        """Return the frames that shall go out by now; the first call begins the story."""
        if not self._begun:
            self._begun = True
            self._enqueue(self._story.first, now)
        out = []
        while self._queue and self._queue[0][0] <= now:
            out.append(self._send(self._queue.popleft()[1]))
        self._drop_if_over()
        return b"".join(out)

    def receive(self, text: bytes, now: float) -> bytes:
        """Take bytes of the page; return what they bring on."""
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
        held, self._held = self._held, []
        due = list(turn.replies)
        if not self._paced and self._rest_ms is not None and begun <= self._rest_ms:
            due = [frame for frame in due if frame.ms <= self._rest_ms]
            self._held = list(turn.replies[len(due) :])
        # Behind what still waits: frames never overtake each other.
        earliest = max(now, self._queue[-1][0]) if self._queue else now
        for frame in [*held, *due]:
            pause = max(0, frame.ms - begun) / 1000 if self._paced else 0
            earliest = max(earliest, now + pause)
            self._queue.append((earliest, frame))

    def _send(self, frame: Frame) -> bytes:
        if self._socket.state is not ConnectionState.OPEN:
            return b""
        return self._socket.send(_event(frame))

    def _drop_if_over(self) -> None:
        """End as the site did without a word, when all is told."""
        if self._drops and not self._queue and not self._held and self._story.over:
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
        over = self._story.over
        turns = self._story.take(frame)
        if turns is None:
            self._missed(self._count, frame, "past the end of the recording" if over else "not as recorded")
        for turn in turns or ():
            self._enqueue(turn, now)


def _event(frame: Frame) -> Event:
    if frame.opcode == TEXT:
        return TextMessage(data=frame.payload.decode("utf-8", "replace"))
    if frame.opcode == CLOSE:
        code = int.from_bytes(frame.payload[:2], "big") if len(frame.payload) > 1 else 1005
        return CloseConnection(code=code, reason=frame.payload[2:].decode("utf-8", "replace") or None)
    return BytesMessage(data=frame.payload)

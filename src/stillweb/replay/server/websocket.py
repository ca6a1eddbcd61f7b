"""Replay of a recorded WebSocket: which recorded connection it is, and which frames are due.

Each connection of a URL takes the next recording; past the end, the last one again. The handshake's own
fields are made again; subprotocol, compression and cookies are as recorded, where the page offers them.
`SocketScript` then plays the frames. Frames that the site sent after a frame of the page are released once
the page has sent it. Frames after a mutation are released once the session has made it
(docs/decisions/0016-frames.md). A page that sends what another recording of the URL holds gets the rest of
that recording.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha1
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from stillweb.collections.pack.frames import WEBSOCKET, of_cookies, open_frames, socket_key
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.frames import BINARY, CLOSE, TEXT, ConnectionEnd, Frame, Frames, is_socket_url
from stillweb.errors import MalformedPack
from stillweb.http.wire import status_line
from stillweb.matching.captures import Entry
from stillweb.matching.keys import body_key
from stillweb.matching.resolver import Policy
from stillweb.matching.rules import Rules
from stillweb.model import Match, Request, Tier, header
from stillweb.replay.server import answer as answers
from stillweb.replay.server.answer import PreparedResponse, ScriptedResponse
from stillweb.replay.server.gates import Gate, SessionGates, gates_of
from stillweb.replay.server.pageclock import MessageCounts, Released

if TYPE_CHECKING:
    from stillweb.replay.server.session import ServedRequest, Session


LARGEST = 64 * 1024 * 1024
"""Largest message of a page, in bytes; a larger one ends the connection (RFC 6455 §7.4.1, 1009)."""


_PAUSE_MS = 2000
"""Pause after which a frame is no longer part of the answer to a cause."""

_ANSWER_MS = 30_000
"""The same for the first frame: a site may take its time."""

_SWITCH_FRAMES = 16
_SWITCH_BYTES = 64 * 1024
"""Frames of a page, and size of one, from which on the page stays with its recording."""

_Recording = tuple[Frames, SessionGates]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Frames that the site sent after a frame of the page or a mutation; None is the handshake."""

    after: Frame | Gate | None
    replies: tuple[Frame, ...]


class _FrameSequence:
    """The recorded frames, cut into turns, and the turns that were reached."""

    def __init__(
        self, frames: Iterable[Frame], gates: SessionGates, same: Callable[[Frame, Frame], bool]
    ) -> None:
        self._same = same
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
        for place in range(self._at + 1, len(self._turns)):
            expected = self._turns[place].after
            if place not in self._early and isinstance(expected, Frame) and self._same(expected, frame):
                self._early.add(place)
                return self._reached()
        return None

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
            reached.append(self._turns[self._at])
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
        self._sequence = _FrameSequence(frames.frames, gates, same)
        self._clock = gates.page_clock
        self._same = same
        self._missed = missed
        self.others: Callable[[], Iterable[_Recording]] = tuple
        self._sent: list[Frame] | None = []  # by the page; None once it stays with its recording
        self._drops = frames.end is ConnectionEnd.SITE
        self._paced = paced
        self._rest_ms = frames.rest_ms
        self._held: Released[Frame] = Released()  # received after the page had settled, or later than a cause
        self._queue: deque[tuple[float, Frame]] = deque()
        self._message = bytearray()  # not a list: pieces may be empty, and of any number
        self._count = 0
        self._begun = False

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
        if turns is None:
            self._missed(self._count, frame, "past the end of the recording" if over else "not as recorded")
        elif self._sent is not None:
            self._sent.append(frame)
            if len(self._sent) >= _SWITCH_FRAMES or len(frame.payload) > _SWITCH_BYTES:
                self._sent = None
        for turn in turns or ():
            self._enqueue(turn, now)

    def _switch(self, frame: Frame) -> list[_Turn] | None:
        """Continue with another recording that holds all frames of the page; return the turns of the last.

        A page may name itself in its first frame, by the session that an earlier answer gave to it. Each
        recorded visit has another name. Only this frame shows which visit's answer the page has.
        """
        if self._sent is None:
            return None
        for frames, gates in self.others():
            sequence = _FrameSequence(frames.frames, gates, self._same)
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


_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 §1.3
_SCHEMES = {"http": "ws", "https": "wss"}
_OTHER_VALUES = "recorded with other volatile values"
_OTHER = {"ws": "wss", "wss": "ws"}
# Fields that are made again; the others (a cookie, the subprotocol) are as recorded.
_OURS = re.compile(rb"(?:sec-websocket-(?:accept|extensions)|content-length):", re.IGNORECASE)
_FIELD = rb"(?:\A|\r\n)%b:[ \t]*([^\r\n]*)"


def begin(session: Session, handshake: Request) -> ServedRequest:
    """Answer a handshake under an http or https URL; one that is not recorded is a miss."""
    request = _as_socket(handshake)
    try:
        found, note = _recordings(session, session.state.connections.renamed(request.url))
    except MalformedPack as error:
        return session.begin_as(request, *session.damaged(request, error))
    entries = of_cookies(found, request)
    key = header(request.headers, "sec-websocket-key").strip()
    if not entries or not _is_key(key):
        return session.begin(request)
    used = sum(session.state.uses.get(entry.order, 0) for entry in entries)
    entry = entries[min(used, len(entries) - 1)]
    protocol = _field(entry, b"sec-websocket-protocol")
    if protocol not in _offered(request):
        reason = f"recorded with the subprotocol {protocol!r}, which is not offered"
        return session.begin_as(request, Match(Tier.MISS, reason=reason), answers.empty(request, 404))
    session.state.uses[entry.order] = session.state.uses.get(entry.order, 0) + 1
    if entry.status != HTTPStatus.OK:
        refused = answers.recorded(request, entry)
        return session.begin_as(request, _match(entries, used, note, "refused"), refused)
    try:
        frames, gates = _open(entry, session)
    except MalformedPack as error:
        return session.begin_as(request, *session.damaged(request, error))
    sent = sum(frame.sent for frame in frames.frames)
    counted = f"{len(frames.frames) - sent} frames of the site, {sent} of the page"
    deflate = _deflate(request, entry)
    script = SocketScript(
        frames if used < len(entries) else left_open(frames),
        _Sameness(request.url, session.policy),
        _Misses(session, request.url, session.resets),
        deflate=deflate[0] if deflate else None,
        paced=session.policy.pace == "recorded",
        gates=gates,
    )
    script.others = lambda: _others(found, entry, session)
    answer = ScriptedResponse(101, _head(entry, key, deflate[1] if deflate else ""), script=script)
    return session.begin_as(request, _match(entries, used, note, counted), answer)


def _open(entry: Entry, session: Session) -> _Recording:
    frames = open_frames(bytes(entry.body))
    end = frames.end_ms if frames.end is ConnectionEnd.SITE else 0
    last = max((frame.ms for frame in frames.frames), default=0)
    gates = gates_of(entry, frames.marks, max(last, end), session.pack, session.policy)
    return frames, SessionGates(gates, lambda: session.state, session.page_clock)


def _others(entries: Iterable[Entry], used: Entry, session: Session) -> Iterator[_Recording]:
    """Yield the other recordings; a damaged one is left out."""
    for entry in entries:
        if entry.order != used.order and entry.status == HTTPStatus.OK:
            with suppress(MalformedPack):
                yield _open(entry, session)


def _as_socket(request: Request) -> Request:
    """Return the request of a handshake under the URL of the WebSocket."""
    scheme, separator, rest = request.url.partition("://")
    return replace(request, url=f"{_SCHEMES.get(scheme.lower(), scheme)}{separator}{rest}")


def _recordings(session: Session, url: str) -> tuple[list[Entry], str]:
    """Return the recorded connections of a URL, else of the same URL under the other scheme."""
    scheme, _, rest = url.partition("://")
    other = _OTHER.get(scheme, "")
    rows = [row for spelled in _alike(session, url) for row in session.pack.lookup(socket_key(spelled))]
    alike = sorted((session.pack.entry(row) for row in rows), key=lambda entry: entry.order)
    whole = _whole(alike, _Sameness(url, session.policy))
    for spelled, note in ((url, ""), (f"{other}://{rest}", f"recorded over {other}")):
        if exact := [session.pack.entry(row) for row in session.pack.lookup(socket_key(spelled))]:
            chosen = [entry for entry in exact if not alike or entry.order in whole]
            if chosen:
                return chosen, note
    return [entry for entry in alike if entry.order in whole], _OTHER_VALUES if alike else ""


def _whole(entries: Sequence[Entry], same: Callable[[Frame, Frame], bool]) -> set[int]:
    """Return the orders of the connections that were not cut short.

    A visit that leaves a page early records the beginning of a conversation only. It is not used if another
    recording begins equally and continues. Their URLs, which name a random session, do not distinguish them.
    """
    if len(entries) < 2:
        return {entry.order for entry in entries}
    talks = {
        entry.order: open_frames(bytes(entry.body)) for entry in entries if entry.status == HTTPStatus.OK
    }
    sent = {
        order: [each for each in talk.frames if each.sent and each.opcode != CLOSE]
        for order, talk in talks.items()
    }

    def is_cut(order: int) -> bool:
        own = sent[order]
        return talks[order].end is ConnectionEnd.CLIENT and any(
            len(longer) > len(own)
            and len(talks[other].frames) > len(talks[order].frames)
            and all(same(a, b) for a, b in zip(longer, own, strict=False))
            for other, longer in sent.items()
        )

    return {entry.order for entry in entries if entry.order not in sent or not is_cut(entry.order)}


_ALIASES: WeakKeyDictionary[Pack, tuple[Rules, dict[bytes, list[str]]]] = WeakKeyDictionary()


def _alike(session: Session, url: str) -> list[str]:
    """Return the recorded WebSocket URLs that equal a URL except in volatile parts (a SockJS session)."""
    rules, pack = session.policy.rules, session.pack
    wanted = [alias.key for alias in rules.aliases(Request("GET", url)) if not alias.guessed]
    if not wanted:
        return []
    known = _ALIASES.get(pack)
    if known is None or known[0] != rules:
        found: dict[bytes, list[str]] = {}
        for recorded in pack.urls():
            if is_socket_url(recorded):
                for alias in rules.aliases(Request("GET", recorded)):
                    if not alias.guessed:
                        found.setdefault(alias.key, []).append(recorded)
        known = _ALIASES[pack] = (rules, found)
    return [spelled for key in wanted for spelled in known[1].get(key, ())]


def _match(entries: Sequence[Entry], used: int, note: str, counted: str) -> Match:
    count = len(entries)
    chosen = entries[min(used, count - 1)]
    place = f"connection {used + 1} of {count}" if count > 1 and used < count else ""
    if used >= count:
        place = f"past the end: {'its only' if count == 1 else f'the last of {count}'} connection again"
    tier = Tier.SEQUENCE if count > 1 else Tier.EXACT
    return Match(tier, chosen.order, "; ".join(filter(None, (note, place, counted))))


def left_open(frames: Frames) -> Frames:
    """Return frames without the site's end: past the recordings a page would reopen it forever."""
    left = tuple(frame for frame in frames.frames if frame.sent or frame.opcode != CLOSE)
    return replace(frames, frames=left, end=ConnectionEnd.OPEN)


def _is_key(key: str) -> bool:
    try:
        return len(b64decode(key, validate=True)) == 16  # RFC 6455 §4.2.1
    except ValueError:
        return False


def _field(entry: Entry, name: bytes) -> str:
    found = re.search(_FIELD % name, bytes(entry.head), re.IGNORECASE)
    return found[1].decode("latin-1").strip() if found else ""


def _offered(request: Request) -> set[str]:
    """Return the subprotocols that the page accepts; "" is none."""
    offers = (value for name, value in request.headers if name.lower() == "sec-websocket-protocol")
    return {"", *(each.strip() for value in offers for each in value.split(","))}


def _deflate(request: Request, entry: Entry) -> tuple[PerMessageDeflate, str] | None:
    """Return the recorded compression if the page offers it now (RFC 7692 §7)."""
    agreed = _field(entry, b"sec-websocket-extensions")
    offer = header(request.headers, "sec-websocket-extensions")
    if not agreed.lower().startswith(PerMessageDeflate.name) or "," in agreed:
        return None
    if PerMessageDeflate.name not in offer:
        return None
    if "client_max_window_bits" in agreed and "client_max_window_bits" not in offer:
        return None  # RFC 7692 §7.1.2.2: only a client that offered it may get it
    deflate = PerMessageDeflate()
    try:
        deflate.finalize(agreed)
    except (ValueError, IndexError):
        return None
    return deflate, agreed


def _head(entry: Entry, key: str, deflate: str) -> bytes:
    accept = b64encode(sha1(key.encode("ascii") + _GUID, usedforsecurity=False).digest())
    lines = [b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + accept]
    if deflate:
        lines.append(b"Sec-WebSocket-Extensions: " + deflate.encode("latin-1"))
    lines += [line for line in bytes(entry.head).split(b"\r\n")[1:] if line and not _OURS.match(line)]
    return status_line(101) + b"".join(line + b"\r\n" for line in lines)


@dataclass(frozen=True, slots=True)
class _Sameness:
    """Comparison of a page's frame with a recorded one."""

    url: str
    policy: Policy

    def __call__(self, recorded: Frame, received: Frame) -> bool:
        if recorded.opcode != received.opcode or recorded.payload == received.payload:
            return recorded.opcode == received.opcode
        if recorded.opcode != TEXT:
            return False
        if _by_value(recorded.payload) == _by_value(received.payload):
            return True
        return bool(self._aliases(recorded) & self._aliases(received))

    def _aliases(self, frame: Frame) -> set[bytes]:
        found = self.policy.rules.aliases(_as_request(self.url, frame.payload))
        return {alias.key for alias in found if self.policy.guessed or not alias.guessed}


def _by_value(payload: bytes) -> bytes:
    return body_key("application/json", payload)


def _as_request(url: str, payload: bytes) -> Request:
    """Return a page's frame as a request, for rules and ledgers."""
    return Request(WEBSOCKET, url, (("Content-Type", "application/json"),), payload)


@dataclass(frozen=True, slots=True)
class _Misses:
    """Records frames that were not recorded as misses on the ledger."""

    session: Session
    url: str
    resets: int

    def __call__(self, number: int, frame: Frame, why: str) -> None:
        request = _as_request(self.url, frame.payload)
        match = Match(Tier.MISS, reason=f"frame {number} of the page: {why}")
        served = self.session.begin_as(request, match, PreparedResponse(0, b""))
        self.session.finish(replace(served, resets=self.resets))

"""A recorded WebSocket, played frame by frame: wsproto at the other end, no network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage
from wsproto.extensions import PerMessageDeflate

from stillweb.collections.warc.frames import BINARY, CLOSE, TEXT, ConnectionEnd, Frame, Frames
from stillweb.replay.server.gates import SessionGates
from stillweb.replay.server.socketscript import SocketScript


class Page:
    """A client of a script; `heard` lists received frames, `missed` those that were not expected."""

    def __init__(self, frames: Frames, *, paced: bool = False, deflate: bool = False) -> None:
        self.heard: list[bytes] = []
        self.closed: CloseConnection | None = None
        self.pongs: list[bytes] = []
        self.missed: list[tuple[int, bytes, str]] = []
        mine, theirs = (PerMessageDeflate(), PerMessageDeflate()) if deflate else (None, None)
        for each in (mine, theirs):
            if each:
                each.finalize("permessage-deflate; client_max_window_bits=12")
        self.socket = Connection(ConnectionType.CLIENT, [mine] if mine else [])
        self.script = SocketScript(
            frames,
            lambda recorded, came: (recorded.opcode, recorded.payload) == (came.opcode, came.payload),
            lambda number, frame, why: self.missed.append((number, frame.payload, why)),
            deflate=theirs,
            paced=paced,
        )
        self.hear(self.script.due(0.0))

    def hear(self, text: bytes) -> None:
        if text:
            self.socket.receive_data(text)
        for event in self.socket.events():
            if isinstance(event, Message):
                data = event.data
                self.heard.append(data.encode() if isinstance(data, str) else bytes(data))
            elif isinstance(event, CloseConnection):
                self.closed = event
            elif isinstance(event, Pong):
                self.pongs.append(bytes(event.payload))

    def send(self, event: Event, now: float = 0.0) -> None:
        self.hear(self.script.receive(self.socket.send(event), now))

    def say(self, text: str, now: float = 0.0) -> None:
        self.send(TextMessage(data=text), now)


def received(ms: int, payload: bytes, opcode: int = TEXT) -> Frame:
    return Frame(ms, False, opcode, payload)


def sent(ms: int, payload: bytes, opcode: int = TEXT) -> Frame:
    return Frame(ms, True, opcode, payload)


STORY = Frames(
    (
        received(1, b"hello"),
        sent(10, b"one"),
        received(20, b"1"),
        received(30, b"\x00\xff", BINARY),
        sent(40, b"two"),
        sent(41, b"three"),
        received(50, b"3"),
    )
)


@pytest.mark.parametrize("deflate", [False, True])
def test_each_answer_waits_for_what_it_answers(deflate: bool) -> None:
    page = Page(STORY, deflate=deflate)
    assert page.heard == [b"hello"]
    page.say("one")
    assert page.heard == [b"hello", b"1", b"\x00\xff"]
    page.say("two")
    assert page.heard[3:] == []
    page.say("three")
    assert page.heard[3:] == [b"3"]
    assert (page.missed, page.script.closed, page.script.next_due) == ([], False, None)


def test_a_frame_that_nothing_expects_is_a_miss_and_the_script_waits() -> None:
    page = Page(STORY)
    page.say("zero")
    page.send(BytesMessage(data=b"one"))
    assert page.heard == [b"hello"]
    page.say("one")
    assert page.heard == [b"hello", b"1", b"\x00\xff"]
    page.say("two")
    page.say("three")
    page.say("three")
    assert page.heard[3:] == [b"3"]
    assert page.missed == [
        (1, b"zero", "not as recorded"),
        (2, b"one", "not as recorded"),
        (6, b"three", "past the end of the recording"),
    ]


def test_frames_in_another_order_bring_the_answers_in_the_recorded_one() -> None:
    page = Page(STORY)
    for text in ("three", "two", "one"):
        page.say(text)
    assert page.heard == [b"hello", b"1", b"\x00\xff", b"3"]
    assert page.missed == []


def test_a_message_in_pieces_is_one() -> None:
    page = Page(STORY)
    page.send(TextMessage(data="o", message_finished=False))
    page.send(TextMessage(data="ne"))
    assert page.heard[1:] == [b"1", b"\x00\xff"]


def test_pings_are_answered_and_are_no_frames_of_the_page() -> None:
    page = Page(STORY)
    page.send(Ping(payload=b"x"))
    assert (page.pongs, page.missed) == ([b"x"], [])


def test_the_page_may_close_at_any_time() -> None:
    page = Page(STORY)
    page.send(CloseConnection(code=1000, reason="enough"))
    assert page.script.closed
    assert page.closed is not None
    assert (page.closed.code, page.closed.reason) == (1000, "enough")
    assert page.script.receive(b"\x81\x00", 0.0) == b""


def test_the_site_closes_as_it_did() -> None:
    goodbye = (3001).to_bytes(2, "big") + "später".encode()
    page = Page(
        Frames((received(1, b"a"), sent(2, b"x"), received(3, goodbye, CLOSE)), ConnectionEnd.SITE, 3)
    )
    page.say("x")
    assert page.closed is not None
    assert (page.closed.code, page.closed.reason) == (3001, "später")
    assert not page.script.closed  # before the page has answered
    page.send(page.closed.response())
    assert page.script.closed
    assert page.socket.state is ConnectionState.CLOSED


def test_a_site_that_went_without_a_word_does_so_when_all_is_reported() -> None:
    page = Page(Frames((received(1, b"a"), sent(2, b"x"), received(3, b"b")), ConnectionEnd.SITE, 3))
    assert (page.heard, page.script.closed) == ([b"a"], False)
    page.say("x")
    assert (page.heard, page.script.closed) == ([b"a", b"b"], True)


def test_what_the_page_closed_is_not_closed_for_it() -> None:
    page = Page(
        Frames(
            (received(1, b"a"), sent(2, b"\x03\xe9", CLOSE), received(3, b"late")), ConnectionEnd.CLIENT, 3
        )
    )
    assert (page.heard, page.closed, page.script.closed) == ([b"a"], None, False)


def test_at_the_recorded_pace_pauses_are_counted_from_what_was_answered() -> None:
    page = Page(STORY, paced=True)
    assert page.heard == []
    assert page.script.next_due == pytest.approx(0.001)
    page.hear(page.script.due(0.001))
    assert page.heard == [b"hello"]
    page.say("one", 5.0)
    assert (page.heard, page.script.next_due) == ([b"hello"], pytest.approx(5.01))
    page.hear(page.script.due(5.015))
    assert page.heard == [b"hello", b"1"]
    page.hear(page.script.due(5.02))
    assert page.heard == [b"hello", b"1", b"\x00\xff"]
    assert page.script.next_due is None


def test_at_the_recorded_pace_frames_do_not_overtake_each_other() -> None:
    page = Page(Frames((received(1000, b"slow"), sent(1001, b"x"), received(1002, b"fast"))), paced=True)
    page.say("x", 0.1)
    assert page.script.next_due == pytest.approx(1.0)
    page.hear(page.script.due(1.0))
    assert page.heard == [b"slow", b"fast"]


def test_what_came_after_the_page_had_settled_waits_for_its_next_frame() -> None:
    frames = (
        received(1, b"a"),
        received(90, b"tick"),
        received(110, b"tock"),
        sent(120, b"x"),
        received(130, b"y"),
    )
    page = Page(Frames((*frames, received(9000, b"z")), rest_ms=100))
    assert (page.heard, page.script.next_due) == ([b"a", b"tick"], None)
    page.say("x")
    assert page.heard == [b"a", b"tick", b"tock", b"y", b"z"]


@given(st.binary(max_size=200), st.integers(1, 20), st.booleans())
def test_no_bytes_upset_the_script(noise: bytes, step: int, deflate: bool) -> None:
    page = Page(STORY, deflate=deflate)
    for at in range(0, len(noise), step):
        assert isinstance(page.script.receive(noise[at : at + step], 0.0), bytes)


TEXTS = st.sampled_from([b"a", b"b", b"c"])
FRAMES = st.lists(st.builds(Frame, st.just(0), st.booleans(), st.just(TEXT), TEXTS), max_size=12)


@given(FRAMES)
def test_actor_says_what_was_said_hears_what_was_heard(frames: list[Frame]) -> None:
    page = Page(Frames(tuple(frames)))
    for frame in frames:
        if frame.sent:
            page.say(frame.payload.decode())
    assert page.heard == [frame.payload for frame in frames if not frame.sent]
    assert page.missed == []


@given(FRAMES, st.lists(TEXTS, max_size=12))
def test_whatever_is_said_what_is_heard_is_a_beginning_of_what_was(
    frames: list[Frame], said: list[bytes]
) -> None:
    page = Page(Frames(tuple(frames)))
    for text in said:
        page.say(text.decode())
    payloads = [frame.payload for frame in frames if not frame.sent]
    assert page.heard == payloads[: len(page.heard)]
    expected: Callable[[bytes], int] = lambda text: sum(f.sent and f.payload == text for f in frames)  # noqa: E731
    assert len(page.missed) == sum(max(0, said.count(text) - expected(text)) for text in set(said))


def named(name: bytes, *later: bytes) -> Frames:
    """A conversation of a page that names itself, and requests parts of its state."""
    exchanged = [frame for each in later for frame in (sent(40, each), received(50, name + b" " + each))]
    return Frames(
        (
            received(1, b"hello " + name),
            sent(10, b"I am " + name),
            received(20, b"state of " + name),
            *exchanged,
        ),
        ConnectionEnd.OPEN,
    )


def test_a_page_gets_the_recording_that_holds_its_name() -> None:
    page = Page(named(b"a"))
    page.script.others = lambda: [(named(b"b"), SessionGates()), (named(b"c", b"more"), SessionGates())]
    page.say("I am c")
    page.say("more")
    assert page.heard == [b"hello a", b"state of c", b"c more"]
    assert page.missed == []


def test_a_recording_that_lacks_an_earlier_frame_of_the_page_is_not_used() -> None:
    page = Page(named(b"a"))
    page.script.others = lambda: [(named(b"b", b"more"), SessionGates())]
    page.say("I am a")
    page.say("more")
    assert page.heard == [b"hello a", b"state of a"]
    assert [each[:2] for each in page.missed] == [(2, b"more")]


@pytest.mark.parametrize(
    "early", [[b"%d" % number for number in range(16)], [b"x" * 70_000]], ids=["many", "large"]
)
def test_a_page_that_has_sent_much_stays_with_its_recording(early: list[bytes]) -> None:
    page = Page(named(b"a", *early))
    page.script.others = lambda: pytest.fail("no other recording is opened")
    page.say("I am a")
    for each in early:
        page.say(each.decode())
    page.say("more")
    assert [number for number, *_ in page.missed] == [len(early) + 2]

"""Release by the page's clock: what is due, when the next one is, and what was sent."""

from __future__ import annotations

import pytest

from stillweb.collections.warc.frames import CLOSE, TEXT, ConnectionEnd, Frame, Frames
from stillweb.replay.server.eventstream import StreamScript, TimedChunk
from stillweb.replay.server.gates import SessionGates
from stillweb.replay.server.pageclock import MessageCounts, PageClock, Released
from stillweb.replay.server.socketscript import SocketScript
from stillweb.replay.server.websocket import left_open

REST = 400


def socket(clock: PageClock, *frames: tuple[int, bool, str]) -> SocketScript:
    recording = Frames(
        tuple(Frame(ms, sent, TEXT, text.encode()) for ms, sent, text in frames),
        ConnectionEnd.OPEN,
        rest_ms=REST,
    )
    script = SocketScript(
        recording,
        lambda one, other: one.payload == other.payload,
        lambda *_: None,
        gates=SessionGates(page_clock=clock),
    )
    out: list[bytes] = []
    script.out = out  # type: ignore[attr-defined]
    clock.add(script, lambda: out.append(script.due(0.0)))
    out.append(script.due(0.0))
    return script


def texts(script: SocketScript) -> list[str]:
    """Return the short, unmasked text frames that a script has sent."""
    data, found = b"".join(script.out), []  # type: ignore[attr-defined]
    while data:
        size = data[1]
        found.append(data[2 : 2 + size].decode())
        data = data[2 + size :]
    return found


def masked(text: str) -> bytes:
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode()


def test_items_count_from_the_first_report_after_they_were_put() -> None:
    held: Released[str] = Released()
    held.put([(100, "a"), (250, "b")])
    assert (held.take(None), held.next_ms) == ([], None)
    assert (held.take(1000), held.next_ms) == ([], 1100)
    assert held.take(1099) == []
    assert (held.take(1100), held.next_ms) == (["a"], 1250)
    assert held.take_all() == ["b"]
    assert held.next_ms is None


def test_frames_after_the_page_had_settled_wait_for_its_clock() -> None:
    clock = PageClock()
    script = socket(clock, (5, False, "early"), (REST + 700, False, "one"), (REST + 1700, False, "two"))
    assert texts(script) == ["early"]
    state = clock.report(0)
    assert (state["sockets"], state["received"], state["next"]) == (1, 1, 700)
    assert clock.report(699)["received"] == 1
    assert clock.report(700)["next"] == 1700
    assert texts(script) == ["early", "one"]
    assert (clock.report(5000)["received"], clock.report(5000)["next"]) == (3, None)


def test_a_cause_releases_what_waits_and_its_answer_up_to_a_pause() -> None:
    clock = PageClock()
    script = socket(
        clock,
        (REST + 700, False, "tick"),
        (5000, True, "ask"),
        (9000, False, "answer"),
        (9900, False, "more"),
        (12000, False, "later"),
    )
    clock.report(100)
    script.out.append(script.receive(masked("ask"), 0.0))  # type: ignore[attr-defined]
    assert texts(script) == ["tick", "answer", "more"]
    assert (clock.report(150)["sent"], clock.report(150)["next"]) == (1, 150 + 2100)
    clock.report(2250)
    assert texts(script)[-1] == "later"


def test_without_a_clock_an_answer_comes_whole() -> None:
    script = socket(PageClock(), (5000, True, "ask"), (5100, False, "answer"), (90000, False, "later"))
    script.out.append(script.receive(masked("ask"), 0.0))  # type: ignore[attr-defined]
    assert texts(script) == ["answer", "later"]


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        ((b"data: 1\n\n", b"data: 2\n\n"), (1, 2)),
        ((b"event: a\ndata: 1\n\nev", b"ent: b\r\ndata\r\n\r\n"), (1, 2)),
        ((b": comment\n\nretry: 5\n\n", b"data:x\rdata:y\r\r\n"), (0, 1)),
    ],
)
def test_events_are_counted_as_a_browser_dispatches_them(parts, counts) -> None:
    clock = PageClock()
    script = StreamScript(
        [TimedChunk(0.0, b"")], ends=False, later=[(100 * n, part) for n, part in enumerate(parts)]
    )
    script.clock = clock
    script.traffic = MessageCounts("stream")
    clock.add(script, lambda: script.due(0.0))
    assert tuple(clock.report(100 * n)["events"] for n in range(len(parts))) == counts


def test_a_recording_that_is_repeated_past_its_end_keeps_its_times() -> None:
    frames = (
        Frame(5, False, TEXT, b"early"),
        Frame(900, False, TEXT, b"tick"),
        Frame(950, False, CLOSE, b""),
    )
    recording = Frames(frames, ConnectionEnd.SITE, 950, REST, ())
    assert left_open(recording) == Frames(frames[:2], ConnectionEnd.OPEN, 950, REST, ())

"""Numbered commands over a WebSocket: replies with the session's numbers, and no reply that is not proved."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import Message, TextMessage

from stillweb.collections.warc.frames import TEXT, Frame, Frames
from stillweb.replay.server.calls import NumberedCalls
from stillweb.replay.server.socketscript import SocketScript


def sent(number: int, **command: object) -> Frame:
    return Frame(number, True, TEXT, json.dumps({**command, "id": number}).encode())


def got(number: int, **reply: object) -> Frame:
    return Frame(number + 50, False, TEXT, json.dumps({"id": number, **reply}).encode())


def talk(*calls: tuple[dict[str, object], dict[str, object]], first: int = 1) -> list[Frame]:
    """Commands one after the other, each with its reply."""
    frames = []
    for number, (command, reply) in enumerate(calls, first):
        frames += [sent(number, **command), got(number, **reply)]
    return frames


LIST, PING, USERS = {"cmd": "list"}, {"cmd": "ping"}, {"cmd": "users", "page": 2}
LISTED, PONG, USERS_OF = {"names": ["a", "b"]}, {"ok": True}, {"users": 7}
FIRST = talk((PING, PONG), (LIST, LISTED))
SECOND = talk((PING, PONG), (USERS, USERS_OF), (LIST, LISTED))


class Page:
    """The client of a script that plays the first of several recordings."""

    def __init__(self, *conversations: Sequence[Frame]) -> None:
        self.heard: list[dict[str, object]] = []
        self.missed: list[bytes] = []
        self._socket = Connection(ConnectionType.CLIENT, [])
        self._script = SocketScript(
            Frames(tuple(conversations[0])),
            lambda recorded, received: recorded.payload == received.payload,
            lambda _, frame, why: self.missed.append(frame.payload),
        )
        self._script.number_calls(NumberedCalls.of(conversations))
        self._script.due(0.0)

    def say(self, number: int, command: dict[str, object]) -> None:
        text = self._socket.send(TextMessage(data=sent(number, **command).payload.decode()))
        if reply := self._script.receive(text, 0.0):
            self._socket.receive_data(reply)
        self.heard += [
            json.loads(event.data) for event in self._socket.events() if isinstance(event, Message)
        ]


def test_commands_in_another_order_get_replies_with_their_own_numbers() -> None:
    page = Page(FIRST, SECOND)
    page.say(1, LIST)
    page.say(2, PING)
    assert sorted(page.heard, key=lambda reply: reply["id"]) == [{"id": 1, **LISTED}, {"id": 2, **PONG}]
    assert page.missed == []


def test_a_command_that_is_repeated_or_of_another_recording_gets_its_reply() -> None:
    page = Page(FIRST, SECOND)
    for number, command in enumerate((PING, LIST, PING, USERS, LIST), 1):
        page.say(number, command)
    assert page.heard == [
        {"id": 1, **PONG}, {"id": 2, **LISTED}, {"id": 3, **PONG}, {"id": 4, **USERS_OF}, {"id": 5, **LISTED},
    ]  # fmt: skip
    assert page.missed == []


@pytest.mark.parametrize(
    ("number", "command"),
    [
        (3, {"cmd": "users", "page": 3}),  # was not recorded
        (3, {"cmd": "ping", "more": 1}),
        (2, PING),  # a number that the page has used
        (0, PING),
        (400, PING),  # the page does not count like that
    ],
)
def test_another_command_and_another_number_are_misses(number: int, command: dict[str, object]) -> None:
    page = Page(FIRST, SECOND)
    page.say(1, PING)
    page.say(2, LIST)
    page.say(number, command)
    assert len(page.heard) == 2
    assert len(page.missed) == 1


def test_a_command_whose_replies_differ_is_answered_as_often_as_it_was_recorded() -> None:
    calls = ((PING, PONG), (LIST, LISTED), ({"cmd": "time"}, {"now": 5}), (USERS, USERS_OF))
    changing = [talk(*calls), talk(*calls[:2], ({"cmd": "time"}, {"now": 6}), calls[3])]
    page = Page(*changing)
    for number, command in enumerate((PING, LIST, {"cmd": "time"}, {"cmd": "time"}), 1):
        page.say(number, command)
    assert page.heard[2:] == [{"id": 3, "now": 5}]
    assert len(page.missed) == 1
    other = Page(*changing)
    other.say(1, {"cmd": "time"})  # recorded under another number
    assert other.heard == []


SQUARES = [talk(*(({"op": "square"}, {"is": n * n}) for n in (1, 2, 3)))] * 2
NO_PROOF = {
    "the number is a value": SQUARES,
    "replies differ": [talk((PING, {"n": n}), (LIST, {"n": n + 1})) for n in (1, 5)],
    "nothing was repeated": [talk((PING, PONG), (LIST, LISTED))],
    "one command": [talk((PING, PONG), (PING, PONG))],
    "other first numbers": [FIRST, talk((PING, PONG), (LIST, LISTED), first=7)],
    "a gap": [FIRST, [*FIRST, sent(9, **PING), got(9, **PONG)]],
    "a number twice": [FIRST, [*FIRST, sent(2, **PING)]],
    "a reply to nothing": [FIRST, [got(1, **PONG), *FIRST]],
    "no numbers": [[Frame(1, True, TEXT, b"[1]"), Frame(2, False, TEXT, b"[1]")]] * 2,
    "not JSON": [[Frame(1, True, TEXT, b'{"id":1'), Frame(2, False, TEXT, b'{"id":' + b"[" * 9000)]] * 2,
    "true and false": [[Frame(1, True, TEXT, b'{"id":true}'), Frame(2, False, TEXT, b'{"id":true}')]] * 2,
    "too much to read": [[*FIRST, *(Frame(9, False, TEXT, b"x" * 60_000) for _ in range(80))], SECOND],
}


@pytest.mark.parametrize("conversations", NO_PROOF.values(), ids=NO_PROOF)
def test_what_does_not_prove_a_number_is_none(conversations: Sequence[Sequence[Frame]]) -> None:
    assert NumberedCalls.of(conversations) is None


def test_a_page_may_send_two_commands_before_their_turn() -> None:
    swapped = [sent(2, **LIST), sent(1, **PING), got(2, **LISTED), got(1, **PONG)]
    assert NumberedCalls.of([FIRST, swapped]) is not None


@pytest.mark.parametrize(
    "payload", [b'{ "id" : 12, "x": 1.50 }', b'{"x":{"id":3},"id":12}', b'{"id":12,"x":"\\"id\\":4"}']
)
def test_only_the_number_changes(payload: bytes) -> None:
    calls = NumberedCalls.of([FIRST, SECOND])
    assert calls is not None
    changed = calls.renumbered(Frame(0, False, TEXT, payload), 345)
    assert json.loads(changed.payload) == {**json.loads(payload), "id": 345}


@given(st.lists(st.sampled_from([(PING, PONG), (LIST, LISTED), (USERS, USERS_OF)]), min_size=1, max_size=8))
def test_a_recorded_conversation_is_played_as_recorded(calls) -> None:
    recorded = talk(*calls)
    page = Page(recorded, SECOND, SECOND)
    for number, (command, _) in enumerate(calls, 1):
        page.say(number, command)
    assert page.heard == [json.loads(frame.payload) for frame in recorded if not frame.sent]
    assert page.missed == []

"""The session of a connection, by its first bytes; and its way there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.http.control import DEFAULT_SESSION
from stillweb.replay.server.connection import ListenerTarget
from stillweb.replay.server.listeners import Listener
from stillweb.replay.workers.channel import Channel, pair
from stillweb.replay.workers.router import CONTROL, ConnectionRouter, session_of

USER = b64encode(b"abc-1:secret").decode()
NO_ONE = "?"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("GET /info HTTP/1.1\r\nHost: x", CONTROL),
        (f"GET /info HTTP/1.1\r\nProxy-Authorization: Basic {USER}", CONTROL),
        ("OPTIONS * HTTP/1.1\r\nHost: x", CONTROL),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a.example", DEFAULT_SESSION),
        ("CONNECT a.example:443 HTTP/1.1", DEFAULT_SESSION),
        (f"CONNECT a.example:443 HTTP/1.1\r\nproxy-AUTHORIZATION:Basic   {USER}  ", "abc-1"),
        (f"GET http://a.example/ HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic {USER}\r\nA: b", "abc-1"),
        (f"GET http://a.example/ HTTP/1.1\r\nX-Proxy-Authorization: Basic {USER}", DEFAULT_SESSION),
        (f"GET http://a.example/ HTTP/1.1\r\nX: Proxy-Authorization: Basic {USER}", DEFAULT_SESSION),
        ("GET http://a.example/ HTTP/1.1\r\nProxy-Authorization: Basic ???", NO_ONE),
        ("GET http://a.example/ HTTP/1.1\r\nProxy-Authorization: Basic w7w6", NO_ONE),  # not ASCII
        ("GET http://a.example/ HTTP/1.1\r\nProxy-Authorization: Basic Og==", NO_ONE),  # an empty name
    ],
)
def test_the_first_request_reports_whose_a_connection_is(head: str, expected: str) -> None:
    whole = f"{head}\r\n\r\n".encode()
    assert session_of(whole) == expected
    assert session_of(whole + b"GET / HTTP/1.1\r\n\r\n") == expected
    for cut in range(1, len(whole)):
        assert session_of(whole[:cut]) is None


def test_what_cannot_wait_is_led_on() -> None:
    assert session_of(b"\x16\x03\x01") == DEFAULT_SESSION  # TLS from the first byte
    assert session_of(b"GET http://a.example/" + b"x" * 70_000) == DEFAULT_SESSION  # too long: refused there


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_have_an_owner_or_are_too_few(data: bytes) -> None:
    assert isinstance(session_of(data), str | None)
    assert isinstance(session_of(data + b"\r\n\r\n"), str)


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 3_000_000])
async def test_a_connection_is_handed_over_with_what_was_read(size: int) -> None:
    data = os.urandom(size)
    ours, theirs = pair()
    arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    sender = Channel(ours, on_message=heard.put_nowait)
    receiver = Channel(theirs, on_connection=lambda *what: arrived.put_nowait(what))
    near, far = socket.socketpair()
    with near, far:
        sender.hand_over(far.fileno(), data)
        sender.hand_over(far.fileno(), b"the next one")
        receiver.send(b'{"ready": true}')
        far.close()
        first, second = await arrived.get(), await arrived.get()
        assert (first[1] == data, second[1]) == (True, b"the next one")
        with socket.socket(fileno=first[0]) as one, socket.socket(fileno=second[0]) as two:
            one.sendall(b"a")
            two.sendall(b"b")
        assert near.recv(2) + near.recv(2) == b"ab"
        assert near.recv(1) == b""  # no other process holds it
    assert await heard.get() == b'{"ready": true}'
    sender.close()
    await asyncio.wait_for(receiver.closed.wait(), 10)


async def test_what_was_not_taken_is_closed_with_the_channel() -> None:
    ours, theirs = pair()
    sender = Channel(ours)
    near, far = socket.socketpair()
    with near, far:
        for _ in range(40):
            sender.hand_over(far.fileno(), b"x" * 60_000)  # more than the socket holds
        far.close()
        theirs.close()
        sender.hand_over(near.fileno(), b"too late")
        sender.close()
        sender.close()
        near.settimeout(10)
        assert near.recv(1) == b""


async def test_what_comes_when_the_other_side_is_known_to_be_gone_is_closed() -> None:
    ours, theirs = pair()
    sender = Channel(ours)
    theirs.close()
    await asyncio.wait_for(sender.closed.wait(), 10)
    near, far = socket.socketpair()
    with near, far:
        sender.hand_over(far.fileno(), b"later still")
        far.close()
        near.settimeout(10)
        assert near.recv(1) == b""


async def test_who_is_reported_of_after_the_target_was_closed_is_led_nowhere() -> None:
    loop = asyncio.get_running_loop()
    target = ListenerTarget(loop.create_task)
    led: list[str] = []
    waiting: set[asyncio.Transport] = set()
    Listener(target).close()
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        await loop.sock_sendall(ours, b"GET /info HTTP/1.1\r\n\r\n")
        theirs.setblocking(False)
        await loop.connect_accepted_socket(
            lambda: ConnectionRouter(lambda _, session_id, __: led.append(session_id), waiting, target),
            theirs,
        )
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(loop.sock_recv(ours, 1000), 10) == b""
    assert (led, waiting) == ([], set())

"""Transcripts: what goes in (->) and what comes out (<-), and that cuts do not matter."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.http.wire import (
    BadRequest,
    ConnectReceived,
    ContinueExpected,
    Event,
    HttpConnection,
    RequestLimits,
    RequestReceived,
    simple_head,
)


def wire_of(text: str) -> bytes:
    """Read a transcript's `->` lines; `\\` at the end of one means: no line end."""
    lines = [line.strip().removeprefix("->").removeprefix(" ") for line in text.strip().splitlines()]
    return b"".join(
        line[:-1].encode("latin-1") if line.endswith("\\") else line.encode("latin-1") + b"\r\n"
        for line in lines
    )


def show(event: Event) -> str:
    match event:
        case RequestReceived(method, target, headers, body, keep_alive):
            fields = ", ".join(f"{name}={value}" for name, value in headers)
            return f"{method} {target} [{fields}] {body!r} {'stay' if keep_alive else 'close'}"
        case ConnectReceived(authority):
            return f"CONNECT {authority}"
        case ContinueExpected():
            return "100?"
        case BadRequest(status):
            return f"bad {status}"


TRANSCRIPTS = {
    "a page through the proxy": (
        """
        -> GET http://site.example/a?b=1 HTTP/1.1
        -> Host: site.example
        ->
        """,
        ["GET http://site.example/a?b=1 [Host=site.example] b'' stay"],
    ),
    "two requests in one packet": (
        """
        -> GET /1 HTTP/1.1
        -> Host: x
        ->
        -> POST /2 HTTP/1.1
        -> Host: x
        -> Content-Length: 3
        ->
        -> abc\\
        -> GET /3 HTTP/1.1
        -> Host: x
        ->
        """,
        [
            "GET /1 [Host=x] b'' stay",
            "POST /2 [Host=x, Content-Length=3] b'abc' stay",
            "GET /3 [Host=x] b'' stay",
        ],
    ),
    "chunks and a trailer": (
        """
        -> PUT /c HTTP/1.1
        -> Transfer-Encoding: chunked
        ->
        -> 3
        -> abc
        -> 2
        -> de
        -> 0
        -> X-Trailer: dropped
        ->
        -> GET /next HTTP/1.1
        ->
        """,
        ["PUT /c [Transfer-Encoding=chunked] b'abcde' stay", "GET /next [] b'' stay"],
    ),
    "nothing is read after a farewell": (
        """
        -> GET /1 HTTP/1.1
        -> Connection: close
        ->
        -> GET /2 HTTP/1.1
        ->
        """,
        ["GET /1 [Connection=close] b'' close"],
    ),
    "HTTP/1.0 does not stay": (
        """
        -> GET /1 HTTP/1.0
        ->
        """,
        ["GET /1 [] b'' close"],
    ),
    "a tunnel": (
        """
        -> CONNECT site.example:443 HTTP/1.1
        -> Host: site.example:443
        ->
        """,
        ["CONNECT site.example:443"],
    ),
    "the body of a request that wishes for an upgrade is a body": (
        """
        -> POST /upgrade HTTP/1.1
        -> Connection: Upgrade, close
        -> Upgrade: h2c
        -> Expect: 100-continue
        -> Content-Length: 23
        ->
        -> GET /inner HTTP/1.1
        ->
        """,
        [
            "100?",
            "POST /upgrade [Connection=Upgrade, close, Upgrade=h2c, Expect=100-continue, Content-Length=23]"
            " b'GET /inner HTTP/1.1\\r\\n\\r\\n' close",
        ],
    ),
    "and so are its chunks": (
        """
        -> PUT /upgrade HTTP/1.1
        -> Connection: Upgrade
        -> Upgrade: h2c
        -> Transfer-Encoding: chunked
        ->
        -> 5
        -> GET /
        -> 0
        ->
        -> GET /next HTTP/1.1
        ->
        """,
        [
            "PUT /upgrade [Connection=Upgrade, Upgrade=h2c, Transfer-Encoding=chunked] b'GET /' stay",
            "GET /next [] b'' stay",
        ],
    ),
    "an older client gets no 100 Continue": (
        """
        -> POST /1 HTTP/1.0
        -> Expect: 100-continue
        -> Content-Length: 2
        ->
        -> ab\\
        """,
        ["POST /1 [Expect=100-continue, Content-Length=2] b'ab' close"],
    ),
    "a web socket is a request like another": (
        """
        -> GET /socket HTTP/1.1
        -> Connection: Upgrade
        -> Upgrade: websocket
        ->
        -> GET /next HTTP/1.1
        ->
        """,
        ["GET /socket [Connection=Upgrade, Upgrade=websocket] b'' stay", "GET /next [] b'' stay"],
    ),
    "a body held back": (
        """
        -> POST /up HTTP/1.1
        -> Expect: 100-continue
        -> Content-Length: 2
        ->
        -> ok\\
        """,
        ["100?", "POST /up [Expect=100-continue, Content-Length=2] b'ok' stay"],
    ),
    "white space around a value is none of it": (
        """
        -> GET /1 HTTP/1.1\\
        ->
        -> Vary-On: \t a b \t\\
        ->
        ->
        """,
        ["GET /1 [Vary-On=a b] b'' stay"],
    ),
    "rubbish": ("-> \x16\x03\x01 hello", ["bad 400"]),
    "two lengths": (
        """
        -> POST / HTTP/1.1
        -> Content-Length: 3
        -> Content-Length: 4
        ->
        """,
        ["bad 400"],
    ),
    "a length beside chunks (smuggling)": (
        """
        -> POST / HTTP/1.1
        -> Content-Length: 3
        -> Transfer-Encoding: chunked
        ->
        """,
        ["bad 400"],
    ),
    "a good one, then rubbish": (
        """
        -> GET /1 HTTP/1.1
        ->
        -> !!!! HTTP/9
        ->
        """,
        ["GET /1 [] b'' stay", "bad 400"],
    ),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str) -> None:
    sent, expected = TRANSCRIPTS[name]
    assert [show(event) for event in HttpConnection().receive_data(wire_of(sent))] == expected


@given(st.sampled_from(sorted(TRANSCRIPTS)), st.lists(st.integers(0, 200)))
def test_cuts_do_not_matter(name: str, cuts: list[int]) -> None:
    data = wire_of(TRANSCRIPTS[name][0])
    places = [0, *sorted(c for c in cuts if c < len(data)), len(data)]
    wire = HttpConnection()
    events = [e for a, b in itertools.pairwise(places) for e in wire.receive_data(data[a:b])]
    assert [show(event) for event in events] == TRANSCRIPTS[name][1]


@given(st.integers(0, 60))
def test_bytes_after_connect_are_stored(cut: int) -> None:
    data = b"CONNECT h:443 HTTP/1.1\r\n\r\n\x16\x03\x01hello"
    wire = HttpConnection()
    wire.receive_data(data[:cut])
    wire.receive_data(data[cut:])
    assert bytes(wire.rest) == b"\x16\x03\x01hello"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"a" * 500 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nCookie: " + b"a" * 500 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nCookie: " + b"a" * 500, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 500\r\n\r\n" + b"a" * 500, 413),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_limits(request_bytes: bytes, status: int, step: int) -> None:
    wire = HttpConnection(RequestLimits(head=100, body=200))
    events = [
        e for i in range(0, len(request_bytes), step) for e in wire.receive_data(request_bytes[i : i + step])
    ]
    assert [show(event) for event in events] == [f"bad {status}"]


@pytest.mark.parametrize("endless", [b"0\r\nTrailer: ", b"3;"])
@pytest.mark.parametrize("step", [1, 50])
def test_no_line_behind_the_head_is_endless_either(endless: bytes, step: int) -> None:
    wire = HttpConnection(RequestLimits(head=100, body=200))
    wire.receive_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + endless)
    events = [event for _ in range(0, 500, step) for event in wire.receive_data(b"a" * step)]
    assert [show(event) for event in events] == ["bad 431"]


def test_a_body_in_tiny_chunks_weighs_what_it_is() -> None:
    wire = HttpConnection()
    wire.receive_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(20):
            wire.receive_data(b"2\r\nab\r\n" * 5_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * 200_000


def test_in_request_says_whether_a_request_is_underway() -> None:
    wire = HttpConnection()
    assert not wire.in_request
    wire.receive_data(b"GET /a HTTP/1.1\r\nHost")
    assert wire.in_request
    wire.receive_data(b": x\r\n\r\n")
    assert not wire.in_request


def test_a_field_cannot_break_a_head() -> None:
    with pytest.raises(ValueError, match="line break"):
        simple_head(204, (("Access-Control-Allow-Origin", "x\r\nSet-Cookie: a=b"),))


@pytest.mark.parametrize(
    ("pieces", "between"),
    [
        ([], True),
        ([b"GET / HTTP/1.1\r\n\r\n"], True),
        ([b"GET / HTTP/1.1\r\n\r\n" * 2], True),
        ([b"GET / HTTP/1.1\r\n\r\n", b""], True),
        ([b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"], True),
        ([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", b"0\r\n\r\n"], True),
        ([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", b"0\r\n"], False),
        ([b"GET / HTTP/1.1\r\n\r\nG"], False),
        ([b"GET / HTTP/1.1\r\n"], False),
        ([b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n"], False),
        ([b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"], False),
        # Not yet a request, but counted as part of the next: what is answered unparsed would not be (431).
        ([b"\r\n"], False),
        ([b"GET / HTTP/1.1\r\n\r\n", b"\r\n"], False),
        ([b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"], False),
        ([b"CONNECT a:1 HTTP/1.1\r\n\r\n"], False),
        ([b"no request\r\n\r\n"], False),
    ],
)
def test_whether_a_request_may_begin(pieces: list[bytes], between: bool) -> None:
    wire = HttpConnection()
    for piece in pieces:
        wire.receive_data(piece)
    assert wire.between is between


def test_the_end_of_a_request_is_not_counted_against_the_next() -> None:
    wire = HttpConnection(RequestLimits(head=100))
    trailers = b"0\r\n" + b"a: b\r\n" * 30 + b"\r\n"
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
    wire.receive_data(head)
    assert [type(event) for event in wire.receive_data(trailers)] == [RequestReceived]
    assert wire.receive_data(b"GET /" + b"x" * 90) == []

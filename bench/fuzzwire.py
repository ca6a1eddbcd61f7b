"""Byte streams for the wire core, and what must hold of it whatever comes.

A stream is drawn from a seed and its number alone, so that a finding is reproduced by these two. For a stream
of well-formed requests the events are known beforehand. For any other an independent model (lines and
lengths, nothing of llhttp) gives the events up to the first ambiguous byte. `check` requires of each stream:

- the events are the same wherever it is cut, and so is what gathers for a tunnel;
- they are those that were sent, or begin with those of the model: no request is invented out of a body;
- after `BadRequest`, a farewell or CONNECT nothing more is reported;
- no event is larger than the limits allow;
- it takes no longer than `SLOW` seconds of processor time.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stillweb.http.wire import (
    BadRequest,
    ConnectReceived,
    ContinueExpected,
    Event,
    HttpConnection,
    RequestLimits,
    RequestReceived,
)
from stillweb.model import Headers

SLOW = 2.0

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
INNER = b"GET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"
TOKENS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"GET / HTTP/1.1\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b" folded\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"5;x=y\r\nhello\r\n",
    b"HTTP/1.0",
    b"HTTP/9.9",
    b"\xff\xfe",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"http://[::1/",
    b"/" * 40,
)


@dataclass(frozen=True)
class Stream:
    """Bytes, the limits under which they are read, and the events that they must give if that is known."""

    kind: str
    data: bytes
    limits: RequestLimits
    expected: tuple[Event, ...] | None = None
    rest: bytes = b""


def stream_of(seed: str, number: int) -> Stream:
    """Draw a stream."""
    draw = random.Random(f"{seed}:{number}")
    kind = draw.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    stream = KINDS[kind][1](draw)
    return Stream(kind, *stream)


Drawn = tuple[bytes, RequestLimits, tuple[Event, ...] | None, bytes]
_WIDE = RequestLimits()
_NARROW = RequestLimits(head=300, body=400)


def _well_formed(draw: random.Random) -> Drawn:
    data, expected, rest = b"", [], b""
    for _ in range(draw.choices((1, 2, 3, 12), (5, 4, 3, 1))[0]):
        sent, events, ends = _request(draw)
        data += sent
        expected += events
        if ends:
            break
    else:
        if draw.random() < 0.2:
            data += b"CONNECT site.example:443 HTTP/1.1\r\nHost: site.example:443\r\n\r\n"
            expected.append(ConnectReceived("site.example:443", (("Host", "site.example:443"),)))
            rest = draw.choice((b"", b"\x16\x03\x01\x00\x05hello", INNER, draw.randbytes(30)))
        return data + rest, _WIDE, tuple(expected), rest
    return data + draw.choice((b"", INNER, b"\r\n", draw.randbytes(9))), _WIDE, tuple(expected), b""


def _request(draw: random.Random) -> tuple[bytes, list[Event], bool]:
    """Return a request as sent, its events, and whether it is the last that is read."""
    method = draw.choice(METHODS)
    target = draw.choice(
        ("/", "/a?b=1&c=%20", "http://site.example/x", "http://site.example:8080/?q=" + "y" * 50)
    )
    fields = [("Host", "site.example")]
    if draw.random() < 0.5:
        fields.append(
            (draw.choice(("Cookie", "X-A", "accept")), draw.choice(("", "a=b; c=d", "*/*;q=0.1", "\xe9")))
        )
    upgrade, last = draw.random() < 0.1, draw.random() < 0.08
    options = ["Upgrade"] * upgrade + ["close"] * last
    if options:
        fields.append(("Connection", ", ".join(options)))
    if upgrade:
        fields.append(("Upgrade", draw.choice(("websocket", "h2c"))))
    waits = draw.random() < 0.1
    if waits:
        fields.append(("Expect", draw.choice(("100-continue", "100-Continue"))))
    body, framed = b"", b""
    shape = draw.random()
    if shape < 0.3:
        body = framed = _content(draw)
        fields.append(("Content-Length", draw.choice(("", "00")) + str(len(body))))
    elif shape < 0.6:
        body = _content(draw)
        framed = _chunked(draw, body)
        fields.append(
            (draw.choice(("Transfer-Encoding", "transfer-encoding")), draw.choice(("chunked", "Chunked")))
        )
    elif shape < 0.65:
        fields.append(("Content-Length", "0"))
    draw.shuffle(fields)
    lines = "".join(f"{name}:{draw.choice(('', ' ', '  '))}{value}\r\n" for name, value in fields)
    sent = (
        draw.choice((b"", b"", b"\r\n"))
        + f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
        + framed
    )
    events: list[Event] = [ContinueExpected()] if waits else []
    events.append(RequestReceived(method, target, tuple(fields), body, not last))
    return sent, events, last


def _content(draw: random.Random) -> bytes:
    return draw.choice(
        (INNER, INNER * 3, b"{}", b"0\r\n\r\n" + INNER, draw.randbytes(draw.randint(1, 60)), b"\r\n" * 5)
    )


def _chunked(draw: random.Random, body: bytes) -> bytes:
    pieces, at = [], 0
    while at < len(body):
        size = draw.randint(1, max(1, len(body) - at))
        extension = draw.choice((b"", b"", b";a=b", b';a="b"'))
        number = draw.choice((b"%x", b"%X", b"00%x")) % size
        pieces.append(number + extension + b"\r\n" + body[at : at + size] + b"\r\n")
        at += size
    trailer = draw.choice((b"", b"", b"X-Sum: 1\r\n", b"ETag: 9\r\nExpect: 100-continue\r\n"))
    return b"".join(pieces) + b"0\r\n" + trailer + b"\r\n"


def _mutated(draw: random.Random) -> Drawn:
    data = bytearray(_well_formed(draw)[0])
    for _ in range(draw.choices((1, 2, 5, 20), (6, 3, 2, 1))[0]):
        at = draw.randrange(len(data) + 1)
        other = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                data[at:at] = draw.choice(TOKENS)
            case 2:
                del data[at : at + draw.randint(1, 8)]
            case 3:
                data[at:at] = data[min(at, other) : max(at, other)][:200]
            case 4:
                data[at : at + len(TOKENS[0])] = draw.choice(TOKENS)
            case 5:
                del data[at:]
    return bytes(data), draw.choice((_WIDE, _NARROW)), None, b""


def _soup(draw: random.Random) -> Drawn:
    head = draw.choice((b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b""))
    parts = [
        draw.choice(TOKENS) if draw.random() < 0.8 else draw.randbytes(3) for _ in range(draw.randint(1, 25))
    ]
    return head + b"".join(parts), draw.choice((_WIDE, _NARROW)), None, b""


def _numbers(draw: random.Random) -> Drawn:
    number = draw.choice(
        (str(2 ** draw.randint(1, 200)), "9" * draw.randint(1, 300), "+5", "-1", "0x5", "5.0", "5,5", "5 5")
    )
    if draw.random() < 0.5:
        head = f"POST / HTTP/1.1\r\nContent-Length: {number}\r\n\r\n"
    else:
        head = f"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{number}\r\n"
    return head.encode() + INNER * draw.randint(0, 20), draw.choice((_WIDE, _NARROW)), None, b""


def _large(draw: random.Random) -> Drawn:
    """Draw what is about as large as the limits, or beyond."""
    size = draw.randint(200, 1200)
    head = draw.choice(
        (
            b"GET /" + b"a" * size + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: " + b"a" * size + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * (size // 5) + b"\r\n",
            b"GET / HTTP/1.1\r\nA:" + b" " * size,
            b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size,
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"2\r\nab\r\n" * (size // 2)
            + b"0\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
            + b"A: b\r\n" * (size // 3)
            + b"\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * size,
        )
    )
    return head + draw.choice((b"", INNER)), _NARROW, None, b""


def _tunnel(draw: random.Random) -> Drawn:
    authority = draw.choice(
        (b"a:443", b"[::1]:443", b"a", b"", b"http://a/", b"/", b"a:99999", b"\xff:1", b"*")
    )
    fields = draw.choice(
        (
            b"",
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Upgrade: x\r\nConnection: upgrade\r\n",
        )
    )
    return (
        b"CONNECT "
        + authority
        + b" HTTP/1.1\r\n"
        + fields
        + b"\r\n"
        + draw.choice((INNER, draw.randbytes(40), b"")),
        _WIDE,
        None,
        b"",
    )


def _tls(draw: random.Random) -> Drawn:
    return (
        bytes([draw.choice((0x14, 0x15, 0x16, 0x17, 0x80)), 3, draw.randrange(5)])
        + draw.randbytes(draw.randint(0, 200)),
        _WIDE,
        None,
        b"",
    )


def _noise(draw: random.Random) -> Drawn:
    return draw.randbytes(draw.randint(1, 120)), draw.choice((_WIDE, _NARROW)), None, b""


KINDS: dict[str, tuple[int, Callable[[random.Random], Drawn]]] = {
    "well formed": (30, _well_formed),
    "mutated": (40, _mutated),
    "header soup": (10, _soup),
    "numbers": (4, _numbers),
    "about the limits": (5, _large),
    "connect": (4, _tunnel),
    "tls": (3, _tls),
    "noise": (4, _noise),
}


# Rules for each stream.


def check(stream: Stream, cuts: random.Random) -> str:
    """Return what of a stream is not as it must be; "" if all is."""
    began = time.process_time()
    whole = HttpConnection(stream.limits)
    events = whole.receive_data(stream.data)
    pieces = _cut(stream.data, cuts)
    cut = HttpConnection(stream.limits)
    cut_events = [event for piece in pieces for event in cut.receive_data(piece)]
    took = time.process_time() - began
    if took > SLOW:
        return f"took {took:.1f} s"
    if not _same(cut_events, events, stream) or cut.rest != whole.rest:
        return f"cut into {[len(piece) for piece in pieces]} it gives {cut_events}, else {events}"
    if stream.expected is not None and (_plain(events) != stream.expected or whole.rest != stream.rest):
        return f"gives {events}, not {stream.expected}"
    return _ends(whole, events) or _within(events, stream.limits) or as_modelled(events, stream.data)


def _cut(data: bytes, cuts: random.Random) -> list[bytes]:
    if len(data) < 400 and cuts.random() < 0.1:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(cuts.randrange(len(data) + 1) for _ in range(cuts.randint(1, 6)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def _same(cut: list[Event], whole: list[Event], stream: Stream) -> bool:
    """Return whether two readings agree, the words of a refusal aside: they may name another place.

    Bytes beyond twice the limit of a head without an end of anything are refused before they are parsed, if
    they come in pieces; one large piece may bring the end with it.
    """
    ones, others = _reported(cut), _reported(whole)
    if ones and ones[-1] == 431 and len(stream.data) > 2 * stream.limits.head:
        return others[: len(ones) - 1] == ones[:-1]
    return ones == others


def _plain(events: list[Event]) -> tuple[Event, ...]:
    """Return events with wishes for a WebSocket as the requests that they are."""
    return tuple(
        RequestReceived(event.method, event.target, event.headers, event.raw_body, event.keep_alive)
        if isinstance(event, RequestReceived)
        else event
        for event in events
    )


def _reported(events: list[Event]) -> list[Event | int]:
    return [event.status if isinstance(event, BadRequest) else event for event in events]


def _ends(wire: HttpConnection, events: list[Event]) -> str:
    """Assert that nothing is reported after an end."""
    for event in events[:-1]:
        if isinstance(event, BadRequest | ConnectReceived) or (
            isinstance(event, RequestReceived) and not event.keep_alive
        ):
            return f"continues after {event}: {events}"
    last = events[-1] if events else None
    over = isinstance(last, BadRequest | ConnectReceived) or (
        isinstance(last, RequestReceived) and not last.keep_alive
    )
    if over and (more := wire.receive_data(INNER)):
        return f"hears {more} after {last}"
    return ""


def _within(events: list[Event], limits: RequestLimits) -> str:
    for event in events:
        if isinstance(event, RequestReceived):
            head = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
            if head > limits.head or len(event.raw_body) > limits.body:
                return f"is larger than {limits}: {event}"
    return ""


def as_modelled(events: list[Event], data: bytes) -> str:
    answer = [event for event in events if isinstance(event, RequestReceived | ConnectReceived)]
    for number, (method, target, headers, body) in enumerate(modelled(data)):
        if number >= len(answer):
            break  # refused or too large; how far it is read is not the model's to say
        event = answer[number]
        if isinstance(event, ConnectReceived):
            seen = ("CONNECT", event.authority, event.headers, b"")
        else:
            seen = (event.method, event.target, event.headers, event.raw_body)
        if seen != (method, target, headers, body):
            return f"request {number} is {seen}, the model has {(method, target, headers, body)}"
    return ""


_LINE = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.1\r\n")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[ -~]*)?\r\n")


def modelled(data: bytes) -> Iterator[tuple[str, str, Headers, bytes]]:
    """Yield the requests that a stream begins with, as far as they are unambiguous."""
    at = 0
    while True:
        while data.startswith(b"\r\n", at):
            at += 2
        line = _LINE.match(data, at)
        if line is None:
            return
        at = line.end()
        headers = []
        while field := _field(data, at):
            headers.append(field[0])
            at = field[1]
        if not data.startswith(b"\r\n", at):
            return
        found = _body(data, at + 2, headers) if line[1] != b"CONNECT" else (b"", at + 2)
        if found is None:
            return
        body, at = found
        yield line[1].decode(), line[2].decode("latin-1"), tuple(headers), body
        if line[1] == b"CONNECT" or any(name.lower() == "connection" for name, _ in headers):
            return


def _field(data: bytes, at: int) -> tuple[tuple[str, str], int] | None:
    end = data.find(b"\r\n", at)
    name, colon, value = data[at : max(end, at)].partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        return None
    return (name.decode("latin-1"), value.strip(b" \t").decode("latin-1")), end + 2


def _body(data: bytes, at: int, headers: list[tuple[str, str]]) -> tuple[bytes, int] | None:
    """Return a body and where it ends; None if that is not sure."""
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if not lengths and not codings:
        return b"", at
    if len(lengths) + len(codings) > 1:
        return None
    if lengths:
        if not re.fullmatch(r"[0-9]{1,9}", lengths[0]) or at + int(lengths[0]) > len(data):
            return None
        return data[at : at + int(lengths[0])], at + int(lengths[0])
    return _unchunked(data, at) if codings[0].lower() == "chunked" else None


def _unchunked(data: bytes, at: int) -> tuple[bytes, int] | None:
    body = b""
    while chunk := _CHUNK.match(data, at):
        size = int(chunk[1], 16)
        at = chunk.end()
        if not size:
            while field := _field(data, at):
                at = field[1]
            return (body, at + 2) if data.startswith(b"\r\n", at) else None
        if data[at + size : at + size + 2] != b"\r\n":
            return None
        body += data[at : at + size]
        at += size + 2
    return None

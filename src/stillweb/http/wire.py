"""HTTP/1.1 from bytes to requests, and the heads of responses that stillweb makes itself. No I/O.

`HttpConnection` parses one stream of requests. It knows neither TLS nor sessions: `tunnel` does. llhttp (in
httptools) reads the grammar; this module adds size limits, `Expect: 100-continue`, CONNECT and the bodies
of requests with an upgrade.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import httptools

from stillweb.model import Headers, header


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Largest request that is accepted, in bytes: target plus fields, and body."""

    head: int = 256 * 1024
    body: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A complete request; `target` is as sent in the request line."""

    method: str
    target: str
    headers: Headers
    raw_body: bytes
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class ConnectReceived:
    """A CONNECT to `authority` (RFC 9110 §9.3.6); the bytes after it are in `HttpConnection.rest`."""

    authority: str
    headers: Headers


@dataclass(frozen=True, slots=True)
class ContinueExpected:
    """The client sends the body only after a 100 response (RFC 9110 §10.1.1)."""


@dataclass(frozen=True, slots=True)
class BadRequest:
    """Bytes that are not an acceptable request; the connection ends after a response with `status`."""

    status: int
    what: str


@dataclass(frozen=True, slots=True)
class UpgradeReceived(RequestReceived):
    """A WebSocket handshake (RFC 6455 §4.1); a server may also answer it as an ordinary request."""


Event = RequestReceived | ConnectReceived | ContinueExpected | BadRequest


class Phase(Enum):
    """Position of an `HttpConnection` in its stream of requests."""

    IDLE = auto()  # between two requests
    HEAD = auto()
    BODY = auto()
    REFRAMED_HEAD = auto()  # a head of our own making precedes the body of an upgrade request
    CONNECTED = auto()  # behind CONNECT: bytes gather in `rest`
    FINISHED = auto()  # behind the last request or a bad one: bytes are ignored


_FRAMING = ("content-length", "transfer-encoding")  # RFC 9112 §6.3


class HttpConnection:
    """Parser of one stream of requests.

    Attributes:
        phase: position in the stream.
        rest: bytes received after CONNECT.
    """

    def __init__(self, limits: RequestLimits | None = None) -> None:
        self.phase = Phase.IDLE
        self.rest = bytearray()
        self._limits = limits or RequestLimits()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._unfinished = 0  # bytes since the last complete element: a head, a piece of a body
        self._reframed = b""  # the head to parse before the body of an upgrade request
        self._begin()

    def _begin(self) -> None:
        self._target = bytearray()
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()  # not a list: chunks of one byte would take fifty times the memory
        self._head_size = 0

    @property
    def between(self) -> bool:
        """Whether the next byte begins a request, and is parsed like the first one of the stream."""
        return self.phase is Phase.IDLE and not self._unfinished

    @property
    def in_request(self) -> bool:
        """Whether a request is partly received."""
        return self.phase in (Phase.HEAD, Phase.BODY, Phase.REFRAMED_HEAD)

    @property
    def buffered(self) -> int:
        """Bytes of the body that is being received."""
        return len(self._body)

    @property
    def head(self) -> tuple[str, Headers] | None:
        """Target and fields of a request whose body is still incomplete; None in any other phase."""
        if self.phase is not Phase.BODY:
            return None
        return self._target.decode("latin-1"), tuple(self._headers)

    def receive_data(self, data: bytes) -> list[Event]:
        """Parse bytes and return the events that they complete."""
        while data and self.phase is not Phase.FINISHED and self.phase is not Phase.CONNECTED:
            data = self._feed(data)
        if self.phase is Phase.CONNECTED:
            self.rest += data
        events, self._events = self._events, []
        return events

    def _feed(self, data: bytes) -> bytes:
        """Parse; return the bytes that belong to the tunnel, or to a new parser after an upgrade."""
        self._unfinished += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # llhttp stops at any upgrade. One that is not CONNECT is not taken here, so HTTP continues: with
            # the body of this request, or with the next request.
            self._parser = httptools.HttpRequestParser(self)
            head, self._reframed = self._reframed, b""
            return head + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"malformed request: {error}")
        # Twice the limit, because white space and separators do not count as content. The check also bounds
        # trailers and chunk extensions: the parser buffers a field until its line ends.
        if self._unfinished > 2 * self._limits.head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many bytes without an end of line")
        return b""

    def _reframe(self, method: str) -> None:
        """Prepare a head without the upgrade: llhttp does not read a body after an upgrade."""
        fields = self._framing()
        if not self._parser.should_keep_alive():
            fields.append(("Connection", "close"))
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        self._reframed = f"{method} / HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
        self.phase = Phase.REFRAMED_HEAD

    def _framing(self) -> list[tuple[str, str]]:
        return [field for field in self._headers if field[0].lower() in _FRAMING]

    def _refuse(self, status: HTTPStatus, what: str) -> None:
        if self.phase is not Phase.FINISHED:
            self._events.append(BadRequest(status.value, what))
            self.phase = Phase.FINISHED

    # Callbacks of httptools, under its names.

    def on_message_begin(self) -> None:
        if self.phase is Phase.IDLE:
            self.phase = Phase.HEAD

    def on_url(self, url: bytes) -> None:
        if self.phase is Phase.HEAD:
            self._target += url
            self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Add a field; drop trailers (RFC 9112 §7.1.2)."""
        if self.phase is not Phase.HEAD:
            return
        value = (value or b"").rstrip(b" \t")  # not part of the value (RFC 9112 §5.1); llhttp keeps it
        self._head_size += len(name) + len(value)
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Check the sizes, and whether the client waits for a 100 response."""
        self._unfinished = 0
        if self.phase is Phase.REFRAMED_HEAD:
            self.phase = Phase.BODY
        if self.phase is not Phase.HEAD:
            return
        self.phase = Phase.BODY
        if self._head_size > self._limits.head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large")
        elif self._length() > self._limits.body:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large")
        elif sum(name.lower() == "host" for name, _ in self._headers) > 1:  # RFC 9112 §3.2
            self._refuse(HTTPStatus.BAD_REQUEST, "more than one Host field")
        elif self._expects_continue():
            self._events.append(ContinueExpected())

    def _length(self) -> int:
        """Return Content-Length; llhttp has checked that it is a number."""
        return int(header(tuple(self._headers), "content-length") or 0)

    def _expects_continue(self) -> bool:
        expected = header(tuple(self._headers), "expect").lower() == "100-continue"
        return expected and self._parser.get_http_version() != "1.0"  # RFC 9110 §10.1.1

    def on_body(self, piece: bytes) -> None:
        self._unfinished = 0
        if len(self._body) + len(piece) > self._limits.body:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large")
        elif self.phase is not Phase.FINISHED:
            self._body += piece

    def on_message_complete(self) -> None:
        self._unfinished = 0
        if self.phase is Phase.FINISHED:
            return
        method = self._parser.get_method().decode("ascii")
        upgrades = self._parser.should_upgrade()
        if upgrades and method != "CONNECT" and self._framing():
            self._reframe(method)
            return
        target, headers = self._target.decode("latin-1"), tuple(self._headers)
        if method == "CONNECT":
            self._events.append(ConnectReceived(target, headers))
            self.phase = Phase.CONNECTED
        else:
            keep_alive = bool(self._parser.should_keep_alive())
            websocket = upgrades and method == "GET" and header(headers, "upgrade").lower() == "websocket"
            kind = UpgradeReceived if websocket else RequestReceived
            self._events.append(kind(method, target, headers, bytes(self._body), keep_alive))
            self.phase = Phase.IDLE if keep_alive else Phase.FINISHED
        self._begin()


def status_line(status: int) -> bytes:
    """Return the status line of a response that stillweb makes."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


def refusal(status: int, advice: str = "") -> bytes:
    """Return a complete error response after which the connection ends."""
    fields = (("Proxy-Authenticate", 'Basic realm="session"'),) if status == 407 else ()
    body = advice.encode()
    kind = b"Content-Type: text/plain; charset=utf-8\r\n" if body else b""
    end = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    return simple_head(status, fields) + kind + end + body


def simple_head(status: int, fields: Headers = ()) -> bytes:
    """Return a response head without `Content-Length` and without the blank line.

    Raises:
        ValueError: if a value contains a line break.
    """
    for name, value in fields:
        if "\r" in value or "\n" in value:
            raise ValueError(f"line break in header field {name}: {value!r}")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return status_line(status) + lines.encode("latin-1", "replace")


ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

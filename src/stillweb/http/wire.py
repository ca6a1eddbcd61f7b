"""What whoever takes connections reads alike: TLS or not, which session, which URL. Pure.

The server (`connection`), the front (`frontdoor`) and the supervisor's lobby take the same clients; were they
to read them differently, a request would be another one behind a front than without.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools

from stillweb.model import Headers, header

__all__ = [
    "CONTINUE",
    "ESTABLISHED",
    "TLS_HANDSHAKE",
    "BadRequest",
    "ConnectReceived",
    "ContinueExpected",
    "Event",
    "HttpConnection",
    "RequestLimits",
    "RequestReceived",
    "UpgradeReceived",
    "asked_url",
    "in_origin_form",
    "place_of",
    "refusal",
    "simple_head",
    "status_line",
    "tunnel_host",
    "user_of",
]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much one request may bring, in bytes: target and fields, and body."""

    head: int = 256 * 1024
    body: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A complete request, its target as it stood in the request line."""

    method: str
    target: str
    headers: Headers
    raw_body: bytes
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class ConnectReceived:
    """A wish for a tunnel to `authority` (RFC 9110 §9.3.6); further bytes are in `Wire.rest`."""

    authority: str
    headers: Headers


@dataclass(frozen=True, slots=True)
class ContinueExpected:
    """The client holds the body back until it is told to go on (RFC 9110 §10.1.1)."""


@dataclass(frozen=True, slots=True)
class BadRequest:
    """What came is no request that we take; the connection ends after a `status` answer."""

    status: int
    what: str


@dataclass(frozen=True, slots=True)
class UpgradeReceived(RequestReceived):
    """A request for a WebSocket (RFC 6455 §4.1), to be answered as any other if it is not taken."""


Event = RequestReceived | ConnectReceived | ContinueExpected | BadRequest


_FRAMING = ("content-length", "transfer-encoding")  # RFC 9112 §6.3


class HttpConnection:
    """The parsing state of one connection.

    Attributes:
        rest: what came after CONNECT.
        between: whether the last bytes ended a request and no more: what comes next begins one, and is parsed
            as if it came first.
    """

    def __init__(self, limits: RequestLimits | None = None) -> None:
        self.rest = bytearray()
        self.between = True
        self._limits = limits or RequestLimits()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._deaf = False
        self._tunnel = False
        self._unfinished = 0  # bytes since the last that came to an end: a head, a piece of a body
        self._again = False  # the head at hand comes a second time, without its wish for an upgrade
        self._method, self._stays = "", True  # of that head
        self.on_message_begin()
        self._partial = False

    @property
    def in_request(self) -> bool:
        """Whether part of a request has come, and not yet all of it."""
        return self._begun

    def receive_data(self, data: bytes) -> list[Event]:
        """Take bytes, return the events that they complete."""
        if not data:  # of a TLS record that is none of ours to read
            return []
        while data and not self._deaf and not self._tunnel:
            data = self._feed(data)
        if self._tunnel:
            self.rest += data
        events, self._events = self._events, []
        open_ended = self._partial or self._deaf or self._tunnel
        self.between = bool(events) and not open_ended
        return events

    def _feed(self, data: bytes) -> bytes:
        """Parse; return what is left for the tunnel, or for a new parser after an upgrade refused."""
        self._unfinished += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # An upgrade that is no CONNECT is not taken: the next bytes are HTTP again, its body first.
            self._parser = httptools.HttpRequestParser(self)
            return (self._head_again() if self._again else b"") + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"malformed request: {error}")
        # Twice the limit, as white space and separators of fields do not count as their content. Trailers and
        # chunk extensions are bounded so, too: the parser gathers a field until its line ends.
        if self._unfinished > 2 * self._limits.head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many bytes without an end of line")
        return b""

    def _head_again(self) -> bytes:
        """Return a head that frames the body at hand; llhttp takes none behind a wish for an upgrade."""
        fields = self._framing() if self._stays else [*self._framing(), ("Connection", "close")]
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"{self._method} / HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def _framing(self) -> list[tuple[str, str]]:
        return [field for field in self._headers if field[0].lower() in _FRAMING]

    def _refuse(self, status: HTTPStatus, what: str) -> None:
        if not self._deaf:
            self._events.append(BadRequest(status.value, what))
            self._deaf = True

    # What httptools calls, by its own names.

    def on_message_begin(self) -> None:
        """Forget the request before."""
        self._partial = True
        if self._again:
            return
        self._target = bytearray()
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()  # no list: chunks of a byte each would weigh fifty times as much
        self._head_size = 0
        self._in_body = False
        self._begun = False

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        if self._again:
            return
        self._begun = True
        self._target += url
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Take a field; fields after the body (trailers) are dropped, RFC 9112 §7.1.2."""
        if self._in_body:
            return
        value = (value or b"").rstrip(b" \t")  # which is no part of it (RFC 9112 §5.1); llhttp leaves it
        self._head_size += len(name) + len(value)
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Check the size, and whether the client waits for leave to send the body."""
        self._unfinished = 0
        if self._again:
            self._again = False
            return
        self._in_body = True
        if self._head_size > self._limits.head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large")
        elif self._length() > self._limits.body:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large")
        elif not self._deaf and self._waits():
            self._events.append(ContinueExpected())

    def _length(self) -> int:
        """Return the length that the head states; llhttp has seen to it that it is a number."""
        return int(header(tuple(self._headers), "content-length") or 0)

    def _waits(self) -> bool:
        expected = header(tuple(self._headers), "expect").lower() == "100-continue"
        return expected and self._parser.get_http_version() != "1.0"  # RFC 9110 §10.1.1

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._unfinished = 0
        if len(self._body) + len(piece) > self._limits.body:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large")
        elif not self._deaf:
            self._body += piece

    def on_message_complete(self) -> None:
        """Tell of the request."""
        self._unfinished = 0
        if self._deaf:
            return
        method = self._parser.get_method().decode("ascii")
        if method != "CONNECT" and self._parser.should_upgrade() and self._framing():
            self._again, self._method = True, method
            self._stays = bool(self._parser.should_keep_alive())
            return
        target = self._target.decode("latin-1")
        headers = tuple(self._headers)
        if method == "CONNECT":
            self._events.append(ConnectReceived(target, headers))
            self._tunnel = True
        else:
            keep_alive = bool(self._parser.should_keep_alive())
            upgrades = self._parser.should_upgrade() and header(headers, "upgrade").lower() == "websocket"
            kind = UpgradeReceived if upgrades and method == "GET" else RequestReceived
            self._events.append(kind(method, target, headers, bytes(self._body), keep_alive))
            self._deaf = not keep_alive
        self.on_message_begin()
        self._partial = False


def status_line(status: int) -> bytes:
    """Return the status line of an answer of our own making."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


def refusal(status: int, advice: str = "") -> bytes:
    """Return an answer to what is no request that we take; the connection ends behind it."""
    fields = (("Proxy-Authenticate", 'Basic realm="session"'),) if status == 407 else ()
    body = advice.encode()
    kind = b"Content-Type: text/plain; charset=utf-8\r\n" if body else b""
    end = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    return simple_head(status, fields) + kind + end + body


def simple_head(status: int, fields: Headers = ()) -> bytes:
    """Return a response head of our own making, ready for `Content-Length` and the blank line.

    Raises:
        ValueError: if a value would break the line.
    """
    for name, value in fields:
        if "\r" in value or "\n" in value:
            raise ValueError(f"line break in header field {name}: {value!r}")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return status_line(status) + lines.encode("latin-1", "replace")


TLS_HANDSHAKE = 0x16
"""The first byte of a connection that speaks TLS (RFC 8446 §5.1)."""
ESTABLISHED = b"HTTP/1.1 200 Connection Established\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def user_of(credentials: str | bytes) -> str | None:
    """Return the user name of Basic credentials (RFC 7617 §2); None if they are none."""
    try:
        return b64decode(credentials, validate=True).decode("ascii").partition(":")[0]
    except ValueError:
        return None


def tunnel_host(authority: str) -> str:
    """Return the host that a tunnel is to, without its port."""
    return authority.rpartition(":")[0] or authority


def place_of(tls: bool, tunnel: str) -> str:
    """Return of whom requests in origin form are, where a tunnel, or TLS, says it."""
    return f"{'https' if tls else 'http'}://{tunnel}"


def in_origin_form(event: RequestReceived) -> bool:
    """Return whether a request names a path only, or `*` (RFC 9112 §3.2.1, §3.2.4)."""
    return event.target.startswith(("/", "*"))


def asked_url(event: RequestReceived, place: str) -> str:
    """Return the URL that a request asks for at a place; "" if it does not say of which host."""
    if not in_origin_form(event):
        return event.target  # absolute form is taken everywhere (RFC 9112 §3.2.2)
    # RFC 9112 §3.3: the Host field names the site; the tunnel does if there is none.
    scheme, _, authority = place.partition("://")
    host = header(event.headers, "host") or authority
    return f"{scheme}://{host}{event.target}" if host else ""

"""One client's connection to a proxy, from its first byte to its end, without I/O.

A client may send HTTP/1.1 in the clear, begin with TLS or SOCKS5, or send CONNECT and then HTTP or TLS inside
the tunnel. The tunnel may be inside of a proxy connection over TLS. `TRANSITIONS` is the only place that says
what may follow what; `ProxyConnection` applies it to bytes. The native server, the `--on-miss` front and the
workers' router use this module. So a request is the same one behind each of them.

CONNECT is accepted without asking where to: the tunnel ends here. The first byte of a connection, and of a
tunnel, distinguishes TLS from plain HTTP (`ws:` arrives in a plain tunnel). docs/reference/connection.md
draws the table.
"""

from __future__ import annotations

import ssl
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from stillweb.http.socks import SOCKS_VERSION, SocksServer
from stillweb.http.tls import ServerContexts, TlsServer
from stillweb.http.wire import (
    BadRequest,
    ConnectReceived,
    Event,
    HttpConnection,
    Phase,
    RequestLimits,
    RequestReceived,
)
from stillweb.model import Headers, header

_TLS_HANDSHAKE = 0x16
"""First byte of a connection that speaks TLS (RFC 8446 §5.1)."""


class State(Enum):
    """State of a connection; the value describes it."""

    START = "no byte received"
    HTTP = "plain HTTP/1.1: requests through the proxy, control requests, CONNECT"
    SOCKS = "SOCKS5: its request counts as a CONNECT"
    HANDSHAKE = "TLS from the first byte: the handshake"
    TLS = "HTTP/1.1 in TLS from the first byte"
    TUNNEL_START = "CONNECT accepted, no byte received in the tunnel"
    TUNNEL_HTTP = "plain HTTP/1.1 in the tunnel"
    TUNNEL_HANDSHAKE = "TLS in the tunnel: the handshake"
    TUNNEL_TLS = "HTTP/1.1 in TLS in the tunnel"
    SWITCHED = "a WebSocket or an endless response has the connection: no more requests"
    CLOSING = "nothing more is read; requests already received are answered"
    FINAL = "the last response is sent; no further request is answered"
    REFUSED = "an error response is sent; what the client still sends is dropped"
    CLOSED = "nothing more is sent"


class Trigger(Enum):
    """Event that moves a connection to another state; the value describes it."""

    TLS_BYTE = "the first byte begins a TLS record"
    SOCKS_BYTE = "the first byte is the version of SOCKS5"
    OTHER_BYTE = "the first byte is any other"
    HANDSHAKE_DONE = "the TLS handshake is complete"
    TLS_ERROR = "the client violates TLS or rejects the certificate"
    CONNECT = "a CONNECT is accepted"
    SWITCH = "a response takes over the connection"
    LAST_RESPONSE = "a response announces the end of the connection"
    REFUSE = "bytes are not a request, or a request is not accepted"
    END_OF_DATA = "the client sends no more: TCP FIN or close_notify"
    SHUTDOWN = "the server wants the connection to end"
    CLOSE = "all is sent"


_S, _T = State, Trigger
# A connection may end from every open state.
_ENDINGS = {_T.END_OF_DATA: _S.CLOSING, _T.SHUTDOWN: _S.CLOSING, _T.CLOSE: _S.CLOSED}
_REQUESTS = {**_ENDINGS, _T.SWITCH: _S.SWITCHED, _T.LAST_RESPONSE: _S.FINAL, _T.REFUSE: _S.REFUSED}
_BROKEN = {_T.TLS_ERROR: _S.CLOSED}

TRANSITIONS: Mapping[State, Mapping[Trigger, State]] = {
    _S.START: {
        **{_T.TLS_BYTE: _S.HANDSHAKE, _T.SOCKS_BYTE: _S.SOCKS, _T.OTHER_BYTE: _S.HTTP},
        **_ENDINGS,
    },
    _S.SOCKS: {_T.CONNECT: _S.TUNNEL_START, _T.REFUSE: _S.REFUSED, **_ENDINGS},
    _S.HTTP: {_T.CONNECT: _S.TUNNEL_START, **_REQUESTS},
    _S.HANDSHAKE: {_T.HANDSHAKE_DONE: _S.TLS, **_BROKEN, **_ENDINGS},
    _S.TLS: {_T.CONNECT: _S.TUNNEL_START, **_REQUESTS, **_BROKEN},
    _S.TUNNEL_START: {
        **{_T.TLS_BYTE: _S.TUNNEL_HANDSHAKE, _T.OTHER_BYTE: _S.TUNNEL_HTTP},
        **_BROKEN,  # of the proxy connection
        **_ENDINGS,
    },
    _S.TUNNEL_HTTP: {**_REQUESTS, **_BROKEN},
    _S.TUNNEL_HANDSHAKE: {_T.HANDSHAKE_DONE: _S.TUNNEL_TLS, **_BROKEN, **_ENDINGS},
    _S.TUNNEL_TLS: {**_REQUESTS, **_BROKEN},
    _S.SWITCHED: {**_ENDINGS, **_BROKEN},
    # No trigger leads back to an open state.
    _S.CLOSING: {
        **dict.fromkeys((_T.SWITCH, _T.END_OF_DATA, _T.SHUTDOWN), _S.CLOSING),
        **{_T.LAST_RESPONSE: _S.FINAL, _T.REFUSE: _S.REFUSED, _T.TLS_ERROR: _S.CLOSED, _T.CLOSE: _S.CLOSED},
    },
    _S.FINAL: {
        **dict.fromkeys((_T.SWITCH, _T.LAST_RESPONSE, _T.END_OF_DATA, _T.SHUTDOWN), _S.FINAL),
        **{_T.REFUSE: _S.REFUSED, _T.TLS_ERROR: _S.CLOSED, _T.CLOSE: _S.CLOSED},
    },
    _S.REFUSED: {
        **dict.fromkeys((_T.REFUSE, _T.END_OF_DATA, _T.SHUTDOWN), _S.REFUSED),
        **{_T.TLS_ERROR: _S.CLOSED, _T.CLOSE: _S.CLOSED},
    },
    _S.CLOSED: dict.fromkeys(_T, _S.CLOSED),
}
"""State and trigger to the next state. A missing trigger is impossible in that state."""

_FIRST_BYTE = (_S.START, _S.TUNNEL_START)
_HANDSHAKES = (_S.HANDSHAKE, _S.TUNNEL_HANDSHAKE)
_DEAF = (_S.SWITCHED, _S.REFUSED, _S.CLOSED)
_ENDS = (_S.CLOSING, _S.FINAL, _S.REFUSED, _S.CLOSED)
_LAST = (*_ENDS, _S.SWITCHED)


def next_state(state: State, trigger: Trigger) -> State:
    """Return the state that follows.

    Raises:
        AssertionError: if the trigger is impossible in the state.
    """
    after = TRANSITIONS[state].get(trigger)
    if after is None:
        raise AssertionError(f"{trigger.name} is impossible in state {state.name}")
    return after


class ProxyConnection:
    """The server's side of one client connection.

    Args:
        contexts: TLS contexts; None for a listener of control requests only, which accepts no TLS and no
            CONNECT.
        origin: of requests in origin form while the connection is plain: "http://" to read the host from
            the
            Host field, "" if such requests are for the control API.

    Attributes:
        state: see `TRANSITIONS`.
        origin: `scheme://authority` of requests in origin form; the authority is empty outside tunnels.
        authority: of the tunnel; "" outside one.
    """

    def __init__(self, contexts: ServerContexts | None, *, origin: str = "http://") -> None:
        self.state = State.START
        self.origin = origin
        self.authority = ""
        self._contexts = contexts
        self._http = HttpConnection()
        self._layers: list[TlsServer | SocksServer] = []  # the outermost first
        self._behind = False  # the next bytes were received behind a CONNECT: outer layers have read them

    @property
    def between(self) -> bool:
        """Whether the next byte begins a request that can be answered like the first one."""
        return self._http.between and self.state not in _LAST

    @property
    def in_request(self) -> bool:
        """Whether a request is partly received."""
        return self._http.in_request

    @property
    def in_head(self) -> bool:
        """Whether a handshake or the head of a request is partly received."""
        return self._http.phase is Phase.HEAD or self.state in (*_HANDSHAKES, State.SOCKS)

    @property
    def buffered(self) -> int:
        """Bytes of the request body that is being received."""
        return self._http.buffered

    @property
    def ending(self) -> bool:
        """Whether the connection ends with the requests already received."""
        return self.state in _ENDS

    @property
    def takes_requests(self) -> bool:
        """Whether a request that was received may still be answered."""
        return self.state is State.CLOSING or self.state not in _LAST

    @property
    def accepts_connect(self) -> bool:
        """Whether a CONNECT may open a tunnel now."""
        return self._contexts is not None and Trigger.CONNECT in TRANSITIONS[self.state]

    def advance(self, trigger: Trigger) -> None:
        self.state = next_state(self.state, trigger)

    # Bytes from the client.

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events that bytes from the network complete; then see `pending`.

        Raises:
            ssl.SSLError: as `decrypt` does.
        """
        return self.parse(self.decrypt(data))

    def decrypt(self, data: bytes) -> bytes:
        """Return the plaintext of bytes from the network.

        Raises:
            ssl.SSLError: if TLS fails; an alert may be pending.
        """
        layers = () if self._behind else self._layers
        self._behind = False
        for layer in layers:
            data = self._through(layer, data)
        if self.state in _FIRST_BYTE and data and (opened := self._open(data[0])) is not None:
            data = self._through(opened, data)
        return data

    def _through(self, layer: TlsServer | SocksServer, data: bytes) -> bytes:
        try:
            plain = layer.receive(data)
        except ssl.SSLError:
            self.advance(Trigger.TLS_ERROR)
            raise
        if layer.established and self.state in _HANDSHAKES and layer is self._layers[-1]:
            self.advance(Trigger.HANDSHAKE_DONE)
        if layer.closed:
            self.advance(Trigger.END_OF_DATA)
        return plain

    def _open(self, first: int) -> TlsServer | SocksServer | None:
        """Return the layer that the first byte of a connection or tunnel begins, if any."""
        if self._contexts is not None and first == _TLS_HANDSHAKE:
            self.advance(Trigger.TLS_BYTE)
            self.origin = f"https://{self.authority}"
            host = _host(self.authority)
            self._layers.append(TlsServer(self._contexts.for_host(host) if host else self._contexts.by_sni))
        elif self._contexts is not None and first == SOCKS_VERSION and self.state is State.START:
            self.advance(Trigger.SOCKS_BYTE)
            self._layers.append(SocksServer())
        else:
            self.advance(Trigger.OTHER_BYTE)
            if self.authority:
                self.origin = f"http://{self.authority}"
            return None
        return self._layers[-1]

    def parse(self, plain: bytes) -> list[Event]:
        """Return the events that decrypted bytes complete; none once the connection is refused or closed."""
        if not plain or self.state in _DEAF:
            return []
        return self._http.receive_data(plain)

    def accept(self, event: ConnectReceived) -> bytes:
        """Open the tunnel of a CONNECT; return the bytes that were received behind it.

        The caller sends `ESTABLISHED`, then passes these bytes to `receive_data`.

        Raises:
            BadHostname: if no certificate can name the host.
        """
        assert self._contexts is not None
        self._contexts.for_host(_host(event.authority))
        self.advance(Trigger.CONNECT)
        self.authority = event.authority
        rest, self._http = bytes(self._http.rest), HttpConnection()
        self._behind = bool(rest)
        return rest

    # Bytes to the client.

    @property
    def pending(self) -> bool:
        """Whether a layer has bytes for the network: handshake, tickets, alerts."""
        return any(layer.pending for layer in self._layers)

    def data_to_send(self) -> bytes:
        """Return the bytes that the layers have for the network."""
        data: bytes = b""
        for layer in reversed(self._layers):
            data = layer.send(data) if data else layer.take()
        return data

    def send(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes that carry `data` over the network."""
        for layer in reversed(self._layers):
            data = layer.send(data)
        return data

    def close(self) -> bytes:
        """End the connection; return the bytes that say so, b"" the second time."""
        farewell: bytes = b""
        if self.state is not State.CLOSED:
            for layer in reversed(self._layers):
                farewell = (layer.send(farewell) if farewell else b"") + layer.farewell()
        self.advance(Trigger.CLOSE)
        return farewell


# Purpose of a request.


def _host(authority: str) -> str:
    return authority.rpartition(":")[0] or authority


def _in_origin_form(target: str) -> bool:
    """Return whether a target is a path or `*` (RFC 9112 §3.2.1, §3.2.4)."""
    return target.startswith(("/", "*"))


def is_control(event: RequestReceived, origin: str) -> bool:
    """Return True for a request to the control API: neither it nor TLS or a tunnel names a host."""
    return not origin and _in_origin_form(event.target)


def request_url(event: RequestReceived, origin: str) -> str:
    """Return the absolute URL of a request; "" if it names no host."""
    if not _in_origin_form(event.target):
        return event.target  # absolute form is accepted everywhere (RFC 9112 §3.2.2)
    # RFC 9112 §3.3: the Host field names the site; without one, the tunnel does.
    scheme, _, authority = origin.partition("://")
    host = header(event.headers, "host") or authority
    return f"{scheme}://{host}{event.target}" if host else ""


def proxy_user(headers: Headers) -> str | None:
    """Return the user of `Proxy-Authorization` (RFC 7617 §2); "" without credentials, None if malformed."""
    credentials = header(headers, "proxy-authorization").partition(" ")[2].strip(" \t")
    if not credentials:
        return ""
    try:
        return b64decode(credentials, validate=True).decode("ascii").partition(":")[0] or None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Destination:
    """Addressee of a connection.

    Attributes:
        user: proxy user name of the first request; "" without one, None if it is malformed.
    """

    control: bool = False
    user: str | None = ""


class FirstRequest:
    """Reader of the first bytes of a connection, up to the head that says which session it is for.

    TLS or SOCKS from the first byte, a malformed head and one above `LIMIT` bytes are for the default
    session. Its server answers or refuses them.
    """

    LIMIT = 64 * 1024
    _EMPTY_LINES = 4  # bytes of line ends before a request: one line may precede it (RFC 9112 §2.2)

    def __init__(self) -> None:
        self._http = HttpConnection(RequestLimits(head=self.LIMIT, body=self.LIMIT))
        self._received = 0

    def receive_data(self, data: bytes) -> Destination | None:
        """Return the destination, or None if more bytes are needed."""
        if not self._received and data[:1] in (bytes([_TLS_HANDSHAKE]), bytes([SOCKS_VERSION])):
            return Destination()
        self._received += len(data)
        for event in self._http.receive_data(data):
            match event:
                case RequestReceived(target=target, headers=headers):
                    return _destination(target, headers)
                case ConnectReceived(authority=target, headers=headers):
                    return _destination(target, headers)
                case BadRequest():
                    return Destination()
        if self._http.head is not None:
            return _destination(*self._http.head)
        beyond = self._received >= self.LIMIT
        blank = self._http.phase is Phase.IDLE and self._received >= self._EMPTY_LINES
        return Destination() if beyond or blank else None


def _destination(target: str, headers: Headers) -> Destination:
    if _in_origin_form(target):
        return Destination(control=True)
    return Destination(user=proxy_user(headers))

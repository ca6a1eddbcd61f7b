"""The server's side of a SOCKS5 handshake (RFC 1928, RFC 1929), without I/O.

The handshake is presented as an HTTP CONNECT, and the response to that as the SOCKS reply. So sessions,
refusals and tunnels are those of the HTTP proxy. The user name names the session, the password is ignored, as
with HTTP. BIND, UDP and GSSAPI are not supported.
"""

from __future__ import annotations

import re
from base64 import b64encode
from enum import Enum, auto
from ipaddress import IPv4Address, IPv6Address

SOCKS_VERSION = 5
"""First byte of every message of SOCKS5."""

_NO_AUTHENTICATION, _USER_AND_PASSWORD, _NO_METHOD = 0, 2, 0xFF
_PASSWORD_VERSION = 1
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_SUCCEEDED, _FAILED, _NOT_ALLOWED, _NO_COMMAND, _NO_ADDRESS_TYPE = 0, 1, 2, 7, 8
_BOUND = bytes([0, _IPV4]) + bytes(6)  # to address 0.0.0.0, port 0: no client needs it of a CONNECT
_HOST = re.compile(rb"[\w.-]+")  # a name with other bytes could forge fields of the CONNECT


class _Stage(Enum):
    GREETING = auto()
    PASSWORD = auto()
    REQUEST = auto()
    ANSWER = auto()  # the request was passed on
    OPEN = auto()
    REFUSED = auto()


class SocksServer:
    """One SOCKS5 connection, with the interface of `TlsServer`.

    Attributes:
        established: whether the request was received.
        closed: whether the handshake failed: nothing more is read.
    """

    def __init__(self) -> None:
        self._stage = _Stage.GREETING
        self._received = b""
        self._outgoing = b""
        self._user = b""

    @property
    def established(self) -> bool:
        return self._stage in (_Stage.ANSWER, _Stage.OPEN)

    @property
    def closed(self) -> bool:
        return self._stage is _Stage.REFUSED

    @property
    def pending(self) -> bool:
        return bool(self._outgoing)

    def take(self) -> bytes:
        data, self._outgoing = self._outgoing, b""
        return data

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the network; return the CONNECT that they complete, and what is behind it."""
        if self.established:
            return data
        self._received += data
        while not self.closed:
            stage = self._stage
            connect = self._step()
            if connect:
                return connect + self._rest(0)
            if self._stage is stage:
                break
        return b""

    def send(self, data: bytes | memoryview) -> bytes:
        """Return the bytes that carry `data`: the reply for the response to the CONNECT, then as they are."""
        waiting = self.take()
        if self._stage is _Stage.OPEN:
            return waiting + bytes(data)
        if self._stage is not _Stage.ANSWER:
            return waiting
        status = bytes(data[9:12])
        if status == b"200":
            self._stage = _Stage.OPEN
            return waiting + self._reply(_SUCCEEDED)
        self._stage = _Stage.REFUSED
        return waiting + self._reply(_NOT_ALLOWED if status == b"407" else _FAILED)

    def farewell(self) -> bytes:
        """Return nothing: SOCKS has no message for the end."""
        return b""

    def _step(self) -> bytes:
        """Read the message of the current stage if it is complete; return the CONNECT of a request."""
        received = self._received
        version = _PASSWORD_VERSION if self._stage is _Stage.PASSWORD else SOCKS_VERSION
        if received[:1] not in (b"", bytes([version])):
            self._refuse(b"")
        elif self._stage is _Stage.GREETING:
            self._greet(received)
        elif self._stage is _Stage.PASSWORD:
            self._authenticate(received)
        else:
            return self._request(received)
        return b""

    def _greet(self, received: bytes) -> None:
        if len(received) < 2 or len(received) < 2 + received[1]:
            return
        methods = self._rest(2 + received[1])[2:]
        if _USER_AND_PASSWORD in methods:  # a client that has credentials offers both
            chosen, self._stage = _USER_AND_PASSWORD, _Stage.PASSWORD
        elif _NO_AUTHENTICATION in methods:
            chosen, self._stage = _NO_AUTHENTICATION, _Stage.REQUEST
        else:
            return self._refuse(bytes([SOCKS_VERSION, _NO_METHOD]))
        self._outgoing += bytes([SOCKS_VERSION, chosen])
        return None

    def _authenticate(self, received: bytes) -> None:
        at = 2 + received[1] if len(received) > 1 else 0
        if not at or len(received) <= at or len(received) < at + 1 + received[at]:
            return
        self._user = self._rest(at + 1 + received[at])[2:at]
        # The response to the CONNECT refuses an unknown user.
        self._outgoing += bytes([_PASSWORD_VERSION, 0])
        self._stage = _Stage.REQUEST

    def _request(self, received: bytes) -> bytes:
        if len(received) < 5:
            return b""
        kind = received[3]
        sizes = {_IPV4: 4, _NAME: 1 + received[4], _IPV6: 16}
        if received[1] != _CONNECT or kind not in sizes:
            self._refuse(self._reply(_NO_COMMAND if received[1] != _CONNECT else _NO_ADDRESS_TYPE))
            return b""
        end = 4 + sizes[kind]
        if len(received) < end + 2:
            return b""
        message = self._rest(end + 2)
        host = _host(kind, message[4:end])
        if not host:
            self._refuse(self._reply(_FAILED))
            return b""
        self._stage = _Stage.ANSWER
        target = b"%s:%d" % (host, int.from_bytes(message[end:], "big"))
        credentials = b""
        if self._user:
            credentials = b"Proxy-Authorization: Basic %s\r\n" % b64encode(self._user + b":")
        return b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (target, target, credentials)

    def _rest(self, size: int) -> bytes:
        """Take a message of the bytes received; all of them for 0."""
        size = size or len(self._received)
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def _refuse(self, reply: bytes) -> None:
        self._outgoing += reply
        self._received = b""
        self._stage = _Stage.REFUSED

    def _reply(self, code: int) -> bytes:
        return bytes([SOCKS_VERSION, code]) + _BOUND


def _host(kind: int, address: bytes) -> bytes:
    """Return the host of an address as in an authority; b"" for a name that is none."""
    if kind == _IPV4:
        return str(IPv4Address(address)).encode()
    if kind == _IPV6:
        return b"[%s]" % str(IPv6Address(address)).encode()
    return address[1:] if _HOST.fullmatch(address[1:]) else b""

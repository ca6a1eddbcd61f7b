"""The public port in front of several workers: read as much as tells whose a connection is, no more.

The first request of a connection says it: one in origin form is for the control API, one with
a proxy user name for that session, any other (and TLS from the first byte) for the default session. Then the
connection itself goes to whoever answers it, with the bytes that were read; from there on nothing
of its traffic passes here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import cast

from stillweb.http.wire import TLS_HANDSHAKE, user_of
from stillweb.replay.server.connection import Connection, ListenerTarget
from stillweb.replay.server.control import DEFAULT_SESSION

__all__ = ["CONTROL", "ConnectionRouter", "Handed", "take_over", "whose"]

CONTROL = ""
"""What `whose` returns for a control request; no session has this id."""

_HEAD = 64 * 1024  # a head that is longer is refused by the connection that gets it
_END = re.compile(rb"\r?\n\r?\n")
_ORIGIN_FORM = re.compile(rb"\s*[^ ]+ +[/*]")
_CREDENTIALS = re.compile(rb"\nproxy-authorization[ \t]*:[ \t]*\S+[ \t]+([^\r\n]*)", re.IGNORECASE)


def whose(data: bytes) -> str | None:
    """Return the session that a connection's first bytes are for, or `CONTROL`; None if more are needed."""
    if data[0] == TLS_HANDSHAKE:
        return DEFAULT_SESSION
    end = _END.search(data)
    if end is None and len(data) < _HEAD:
        return None
    head = data if end is None else data[: end.start()]
    if _ORIGIN_FORM.match(head):
        return CONTROL
    found = _CREDENTIALS.search(head)
    if found is None:
        return DEFAULT_SESSION
    return user_of(found[1].strip()) or "?"  # no session has this id


def take_over(transport: asyncio.BaseTransport, door: ListenerTarget, data: bytes) -> None:
    """Let a connection go on as one that came in by a door, with what was read from it."""
    connection = Connection(door)
    cast(asyncio.Transport, transport).set_protocol(connection)
    connection.connection_made(transport)
    if not door.closed:
        connection.data_received(data)


class ConnectionRouter(asyncio.Protocol):
    """A connection of which it is not known yet whose it is.

    Args:
        lead: takes the transport, whose it is, and what was read.
        waiting: all lobbies there are.
        door: of the port; once that is closed nobody is led anywhere.
    """

    def __init__(
        self,
        lead: Callable[[asyncio.Transport, str, bytes], None],
        waiting: set[asyncio.Transport],
        door: ListenerTarget,
    ) -> None:
        self._lead = lead
        self._waiting = waiting
        self._door = door
        self._held = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._waiting.add(self._transport)
        if self._door.closed:  # see `door`
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._waiting.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Look whose it is."""
        self._held += data
        session_id = whose(self._held)
        if session_id is not None and not self._transport.is_closing():
            self._waiting.discard(self._transport)
            self._lead(self._transport, session_id, self._held)


class Handed(asyncio.Protocol):
    """A connection that was handed over: it goes on where it was read to."""

    def __init__(self, door: ListenerTarget, data: bytes) -> None:
        self._door = door
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the bytes that were read before those that come."""
        take_over(transport, self._door, self._data)

"""The public port in front of several workers: find the session of a connection, then pass the connection on.

The first request names the session (`http.tunnel.FirstRequest`): in origin form it is for the control API,
with a proxy user name for that session, otherwise for the default session. The socket then goes to the
worker of that session together with the bytes that were read. None of its later traffic passes through this
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from stillweb.http.control import DEFAULT_SESSION
from stillweb.http.tunnel import Destination, FirstRequest
from stillweb.replay.server.connection import Connection, ListenerTarget

CONTROL = ""
"""What `session_of` returns for a control request; no session has this id."""

_UNKNOWN = "?"
"""Id of no session, for malformed credentials."""


def session_of(data: bytes) -> str | None:
    """Return the session that a connection's first bytes are for, or `CONTROL`; None if more are needed."""
    return _session(FirstRequest().receive_data(data))


def _session(found: Destination | None) -> str | None:
    if found is None:
        return None
    if found.control:
        return CONTROL
    return _UNKNOWN if found.user is None else found.user or DEFAULT_SESSION


def adopt(transport: asyncio.BaseTransport, target: ListenerTarget, data: bytes) -> None:
    """Continue a connection as one of a listener, with the bytes that were read from it."""
    connection = Connection(target)
    cast(asyncio.Transport, transport).set_protocol(connection)
    connection.connection_made(transport)
    if not target.closed:
        connection.data_received(data)


class ConnectionRouter(asyncio.Protocol):
    """A connection whose session is not known yet.

    Args:
        route: takes the transport, the session's id or `CONTROL`, and the bytes that were read.
        waiting: the transports of all routers.
        target: of the port; once it is closed, no connection is routed.
    """

    def __init__(
        self,
        route: Callable[[asyncio.Transport, str, bytes], None],
        waiting: set[asyncio.Transport],
        target: ListenerTarget,
    ) -> None:
        self._route = route
        self._waiting = waiting
        self._target = target
        self._first = FirstRequest()
        self._received = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._waiting.add(self._transport)
        seconds = self._target.limits.receive_seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)
        if self._target.closed:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self._timer.cancel()
        self._waiting.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Route the connection as soon as its session is known."""
        self._received += data
        session_id = _session(self._first.receive_data(data))
        if session_id is not None and not self._transport.is_closing():
            self._timer.cancel()
            self._waiting.discard(self._transport)
            self._route(self._transport, session_id, self._received)


class AdoptedConnection(asyncio.Protocol):
    """A connection that another process passed on: it continues behind the bytes that were read there."""

    def __init__(self, target: ListenerTarget, data: bytes) -> None:
        self._target = target
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Continue as a `Connection`."""
        adopt(transport, self._target, self._data)

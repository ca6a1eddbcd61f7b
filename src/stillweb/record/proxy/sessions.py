"""Sessions of a recording proxy: one per episode of an `Env`, each with a port and a ledger of its own.

A session only tells requests apart; it isolates nothing at the site. Its port listens on this machine's
loopback interface and is open to whoever runs here, without name and password.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

from stillweb import clock
from stillweb.errors import PortInUse, UsageError
from stillweb.record.proxy.running import RecordingProxy, RequestAccount, RequestRecord

__all__ = ["LOOPBACK", "RecordingSession", "RecordingSessions"]

LOOPBACK = "127.0.0.1"
_ATTEMPTS = 5  # at a port that was free a moment ago
_LEFT_SECONDS = 5.0  # for connections to end


@dataclass(slots=True)
class RecordingSession:
    """A listener and what came by it."""

    id: str
    port: int
    account: RequestAccount = field(default_factory=RequestAccount)


class RecordingSessions:
    """All sessions, by port; `close` ends their connections.

    Args:
        recording: whose requests they tell apart.
        proxyserver: mitmproxy's addon, which listens.
    """

    def __init__(self, recording: RecordingProxy, proxyserver: Any) -> None:
        self._recording = recording
        self._proxyserver = proxyserver
        self._by_port: dict[int, RecordingSession] = {}
        recording.told.append(self._told)

    def _told(self, passed: RequestRecord) -> None:
        if session := self._by_port.get(passed.port):
            session.account.add(passed)

    def __iter__(self) -> Any:
        return iter(list(self._by_port.values()))

    def is_session(self, port: int) -> bool:
        """Tell whether a port is a session's."""
        return port in self._by_port

    def find(self, session_id: str) -> RecordingSession:
        """Return a session.

        Raises:
            UsageError: if there is none of that id.
        """
        for session in self._by_port.values():
            if session.id == session_id:
                return session
        raise UsageError(f"no session {session_id}", hint="GET /sessions lists them")

    async def open(self) -> RecordingSession:
        """Open a session on a free port.

        Raises:
            PortInUse: if none is free.
        """
        for _ in range(_ATTEMPTS):
            with socket.create_server((LOOPBACK, 0)) as free:
                port = int(free.getsockname()[1])
            self._by_port[port] = session = RecordingSession(clock.new_id(), port)
            if await self._listen():
                return session
            del self._by_port[port]
            await self._listen()
        raise PortInUse(f"no port of {LOOPBACK} could be listened on", hint="close sessions")

    async def close(self, session: RecordingSession) -> None:
        """Close a session and its connections."""
        self._by_port.pop(session.port, None)
        await self._listen()
        await end_connections(self._proxyserver, session.port)

    async def _listen(self) -> bool:
        """Listen on the first port and on those of the sessions, and on no other."""
        from mitmproxy.proxy.mode_specs import ProxyMode

        modes = ["regular", *(f"regular@{LOOPBACK}:{port}" for port in self._by_port)]
        return bool(await self._proxyserver.servers.update([ProxyMode.parse(mode) for mode in modes]))


async def end_connections(proxyserver: Any, port: int | None = None) -> None:
    """End the connections of clients that came by a port, or of all, and those to sites for them."""
    ending = [
        io.handler
        for connection in list(proxyserver.connections.values())
        if port is None or (connection.client.sockname and connection.client.sockname[1] == port)
        for io in list(connection.transports.values())
        if io.handler is not None
    ]
    for task in ending:
        task.cancel("the recording ends")
    if ending:
        await asyncio.wait(ending, timeout=_LEFT_SECONDS)

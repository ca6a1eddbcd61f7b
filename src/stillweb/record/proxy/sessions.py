"""Sessions of a recording proxy: one per episode of an `Env`, each with its own port and ledger.

A session only separates requests; it does not isolate state at the site. Its port listens on loopback and
accepts any local client without name and password.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

from stillweb import clock
from stillweb.errors import PortInUse, UsageError
from stillweb.record.proxy.running import RecordingProxy, RequestAccount, RequestRecord

LOOPBACK = "127.0.0.1"
_ATTEMPTS = 5  # a port that was free may be taken before we listen
_CLOSE_SECONDS = 5.0  # seconds for connections to end


@dataclass(slots=True)
class RecordingSession:
    """A listener and its ledger."""

    id: str
    port: int
    account: RequestAccount = field(default_factory=RequestAccount)


class RecordingSessions:
    """All sessions, by port.

    Args:
        proxyserver: mitmproxy's add-on that listens.
    """

    def __init__(self, recording: RecordingProxy, proxyserver: Any) -> None:
        self._recording = recording
        self._proxyserver = proxyserver
        self._by_port: dict[int, RecordingSession] = {}
        recording.on_request.append(self._on_request)

    def _on_request(self, record: RequestRecord) -> None:
        if session := self._by_port.get(record.port):
            session.account.add(record)

    def __iter__(self) -> Any:
        return iter(list(self._by_port.values()))

    def is_session(self, port: int) -> bool:
        return port in self._by_port

    def find(self, session_id: str) -> RecordingSession:
        """Return a session by id.

        Raises:
            UsageError: if the session does not exist.
        """
        for session in self._by_port.values():
            if session.id == session_id:
                return session
        raise UsageError(f"no session {session_id}", hint="GET /sessions lists them")

    async def open(self) -> RecordingSession:
        """Open a session on a free port.

        Raises:
            PortInUse: if no port is free.
        """
        for _ in range(_ATTEMPTS):
            with socket.create_server((LOOPBACK, 0)) as free:
                port = int(free.getsockname()[1])
            self._by_port[port] = session = RecordingSession(clock.new_id(), port)
            if await self._listen():
                return session
            del self._by_port[port]
            await self._listen()
        raise PortInUse(f"cannot listen on any port of {LOOPBACK}", hint="close sessions")

    async def close(self, session: RecordingSession) -> None:
        """Close a session and its connections."""
        self._by_port.pop(session.port, None)
        await self._listen()
        await end_connections(self._proxyserver, session.port)

    async def _listen(self) -> bool:
        """Listen on the first port, on those of the sessions, and on no other; return True on success."""
        from mitmproxy.proxy.mode_specs import ProxyMode

        modes = ["regular", *(f"regular@{LOOPBACK}:{port}" for port in self._by_port)]
        return bool(await self._proxyserver.servers.update([ProxyMode.parse(mode) for mode in modes]))


async def end_connections(proxyserver: Any, port: int | None = None) -> None:
    """End the client connections of one listener port, or all, and their upstream connections."""
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
        await asyncio.wait(ending, timeout=_CLOSE_SECONDS)

"""Listening sockets: their ports, and how they are closed.

Ports of sessions come from a fixed range, the one longest unused first. So a client of a session that has
ended is refused for as long as possible. Several servers can share a range.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stillweb.errors import PortInUse, UsageError
from stillweb.http.control import DEFAULT_SESSION
from stillweb.http.controlrouter import ControlBackend
from stillweb.replay.server.connection import Connection, ListenerTarget

T = TypeVar("T")

logger = logging.getLogger(__name__)

BACKLOG = 1024
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


@dataclass(eq=False, slots=True)
class Listener:
    """A target and its listening socket; without a socket where another process passes connections on."""

    target: ListenerTarget
    server: asyncio.Server | None = None
    port: int = 0

    def close(self) -> None:
        """Accept no more connections; open ones end after their current response."""
        self.target.closed = True
        if self.server is not None:
            self.server.close()
        for connection in tuple(self.target.connections):
            connection.end()


async def listen(target: ListenerTarget, host: str, port: int) -> Listener:
    """Listen on a port, 0 for any.

    Raises:
        PortInUse: if it is taken.
        UsageError: if the address is not one of this machine.
    """
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: Connection(target), host, port, backlog=BACKLOG, reuse_address=True
        )
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    return Listener(target, server, server.sockets[0].getsockname()[1])


async def listen_unix(target: ListenerTarget, path: Path) -> Listener:
    """Listen on a Unix socket.

    Raises:
        UsageError: if the path is not possible.
    """
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_unix_server(lambda: Connection(target), str(path), backlog=BACKLOG)
    except OSError as error:  # mostly a path of more than 107 bytes (unix(7))
        raise UsageError(
            f"cannot listen on {path}: {error}", hint="take a short temporary folder: TMPDIR=/tmp"
        ) from error
    return Listener(target, server)


async def drain(listeners: Sequence[Listener], seconds: float) -> None:
    """Close listeners; give current responses some seconds, then abort the connections."""
    for listener in listeners:
        listener.close()
    try:
        async with asyncio.timeout(seconds):
            await _emptied(listeners)
    except TimeoutError:
        for listener in listeners:
            for connection in tuple(listener.target.connections):
                connection.abort()
        await _emptied(listeners)
    for listener in listeners:
        if listener.server is not None:
            await listener.server.wait_closed()


async def _emptied(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        if listener.target.connections:
            await listener.target.empty.wait()


class ExpiryTimer:
    """Ends connections that exceed their time, every few seconds, until `stop`."""

    _INTERVAL = 5.0  # seconds; limits are longer

    def __init__(self, targets: Callable[[], Iterable[ListenerTarget]], interval: float = _INTERVAL) -> None:
        self._targets = targets
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._expire)

    def _expire(self) -> None:
        for target in self._targets():
            target.expire()
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class PortPool:
    """Ports that sessions borrow, the one longest unused first."""

    def __init__(self, ports: range | None) -> None:
        self.ports = ports
        self._free = deque(ports or ())

    def __str__(self) -> str:
        return "" if self.ports is None else f"{self.ports.start}-{self.ports.stop - 1}"

    def check(self, host: str) -> None:
        """Check that other programs do not hold every port.

        Raises:
            PortInUse: if they do.
        """
        if self.ports is not None and not any(is_free(host, port) for port in self.ports):
            raise self._all_taken(0)

    async def lend(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Return the result of an attempt on a free port; on port 0 if any port is allowed.

        Raises:
            PortInUse: if no port is free.
        """
        if self.ports is None:
            return await attempt(0)
        for _ in range(len(self._free)):
            if not self._free:  # other sessions borrow meanwhile
                break
            port = self._free.popleft()
            try:
                return await attempt(port)
            except PortInUse:
                self._free.append(port)
            except BaseException:
                self._free.append(port)
                raise
        raise self._all_taken(len(self.ports) - len(self._free))

    def give_back(self, port: int) -> None:
        if self.ports is not None:
            self._free.append(port)

    def _all_taken(self, ours: int) -> PortInUse:
        if ours:
            return PortInUse(
                f"no session port of {self} is free: {ours} sessions are open here",
                hint="close sessions, or give replay a wider range: --session-ports 18100-18355",
            )
        assert self.ports is not None
        beyond = f"{self.ports.stop}-{self.ports.stop + len(self.ports) - 1}"
        return PortInUse(
            f"every session port of {self} is taken", hint=f"take others: --session-ports {beyond}"
        )


_ABANDONED = 600.0  # seconds without a connection; a browser keeps one for some minutes after a request


async def lend_port(backend: ControlBackend, ports: PortPool, attempt: Callable[[int], Awaitable[T]]) -> T:
    """Return the result of an attempt on a free port; close an abandoned session if none is free.

    A client that was killed or cut off leaves its sessions open. Nothing distinguishes them from those of a
    client that pauses, so they stay open until their ports are needed.

    Raises:
        PortInUse: if no port is free.
    """
    try:
        return await ports.lend(attempt)
    except PortInUse:
        idle = {each["id"]: each.get("idle", 0.0) for each in await backend.sessions()}
        idle.pop(DEFAULT_SESSION, None)
        longest = max(idle, key=lambda each: idle[each], default="")
        if idle.get(longest, 0.0) < _ABANDONED:
            raise
        if backend.knows(longest):  # another request may have closed it meanwhile
            logger.warning("closed an abandoned session", extra={"session": longest, "idle": idle[longest]})
            await backend.close_session(longest)
        return await ports.lend(attempt)


def authority(host: str, port: int) -> str:
    """Return host and port for a URL by which this machine reaches itself."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    """Return the error for a socket that cannot listen."""
    if error.errno in _TAKEN:
        return PortInUse(
            f"port {port} on {host} cannot be taken: {os.strerror(error.errno or 0).lower()}",
            hint="another replay may be running there; take another: --port 8081",
        )
    return UsageError(
        f"cannot listen on {host}:{port}: {error}", hint="--host takes an address of this machine"
    )


def is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno not in _TAKEN
    return True

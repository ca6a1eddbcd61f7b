"""The native replay server: listeners, sessions, and their end.

One listener takes proxy traffic (absolute form, CONNECT) for the default session and control
requests (origin form), docs/decisions/0002-one-listener.md; every other session has a listener of its
own out of a fixed range. A session's port is bound when the session opens, the port longest
unused first, so that several servers share a range. Clients that cannot reach that port give the
session's id as proxy user name at the first one.

Nothing here, or below, can open a connection to anywhere: replay is hermetic by construction.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillweb import __version__, clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack import Pack
from stillweb.errors import CollectionNotFound, PortInUse, UsageError
from stillweb.replay.closed import ClosedSessions
from stillweb.replay.connection import Connection, Door
from stillweb.replay.control import DEFAULT_SESSION, Desk
from stillweb.replay.ledgerfile import LedgerFile
from stillweb.replay.noise import default_noise
from stillweb.replay.resolver import Policy
from stillweb.replay.session import LedgerEntry, Session

__all__ = ["SESSION_PORTS", "ReplayOptions", "ReplayServer", "serve", "serve_desk"]

logger = logging.getLogger(__name__)

SESSION_PORTS = range(18100, 18164)
_BACKLOG = 1024
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to serve.

    Attributes:
        host: address to listen on.
        port: of the proxy and the control API; 0 for any.
        session_ports: of the other sessions; None for any that are free.
        ledger: file to which every answer is appended as a line of JSON.
        drain: seconds that answers at hand are given at the end.
        hold_misses: whether a program in front says what becomes of misses (`replay.fallback`).
    """

    host: str = "127.0.0.1"
    port: int = 8080
    session_ports: range | None = SESSION_PORTS
    ledger: Path | None = None
    policy: Policy = field(default_factory=lambda: Policy(default_noise()))
    drain: float = 5.0
    hold_misses: bool = False


@dataclass(frozen=True, slots=True)
class _Shelf:
    """A pack that is served, and what its recording says of itself."""

    pack: Pack
    manifest: Mapping[str, Any]


@dataclass(eq=False, slots=True)
class _Listener:
    """A door that is open, and its port."""

    door: Door
    server: asyncio.Server
    port: int


class ReplayServer(Desk):
    """A running server; made by `serve`. It is the `Desk` of its control API.

    Attributes:
        url: of the proxy and the control API.
        totals: answers by tier, of all sessions there ever were.
    """

    def __init__(
        self,
        shelves: Mapping[str, _Shelf],
        ca: CertAuthority,
        options: ReplayOptions,
        sink: Callable[[Session, LedgerEntry], None] | None,
    ) -> None:
        self.url = ""
        self.totals: Counter[str] = Counter()
        self.ca = ca
        self.options = options
        self._shelves = dict(shelves)
        self._sink = sink
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = deque(options.session_ports or ())
        self._listeners: dict[str, _Listener] = {}
        self._sessions: dict[str, Session] = {}
        self._closed = ClosedSessions()

    async def start(self) -> None:
        """Listen.

        Raises:
            PortInUse: if the port is taken, or every session port is.
        """
        ports = self.options.session_ports
        if ports is not None and not any(_is_free(self.options.host, port) for port in ports):
            raise _all_taken(ports)
        session = self._new_session(DEFAULT_SESSION, next(iter(self._shelves)))
        door = Door(self._spawn, self.ca, session, by_user=self._sessions.get, desk=self)
        try:
            listener = await _listen(door, self.options.host, self.options.port)
        except OSError as error:
            raise _cannot_listen(self.options, error) from error
        self._listeners[DEFAULT_SESSION] = listener
        self.url = f"http://{_authority(self.options.host, listener.port)}"

    async def stop(self) -> None:
        """Take nothing new, let answers at hand go out, close."""
        listeners = list(self._listeners.values())
        self._listeners.clear()
        await _drain(listeners, self.options.drain)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _new_session(self, session_id: str, collection: str) -> Session:
        pack = self._shelves[collection].pack
        session = Session(session_id, collection, pack, self.options.policy, self._note)
        session.holds_misses = self.options.hold_misses
        self._sessions[session_id] = session
        return session

    def _note(self, session: Session, entry: LedgerEntry) -> None:
        self.totals[entry.tier] += 1
        if self._sink is not None:
            self._sink(session, entry)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    # The desk of the control API.

    def knows(self, session_id: str) -> bool:
        """Return whether there is a session of that id."""
        return session_id in self._sessions

    async def info(self) -> dict[str, Any]:
        """Return what `/info` shows."""
        ports = self.options.session_ports
        return {
            "backend": "native",
            "software": f"stillweb/{__version__}",
            "collections": {name: shelf.pack.environment_id for name, shelf in self._shelves.items()},
            "spki": list(self.ca.spki_hashes()),
            "features": {"ledger": True, "sessions": True, "in_flight": True, "strict": True},
            "manifests": {name: dict(shelf.manifest) for name, shelf in self._shelves.items()},
            "session_ports": "" if ports is None else f"{ports.start}-{ports.stop - 1}",
        }

    async def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the default one first."""
        return [self._shown(session_id) for session_id in self._sessions]

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return one session."""
        return self._shown(session_id)

    def _shown(self, session_id: str) -> dict[str, Any]:
        listener = self._listeners[session_id]
        return {
            **self._sessions[session_id].to_dict(),
            "proxy": f"http://{_authority(self.options.host, listener.port)}",
            "connections": len(listener.door.connections),
        }

    async def ledger(self, session_id: str, after: int) -> dict[str, Any] | None:
        """Return the ledger of a session, also of one closed not long ago."""
        session = self._sessions.get(session_id)
        found = session.ledger(after) if session else self._closed.ledger(session_id, after)
        return None if found is None else found.to_dict()

    async def closed_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions closed most recently."""
        return self._closed.sessions()

    async def conclude(self, session_id: str, outcome: Mapping[str, Any]) -> bool:
        """Put a held miss on the ledger of a session; return whether there was one."""
        return self._sessions[session_id].conclude(str(outcome.get("mark", "")), outcome)

    async def open_session(self, collection: str | None, port: int | None = None) -> dict[str, Any]:
        """Open a session with a port of its own.

        Raises:
            CollectionNotFound: if the collection is not served.
            PortInUse: if no session port is free.
        """
        name = next(iter(self._shelves)) if collection is None else collection
        if name not in self._shelves:
            raise CollectionNotFound(
                f"collection {name!r} is not served here", hint=f"served are: {', '.join(self._shelves)}"
            )
        session = self._new_session(clock.new_id(), name)
        try:
            self._listeners[session.id] = await self._open_port(session)
        except PortInUse:
            del self._sessions[session.id]
            raise
        return self._shown(session.id)

    async def _open_port(self, session: Session) -> _Listener:
        door = Door(spawn=self._spawn, ca=self.ca, session=session)
        if self.options.session_ports is None:
            return await _listen(door, self.options.host, 0)
        for _ in range(len(self._free)):
            port = self._free.popleft()
            try:
                return await _listen(door, self.options.host, port)
            except OSError as error:
                self._free.append(port)
                if error.errno not in _TAKEN:
                    raise _cannot_listen(self.options, error) from error
        raise _all_taken(self.options.session_ports, ours=len(self._listeners) - 1)

    async def reset_session(self, session_id: str) -> dict[str, Any]:
        """Make a session as new; its port stays."""
        self._sessions[session_id].reset()
        return self._shown(session_id)

    async def close_session(self, session_id: str) -> None:
        """Close a session, its port and its connections."""
        session = self._sessions.pop(session_id)
        for connection in tuple(self._listeners[DEFAULT_SESSION].door.connections):
            if connection.session is session:  # it came by user name
                connection.end()
        listener = self._listeners.pop(session_id)
        await _drain([listener], min(1, self.options.drain))
        self._closed.add(session.to_dict(), session.ledger())
        if self.options.session_ports is not None:
            self._free.append(listener.port)


async def _listen(door: Door, host: str, port: int) -> _Listener:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(door), host, port, backlog=_BACKLOG, reuse_address=True
    )
    return _Listener(door, server, server.sockets[0].getsockname()[1])


async def _drain(listeners: Sequence[_Listener], seconds: float) -> None:
    """Close listeners; give answers at hand some seconds, then abort."""
    for listener in listeners:
        listener.server.close()
        for connection in tuple(listener.door.connections):
            connection.end()

    try:
        async with asyncio.timeout(seconds):
            await _emptied(listeners)
    except TimeoutError:
        for listener in listeners:
            for connection in tuple(listener.door.connections):
                connection.abort()
        await _emptied(listeners)
    for listener in listeners:
        await listener.server.wait_closed()


async def _emptied(listeners: Sequence[_Listener]) -> None:
    for listener in listeners:
        if listener.door.connections:
            await listener.door.empty.wait()


def _authority(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno not in _TAKEN
    return True


def _cannot_listen(options: ReplayOptions, error: OSError) -> UsageError:
    where = f"{options.host}:{options.port}"
    if error.errno in _TAKEN:
        return PortInUse(
            f"port {options.port} on {options.host} cannot be taken: {os.strerror(error.errno or 0).lower()}",
            hint="another replay may be running there; take another: --port 8081",
        )
    return UsageError(f"cannot listen on {where}: {error}", hint="--host takes an address of this machine")


def _all_taken(ports: range, *, ours: int = 0) -> PortInUse:
    span = f"{ports.start}-{ports.stop - 1}"
    if ours:
        return PortInUse(
            f"no session port of {span} is free: {ours} sessions are open here",
            hint="close sessions, or give replay a wider range: --session-ports 18100-18355",
        )
    beyond = f"{ports.stop}-{ports.stop + len(ports) - 1}"
    return PortInUse(f"every session port of {span} is taken", hint=f"take others: --session-ports {beyond}")


@contextmanager
def _opened(served: Sequence[Collection] | Mapping[str, Pack]) -> Iterator[dict[str, _Shelf]]:
    """Open the packs of collections, and close those that were opened here."""
    with ExitStack() as stack:
        if isinstance(served, Mapping):
            yield {name: _Shelf(pack, pack.manifest) for name, pack in served.items()}
            return
        yield {
            collection.name: _Shelf(
                stack.enter_context(Pack.open(collection.pack)), collection.manifest().to_dict()
            )
            for collection in served
        }


@asynccontextmanager
async def serve(
    served: Sequence[Collection] | Mapping[str, Pack],
    ca: CertAuthority,
    options: ReplayOptions | None = None,
) -> AsyncIterator[ReplayServer]:
    """Serve sealed collections, or open packs by name, until the context ends; the first is the default.

    Raises:
        UsageError: if there is nothing to serve.
        PortInUse: if the port is taken, or every session port is.
        MalformedPack: if a collection is not sealed or its pack is damaged.
    """
    options = options or ReplayOptions()
    if not served:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    with ExitStack() as stack:
        shelves = stack.enter_context(_opened(served))
        sink = stack.enter_context(LedgerFile(options.ledger)).write if options.ledger else None
        server = ReplayServer(shelves, ca, options, sink)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@asynccontextmanager
async def serve_desk(make: Callable[[], Desk], options: ReplayOptions) -> AsyncIterator[str]:
    """Serve the control API alone, for a back-end that carries its traffic elsewhere; yields its URL."""
    tasks: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    try:
        listener = await _listen(Door(spawn=spawn, desk=make()), options.host, options.port)
    except OSError as error:
        raise _cannot_listen(options, error) from error
    try:
        yield f"http://{_authority(options.host, listener.port)}"
    finally:
        await _drain([listener], options.drain)

"""The reference back-end: pywb on the same folder with the same CA, behind the control API of replay.

pywb runs as a program and is never imported (docs/decisions/0004-pywb-sidecar.md). It serves one collection
per process and knows no sessions. So all sessions of a collection share that process's port, nothing is
reset, and no ledger records its responses; `features` says so. The process of the first collection starts
with the server, the others start with their first session.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from stillweb import __version__, clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.http.control import DEFAULT_SESSION, KEY_VARIABLE, Ledger, ReplayInfo, SessionInfo
from stillweb.http.controlrouter import ControlBackend
from stillweb.options import Option
from stillweb.replay.pywb.process import PywbProcess, Setup, find_pywb
from stillweb.replay.server.listeners import authority
from stillweb.replay.server.server import ReplayOptions, serve, serve_control

BACKENDS = ("native", "pywb")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PywbOptions:
    """How to serve with pywb.

    Attributes:
        host: address to listen on.
        port: of the control API; 0 for any.
        program: pywb's `wayback`; None to search for it (`find_pywb`).
        start_timeout: seconds until pywb must answer.
        allowed_hosts: as in `ReplayOptions`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    traffic_port: Annotated[
        int,
        Option(
            "Port of pywb's proxy for the first collection; others follow it. 0 for a free one.",
            min=0,
            max=65535,
        ),
    ] = 0
    fuzzy: Annotated[
        bool,
        Option(
            "Let pywb's own rules serve similar requests: often a wrong 200 (docs/explanation/backends.md).",
            "--pywb-fuzzy",
        ),
    ] = False
    program: Path | None = None
    start_timeout: float = 60.0
    allowed_hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class _Served:
    """A collection, its ids, and its process once it runs."""

    collection: Collection
    environment_id: str
    manifest: dict[str, Any]
    port: int
    process: PywbProcess | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PywbServer(ControlBackend):
    """The control API in front of pywb processes; made and ended by `serve_pywb`."""

    def __init__(
        self, collections: Sequence[Collection], ca: CertAuthority, options: PywbOptions, program: Path
    ) -> None:
        self.url = ""
        self.options = options
        self.hosts: Iterable[str] = {options.host.lower(), *options.allowed_hosts}
        self.key = os.environ.get(KEY_VARIABLE, "")
        self._ca = ca
        self._program = program
        self._served = {
            each.name: _described(each, options.traffic_port + number if options.traffic_port else 0)
            for number, each in enumerate(collections)
        }
        self._default = collections[0].name
        self._sessions: dict[str, str] = {DEFAULT_SESSION: self._default}

    @property
    def proxy(self) -> str:
        return f"http://{authority(self.options.host, self._served[self._default].port)}"

    async def wait(self) -> None:
        """Wait until the pywb of the first collection ends, which it does on its own only if it fails.

        Raises:
            ReplayError: when it has ended.
        """
        process = await self._process(self._default)
        await process.wait()
        raise process.failure()

    # The control API.

    def knows(self, session_id: str) -> bool:
        return session_id in self._sessions

    async def info(self) -> ReplayInfo:
        return ReplayInfo(
            backend="pywb",
            collections={name: served.environment_id for name, served in self._served.items()},
            spki=tuple(self._ca.spki_hashes()),
            features={"ledger": False, "sessions": False, "in_flight": False, "strict": False},
            manifests={name: served.manifest for name, served in self._served.items()},
            software=f"stillweb/{__version__}",
        )

    async def sessions(self) -> list[SessionInfo]:
        return [self._state(session_id) for session_id in self._sessions]

    async def session(self, session_id: str) -> SessionInfo:
        return self._state(session_id)

    async def ledger(self, session_id: str, after: int) -> Ledger | None:
        """Return an empty ledger: pywb does not report its responses."""
        return Ledger((), {}) if session_id in self._sessions else None

    async def open_session(self, collection: str | None, port: int | None = None) -> SessionInfo:
        """Open a session on a collection; on the first one for None.

        Raises:
            CollectionNotFound: if it is not served.
            ReplayError: if its pywb has failed.
        """
        name = collection or self._default
        if name not in self._served:
            raise CollectionNotFound(
                f"collection {name!r} is not served here", hint=f"served are: {', '.join(self._served)}"
            )
        await self._process(name)
        session_id = clock.new_id()
        self._sessions[session_id] = name
        return self._state(session_id)

    async def reset_session(self, session_id: str) -> SessionInfo:
        """Check that pywb lives; it has no state to reset.

        Raises:
            ReplayError: if it has failed.
        """
        await self._process(self._sessions[session_id])
        return self._state(session_id)

    async def close_session(self, session_id: str) -> None:
        """Close a session; pywb holds nothing for it."""
        del self._sessions[session_id]

    def _state(self, session_id: str) -> SessionInfo:
        name = self._sessions[session_id]
        served = self._served[name]
        return {
            "id": session_id,
            "proxy": f"http://{authority(self.options.host, served.port)}",
            "collection": name,
            "environment_id": served.environment_id,
            "epoch": 0,
            "in_flight": 0,
            "requests": 0,
            "counts": {},
        }

    async def _process(self, name: str) -> PywbProcess:
        served = self._served[name]
        async with served.lock:
            if served.process is None:
                served.process = await PywbProcess.start(
                    self._program,
                    Setup(
                        served.collection.root,
                        name,
                        timestamp=str(served.manifest.get("recorded_at", "")),
                        fuzzy=self.options.fuzzy,
                    ),
                    self._ca,
                    address=(self.options.host, served.port),
                    timeout=self.options.start_timeout,
                )
                served.port = served.process.port
                logger.info("pywb serves a collection", extra={"collection": name, "port": served.port})
        if served.process.crashed:
            raise served.process.failure()
        return served.process

    async def port_of(self, name: str) -> int:
        """Return the port of a collection's pywb; start pywb if it does not run yet.

        Raises:
            ReplayError: if it has failed.
        """
        return (await self._process(name)).port

    async def start(self) -> None:
        await self._process(self._default)

    async def stop(self) -> None:
        running = [served.process for served in self._served.values() if served.process is not None]
        await asyncio.gather(*(process.stop() for process in running))


@asynccontextmanager
async def serve_pywb(
    collections: Sequence[Collection], ca: CertAuthority, options: PywbOptions | None = None
) -> AsyncIterator[PywbServer]:
    """Serve collections with pywb until the context ends.

    Args:
        collections: the first is that of the default session; several roots are allowed.

    Raises:
        UsageError: if no collection is given.
        ProgramNotFound: if pywb is not installed.
        PortInUse: if another program listens on a port given.
        ReplayError: if pywb does not start.
    """
    if not collections:
        raise UsageError("no collection to serve", hint="stillweb collections list")
    options = options or PywbOptions()
    server = PywbServer(collections, ca, options, find_pywb(options.program))
    try:
        await server.start()
        advice = f"this is the control port; traffic goes to {server.proxy}\n"
        async with serve_control(server, options.host, options.port, advice) as url:
            server.url = url
            yield server
    finally:
        await server.stop()


@asynccontextmanager
async def serve_by(backend: str, collection: Collection, ca: CertAuthority) -> AsyncIterator[str]:
    """Serve a sealed collection with one of `BACKENDS` on free ports, and yield the URL.

    Raises:
        ProgramNotFound: if pywb is not installed.
        ReplayError: if the server does not start.
    """
    if backend == "pywb":
        async with serve_pywb([collection], ca) as server:
            yield server.url
        return
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as native:
        yield native.url


def _described(collection: Collection, port: int) -> _Served:
    """Return a collection without a process; it has an environment id only if it is sealed."""
    environment_id = ""
    if collection.pack.is_dir():
        with Pack.open(collection.pack) as pack:
            environment_id = pack.environment_id
    return _Served(collection, environment_id, collection.manifest().to_dict(), port)

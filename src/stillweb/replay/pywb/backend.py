"""The reference back-end: a real pywb on the same folder with the same CA, behind our control API.

pywb is a program, never a library (docs/decisions/0004-pywb-sidecar.md). It serves one collection
per process and knows no sessions, so every session of a collection shares that process's port,
nothing is reset, and no ledger tells what it answered: `features` says so. The process of the first
collection starts with the server, the others' when a session asks for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from stillweb import __version__, clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.options import Option
from stillweb.replay.pywb.process import PywbProcess, Setup, find_pywb
from stillweb.replay.server.control import DEFAULT_SESSION, ControlBackend
from stillweb.replay.server.server import ReplayOptions, serve_desk

__all__ = ["PywbOptions", "PywbServer", "find_pywb", "serve_pywb"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PywbOptions:
    """How to serve by pywb.

    Attributes:
        host: address to listen on.
        port: of the control API; 0 for any.
        program: pywb's `wayback`; `find_pywb` otherwise.
        start_timeout: seconds that pywb may take until it answers.
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
            "Let pywb's own rules serve similar requests: often a wrong 200 (docs/replay-backends.md).",
            "--pywb-fuzzy",
        ),
    ] = False
    program: Path | None = None
    start_timeout: float = 60.0


@dataclass(slots=True)
class _Served:
    """A collection, what is known of it, and its process once there is one."""

    collection: Collection
    environment_id: str
    manifest: dict[str, Any]
    port: int
    process: PywbProcess | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PywbServer(ControlBackend):
    """The `Desk` in front of pywb processes; `serve_pywb` makes and ends it.

    Attributes:
        url: of the control API.
    """

    def __init__(
        self, collections: Sequence[Collection], ca: CertAuthority, options: PywbOptions, program: Path
    ) -> None:
        self.url = ""
        self.options = options
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
        """URL of the proxy of the first collection."""
        return _url(self.options.host, self._served[self._default].port)

    async def wait(self) -> None:
        """Wait until the pywb of the first collection ends, which it only does by itself if it fails.

        Raises:
            ReplayError: when it has ended.
        """
        process = await self._process(self._default)
        await process.wait()
        raise process.failure()

    # What the control API asks of a back-end (`stillweb.replay.server.control.Desk`).

    def knows(self, session_id: str) -> bool:
        """Return whether there is a session of that id."""
        return session_id in self._sessions

    async def info(self) -> dict[str, Any]:
        """Return what `/info` shows."""
        return {
            "backend": "pywb",
            "collections": {name: served.environment_id for name, served in self._served.items()},
            "spki": list(self._ca.spki_hashes()),
            "features": {"ledger": False, "sessions": False, "in_flight": False, "strict": False},
            "manifests": {name: served.manifest for name, served in self._served.items()},
            "session_ports": "",
            "software": f"stillweb/{__version__}",
        }

    async def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the default one first."""
        return [self._shown(session_id) for session_id in self._sessions]

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return one session."""
        return self._shown(session_id)

    async def ledger(self, session_id: str, after: int) -> dict[str, Any] | None:
        """Return an empty ledger: pywb tells nobody what it answered."""
        if session_id not in self._sessions:
            return None
        return {"entries": [], "counts": {}, "dropped": 0}

    async def open_session(self, collection: str | None, port: int | None = None) -> dict[str, Any]:
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
        return self._shown(session_id)

    async def reset_session(self, session_id: str) -> dict[str, Any]:
        """Change nothing, as pywb remembers nothing; but say if it has failed."""
        await self._process(self._sessions[session_id])
        return self._shown(session_id)

    async def close_session(self, session_id: str) -> None:
        """Forget a session."""
        del self._sessions[session_id]

    def _shown(self, session_id: str) -> dict[str, Any]:
        name = self._sessions[session_id]
        served = self._served[name]
        return {
            "id": session_id,
            "proxy": _url(self.options.host, served.port),
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
        """Return the port of a collection's pywb, which is started if it has not been asked for yet.

        Raises:
            ReplayError: if it has failed.
        """
        return (await self._process(name)).port

    async def start(self) -> None:
        """Start pywb for the first collection."""
        await self._process(self._default)

    async def stop(self) -> None:
        """End every process."""
        running = [served.process for served in self._served.values() if served.process is not None]
        await asyncio.gather(*(process.stop() for process in running))


@asynccontextmanager
async def serve_pywb(
    collections: Sequence[Collection], ca: CertAuthority, options: PywbOptions | None = None
) -> AsyncIterator[PywbServer]:
    """Serve collections by pywb, until the block is left.

    Args:
        collections: of one or more roots; the first is that of the default session.
        ca: what pywb signs with.
        options: where to listen, how to match.

    Raises:
        UsageError: if there is no collection.
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
        desk = ReplayOptions(host=options.host, port=options.port)
        async with serve_desk(lambda: server, desk, advice) as url:
            server.url = url
            yield server
    finally:
        await server.stop()


def _described(collection: Collection, port: int) -> _Served:
    """Return what is known of a collection; it has an environment id where it is sealed."""
    environment_id = ""
    if collection.pack.is_dir():
        with Pack.open(collection.pack) as pack:
            environment_id = pack.environment_id
    return _Served(collection, environment_id, collection.manifest().to_dict(), port)


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{shown}:{port}"

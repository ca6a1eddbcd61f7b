"""`--on-miss pywb`: a program in front of the hermetic server that asks pywb for what that server misses.

    client ──► front ──► hermetic server (its own process: exact, strict, opens no connection)
                 └─────► pywb            (its own process: only for reads that were missed)

Both listen on loopback ports that only the front knows, and the front connects to nothing else. The
hermetic server holds the sessions, their cursors and their ledgers. The front gives each session a port of
its own and passes control requests on. The hermetic server marks its misses and holds them off the ledger
until the front reports their outcome: tier `pywb`, or a miss as before. Noise, synthetic responses and
recorded errors carry no mark and never reach pywb. docs/explanation/backends.md says what to expect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import ReplayError, ReplayUnreachable, StillwebError, UsageError
from stillweb.http.control import (
    DEFAULT_SESSION,
    KEY_VARIABLE,
    Ledger,
    MissOutcome,
    Readiness,
    ReloadResult,
    ReplayInfo,
    SessionInfo,
)
from stillweb.http.controlrouter import ControlBackend, ControlResponse, answer, render
from stillweb.http.tls import ServerContexts
from stillweb.http.wire import RequestReceived
from stillweb.model import Headers
from stillweb.replay.client import ReplayClient
from stillweb.replay.onmiss.connection import PYWB_METHODS, FrontConnection, FrontSession
from stillweb.replay.onmiss.hermetic import Hermetic, HermeticOptions
from stillweb.replay.onmiss.loopback import Head, Loopback, render_request
from stillweb.replay.pywb.backend import PywbOptions, PywbServer
from stillweb.replay.pywb.process import find_pywb
from stillweb.replay.server.listeners import PortPool, authority, cannot_listen, lend_port
from stillweb.replay.server.server import SESSION_PORTS
from stillweb.urls import wire_url

logger = logging.getLogger(__name__)

_OF_VISITOR = frozenset(("cookie", "authorization"))  # an archive has no users


@dataclass(frozen=True, slots=True)
class FrontOptions:
    """How to serve.

    Attributes:
        host: address to listen on.
        port: of the proxy and the control API; 0 for any.
        session_ports: of the other sessions; None for any free ones.
        pywb: pywb's `wayback`; None to search for it (`find_pywb`).
        pywb_timeout: seconds until pywb must begin a response, and that it may pause within one.
        allowed_hosts: as in `ReplayOptions`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    session_ports: range | None = SESSION_PORTS
    hermetic: HermeticOptions = field(default_factory=HermeticOptions)
    pywb: Path | None = None
    pywb_timeout: float = 20.0
    allowed_hosts: tuple[str, ...] = ()


class MissReply(Protocol):
    """The body of a response to a miss.

    Attributes:
        payload: bytes of it that were read so far, without their framing.
    """

    payload: int

    def body(self, head: Head, method: str) -> AsyncIterator[bytes]:
        """Yield the body as it goes to the client."""

    def close(self) -> None:
        """Release the connection."""


class MissBackend(Protocol):
    """Answers reads that the hermetic server misses.

    Attributes:
        methods: of the requests that it takes.
    """

    @property
    def name(self) -> str: ...

    @property
    def methods(self) -> AbstractSet[str]: ...

    async def prepare(self, collection: str) -> None:
        """Get ready for the misses of a collection; if it fails, misses stay misses."""

    async def ask(
        self, session: FrontSession, method: str, url: str, headers: Headers, body: bytes
    ) -> tuple[MissReply, Head] | None:
        """Return the response to a miss, None if there is none; the caller closes the body.

        Raises:
            PeerError: if the back-end failed.
        """

    def passes_on(self, status: int) -> bool:
        """Return whether a response of this status goes to the client."""


class PywbMisses:
    """pywb as the back-end of a front.

    Args:
        ca: whose certificates it presents.
        timeout: seconds until it must begin a response, and that it may pause within one.
    """

    name = "pywb"
    methods = PYWB_METHODS

    def __init__(self, pywb: PywbServer, ca: CertAuthority, timeout: float) -> None:
        self._pywb = pywb
        self._timeout = timeout
        # pywb presents certificates that our own CA signed, for names that it takes from our requests.
        self._trust = ssl.create_default_context(cafile=str(ca.ca_file))
        self._trust.check_hostname = False

    async def prepare(self, collection: str) -> None:
        """Start a collection's pywb before its first miss."""
        try:
            await self._pywb.port_of(collection)
        except ReplayError as error:
            logger.warning("pywb does not answer: %s", str(error).partition("\n")[0])

    def passes_on(self, status: int) -> bool:
        """Return whether a response is an answer; pywb's own 4xx look like recorded ones."""
        return 200 <= status < 400 and status != HTTPStatus.NOT_MODIFIED

    async def ask(
        self, session: FrontSession, method: str, url: str, headers: Headers, body: bytes
    ) -> tuple[Loopback, Head]:
        """Ask the pywb of a session's collection.

        Raises:
            ReplayUnreachable: if it has failed, or begins no response in time.
        """
        connection: Loopback | None = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = await Loopback.open(await self._pywb.port_of(session.collection))
                connection.read_timeout = self._timeout
                target = await self._target(connection, url)
                fields = (each for each in headers if each[0].lower() not in _OF_VISITOR)
                request = render_request(method, target, (*fields, ("Connection", "close")))
                head = await connection.ask(request)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError | ReplayError):
                what = str(error).partition("\n")[0] or f"no answer within {self._timeout:g} s"
                raise ReplayUnreachable(what) from error
            raise
        # To plain http pywb's own server adds the date of today, which pages must not see.
        today = () if target != url else (b"date",)
        return connection, head.without(b"connection", b"proxy-connection", b"keep-alive", *today)

    async def _target(self, connection: Loopback, url: str) -> str:
        """Return the request target for pywb; for https open a tunnel first, since pywb requires one."""
        scheme, _, rest = wire_url(url).partition("://")
        if scheme != "https":
            return url
        site, slash, path = rest.partition("/")
        await connection.tunnel(site if re.search(r":\d+$", site) else f"{site}:443", self._trust)
        return slash + path or "/"


class Front(ControlBackend):
    """The running front; made by `serve_front`.

    Attributes:
        url: of the proxy and the control API.
        backend: answers what the hermetic server misses.
        contexts: TLS contexts of its connections.
    """

    def __init__(
        self, hermetic: Hermetic, backend: MissBackend, ca: CertAuthority, options: FrontOptions
    ) -> None:
        self.url = ""
        self.backend = backend
        self.options = options
        self.hosts: Iterable[str] = {options.host.lower(), *options.allowed_hosts}
        self.key = os.environ.get(KEY_VARIABLE, "")
        self.contexts = ServerContexts(ca)
        self.open_sessions: dict[str, FrontSession] = {}
        self._ports = PortPool(options.session_ports)
        self._client = ReplayClient(hermetic.url)

    async def start(self) -> None:
        """Listen.

        Raises:
            PortInUse: if the port is taken.
        """
        (state,) = await self._client.sessions()
        default = self._add(state)
        self._ports.check(self.options.host)
        await self._listen(default, self.options.port)
        self.url = f"http://{authority(self.options.host, default.port)}"

    def is_default(self, session: FrontSession) -> bool:
        """Return whether a session is that of the proxy's own port, which also takes control requests."""
        return session.id == DEFAULT_SESSION

    async def stop(self) -> None:
        """Close everything immediately; unfinished misses are concluded as they are."""
        for session in list(self.open_sessions.values()):
            await self._shut(session)
        await self._client.aclose()

    def _add(self, state: SessionInfo) -> FrontSession:
        session = FrontSession(state["id"], state["collection"], urlsplit(state["proxy"]).port or 0)
        self.open_sessions[session.id] = session
        return session

    async def _listen(self, session: FrontSession, port: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            session.tasks.add(task)
            try:
                await FrontConnection(self, session, reader, writer).run()
            except asyncio.CancelledError:
                logger.debug("a connection was cut off")  # by `_shut`, which waits for this task
            finally:
                session.tasks.discard(task)

        host = self.options.host
        try:
            session.server = await asyncio.start_server(serve, host, port, backlog=1024)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        session.port = session.server.sockets[0].getsockname()[1]

    async def _shut(self, session: FrontSession) -> None:
        self.open_sessions.pop(session.id, None)
        if session.server is not None:
            session.server.close()
        for task in tuple(session.tasks):
            task.cancel()
        await asyncio.gather(*session.tasks, return_exceptions=True)
        if session.port and not self.is_default(session):
            self._ports.give_back(session.port)

    # For its connections.

    async def control(self, event: RequestReceived) -> bytes:
        """Return the bytes of the response to a control request."""
        head, body = render(await answer(self, event))
        return head + (b"\r\n" if event.keep_alive else b"Connection: close\r\n\r\n") + body

    async def report(self, session: FrontSession, mark: str, outcome: MissOutcome) -> None:
        """Report the outcome of a miss to the hermetic server."""
        try:
            body = {"mark": mark, **outcome}
            await self._client.ask("POST", f"/sessions/{session.id}/misses", body)
        except UsageError as error:  # the session was reset meanwhile
            logger.info("a miss is not on the ledger: %s", error)
        except StillwebError as error:
            logger.warning("a miss is not on the ledger: %s", error)

    # The control API: the hermetic server's, except for ports.

    def knows(self, session_id: str) -> bool:
        return session_id in self.open_sessions

    async def info(self) -> ReplayInfo:
        info = await self._client.info()
        features = {
            **info.features,
            "strict": False,
            "on_miss": True,
            "cancel_navigations": False,
            "clock": False,
        }
        return replace(info, features=features, session_ports=str(self._ports))

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken; the hermetic server is ready as soon as it listens."""
        reply: dict[str, Any] = await self._client.ask("GET", "/ready")
        return Readiness(tuple(reply["missing"]), reply["refused"])

    async def metrics(self) -> ControlResponse:
        content, media_type = await self._client.read("/metrics")
        return ControlResponse(HTTPStatus.OK, raw=content, media_type=media_type)

    async def figures(self) -> Any:
        """Return the hermetic server's counters."""
        return await self._client.ask("GET", "/figures")

    async def reload(self, collection: str) -> ReloadResult:
        """Let the hermetic server look for a newer pack of a collection."""
        return await self._client.reload(collection)

    async def sessions(self) -> list[SessionInfo]:
        return [self._state(state) for state in await self._client.sessions()]

    async def session(self, session_id: str) -> SessionInfo:
        return self._state(await self._client.session(session_id))

    async def ledger(self, session_id: str, after: int) -> Ledger | None:
        try:
            return await self._client.ledger(session_id, after=after, closed=True)
        except UsageError:
            return None

    async def closed_sessions(self) -> list[SessionInfo]:
        return await self._client.closed_sessions()

    async def command(self, session_id: str, name: str, body: Any) -> Any:
        if name != "date":  # the others decide about misses, which the front answers
            return await super().command(session_id, name, body)
        return await self._client.ask("POST", f"/sessions/{session_id}/{name}", body)

    async def reset_session(self, session_id: str) -> SessionInfo:
        state: SessionInfo = await self._client.ask("POST", f"/sessions/{session_id}/reset")
        return self._state(state)

    async def open_session(self, collection: str | None, port: int | None = None) -> SessionInfo:
        """Open a session of the hermetic server, and a port that leads to it.

        Raises:
            CollectionNotFound: if the collection is not served.
            PortInUse: if no session port is free.
        """
        state: SessionInfo = await self._client.ask("POST", "/sessions", {"collection": collection})
        session = self._add(state)
        try:
            await self.backend.prepare(session.collection)
            await lend_port(self, self._ports, lambda port: self._listen(session, port))
        except BaseException:
            await self._shut(session)
            await self._client.close_session(session.id)
            raise
        return self._state(state)

    async def close_session(self, session_id: str) -> None:
        await self._shut(self.open_sessions[session_id])
        await self._client.close_session(session_id)

    def _state(self, state: SessionInfo) -> SessionInfo:
        """Return a state with the front's port and connections instead of the hermetic server's."""
        session = self.open_sessions.get(state["id"])
        if session is None:
            return state
        made: SessionInfo = {**state, "proxy": f"{state['proxy'].rpartition(':')[0]}:{session.port}"}
        if session.tasks:
            made |= {"connections": len(session.tasks), "idle": 0.0}
        return made


@asynccontextmanager
async def serve_front(
    collections: Sequence[Collection], ca: CertAuthority, options: FrontOptions | None = None
) -> AsyncIterator[tuple[Front, Hermetic]]:
    """Serve sealed collections strictly, and their misses with pywb, until the context ends.

    Raises:
        UsageError: if no collection is given.
        ProgramNotFound: if pywb is not installed.
        PortInUse: if a port is taken.
        ReplayError: if the hermetic server or pywb does not start.
    """
    if not collections:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    options = options or FrontOptions()
    # pywb's own rules are the reason to ask it: without them it finds little more than strict matching does.
    pywb = PywbServer(collections, ca, PywbOptions(fuzzy=True, program=options.pywb), find_pywb(options.pywb))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pywb.stop)
        hermetic = await Hermetic.start(collections, ca, options.hermetic)
        stack.push_async_callback(hermetic.stop)
        await pywb.start()
        front = Front(hermetic, PywbMisses(pywb, ca, options.pywb_timeout), ca, options)
        stack.push_async_callback(front.stop)
        await front.start()
        yield front, hermetic

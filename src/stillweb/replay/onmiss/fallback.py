"""`--on-miss pywb`: a program in front of the hermetic server that asks a pywb for what that one misses.

    client ──► front ──► hermetic server (a process of its own: exact, strict, no way out)
                 └─────► pywb            (a process of its own: only for reads that were missed)

Both listen on loopback ports that only the front knows, and the front connects to nothing else. Sessions,
their cursors and their ledger are the hermetic server's; the front gives each a port of its own and
passes control requests on. The hermetic server marks its misses and holds them off the ledger
until the front says what became of them: tier `pywb`, or a miss as before. Noise, synthetic answers
and recorded errors carry no mark and are never passed on. docs/replay-backends.md says what to expect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.errors import PortInUse, ReplayError, ReplayUnreachable, StillwebError, UsageError
from stillweb.http.tls import ServerContexts
from stillweb.http.wire import RequestReceived
from stillweb.model import Headers
from stillweb.replay.onmiss.frontdoor import FrontConnection, FrontSession
from stillweb.replay.onmiss.process import Hermetic, HermeticOptions
from stillweb.replay.onmiss.relay import Head, Loopback, render_request
from stillweb.replay.pywb.backend import PywbOptions, PywbServer, find_pywb
from stillweb.replay.server.control import DEFAULT_SESSION, ControlResponse, render
from stillweb.replay.server.listeners import PortPool, authority, cannot_listen
from stillweb.replay.server.server import SESSION_PORTS
from stillweb.urls import wire_url

__all__ = ["Front", "FrontOptions", "serve_front"]

logger = logging.getLogger(__name__)

_SESSION = re.compile(r"/sessions/([A-Za-z0-9._-]+)(/misses)?")


@dataclass(frozen=True, slots=True)
class FrontOptions:
    """How to serve.

    Attributes:
        host: address to listen on.
        port: of the proxy and the control API; 0 for any.
        session_ports: of the other sessions; None for any that are free.
        hermetic: how the server behind serves.
        pywb: pywb's `wayback`; `find_pywb` otherwise.
        pywb_timeout: seconds until pywb must have begun an answer, and that it may pause in one.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    session_ports: range | None = SESSION_PORTS
    hermetic: HermeticOptions = field(default_factory=HermeticOptions)
    pywb: Path | None = None
    pywb_timeout: float = 20.0


class Front:
    """The running front; made by `serve_front`.

    Attributes:
        url: of the proxy and the control API.
        ca: signs for the hosts of tunnels.
        contexts: TLS contexts of its connections.
        sessions: by id.
    """

    def __init__(
        self, hermetic: Hermetic, pywb: PywbServer, ca: CertAuthority, options: FrontOptions
    ) -> None:
        self.url = ""
        self.ca = ca
        self.options = options
        self.sessions: dict[str, FrontSession] = {}
        self._hermetic = hermetic
        self._pywb = pywb
        self._pool = PortPool(options.session_ports)
        self.contexts = ServerContexts(ca)
        # What pywb shows is signed by our own CA, for names that it takes from us.
        self._trust = ssl.create_default_context(cafile=str(ca.ca_file))
        self._trust.check_hostname = False
        self._http = httpx.AsyncClient(base_url=hermetic.url, timeout=30, trust_env=False)

    async def start(self) -> None:
        """Listen.

        Raises:
            PortInUse: if the port is taken.
        """
        (session,) = (await self._http.get("/sessions")).json()["sessions"]
        default = self._carry(session)
        self._pool.check(self.options.host)
        await self._listen(default, self.options.port)
        self.url = f"http://{authority(self.options.host, default.port)}"

    def is_default(self, session: FrontSession) -> bool:
        """Return whether a session is that of the proxy's own port, where control requests are taken, too."""
        return session.id == DEFAULT_SESSION

    async def stop(self) -> None:
        """Close everything at once; what is under way is concluded as it stands."""
        for session in list(self.sessions.values()):
            await self._shut(session)
        await self._http.aclose()

    def _carry(self, session: dict[str, Any]) -> FrontSession:
        carried = FrontSession(session["id"], session["collection"], urlsplit(session["proxy"]).port or 0)
        self.sessions[carried.id] = carried
        return carried

    async def _listen(self, session: FrontSession, port: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            session.tasks.add(task)
            try:
                await FrontConnection(self, session, reader, writer).run()
            except asyncio.CancelledError:
                logger.debug("a connection was cut off")  # by `_shut`, which waits for us
            finally:
                session.tasks.discard(task)

        host = self.options.host
        try:
            session.server = await asyncio.start_server(serve, host, port, backlog=1024)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        session.port = session.server.sockets[0].getsockname()[1]

    async def _shut(self, session: FrontSession) -> None:
        self.sessions.pop(session.id, None)
        if session.server is not None:
            session.server.close()
        for task in tuple(session.tasks):
            task.cancel()
        await asyncio.gather(*session.tasks, return_exceptions=True)
        if session.port and not self.is_default(session):
            self._pool.give_back(session.port)

    # What connections ask for.

    async def ask_pywb(
        self, session: FrontSession, method: str, url: str, headers: Headers
    ) -> tuple[Loopback, Head]:
        """Ask the pywb of a session's collection; the connection is the caller's to close.

        Raises:
            ReplayUnreachable: if it has failed, or begins no answer in time.
        """
        connection: Loopback | None = None
        try:
            async with asyncio.timeout(self.options.pywb_timeout):
                connection = await Loopback.open(await self._pywb.port_of(session.collection))
                connection.patience = self.options.pywb_timeout
                target = await self._target(connection, url)
                request = render_request(method, target, (*headers, ("Connection", "close")))
                head = await connection.ask(request)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError | ReplayError):
                what = str(error).partition("\n")[0] or f"no answer within {self.options.pywb_timeout:g} s"
                raise ReplayUnreachable(what) from error
            raise
        # To plain http pywb's own server adds the date of today: pages must not learn that.
        today = () if target != url else (b"date",)
        return connection, head.without(b"connection", b"proxy-connection", b"keep-alive", *today)

    async def _target(self, connection: Loopback, url: str) -> str:
        """Return what to ask pywb for a URL; behind a tunnel for https, which it takes in no other way."""
        scheme, _, rest = wire_url(url).partition("://")
        if scheme != "https":
            return url
        site, slash, path = rest.partition("/")
        await connection.tunnel(site if re.search(r":\d+$", site) else f"{site}:443", self._trust)
        return slash + path or "/"

    async def conclude(self, session: FrontSession, mark: str, outcome: dict[str, Any]) -> None:
        """Tell the hermetic server what became of a miss."""
        try:
            reply = await self._http.post(f"/sessions/{session.id}/misses", json={"mark": mark, **outcome})
        except httpx.HTTPError as error:
            logger.warning("a miss is not on the ledger: %s", error)
            return
        if reply.is_error:  # it was reset meanwhile
            logger.info("a miss is not on the ledger: %s", reply.text.strip())

    # The control API: the hermetic server's, but for ports.

    async def control(self, event: RequestReceived) -> bytes:
        """Return the bytes of the reply to a control request."""
        try:
            answer = render(await self._reply(event))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            answer = render(
                ControlResponse(
                    HTTPStatus.BAD_GATEWAY, {"error": f"the replay server failed: {error}", "hint": ""}
                )
            )
        except StillwebError as error:
            status = (
                HTTPStatus.SERVICE_UNAVAILABLE
                if isinstance(error, PortInUse)
                else HTTPStatus.INTERNAL_SERVER_ERROR
            )
            answer = render(ControlResponse(status, {"error": str(error), "hint": error.hint}))
        end = b"\r\n" if event.keep_alive else b"Connection: close\r\n\r\n"
        return answer.head + end + bytes(answer.body)

    async def _reply(self, event: RequestReceived) -> ControlResponse:
        path = event.target.partition("?")[0].rstrip("/")
        found = _SESSION.fullmatch(path)
        if found and found[2]:
            return ControlResponse(HTTPStatus.NOT_FOUND, {"error": f"no {path} here", "hint": ""})
        if path == "/sessions" and event.method == "POST":
            return await self._open(event)
        if found and event.method == "DELETE" and found[1] in self.sessions and found[1] != DEFAULT_SESSION:
            await self._shut(self.sessions[found[1]])
        return self._shown(path, await self._behind(event))

    async def _behind(self, event: RequestReceived, *, raw_body: bytes | None = None) -> httpx.Response:
        kept = [(n, v) for n, v in event.headers if n.lower() in ("host", "origin", "sec-fetch-site")]
        body = event.raw_body if raw_body is None else raw_body
        return await self._http.request(event.method, event.target, headers=kept, content=body)

    def _shown(self, path: str, response: httpx.Response) -> ControlResponse:
        status = HTTPStatus(response.status_code)
        kind = response.headers.get("content-type", "")
        if kind != "application/json":
            return ControlResponse(status, raw=response.content, media_type=kind)
        value = response.json()
        if path == "/info" and response.is_success:
            value["features"] |= {"strict": False, "on_miss": True}
            value["session_ports"] = str(self._pool)
        return ControlResponse(status, self._as_carried(value))

    def _as_carried(self, value: Any) -> Any:
        """Name the front's ports where the hermetic server named its own."""
        if isinstance(value, dict) and "sessions" in value:
            return {**value, "sessions": [self._as_carried(session) for session in value["sessions"]]}
        if (
            isinstance(value, dict)
            and "proxy" in value
            and (carried := self.sessions.get(value.get("id", "")))
        ):
            return {**value, "proxy": f"{value['proxy'].rpartition(':')[0]}:{carried.port}"}
        return value

    async def _wake_pywb(self, collection: str) -> None:
        """Start a collection's pywb before the first miss waits for it; without one, misses are misses."""
        try:
            await self._pywb.port_of(collection)
        except ReplayError as error:
            logger.warning("pywb does not answer: %s", str(error).partition("\n")[0])

    async def _open(self, event: RequestReceived) -> ControlResponse:
        try:
            wanted = json.loads(event.raw_body or b"{}")
        except (ValueError, RecursionError):
            wanted = None
        if isinstance(wanted, dict):
            wanted.pop("port", None)  # of the hermetic server's own, which is no business of clients
        response = await self._behind(event, raw_body=json.dumps(wanted).encode())
        if response.status_code == HTTPStatus.CREATED:
            session = self._carry(response.json())
            try:
                await self._wake_pywb(session.collection)
                await self._pool.lend(lambda port: self._listen(session, port))
            except BaseException:
                await self._shut(session)
                await self._http.delete(f"/sessions/{session.id}")
                raise
        return self._shown("/sessions", response)


@asynccontextmanager
async def serve_front(
    collections: Sequence[Collection], ca: CertAuthority, options: FrontOptions | None = None
) -> AsyncIterator[tuple[Front, Hermetic]]:
    """Serve sealed collections strictly, and by pywb what is missed, until the block is left.

    Raises:
        UsageError: if there is no collection.
        ProgramNotFound: if pywb is not installed.
        PortInUse: if a port is taken.
        ReplayError: if the hermetic server or pywb does not start.
    """
    if not collections:
        raise UsageError("nothing to replay", hint="stillweb replay NAME")
    options = options or FrontOptions()
    # pywb's own rules are what one asks it for: without them it knows little more than strict matching.
    pywb = PywbServer(collections, ca, PywbOptions(fuzzy=True, program=options.pywb), find_pywb(options.pywb))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pywb.stop)
        hermetic = await Hermetic.start(collections, ca, options.hermetic)
        stack.push_async_callback(hermetic.stop)
        await pywb.start()
        front = Front(hermetic, pywb, ca, options)
        stack.push_async_callback(front.stop)
        await front.start()
        yield front, hermetic

"""One client of the front: its tunnel ends here, its requests go to the hermetic server, misses to pywb.

Requests are taken in order, each after the response before it has gone out. They share one connection to
the hermetic server, so a session's order is the client's order. Responses are passed on piece by piece. The
hermetic server marks a miss with a field that the page never sees. The front reports what became of the
miss before the response is complete, so a client that has the response finds it on the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from stillweb.errors import BadHostname, PeerError
from stillweb.http.control import MissOutcome
from stillweb.http.tls import log_failure
from stillweb.http.tunnel import ProxyConnection, State, Trigger, is_control, proxy_user, request_url
from stillweb.http.wire import (
    CONTINUE,
    ESTABLISHED,
    BadRequest,
    ConnectReceived,
    ContinueExpected,
    Event,
    RequestReceived,
    UpgradeReceived,
    refusal,
)
from stillweb.model import Headers, Tier
from stillweb.replay.onmiss.loopback import Head, Loopback, render_request
from stillweb.replay.server.connection import ConnectionLimits
from stillweb.replay.server.session import MISS_MARK
from stillweb.replay.server.takeover import wait_for_close

if TYPE_CHECKING:
    from stillweb.replay.onmiss.front import Front, MissReply


logger = logging.getLogger(__name__)

PYWB_METHODS = frozenset({"GET", "HEAD"})
"""Methods that pywb may answer. To a mutation it gives the response of the closest POST: a wrong 200."""

_READ = 64 * 1024
_EARLY = 256 * 1024
"""Bytes that a client may send during an endless response; they are held until it ends."""
_REFUSAL_TIMEOUT = 5.0  # seconds that a refused client has to read the response
_LIMITS = ConnectionLimits()
_MARK = MISS_MARK.lower()
_EVENTS = b"text/event-stream"
# Fields of one connection (RFC 9110 §7.6.1), and fields that the front writes itself.
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "content-length", "expect"),
    )
)
# Replay ignores conditions, and serves no other time than that of the recording.
_NOT_PASSED_ON = frozenset(
    ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "accept-datetime")
)


@dataclass(eq=False, slots=True)
class FrontSession:
    """A session of the hermetic server and the port of the front that leads to it.

    Attributes:
        hermetic_port: port of the hermetic server that answers its traffic.
        port: of the front; 0 until it listens.
        tasks: of the open connections.
    """

    id: str
    collection: str
    hermetic_port: int
    port: int = 0
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class FrontConnection:
    """A client's connection; `run` serves it until it ends."""

    def __init__(
        self, front: Front, session: FrontSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._front = front
        self._listener = session
        self._session: FrontSession | None = session
        self._reader = reader
        self._writer = writer
        self._tunnel = ProxyConnection(front.contexts, origin="" if front.is_default(session) else "http://")
        self._early: list[bytes] = []  # received during an endless response
        self._upstream: tuple[FrontSession, Loopback] | None = None

    async def run(self) -> None:
        """Serve until the client, or a response, ends the connection."""
        try:
            while not self._tunnel.ending and (data := await self._next()):
                await self._receive(data)
            refused = self._tunnel.state is State.REFUSED
            self._writer.write(self._tunnel.close())
            if refused:
                await wait_for_close(self._reader, self._writer, _REFUSAL_TIMEOUT)
            await self._writer.drain()
            self._writer.close()
        except ssl.SSLError as error:
            log_failure(error)
            self._writer.close()  # after the alert is sent
        except (OSError, PeerError) as error:  # the client or the hermetic server is gone
            logger.info("a connection ended early: %s", error)
            self._writer.transport.abort()
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
        finally:
            if self._upstream is not None:
                self._upstream[1].close()

    async def _next(self) -> bytes:
        if self._early:
            return self._early.pop(0)
        tunnel = self._tunnel
        begun = tunnel.in_request or tunnel.in_head or tunnel.state is State.START
        async with asyncio.timeout(_LIMITS.receive_seconds if begun else _LIMITS.idle_seconds):
            return await self._reader.read(_READ)

    async def _receive(self, data: bytes) -> None:
        for event in self._tunnel.parse(self._decrypt(data)):
            if self._tunnel.takes_requests:
                await self._take(event)

    def _decrypt(self, data: bytes) -> bytes:
        try:
            return self._tunnel.decrypt(data)
        finally:
            self._writer.write(self._tunnel.data_to_send())

    async def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                await self._request(event)
            case ConnectReceived():
                await self._connect(event)
            case ContinueExpected():
                await self._write(CONTINUE)
            case BadRequest(status):
                await self._refuse(status)

    async def _connect(self, event: ConnectReceived) -> None:
        if not self._tunnel.accepts_connect:
            return await self._refuse(400)
        self._session = self._by_user(event.headers)
        if self._session is None:
            return await self._refuse(407)
        try:
            rest = self._tunnel.accept(event)
        except BadHostname as error:
            logger.warning("no certificate for a tunnel: %s", error)
            return await self._refuse(400)
        await self._write(ESTABLISHED)
        if rest:
            await self._receive(rest)
        return None

    def _by_user(self, headers: Headers) -> FrontSession | None:
        """Return the session that `Proxy-Authorization` names, else the listener's; None if it is unknown."""
        user = proxy_user(headers) if self._front.is_default(self._listener) else ""
        if user is None:
            return None
        return self._front.open_sessions.get(user) if user else self._listener

    async def _request(self, event: RequestReceived) -> None:
        if not event.keep_alive:
            self._tunnel.advance(Trigger.LAST_RESPONSE)
        if is_control(event, self._tunnel.origin):
            return await self._write(await self._front.control(event))
        session = self._session if self._tunnel.authority else self._by_user(event.headers)
        # The port behind a session that was closed meanwhile may be another session's by now.
        if session is None or self._front.open_sessions.get(session.id) is not session:
            return await self._refuse(407)
        if not (url := request_url(event, self._tunnel.origin)):
            return await self._refuse(400)
        return await self._exchange(session, event, url)

    async def _exchange(self, session: FrontSession, event: RequestReceived, url: str) -> None:
        upstream = await self._connection_to(session)
        fields = [field for field in event.headers if field[0].lower() not in _HOP]
        if isinstance(event, UpgradeReceived):
            fields += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        head = await upstream.ask(render_request(event.method, url, tuple(fields), event.raw_body))
        mark = head.get(_MARK).decode("ascii", "replace")
        head = head.without(_MARK)
        if head.status == 101:
            await self._write(head.render())
            await self._splice(upstream)
        elif mark:
            await self._missed(session, _Miss(event, url, mark, head))
        else:
            self._end_unless(upstream.reusable)
            await self._write(head.render(close=self._tunnel.ending and upstream.reusable))
            passing = self._pass(upstream, head, event.method)
            await (self._watched(passing) if _EVENTS in head.get(b"content-type") else passing)
        self._end_unless(upstream.reusable)

    def _end_unless(self, reusable: bool) -> None:
        if not reusable:
            self._tunnel.advance(Trigger.LAST_RESPONSE)

    async def _pass(self, upstream: Loopback, head: Head, method: str) -> None:
        async for piece in upstream.body(head, method):
            await self._write(piece)

    async def _watched(self, passing: Coroutine[Any, Any, None]) -> None:
        """Pass on a response that may never end, for as long as the client is connected."""

        async def gone() -> None:
            budget = _EARLY
            while budget > 0 and (data := await self._reader.read(_READ)):
                self._early.append(data)
                budget -= len(data)

        both = (asyncio.create_task(passing), asyncio.create_task(gone()))
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            passed, _ = await asyncio.gather(*both, return_exceptions=True)
        if isinstance(passed, Exception):
            raise passed
        if passed is not None:
            raise ConnectionResetError("the client disconnected, or sent too much during a response")

    async def _connection_to(self, session: FrontSession) -> Loopback:
        """Return the connection to the hermetic server that carries a session's requests."""
        if self._upstream is not None:
            carried, connection = self._upstream
            if carried is session and connection.reusable:
                return connection
            connection.close()
        self._upstream = (session, await Loopback.open(session.hermetic_port))
        return self._upstream[1]

    # Misses.

    async def _missed(self, session: FrontSession, miss: _Miss) -> None:
        """Pass on the back-end's response to a miss; without one, the miss itself."""
        concluded = False

        async def conclude(outcome: MissOutcome) -> None:
            nonlocal concluded
            concluded = True
            await self._front.report(session, miss.mark, outcome)

        try:
            socket = isinstance(miss.event, UpgradeReceived)
            if miss.event.method not in self._front.backend.methods or socket:
                what = "a WebSocket" if socket else miss.event.method
                note = f"{self._front.backend.name} is not used for {what}"
            else:
                note = await self._by_backend(session, miss, conclude)
            if note:
                await conclude({"note": note})
                await self._write(miss.head.render(close=self._tunnel.ending))
        finally:
            if not concluded:
                await conclude(
                    {"note": f"the client went away before {self._front.backend.name} had answered"}
                )

    async def _by_backend(self, session: FrontSession, miss: _Miss, conclude: Any) -> str:
        """Pass on the back-end's response; return "" if it has one, else why it has none."""
        backend = self._front.backend
        fields = [field for field in miss.event.headers if field[0].lower() not in _HOP | _NOT_PASSED_ON]
        try:
            found = await backend.ask(
                session, miss.event.method, miss.url, tuple(fields), miss.event.raw_body
            )
        except PeerError as error:
            logger.warning("%s does not answer: %s", backend.name, error)
            return f"{backend.name} failed: {error}"
        if found is None:
            return f"{backend.name} has none either"
        reply, head = found
        try:
            if not backend.passes_on(head.status):
                if head.status >= 500:
                    logger.warning("%s answered %s to %s", backend.name, head.status, miss.url)
                absent = head.status == HTTPStatus.NOT_FOUND
                why = "has none either" if absent else f"failed: it answered {head.status}"
                return f"{backend.name} {why}"
            await self._pass_on(reply, head, miss, conclude)
        finally:
            reply.close()
        return ""

    async def _pass_on(self, reply: MissReply, head: Head, miss: _Miss, conclude: Any) -> None:
        """Pass on a response to a miss; the ledger has it before its last piece is sent."""
        framed = head.get(b"content-length") or head.get(b"transfer-encoding")
        bodiless = miss.event.method == "HEAD" or head.status == 204
        self._end_unless(bool(framed) or bodiless)
        outcome: MissOutcome = {
            "tier": Tier.PYWB.value,
            "status": head.status,
            "note": f"answered by {self._front.backend.name}",
        }
        last = head.render(close=self._tunnel.ending)
        try:
            async for piece in reply.body(head, miss.event.method):
                await self._write(last)
                last = piece
        except PeerError as error:
            outcome["note"] += f", which broke off: {error}"
            raise  # `run` then aborts the connection: a client must not take half a response for a whole one
        except OSError:
            outcome["note"] += f"; client went away after {reply.payload} bytes"
            raise
        finally:
            await conclude({**outcome, "bytes": reply.payload})
        await self._write(last)

    # Writing.

    async def _splice(self, upstream: Loopback) -> None:
        """Carry bytes both ways until either side ends."""
        self._tunnel.advance(Trigger.SWITCH)
        both = {asyncio.create_task(self._from(upstream)), asyncio.create_task(self._to(upstream))}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        self._tunnel.advance(Trigger.END_OF_DATA)

    async def _from(self, upstream: Loopback) -> None:
        async for data in _pieces(upstream.reader):
            await self._write(data)

    async def _to(self, upstream: Loopback) -> None:
        async for data in _pieces(self._reader):
            if plain := self._decrypt(data):
                upstream.writer.write(plain)
                await upstream.writer.drain()
        upstream.writer.write_eof()

    async def _write(self, data: bytes) -> None:
        if data:
            self._writer.write(self._tunnel.send(data))
            await self._writer.drain()

    async def _refuse(self, status: int) -> None:
        await self._write(refusal(status))
        self._tunnel.advance(Trigger.REFUSE)


@dataclass(frozen=True, slots=True)
class _Miss:
    """A request that the hermetic server missed, its mark there, and the head of its response."""

    event: RequestReceived
    url: str
    mark: str
    head: Head


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(_READ):
        yield data

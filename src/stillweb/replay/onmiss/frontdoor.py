"""One client of the front: its tunnel ends here, its requests go to the hermetic server, misses to pywb.

Requests are taken in order, the next one when the answer before it has gone out, over one connection
to the hermetic server: so a session's order is the client's. An answer is passed on as it comes. A
miss carries a mark, which the page never sees; what becomes of it is told to the hermetic server before
its answer is complete, so that whoever has the answer finds it on the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stillweb.errors import BadHostname, PeerError
from stillweb.http.tls import TlsServer, log_failure
from stillweb.http.wire import (
    CONTINUE,
    ESTABLISHED,
    TLS_HANDSHAKE,
    BadRequest,
    ConnectReceived,
    ContinueExpected,
    Event,
    HttpConnection,
    RequestReceived,
    UpgradeReceived,
    asked_url,
    in_origin_form,
    place_of,
    refusal,
    tunnel_host,
    user_of,
)
from stillweb.model import Headers, Tier, header
from stillweb.replay.onmiss.relay import Head, Loopback, render_request
from stillweb.replay.server.session import MISS_MARK
from stillweb.replay.server.takeover import part

if TYPE_CHECKING:
    from stillweb.replay.onmiss.fallback import Front

__all__ = ["ASKED_METHODS", "Carried", "FrontConnection"]

logger = logging.getLogger(__name__)

ASKED_METHODS = frozenset({"GET", "HEAD"})
"""What pywb is asked for: it gives a mutation the answer of its closest POST, a wrong 200 by design."""

_READ = 64 * 1024
_EARLY = 256 * 1024
"""Bytes that a client may send while it is given an event stream: they are held until that is over."""
_PATIENCE = 5.0  # seconds that a client which was refused has to read that
_MARK = MISS_MARK.lower()
_EVENTS = b"text/event-stream"
# Of one connection only (RFC 9110 §7.6.1), or said anew.
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "content-length", "expect"),
    )
)
# Replay looks at no condition, and at no other time than that of the recording.
_NOT_FOR_PYWB = frozenset(
    (
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "accept-datetime"),
        *("cookie", "authorization"),
    )
)


@dataclass(eq=False, slots=True)
class Carried:
    """A session of the hermetic server, as the front carries it.

    Attributes:
        behind: port of the hermetic server that answers its traffic.
        port: of the front; 0 until it listens.
        tasks: of the connections at hand.
    """

    id: str
    collection: str
    behind: int
    port: int = 0
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class FrontConnection:
    """A client's connection; `run` serves it to its end."""

    def __init__(
        self, front: Front, door: Carried, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._front = front
        self._door = door
        self._reader = reader
        self._writer = writer
        self._wire = HttpConnection()
        self._tls: TlsServer | None = None
        self._tunnel: tuple[str, ssl.SSLContext] | None = None
        # What requests in origin form are asked of, as `Connection.place` has it.
        self._place = "" if front.is_default(door) else "http://"
        self._opens = True  # whether the next byte tells TLS from plain
        self._early: list[bytes] = []  # what came while an event stream was passed on
        self._session: Carried | None = door
        self._kept: tuple[Carried, Loopback] | None = None
        self._last = False
        self._refused = False

    async def run(self) -> None:
        """Serve until the client, or an answer, ends it."""
        try:
            while not self._last and (data := await self._next()):
                await self._receive(data)
            if self._tls is not None:
                self._writer.write(self._tls.farewell())
            if self._refused:
                await part(self._reader, self._writer, _PATIENCE)
            await self._writer.drain()
            self._writer.close()
        except ssl.SSLError as error:
            log_failure(error)
            self._writer.close()  # once the alert is out
        except (OSError, PeerError) as error:  # the client went away, or the hermetic server did
            logger.info("a connection ended early: %s", error)
            self._writer.transport.abort()
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
        finally:
            if self._kept is not None:
                self._kept[1].close()

    async def _next(self) -> bytes:
        return self._early.pop(0) if self._early else await self._reader.read(_READ)

    async def _receive(self, data: bytes) -> None:
        if self._opens:
            self._open(data[0])
        plain = self._plain(data)
        for event in self._wire.receive_data(plain):
            if not self._last:
                await self._take(event)
        self._last = self._last or (self._tls is not None and self._tls.closed)

    def _open(self, first: int) -> None:
        """Take TLS or plain http, as the first byte of a connection or tunnel says."""
        self._opens = False
        if first == TLS_HANDSHAKE:
            self._tls = TlsServer(self._tunnel[1] if self._tunnel else self._front.by_sni)
        if self._tunnel or self._tls:
            self._place = place_of(self._tls is not None, self._tunnel[0] if self._tunnel else "")

    def _plain(self, data: bytes) -> bytes:
        if self._tls is None:
            return data
        try:
            return self._tls.receive(data)
        finally:
            self._writer.write(self._tls.take())

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
        if self._tunnel is not None or self._tls is not None:
            return await self._refuse(400)
        self._session = self._by_user(event.headers)
        if self._session is None:
            return await self._refuse(407)
        try:
            context = self._front.ca.server_context(tunnel_host(event.authority))
        except BadHostname as error:
            logger.warning("no certificate for a tunnel: %s", error)
            return await self._refuse(400)
        self._tunnel, self._opens = (event.authority, context), True
        rest, self._wire = bytes(self._wire.rest), HttpConnection()
        await self._write(ESTABLISHED)
        if rest:
            await self._receive(rest)
        return None

    def _by_user(self, headers: Headers) -> Carried | None:
        """Return the session that `Proxy-Authorization` names, else the door's; None if it names none."""
        credentials = header(headers, "proxy-authorization").partition(" ")[2]
        if not credentials or not self._front.is_default(self._door):
            return self._door
        user = user_of(credentials)
        return None if user is None else self._front.carried.get(user)

    async def _request(self, event: RequestReceived) -> None:
        self._last = self._last or not event.keep_alive
        if not self._place and in_origin_form(event):
            return await self._write(await self._front.control(event), close=self._last)
        session = self._session if self._tunnel else self._by_user(event.headers)
        # One that was closed meanwhile has a port behind that may be another's by now.
        if session is None or self._front.carried.get(session.id) is not session:
            return await self._refuse(407)
        if not (url := asked_url(event, self._place)):
            return await self._refuse(400)
        return await self._exchange(session, event, url)

    async def _exchange(self, session: Carried, event: RequestReceived, url: str) -> None:
        behind = await self._behind(session)
        fields = [field for field in event.headers if field[0].lower() not in _HOP]
        if isinstance(event, UpgradeReceived):
            fields += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        head = await behind.ask(render_request(event.method, url, tuple(fields), event.raw_body))
        mark = head.get(_MARK).decode("ascii", "replace")
        head = head.without(_MARK)
        if head.status == 101:
            await self._write(head.render())
            await self._splice(behind)
        elif mark:
            await self._missed(session, _Miss(event, url, mark, head))
        else:
            self._last = self._last or not behind.reusable
            await self._write(head.render(close=self._last and behind.reusable))
            passing = self._pass(behind, head, event.method)
            await (self._watched(passing) if _EVENTS in head.get(b"content-type") else passing)
        self._last = self._last or not behind.reusable

    async def _pass(self, behind: Loopback, head: Head, method: str) -> None:
        async for piece in behind.body(head, method):
            await self._write(piece)

    async def _watched(self, passing: Coroutine[Any, Any, None]) -> None:
        """Pass on an answer that may never end by itself, for as long as the client is there."""

        async def gone() -> None:
            room = _EARLY
            while room > 0 and (data := await self._reader.read(_READ)):
                self._early.append(data)
                room -= len(data)

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
            raise ConnectionResetError("the client went away, or sent too much meanwhile")

    async def _behind(self, session: Carried) -> Loopback:
        """Return the connection to the hermetic server on which a session's requests go."""
        if self._kept is not None:
            kept, connection = self._kept
            if kept is session and connection.reusable:
                return connection
            connection.close()
        self._kept = (session, await Loopback.open(session.behind))
        return self._kept[1]

    # Misses.

    async def _missed(self, session: Carried, miss: _Miss) -> None:
        """Answer a miss by pywb if it has an answer, else as the miss that it is."""
        concluded = False

        async def conclude(outcome: dict[str, Any]) -> None:
            nonlocal concluded
            concluded = True
            await self._front.conclude(session, miss.mark, outcome)

        try:
            socket = isinstance(miss.event, UpgradeReceived)
            if miss.event.method not in ASKED_METHODS or socket:
                what = "a WebSocket" if socket else miss.event.method
                note = f"pywb is not asked for {what}"
            else:
                note = await self._by_pywb(session, miss, conclude)
            if note:
                await conclude({"note": note})
                await self._write(miss.head.render(close=self._last))
        finally:
            if not concluded:
                await conclude({"note": "the client went away before pywb had answered"})

    async def _by_pywb(self, session: Carried, miss: _Miss, conclude: Any) -> str:
        """Pass on pywb's answer; return why there is none, "" if there is."""
        kept = [field for field in miss.event.headers if field[0].lower() not in _HOP | _NOT_FOR_PYWB]
        try:
            pywb, head = await self._front.ask_pywb(session, miss.event.method, miss.url, tuple(kept))
        except PeerError as error:
            logger.warning("pywb does not answer: %s", error)
            return f"pywb failed: {error}"
        try:
            if not 200 <= head.status < 400 or head.status == 304:
                if head.status >= 500:
                    logger.warning("pywb answered %s to %s", head.status, miss.url)
                return (
                    "pywb has none either"
                    if head.status == 404
                    else f"pywb failed: it answered {head.status}"
                )
            await self._pass_on(pywb, head, miss, conclude)
        finally:
            pywb.close()
        return ""

    async def _pass_on(self, pywb: Loopback, head: Head, miss: _Miss, conclude: Any) -> None:
        """Pass on an answer of pywb; the ledger has it before its last piece goes out."""
        framed = head.get(b"content-length") or head.get(b"transfer-encoding")
        bodiless = miss.event.method == "HEAD" or head.status == 204
        self._last = self._last or not (framed or bodiless)
        outcome: dict[str, Any] = {"tier": Tier.PYWB.value, "status": head.status, "note": "answered by pywb"}
        last = head.render(close=self._last)
        try:
            async for piece in pywb.body(head, miss.event.method):
                await self._write(last)
                last = piece
        except PeerError as error:
            outcome["note"] += f", which broke off: {error}"
            raise  # `run` then breaks off, too: half an answer is never whole
        except OSError:
            outcome["note"] += f"; client went away after {pywb.payload} bytes"
            raise
        finally:
            await conclude({**outcome, "bytes": pywb.payload})
        await self._write(last)

    # The way out.

    async def _splice(self, behind: Loopback) -> None:
        """Carry bytes both ways until either side ends."""
        self._last = True
        both = {asyncio.create_task(self._from(behind)), asyncio.create_task(self._to(behind))}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _from(self, behind: Loopback) -> None:
        async for data in _pieces(behind.reader):
            await self._write(data)

    async def _to(self, behind: Loopback) -> None:
        async for data in _pieces(self._reader):
            if plain := self._plain(data):
                behind.writer.write(plain)
                await behind.writer.drain()
        behind.writer.write_eof()

    async def _write(self, data: bytes, *, close: bool = False) -> None:
        self._last = self._last or close
        if data:
            self._writer.write(data if self._tls is None else self._tls.send(data))
            await self._writer.drain()

    async def _refuse(self, status: int) -> None:
        self._refused = True
        await self._write(refusal(status), close=True)


@dataclass(frozen=True, slots=True)
class _Miss:
    """A request that the hermetic server missed, the name of the miss there, and its answer's head."""

    event: RequestReceived
    url: str
    mark: str
    head: Head


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(_READ):
        yield data

"""One client connection: bytes to requests, requests to a session or to the control desk.

A callback protocol without a single await: what the loop delivers is parsed, resolved and answered before
the next connection has its turn, so the order of a session's requests is the order of its ledger. Small
answers go out in one write; large ones in slices, as fast as the client takes them, so that memory is bounded
by slices and not by bodies. What was asked before, byte for byte, may be answered from the memo, unparsed.

A CONNECT is taken without asking where to: the tunnel ends here. If the first byte of a connection, or
of a tunnel, begins a TLS record it is https, else plain http (`ws:` comes so). Within TLS, and where there
is no control desk, a request in origin form is traffic for the host that it names (decision 0002).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.errors import BadHostname
from stillweb.http.tls import TlsServer, context_by_sni, log_failure
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
from stillweb.model import Headers, Request, header
from stillweb.replay.server import control, websocket
from stillweb.replay.server.answer import PreparedResponse, ScriptedResponse
from stillweb.replay.server.cache import may_repeat
from stillweb.replay.server.control import ControlBackend
from stillweb.replay.server.session import ServedRequest, Session
from stillweb.replay.server.takeover import ClosingDelay, Takeover

__all__ = ["SLICE", "Connection", "ListenerTarget"]

logger = logging.getLogger(__name__)

SLICE = 128 * 1024
"""Bytes of one write, and what the transport holds back for a slow client, at most twice."""


@dataclass(eq=False, slots=True)
class ListenerTarget:
    """What a listener leads to.

    Attributes:
        ca: signs for the hosts of tunnels; None where no traffic is taken.
        session: answers traffic; None where only control requests are.
        by_user: finds the session that a proxy user name stands for; None where that is not asked.
        desk: answers control requests; None where only traffic is.
        spawn: runs a coroutine of the desk.
        connections, empty: all that came by this door and are open; set while there are none.
        advice: for traffic where none is taken.
        patience: seconds that a client which was refused has to read that.
        by_sni: the TLS context of those who begin with TLS; None until the first does.
        closed: whether nobody is served any more who comes now.
    """

    spawn: Callable[[Coroutine[Any, Any, None]], object]
    ca: CertAuthority | None = None
    session: Session | None = None
    by_user: Callable[[str], Session | None] | None = None
    desk: ControlBackend | None = None
    advice: str = ""
    patience: float = 5.0
    connections: set[Connection] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    by_sni: ssl.SSLContext | None = None
    closed: bool = False

    def tls(self) -> TlsServer:
        """Return the server's side of a connection that begins with TLS."""
        assert self.ca is not None
        if self.by_sni is None:
            self.by_sni = context_by_sni(self.ca)
        return TlsServer(self.by_sni)


@dataclass(slots=True)
class _Outgoing:
    """The rest of an answer that is larger than a slice."""

    session: Session
    served: ServedRequest
    body: memoryview
    at: int
    keep_alive: bool


class Connection(asyncio.Protocol):
    """What the event loop calls for a connection.

    Attributes:
        session: that answers its traffic.
        place: of whom requests in origin form are, `scheme://authority of the tunnel`; "" for the desk's.
    """

    def __init__(self, door: ListenerTarget) -> None:
        self.session = door.session
        self.place = "" if door.desk is not None else "http://"
        self._door = door
        self._wire: HttpConnection | Takeover = HttpConnection()
        self._events: deque[Event] = deque()
        self._transport: asyncio.Transport
        self._opens = door.ca is not None  # whether the next byte tells TLS from plain
        self._tls: TlsServer | None = None
        self._tunnel: tuple[str, ssl.SSLContext] | None = None  # authority, and what TLS needs there
        self._whole: bytes | None = None  # what was received, if that is the request at hand and no more
        self._outgoing: _Outgoing | None = None
        self._waits_for_desk = False
        self._full = False  # the client takes nothing at present
        self._reading = True
        self._last = False  # no request is taken after the one at hand
        self._refused = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        # No isinstance: uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=SLICE)
        self._door.connections.add(self)
        self._door.empty.clear()
        if self._door.closed:  # it was accepted before, and told of after `Listener.close` had looked
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Put an unfinished answer on the ledger as such."""
        self._door.connections.discard(self)
        if not self._door.connections:
            self._door.empty.set()
        self._events.clear()
        if (outgoing := self._outgoing) is not None:
            self._outgoing = None
            outgoing.session.finish(outgoing.served, sent=outgoing.at)

    def pause_writing(self) -> None:
        """Wait: the client is slower than we are."""
        self._full = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """Go on with the answer at hand, then with the requests behind it."""
        self._full = False
        self._work()

    def eof_received(self) -> bool:
        """Keep the way out open while an answer is still going; else the loop closes."""
        self._last = True
        return self._busy

    def data_received(self, data: bytes) -> None:
        """Take bytes from the network."""
        began = clock.perf()
        if self._opens:
            self._open(data[0])
        if self._tls is not None:
            taken = self._decrypt(self._tls, data)
            if taken is None:
                return
            data = taken
        # An answer half sent, or an event left, is there only while the client is full or the desk is asked.
        alone = self._wire.between and not (self._full or self._waits_for_desk or self._last)
        if not (alone and self._repeated(data, began)):
            self._receive(data, alone)

    def _repeated(self, data: bytes, began: float) -> bool:
        """Answer from the memo, if it has these bytes."""
        # Credentials count for their request only, and no request that has them is kept.
        session = self.session if self._tunnel else self._door.session
        if not session or not (kept := session.memo.get((self.place, data))):
            return False
        self.session = session
        self._write(kept.data)
        session.repeat(kept, began)
        return True

    def _receive(self, data: bytes, alone: bool) -> None:
        """Parse, and answer; `alone` if no request is before these bytes and nothing of one."""
        events = self._wire.receive_data(data)
        self._events.extend(events)
        if alone and self._wire.between and len(events) == 1 and may_repeat(events[0]):
            self._whole = data
        self._work()
        self._whole = None

    # Tunnels.

    def _connect(self, event: ConnectReceived) -> None:
        if self._tunnel is not None or self._tls is not None or self._door.ca is None:
            return self._refuse(400)
        if not self._session_by_user(event.headers):
            return self._refuse(407)
        try:
            context = self._door.ca.server_context(tunnel_host(event.authority))
        except BadHostname as error:
            logger.warning("no certificate for a tunnel: %s", error)
            return self._refuse(400)
        self._tunnel, self._opens = (event.authority, context), True
        rest, self._wire = bytes(self._wire.rest), HttpConnection()
        self._write(ESTABLISHED)
        if rest:
            self.data_received(rest)
        return None

    def _open(self, first: int) -> None:
        """Take TLS or plain http, as the first byte says."""
        self._opens = False
        if first == TLS_HANDSHAKE:
            self._tls = TlsServer(self._tunnel[1]) if self._tunnel else self._door.tls()
        if self._tunnel or self._tls:
            self.place = place_of(self._tls is not None, self._tunnel[0] if self._tunnel else "")

    def _decrypt(self, tls: TlsServer, data: bytes) -> bytes | None:
        try:
            plain = tls.receive(data)
        except ssl.SSLError as error:
            log_failure(error)
            self._put(tls.take())
            self._transport.close()
            return None
        self._put(tls.take() if tls.speaks else b"")
        self._last = self._last or tls.closed
        return plain

    # Requests.

    @property
    def _busy(self) -> bool:
        return self._outgoing is not None or self._waits_for_desk or self._full

    def _work(self) -> None:
        """Answer what can be answered now; stop reading while more waits than that."""
        self._pump()
        while self._events and not self._busy and not self._transport.is_closing():
            self._take(self._events.popleft())
        if self._last and not self._busy and not self._events:
            self._close()
        self._read_or_not()

    def _read_or_not(self) -> None:
        # A script answers what it reads (pings), and no event tells of it.
        reading = not (self._busy and (self._events or isinstance(self._wire, Takeover)))
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._request(event)
            case ConnectReceived():
                self._connect(event)
            case ContinueExpected():
                self._write(CONTINUE)
            case BadRequest(status, what):
                logger.info("bad request: %s", what)
                self._refuse(status)

    def _request(self, event: RequestReceived) -> None:
        if not self.place and in_origin_form(event):
            if (desk := self._door.desk) is None:
                return self._refuse(400)
            self._waits_for_desk = True
            self._door.spawn(self._ask_desk(desk, event))
        elif self._tunnel is None and not self._session_by_user(event.headers):
            return self._refuse(407)
        elif (session := self.session) is None or not (url := asked_url(event, self.place)):
            return self._refuse(400)
        else:
            request = Request(event.method, url, event.headers, event.raw_body)
            begin = websocket.begin if isinstance(event, UpgradeReceived) else Session.begin
            self._send(session, begin(session, request), event.keep_alive)
        return None

    def _session_by_user(self, headers: Headers) -> bool:
        """Take the session that `Proxy-Authorization` names, else the door's; return whether there is one."""
        credentials = header(headers, "proxy-authorization").partition(" ")[2]
        if not credentials or self._door.by_user is None:
            self.session = self._door.session  # whatever the request before it named (RFC 9110 §11.7.2)
            return True
        user = user_of(credentials)
        if user is None:
            return False
        self.session = self._door.by_user(user)
        return self.session is not None

    async def _ask_desk(self, desk: ControlBackend, event: RequestReceived) -> None:
        try:
            answer = control.render(await control.answer(desk, event))
        except BaseException:
            self._transport.abort()  # a fault of ours, or the end: nobody shall wait for what does not come
            raise
        self._waits_for_desk = False
        if not self._transport.is_closing():
            self._write(_bytes(answer, event.keep_alive) + answer.body)
            self._last = self._last or not event.keep_alive
            self._work()

    def _send(self, session: Session, served: ServedRequest, keep_alive: bool) -> None:
        answer = served.answer
        if isinstance(answer, ScriptedResponse):
            self._events.clear()
            session.finish(served)
            self._wire = Takeover(answer, self._write, self._close, self._transport.is_closing)
            return
        head = _bytes(answer, keep_alive and not self._last)
        if len(answer.body) <= SLICE:
            data = head + answer.body if answer.body else head
            self._write(data)
            self._finish(session, served, keep_alive)
            if self._whole is not None:  # so this is not the last answer (`Wire.between`)
                session.keep((self.place, self._whole), served, data)
            return
        body = memoryview(answer.body)
        self._write(head + body[:SLICE])
        self._outgoing = _Outgoing(session, served, body, SLICE, keep_alive)
        self._pump()

    def _pump(self) -> None:
        """Send slices for as long as the client takes them."""
        outgoing = self._outgoing
        while outgoing is not None and not self._full and not self._transport.is_closing():
            piece = outgoing.body[outgoing.at : outgoing.at + SLICE]
            outgoing.at += len(piece)
            self._write(piece)
            if outgoing.at >= len(outgoing.body):
                self._outgoing = None
                self._finish(outgoing.session, outgoing.served, outgoing.keep_alive)
                return

    def _finish(self, session: Session, served: ServedRequest, keep_alive: bool) -> None:
        session.finish(served)
        self._last = self._last or not keep_alive

    def _refuse(self, status: int) -> None:
        self._write(refusal(status, self._door.advice if status == 400 else ""))
        self._events.clear()
        self._last = self._refused = True

    # The way out.

    def _write(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(data if self._tls is None else self._tls.send(data))

    def _put(self, data: bytes | memoryview) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport.is_closing():
            return
        if self._tls is not None:
            self._put(self._tls.farewell())
        if self._refused:
            self._refused, self._tls = False, None  # a second call closes
            ClosingDelay(self._transport, self._door.patience, self.connection_lost)
        else:
            self._transport.close()

    def end(self) -> None:
        """Close as soon as the request at hand is answered; at once if there is none."""
        self._last = True
        if not self._busy and not self._events and not self._wire.in_request:
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()


def _bytes(answer: PreparedResponse, keep_alive: bool) -> bytes:
    return answer.head + (b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")

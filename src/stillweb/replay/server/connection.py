"""One client connection on the event loop: bytes in, responses of a session or of the control API out.

A callback protocol without an await: received bytes are parsed, resolved and answered before the next
connection has its turn. So the order of a session's requests is the order of its ledger. Small responses go
out in one write. Large ones go out in slices, as fast as the client reads, so that memory is bounded by
slices and not by bodies. A request received before, byte for byte, may be answered from the `ResponseCache`
without parsing.

`http.tunnel` holds the state of the connection: plain HTTP, CONNECT, TLS and what may follow what. Where
the listener has no control API, a request in origin form is traffic for the host that it names
(docs/decisions/0002-one-listener.md).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.errors import BadHostname
from stillweb.http.control import DEFAULT_SESSION
from stillweb.http.controlrouter import ControlBackend, answer, render
from stillweb.http.tls import ServerContexts, log_failure
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
from stillweb.model import Headers, Match, Request, Tier
from stillweb.replay.server import websocket
from stillweb.replay.server.answer import PreparedResponse, ScriptedResponse
from stillweb.replay.server.bodytime import LARGE
from stillweb.replay.server.cache import may_repeat
from stillweb.replay.server.session import ServedRequest, Session
from stillweb.replay.server.takeover import ClosingDelay, Takeover

logger = logging.getLogger(__name__)

SLICE = 128 * 1024
"""Bytes of one write; the transport buffers at most twice as much for a slow client."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on what clients may hold of a server.

    Attributes:
        receive_seconds: until a TLS handshake or the head of a request is complete, and between two pieces
            of a body. Servers in use take 20 to 60 s (nginx: 60 s each).
        idle_seconds: that a connection may be open without a request. Browsers keep connections while an
            agent thinks.
        session_bodies: bytes of request bodies that the connections of one session are sending.
        bodies: the same for all sessions.
    """

    receive_seconds: float = 30.0
    idle_seconds: float = 3600.0
    session_bodies: int = 128 * 1024 * 1024
    bodies: int = 512 * 1024 * 1024


class BodyBudget:
    """Bytes of the request bodies that a server is receiving, in total and by session."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self._limits = limits or ConnectionLimits()
        self._total = 0
        self._by_session: Counter[Session | None] = Counter()

    def resize(self, session: Session | None, before: int, after: int) -> bool:
        """Change what a connection holds; return False if it is too much."""
        self._total += after - before
        self._by_session[session] += after - before
        if not self._by_session[session]:
            del self._by_session[session]
        within = (
            self._by_session[session] <= self._limits.session_bodies and self._total <= self._limits.bodies
        )
        return within or after <= before


def _no_page(_: Request) -> None:
    return None


def _no_search(_: str, __: Request) -> None:
    return None


@dataclass(eq=False, slots=True)
class ListenerTarget:
    """Destination of a listener's connections.

    Attributes:
        spawn: runs a coroutine of the control API.
        ca: signs for the hosts of tunnels; None where no traffic is accepted.
        session: answers traffic; None where only control requests are accepted.
        by_user: returns the session that a proxy user name stands for; None where user names are ignored.
        control: answers control requests; None where only traffic is accepted.
        advice: body of the response to traffic where none is accepted.
        about: responds to a request of the default session for stillweb's own host; None for any other.
        search: responds to a request for the search engine, given the collection; None for any other.
        refusal_timeout: seconds that a refused client has to read the response.
        budget: of request bodies; one for all listeners of a server.
        empty: set while there are none.
        closed: whether new connections are dropped.
    """

    spawn: Callable[[Coroutine[Any, Any, None]], object]
    ca: CertAuthority | None = None
    session: Session | None = None
    by_user: Callable[[str], Session | None] | None = None
    control: ControlBackend | None = None
    advice: str = ""
    about: Callable[[Request], PreparedResponse | None] = _no_page
    search: Callable[[str, Request], PreparedResponse | None] = _no_search
    refusal_timeout: float = 5.0
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    budget: BodyBudget = field(default_factory=BodyBudget)
    connections: set[Connection] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    contexts: ServerContexts | None = field(init=False)

    def __post_init__(self) -> None:
        self.contexts = None if self.ca is None else ServerContexts(self.ca)

    def expire(self) -> None:
        """End the connections that exceed their time."""
        now = clock.perf()
        for connection in tuple(self.connections):
            connection.expire(now)


@dataclass(slots=True)
class _Outgoing:
    """The rest of a response that is larger than a slice."""

    session: Session
    served: ServedRequest
    body: memoryview
    at: int
    keep_alive: bool


class Connection(asyncio.Protocol):
    """The protocol of one connection.

    Attributes:
        session: answers its traffic.
    """

    def __init__(self, target: ListenerTarget) -> None:
        self.session = target.session
        self._target = target
        self._tunnel = ProxyConnection(
            target.contexts, origin="" if target.control is not None else "http://"
        )
        self._events: deque[Event] = deque()
        self._transport: asyncio.Transport
        self._takeover: Takeover | None = None
        self._unsubscribe: Callable[[], None] | None = None  # the takeover from the session's clock
        self._whole: bytes | None = None  # the received bytes, if they are exactly the current request
        self._outgoing: _Outgoing | None = None
        self._awaits_control = False
        self._awaits_turn = False
        self._body: tuple[Session | None, int] = (None, 0)  # what the budget counts for this connection
        self._received = clock.perf()  # time of the last bytes
        self._partial = self._received  # time of the first bytes of a head that is incomplete
        self._full = False  # the transport's buffer is full
        self._reading = True

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        # No isinstance check: uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=SLICE)
        self._target.connections.add(self)
        self._target.empty.clear()
        if self._target.closed:  # accepted before `Listener.close`, reported after it
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record an unfinished response on the ledger as such."""
        self._target.connections.discard(self)
        if self.session is not None:
            self.session.left = clock.monotonic()
        if not self._target.connections:
            self._target.empty.set()
        self._events.clear()
        self._count_body(0)
        if self._unsubscribe is not None:
            self._unsubscribe()
        if (outgoing := self._outgoing) is not None:
            self._outgoing = None
            outgoing.session.finish(outgoing.served, sent=outgoing.at)

    def pause_writing(self) -> None:
        """Stop: the client reads more slowly than we write."""
        self._full = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Continue the current response, then the requests behind it."""
        self._full = False
        self._work()

    def eof_received(self) -> bool:
        """Keep the connection open while a response is unfinished; otherwise the loop closes it."""
        self._tunnel.advance(Trigger.END_OF_DATA)
        return self._busy

    def data_received(self, data: bytes) -> None:
        """Take bytes from the network."""
        began = self._received = clock.perf()
        tunnel = self._tunnel
        try:
            data = tunnel.decrypt(data)
        except ssl.SSLError as error:
            log_failure(error)
            self._put(tunnel.data_to_send())
            self._transport.close()
            return
        if tunnel.pending:
            self._put(tunnel.data_to_send())
        if self._takeover is not None:
            return self._take_over(self._takeover, data)
        # An unfinished response or a queued event exists only while the client is slow or the control API
        # works.
        alone = tunnel.between and not (self._full or self._awaits_control or self._awaits_turn)
        if not (alone and self._repeated(data, began)):
            self._receive(data, alone)
        return None

    def _repeated(self, data: bytes, began: float) -> bool:
        """Answer from the cache, if it has these bytes."""
        # Credentials count for their own request only, and no request that has them is cached.
        session = self.session if self._tunnel.authority else self._target.session
        if not session or session.body_time.paused:
            return False
        if not (cached := session.cache.get((self._tunnel.origin, data))):
            return False
        self.session = session
        self._write(cached.data)
        session.repeat(cached, began)
        return True

    def _receive(self, data: bytes, alone: bool) -> None:
        """Parse and answer; `alone` if no request, and no part of one, is before these bytes."""
        if not self._tunnel.in_head:
            self._partial = self._received
        events = self._tunnel.parse(data)
        self._events.extend(events)
        if (buffered := self._tunnel.buffered) or self._body[1]:
            self._count_body(buffered)
        if alone and len(events) == 1 and self._tunnel.between and may_repeat(events[0]):
            self._whole = data
        self._work()
        self._whole = None

    def _count_body(self, size: int) -> None:
        session, before = self._body
        if size and not before:
            session = self.session
        self._body = (session, size) if size else (None, 0)
        if not self._target.budget.resize(session, before, size):
            logger.warning("request refused: too many bytes of request bodies are being received")
            self._events.append(BadRequest(503, "too many bytes of request bodies are being received"))

    def expire(self, now: float) -> None:
        """End the connection if the client takes too long."""
        limits, tunnel = self._target.limits, self._tunnel
        if self._busy or self._events or self._takeover is not None or tunnel.ending:
            return
        begun = tunnel.in_request or tunnel.in_head or tunnel.state is State.START
        since = self._partial if tunnel.in_head else self._received
        if now - since <= (limits.receive_seconds if begun else limits.idle_seconds):
            return
        if tunnel.in_request:
            self._events.append(BadRequest(408, "the client takes too long to send a request"))
            self._work()
        else:
            self._close()

    def _take_over(self, takeover: Takeover, data: bytes) -> None:
        takeover.receive(data)
        if self._tunnel.ending:
            self._work()
        else:
            self._update_reading()

    # Requests.

    @property
    def _busy(self) -> bool:
        return self._outgoing is not None or self._awaits_control or self._awaits_turn or self._full

    def _work(self) -> None:
        """Answer what can be answered now; stop reading while more is queued."""
        self._pump()
        while self._events and not self._busy and not self._transport.is_closing():
            self._take(self._events.popleft())
        if self._tunnel.ending and not self._busy and not self._events:
            self._close()
        self._update_reading()

    def _update_reading(self) -> None:
        # A script answers what it reads (pings) without an event, so it is not read while the client is slow.
        reading = not (self._busy and (self._events or self._takeover is not None))
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

    def _connect(self, event: ConnectReceived) -> None:
        if not self._tunnel.accepts_connect:
            return self._refuse(400)
        if not self._select_session(event.headers):
            return self._refuse(407)
        try:
            rest = self._tunnel.accept(event)
        except BadHostname as error:
            logger.warning("no certificate for a tunnel: %s", error)
            return self._refuse(400)
        self._write(ESTABLISHED)
        if rest:
            self.data_received(rest)
        return None

    def _request(self, event: RequestReceived) -> None:
        origin = self._tunnel.origin
        if is_control(event, origin):
            if (backend := self._target.control) is None:
                return self._refuse(400)
            self._awaits_control = True
            self._target.spawn(self._answer_control(backend, event))
        elif not self._tunnel.authority and not self._select_session(event.headers):
            return self._refuse(407)
        elif (session := self.session) is None or not (url := request_url(event, origin)):
            return self._refuse(400)
        elif session.body_time.wait(len(event.raw_body), self._take_turn):
            self._awaits_turn = True
            self._events.appendleft(event)
        else:
            request = Request(event.method, url, event.headers, event.raw_body)
            served = self._begin(session, request, event)
            self._send(session, served, event.keep_alive)
            if len(event.raw_body) >= LARGE:
                session.body_time.charge(clock.perf() - served.began)
        return None

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._work()

    def _begin(self, session: Session, request: Request, event: RequestReceived) -> ServedRequest:
        # Sessions of episodes never reach the page: replayed sites must not see that they are replayed.
        own = self._target.about(request) if session.id == DEFAULT_SESSION else None
        if own is not None:
            return session.begin_as(request, Match(Tier.SYNTHETIC, reason="stillweb's own page"), own)
        found = self._target.search(session.collection, request)
        if found is not None:
            return session.begin_as(request, Match(Tier.SYNTHETIC, reason="the search engine"), found)
        begin = websocket.begin if isinstance(event, UpgradeReceived) else Session.begin
        return begin(session, request)

    def _select_session(self, headers: Headers) -> bool:
        """Select the session that the proxy user names, else the listener's; return False if unknown."""
        user = proxy_user(headers) if self._target.by_user is not None else ""
        if user is None:
            return False
        if not user or self._target.by_user is None:
            self.session = self._target.session  # whatever the request before it named (RFC 9110 §11.7.2)
            return True
        self.session = self._target.by_user(user)
        return self.session is not None

    async def _answer_control(self, backend: ControlBackend, event: RequestReceived) -> None:
        try:
            head, body = render(await answer(backend, event))
        except BaseException:
            self._transport.abort()  # a fault of ours, or shutdown: the client must not wait for a response
            raise
        self._awaits_control = False
        if not self._transport.is_closing():
            self._write(_head(head, event.keep_alive) + body)
            if not event.keep_alive:
                self._tunnel.advance(Trigger.LAST_RESPONSE)
            self._work()

    def _send(self, session: Session, served: ServedRequest, keep_alive: bool) -> None:
        response = served.answer
        if isinstance(response, ScriptedResponse):
            self._events.clear()
            session.finish(served)
            self._tunnel.advance(Trigger.SWITCH)
            self._takeover = takeover = Takeover(
                response, self._write, self._close, self._transport.is_closing
            )
            self._unsubscribe = session.page_clock.add(response.script, takeover.wake)
            return
        head = _head(response.head, keep_alive and not self._tunnel.ending)
        if len(response.body) <= SLICE:
            data = head + response.body if response.body else head
            self._write(data)
            self._finish(session, served, keep_alive)
            if self._whole is not None:  # so this is not the last response (`ProxyConnection.between`)
                session.cache_response((self._tunnel.origin, self._whole), served, data)
            return
        body = memoryview(response.body)
        self._write(head + body[:SLICE])
        self._outgoing = _Outgoing(session, served, body, SLICE, keep_alive)
        self._pump()

    def _pump(self) -> None:
        """Send slices for as long as the client reads."""
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
        if not keep_alive:
            self._tunnel.advance(Trigger.LAST_RESPONSE)

    def _refuse(self, status: int) -> None:
        self._write(refusal(status, self._target.advice if status == 400 else ""))
        self._events.clear()
        self._tunnel.advance(Trigger.REFUSE)

    # Writing and closing.

    def _write(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._tunnel.send(data))

    def _put(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport.is_closing():
            return
        refused = self._tunnel.state is State.REFUSED
        self._put(self._tunnel.close())
        if refused:  # a second call closes
            ClosingDelay(self._transport, self._target.refusal_timeout, self.connection_lost)
        else:
            self._transport.close()

    def end(self) -> None:
        """Close after the current request is answered; immediately if there is none."""
        self._tunnel.advance(Trigger.SHUTDOWN)
        if not self._busy and not self._events and not self._tunnel.in_request:
            self._close()

    def abort(self) -> None:
        """Close immediately."""
        self._transport.abort()


def _head(head: bytes, keep_alive: bool) -> bytes:
    """Return a head with the blank line; it announces the end of the connection if that is near."""
    return head + (b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")

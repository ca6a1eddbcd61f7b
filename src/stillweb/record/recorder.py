"""The mitmproxy addon that turns flows into exchanges, and the account that it keeps of them.

mitmproxy calls the hooks by name, one flow at a time and in our event loop. It logs and forgets
what they raise, which would be a loss that nobody sees: `_loud` keeps the first failure in
`RecordingProxy`, and the recording stops with it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from stillweb.collections.frames import EVENT_STREAM, Beside, End, chunks_beside, frames_beside
from stillweb.errors import RecordError
from stillweb.record.flows import exchange_of, handshake_of, socket_url, upstream_fields
from stillweb.record.options import RecordOptions
from stillweb.record.resolve import resolve
from stillweb.record.streams import Body, EventStream, Socket
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from stillweb.collections.writer import CollectionWriter
    from stillweb.model import Exchange

_CLIENT_WENT_AWAY = "Client disconnected."  # mitmproxy/proxy/layers/http/_http1.py, `wait`


class RecordingProxy:
    """What a recording proxy has seen so far.

    Attributes:
        url: what to give to a browser as its proxy.
        exchanges, body_bytes: written so far; bytes of response bodies as received.
        failed: URL -> why the site did not answer; not recorded.
        aborted: URLs whose answer the browser did not wait for; not recorded.
        notes: one line for each kind of traffic that passed through without being recorded.
        streams, sockets: event streams and WebSockets that are open, by flow.
    """

    def __init__(self) -> None:
        self.url = ""
        self.exchanges = 0
        self.body_bytes = 0
        self.failed: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.notes: dict[str, int] = {}
        self.streams: dict[str, EventStream] = {}
        self.sockets: dict[str, Socket] = {}
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """How many requests wait for the rest of their answer; endless streams are not counted."""
        return len(self._in_flight)

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def broken(self) -> None:
        """Wait until an exchange cannot be written.

        Raises:
            RecordError: then.
        """
        await asyncio.shield(self._fault)

    def check(self) -> None:
        """Raise the error that `broken` waits for, if it has come.

        Raises:
            RecordError: if an exchange could not be written.
        """
        if self._fault.done():
            self._fault.result()

    def fail(self, error: Exception) -> None:
        """Remember the first exchange that could not be written, and why."""
        if not self._fault.done():
            failure = RecordError(
                f"an exchange could not be written: {error!r}", hint="what was recorded before is valid"
            )
            failure.__cause__ = error
            self._fault.set_exception(failure)
            self._fault.exception()  # else asyncio complains where nobody waits for it

    def note(self, what: str) -> None:
        """Count something that passed through without being recorded."""
        self.notes[what] = self.notes.get(what, 0) + 1

    @contextmanager
    def at_rest(self, urls: Iterable[str]) -> Iterator[None]:
        """Note that a page has settled which has opened these event streams and WebSockets.

        Within the context WebSockets bring it nothing new, so that what it shows can be written down. Of
        several of one URL it is the one that was opened first: pages settle in the order of their visits.
        """
        live: list[tuple[str, EventStream | Socket]]
        live = [(wire_url(each.flow.request.url), each) for each in self.streams.values()]
        live += [(socket_url(each.flow), each) for each in self.sockets.values()]
        mine: list[EventStream | Socket] = []
        for url in map(wire_url, urls):
            found = next((each for place, each in live if place == url and each.rest_ms is None), None)
            if found is not None:
                found.rest()
                mine.append(found)
        try:
            yield
        finally:
            for each in mine:
                if isinstance(each, Socket):
                    each.go_on()

    def begin(self, flow_id: str) -> None:
        """Count a request as in flight."""
        self._in_flight.add(flow_id)
        self._idle.clear()

    def end(self, flow_id: str) -> None:
        """Count a request as no longer in flight."""
        self._in_flight.discard(flow_id)
        if not self._in_flight:
            self._idle.set()


Hook = Callable[["Recorder", Any], None]


def _loud(hook: Hook) -> Hook:
    """Make a hook's failure the recording's failure."""

    @functools.wraps(hook)
    def loud(self: Recorder, event: Any) -> None:
        try:
            hook(self, event)
        except Exception as error:  # noqa: BLE001  the root of what mitmproxy calls
            self.recording.fail(error)

    return loud


class Recorder:
    """The addon; its public methods are mitmproxy's hooks."""

    def __init__(self, writer: CollectionWriter, options: RecordOptions, recording: RecordingProxy) -> None:
        self._writer = writer
        self._options = options
        self.recording = recording
        self._bodies: dict[str, Body] = {}
        self._asked_for: dict[str, tuple[str, int]] = {}

    @_loud
    def tls_clienthello(self, hello: Any) -> None:
        """Speak HTTP/1.1 with the client, whatever the site speaks."""
        client = hello.context.client
        if b"http/1.1" in (client.alpn_offers or ()):
            client.alpn = b"http/1.1"

    @_loud
    def server_connect(self, connecting: Any) -> None:
        """Send the connection to where `--resolve` says."""
        server = connecting.server
        if server.address is None:
            return
        self._asked_for[server.id] = server.address
        server.address = resolve(self._options.resolve, *server.address[:2])

    @_loud
    def server_connected(self, connecting: Any) -> None:
        """Give the connection its name back: mitmproxy finds connections to use again by it."""
        # `Server.__setattr__` forbids this on open connections, since it cannot mean a reconnect here.
        vars(connecting.server)["address"] = self._asked_for.pop(connecting.server.id)

    @_loud
    def server_connect_error(self, connecting: Any) -> None:
        """Give the connection its name back, so that errors speak of it."""
        if address := self._asked_for.pop(connecting.server.id, None):
            connecting.server.address = address

    @_loud
    def requestheaders(self, flow: Any) -> None:
        """Make the request one that is answered in full."""
        if _is_websocket(flow):
            return
        self.recording.begin(flow.id)
        flow.request.headers.fields = upstream_fields(flow.request.method, flow.request.headers.fields)

    @_loud
    def responseheaders(self, flow: Any) -> None:
        """Pass the body on as it comes, keeping what is to be written."""
        response = flow.response
        if _is_websocket(flow):
            return
        if response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            response.stream = self.recording.streams[flow.id] = EventStream(self._options.max_body, flow)
            self.recording.end(flow.id)  # it may never end
        else:
            response.stream = self._bodies[flow.id] = Body(self._options.max_body)
        if response.is_http2 and "content-length" not in response.headers and _has_body(flow):
            # Otherwise mitmproxy ends the body by closing the client's connection, TLS and all.
            response.headers["transfer-encoding"] = "chunked"

    @_loud
    def response(self, flow: Any) -> None:
        """Write a completed exchange."""
        if _is_websocket(flow):
            if flow.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
                self._write(handshake_of(flow, flow.response.raw_content or b""))
            return
        self.recording.end(flow.id)
        if stream := self.recording.streams.pop(flow.id, None):
            return self._write_stream(stream, End.SITE)
        body = self._bodies.pop(flow.id, None)
        if body is None:
            return None  # the recording has ended
        if body.overflow:
            return self._too_long()
        return self._write(exchange_of(flow, flow.response.raw_content or body.content()))

    @_loud
    def error(self, flow: Any) -> None:
        """Remember why there is no answer, and let the browser see a broken connection."""
        self._bodies.pop(flow.id, None)
        self.recording.end(flow.id)
        reason = flow.error.msg
        if stream := self.recording.streams.pop(flow.id, None):
            return self._write_stream(stream, End.CLIENT if reason == _CLIENT_WENT_AWAY else End.SITE)
        url = socket_url(flow) if _is_websocket(flow) else wire_url(flow.request.url)
        if reason == _CLIENT_WENT_AWAY:
            self.recording.aborted.add(url)
        else:
            self.recording.failed[url] = reason
        if flow.response is None and flow.killable:
            # mitmproxy would answer with a page of its own and status 502, which no site sent.
            flow.kill()
        return None

    @_loud
    def websocket_start(self, flow: Any) -> None:
        """Begin to keep the frames of a WebSocket."""
        self.recording.sockets[flow.id] = Socket(self._options.max_body, flow)

    async def websocket_message(self, flow: Any) -> None:
        """Keep a frame, and let it pass unless its page is being written down."""
        self._keep_frame(flow)
        if socket := self.recording.sockets.get(flow.id):
            await socket.may_pass()

    @_loud
    def _keep_frame(self, flow: Any) -> None:
        if socket := self.recording.sockets.get(flow.id):
            socket.take()

    @_loud
    def websocket_end(self, flow: Any) -> None:
        """Write the frames of a WebSocket that was closed."""
        if socket := self.recording.sockets.pop(flow.id, None):
            self._write_socket(socket)

    def finish(self) -> None:
        """Write what is still open: the recording ends."""
        streams, sockets = list(self.recording.streams.values()), list(self.recording.sockets.values())
        self.recording.streams.clear()
        self.recording.sockets.clear()
        self._bodies.clear()
        for stream in streams:
            self._write_stream(stream, End.OPEN)
        for socket in sockets:
            self._write_socket(socket)

    def _write_stream(self, stream: EventStream, end: End) -> None:
        if stream.overflow:
            return self._too_long()
        exchange = exchange_of(stream.flow, stream.content())
        return self._write(exchange, chunks_beside(exchange.request.url, stream.chunks(end)))

    def _write_socket(self, socket: Socket) -> None:
        if socket.overflow:
            return self._too_long()
        handshake = handshake_of(socket.flow)
        return self._write(handshake, frames_beside(handshake.request.url, socket.frames()))

    def _too_long(self) -> None:
        self.recording.note(f"longer than {self._options.max_body} bytes, not recorded")

    def _write(self, exchange: Exchange, beside: Beside | None = None) -> None:
        recording = self.recording
        self._writer.write(exchange, beside)
        recording.exchanges += 1
        recording.body_bytes += len(exchange.response.raw_body)
        recording.failed.pop(exchange.request.url, None)


def _is_websocket(flow: Any) -> bool:
    return bool(flow.request.headers.get("upgrade", "").lower() == "websocket")


def _has_body(flow: Any) -> bool:
    """Tell whether a response has a body at all (RFC 9112 §6.3)."""
    return flow.request.method != "HEAD" and flow.response.status_code not in (204, 304)

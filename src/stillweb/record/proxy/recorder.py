"""The mitmproxy addon that turns flows into exchanges.

mitmproxy calls the hooks by name, one flow at a time and in our event loop. It logs and forgets
what they raise, which would be a loss that nobody sees: `_loud` keeps the first failure in
`RecordingProxy`, and the recording stops with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from stillweb import clock
from stillweb.collections.warc.frames import (
    EVENT_STREAM,
    ConnectionEnd,
    RecordFrames,
    chunks_beside,
    frames_beside,
)
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.control import CHALLENGE, admits
from stillweb.record.proxy.flows import (
    Body,
    EventStream,
    Socket,
    asks_with_a_body,
    client_left,
    exchange_of,
    handshake_of,
    socket_url,
    trailers_beside,
    upstream_fields,
    why_it_failed,
)
from stillweb.record.proxy.resolve import resolve
from stillweb.record.proxy.running import RecordingProxy, RequestOutcome, RequestRecord
from stillweb.record.proxy.samebodies import mark_of
from stillweb.record.redaction.redactor import secrets_of
from stillweb.record.redaction.sweep import sweep, sweep_baseline
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from stillweb.collections.warc.writer import CollectionWriter
    from stillweb.model import Exchange
    from stillweb.record.proxy.control import RecorderControl

__all__ = ["Recorder", "RecordingProxy"]

_OURS = "stillweb"  # in a flow's metadata: it is answered here, and never recorded


@dataclass(slots=True)
class _Pending:
    """A request that is under way, with what is kept of it."""

    flow: Any
    url: str
    began: float
    upload: Body | None = None
    body: Body | None = None


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
    """The addon; its public methods are mitmproxy's hooks.

    Args:
        writer: of the collection.
        options: see there.
        recording: the account to keep.
        desk: what the proxy answers itself; None for nothing.
    """

    def __init__(
        self,
        writer: CollectionWriter,
        options: RecordOptions,
        recording: RecordingProxy,
        desk: RecorderControl | None = None,
    ) -> None:
        self._writer = writer
        writer.settle(rotate=options.warc_size, operator=options.operator)
        self._secrets = secrets = secrets_of(writer.collection, options.secrets)
        if secrets is not None:
            recording.sweep = lambda folder: sweep_baseline(folder, secrets)
        self._options = options
        self.recording = recording
        self._desk = desk
        self._pending: dict[str, _Pending] = {}
        self._asked_for: dict[str, tuple[str, int]] = {}
        self._admitted: set[str] = set()

    # --- connections -------------------------------------------------------------------------------

    @_loud
    def http_connect(self, flow: Any) -> None:
        """Ask for name and password before a tunnel is opened."""
        if self._admits(flow):
            self._admitted.add(flow.client_conn.id)
        else:
            flow.response = _refusal()

    @_loud
    def client_disconnected(self, client: Any) -> None:
        """Forget a connection."""
        self._admitted.discard(client.id)

    @_loud
    def tls_clienthello(self, hello: Any) -> None:
        """Speak HTTP/1.1 with the client, whatever the site speaks; HTTP/2 with who offers nothing else."""
        client = hello.context.client
        if b"http/1.1" in (client.alpn_offers or ()):
            client.alpn = b"http/1.1"

    @_loud
    def tls_failed_client(self, failed: Any) -> None:
        """Tell of a client that does not trust the CA."""
        host = failed.context.client.sni or (failed.context.server.address or ("?",))[0]
        self.recording.warn(f"a client did not take our certificate for {host}: does it trust the CA?")

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

    # --- exchanges ---------------------------------------------------------------------------------

    @_loud
    def requestheaders(self, flow: Any) -> None:
        """Make the request one that is answered in full."""
        if self._desk and self._desk.owns(flow):
            flow.metadata[_OURS] = True
        elif not self._admits(flow):
            flow.metadata[_OURS] = True
            flow.response = _refusal()
        if flow.metadata.get(_OURS):
            return
        pending = self._pending[flow.id] = _Pending(flow, _url(flow), clock.perf())
        self.recording.same.begin(pending.url)
        if _is_websocket(flow):
            return
        self.recording.begin(flow.id, _port(flow))
        request = flow.request
        request.headers.fields = upstream_fields(
            request.method, request.headers.fields, http2=request.is_http2
        )
        if asks_with_a_body(request):
            if "content-length" not in request.headers:
                request.headers["transfer-encoding"] = "chunked"  # for HTTP/1.1; HTTP/2 drops it
            request.stream = pending.upload = Body(self._options.max_body)

    async def request(self, flow: Any) -> None:
        """Answer what is asked of the proxy itself."""
        if flow.metadata.get(_OURS) and flow.response is None and self._desk:
            try:
                flow.response = await self._desk.answer(flow)
            except Exception as error:  # noqa: BLE001  as for `_loud`
                self.recording.fail(error)

    @_loud
    def responseheaders(self, flow: Any) -> None:
        """Pass the body on as it comes, keeping what is to be written."""
        response, pending = flow.response, self._pending.get(flow.id)
        if pending is None or _is_websocket(flow):
            return
        if response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            stream = EventStream(self._options.max_body, flow)
            response.stream = pending.body = self.recording.streams[flow.id] = stream
            self.recording.end(flow.id)  # it may never end
        else:
            response.stream = pending.body = Body(self._options.max_body)
        if response.is_http2 and "content-length" not in response.headers and _has_body(flow):
            # Otherwise mitmproxy ends the body by closing the client's connection, TLS and all.
            response.headers["transfer-encoding"] = "chunked"

    @_loud
    def response(self, flow: Any) -> None:
        """Write a completed exchange."""
        if flow.metadata.get(_OURS):
            return
        trailers, client = flow.response.trailers, flow.request
        if trailers and not (client.is_http2 or client.is_http3):
            flow.response.trailers = None  # mitmproxy cannot say them in HTTP/1.1
        pending = self._pending.get(flow.id)
        self.recording.end(flow.id)
        if pending is None:
            return  # the recording has ended
        if _is_websocket(flow):
            if flow.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
                self._write(flow, handshake_of(flow, flow.response.raw_content or b""))
        elif stream := self.recording.streams.pop(flow.id, None):
            self._write_stream(stream, ConnectionEnd.SITE)
        elif self._is_short_enough(pending):
            body = flow.response.raw_content or (pending.body.content() if pending.body else b"")
            exchange = exchange_of(flow, body, pending.upload.content() if pending.upload else b"")
            self._write(flow, exchange, trailers_beside(exchange.request.url, trailers))

    @_loud
    def error(self, flow: Any) -> None:
        """Remember why there is no answer, and let the browser see a broken connection."""
        if flow.metadata.get(_OURS):
            return
        self.recording.end(flow.id)
        if stream := self.recording.streams.pop(flow.id, None):
            return self._write_stream(
                stream, ConnectionEnd.CLIENT if client_left(flow) else ConnectionEnd.SITE
            )
        if flow.id in self._pending:
            outcome = RequestOutcome.ABORTED if client_left(flow) else RequestOutcome.FAILED
            self._over(flow, outcome, why_it_failed(flow))
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
        """Write what is still open, and tell of what is lost: the recording ends."""
        streams, sockets = list(self.recording.streams.values()), list(self.recording.sockets.values())
        self.recording.streams.clear()
        self.recording.sockets.clear()
        for stream in streams:
            self._write_stream(stream, ConnectionEnd.OPEN)
        for socket in sockets:
            self._write_socket(socket)
        for pending in list(self._pending.values()):
            self._over(pending.flow, RequestOutcome.OPEN, "not over when the recording ended")
        if self._secrets is not None:
            sweep(self._writer, self._secrets)

    # --- what came of them -------------------------------------------------------------------------

    def _write_stream(self, stream: EventStream, end: ConnectionEnd) -> None:
        pending = self._pending.get(stream.flow.id)
        if pending and not self._is_short_enough(pending):
            return
        upload = pending.upload.content() if pending and pending.upload else b""
        exchange = exchange_of(stream.flow, stream.content(), upload)
        self._write(stream.flow, exchange, chunks_beside(exchange.request.url, stream.chunks(end)))

    def _write_socket(self, socket: Socket) -> None:
        if socket.overflow:
            return self._over(socket.flow, RequestOutcome.TOO_LONG, self._longer)
        handshake = handshake_of(socket.flow)
        return self._write(
            socket.flow, handshake, frames_beside(handshake.request.url, socket.frames()), socket.size
        )

    def _is_short_enough(self, pending: _Pending) -> bool:
        """Tell whether both bodies were kept whole; if not, note that they were not."""
        if (pending.upload and pending.upload.overflow) or (pending.body and pending.body.overflow):
            self._over(
                pending.flow, RequestOutcome.TOO_LONG, self._longer, pending.body.size if pending.body else 0
            )
            return False
        return True

    @property
    def _longer(self) -> str:
        return f"longer than {self._options.max_body} bytes"

    def _write(
        self, flow: Any, exchange: Exchange, beside: RecordFrames | None = None, size: int = -1
    ) -> None:
        recording = self.recording
        mark = b"" if beside else mark_of(exchange)
        if self._secrets is None:
            self._writer.write(exchange, beside)
        else:
            self._writer.write(*self._secrets.redact(exchange, beside))
        recording.exchanges += 1
        recording.body_bytes += len(exchange.response.raw_body)
        recording.failed.pop(exchange.request.url, None)
        size = size if size >= 0 else len(exchange.response.raw_body)
        self._over(flow, RequestOutcome.RECORDED, size=size, mark=mark)

    def _over(
        self, flow: Any, outcome: RequestOutcome, reason: str = "", size: int = 0, mark: bytes = b""
    ) -> None:
        pending = self._pending.pop(flow.id, None)
        if pending:
            self.recording.same.end(pending.url, mark)
        request, response = flow.request, flow.response
        self.recording.over(
            RequestRecord(
                request.method,
                pending.url if pending else _url(flow),
                outcome,
                response.status_code if response else 0,
                reason,
                size,
                (clock.perf() - pending.began) * 1000 if pending else 0.0,
                response.http_version if response else "",
                _port(flow),
                request.headers.get("sec-fetch-dest", ""),
                request.headers.get("referer", ""),
            )
        )

    def _admits(self, flow: Any) -> bool:
        """Tell whether who sends this may use the proxy; a session's port is open to this machine only."""
        given = flow.request.headers.pop("proxy-authorization", "")
        if flow.client_conn.id in self._admitted or (self._desk and self._desk.is_session(_port(flow))):
            return True
        return admits(self._options.user, given)


def _refusal() -> Any:
    from mitmproxy import http

    return http.Response.make(407, b"", {"Proxy-Authenticate": CHALLENGE, "Content-Length": "0"})


def _port(flow: Any) -> int:
    """Return the port by which a flow came."""
    return int(flow.client_conn.sockname[1]) if flow.client_conn.sockname else 0


def _url(flow: Any) -> str:
    return socket_url(flow) if _is_websocket(flow) else wire_url(flow.request.url)


def _is_websocket(flow: Any) -> bool:
    return bool(flow.request.headers.get("upgrade", "").lower() == "websocket")


def _has_body(flow: Any) -> bool:
    """Tell whether a response has a body at all (RFC 9112 §6.3)."""
    return flow.request.method != "HEAD" and flow.response.status_code not in (204, 304)

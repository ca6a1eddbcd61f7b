"""The mitmproxy add-on that turns flows into exchanges.

mitmproxy calls the hooks by name, one flow at a time, in the caller's event loop. It logs exceptions of a
hook and continues, which would lose exchanges silently: `_guarded` stores the first failure in
`RecordingProxy`, and the recording stops with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
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
from stillweb.model import BODILESS, MUTATIONS, destination
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.control import CHALLENGE, is_authorized
from stillweb.record.proxy.flows import (
    Body,
    EventStream,
    Socket,
    client_aborted,
    exchange_of,
    failure_reason,
    handshake_of,
    has_request_body,
    request_url,
    socket_url,
    trailer_record,
    upstream_fields,
)
from stillweb.record.proxy.running import RecordingProxy, RequestOutcome, RequestRecord, response_fingerprint
from stillweb.record.proxy.upstream import AddressRefused, UpstreamResolver
from stillweb.record.redaction.redactor import secrets_of, write_redacted
from stillweb.record.redaction.sweep import sweep, sweep_baseline
from stillweb.urls import to_timestamp

if TYPE_CHECKING:
    from stillweb.collections.warc.writer import CollectionWriter
    from stillweb.model import Exchange
    from stillweb.record.proxy.control import RecorderControl

_OWN = "stillweb"  # key of a flow's metadata: the proxy answers the flow itself and never records it


@dataclass(slots=True)
class _Pending:
    """A request in flight, with its buffered bodies."""

    flow: Any
    url: str
    began: float
    upload: Body | None = None
    body: Body | None = None


Hook = Callable[["Recorder", Any], None]


def _guarded(hook: Hook) -> Hook:
    """Turn a hook's failure into the recording's failure."""

    @functools.wraps(hook)
    def guarded(self: Recorder, event: Any) -> None:
        try:
            hook(self, event)
        except Exception as error:  # noqa: BLE001  the root of what mitmproxy calls
            self.recording.fail(error)

    return guarded


class Recorder:
    """mitmproxy add-on; its public methods are mitmproxy's hooks.

    Args:
        recording: state to update.
        control: answers requests to the proxy itself; None to record every request.
    """

    def __init__(
        self,
        writer: CollectionWriter,
        options: RecordOptions,
        recording: RecordingProxy,
        control: RecorderControl | None = None,
    ) -> None:
        self._writer = writer
        writer.settle(rotate=options.warc_size, operator=options.operator)
        self._secrets = secrets = secrets_of(writer.collection, options.secrets)
        if secrets is not None:
            recording.sweep = lambda folder: sweep_baseline(folder, secrets)
        self._options = options
        self._resolver = UpstreamResolver(options.resolve, allow_private=options.allow_private)
        self.recording = recording
        self._control = control
        self._pending: dict[str, _Pending] = {}
        self._requested_addresses: dict[str, tuple[str, int]] = {}
        self._authorized_connections: set[str] = set()

    # --- connections -------------------------------------------------------------------------------

    @_guarded
    def http_connect(self, flow: Any) -> None:
        """Demand name and password before opening a tunnel."""
        if self._is_authorized(flow):
            self._authorized_connections.add(flow.client_conn.id)
        else:
            flow.response = _refusal()

    @_guarded
    def client_disconnected(self, client: Any) -> None:
        self._authorized_connections.discard(client.id)

    @_guarded
    def tls_clienthello(self, hello: Any) -> None:
        """Speak HTTP/1.1 with the client, and HTTP/2 only if the client offers nothing else."""
        client = hello.context.client
        if b"http/1.1" in (client.alpn_offers or ()):
            client.alpn = b"http/1.1"

    @_guarded
    def tls_failed_client(self, failed: Any) -> None:
        """Warn of a client that does not trust the CA."""
        host = failed.context.client.sni or (failed.context.server.address or ("?",))[0]
        self.recording.warn(f"a client rejected our certificate for {host}: does it trust the CA?")

    async def server_connect(self, connecting: Any) -> None:
        """Replace the host of a connection by a permitted address, or abort the connection."""
        server = connecting.server
        if server.address is None:
            return
        self._requested_addresses[server.id] = server.address
        try:
            server.address = await self._resolver.resolve(*server.address[:2])
        except AddressRefused as error:
            server.error = f"{error}; {error.hint}"
        except OSError as error:
            server.error = str(error)
        except Exception as error:  # noqa: BLE001  as in `_guarded`
            server.error = str(error)
            self.recording.fail(error)

    @_guarded
    def server_connected(self, connecting: Any) -> None:
        """Restore the connection's host name: mitmproxy reuses connections by it."""
        # `Server.__setattr__` forbids this on an open connection; here it does not cause a reconnect.
        vars(connecting.server)["address"] = self._requested_addresses.pop(connecting.server.id)

    @_guarded
    def server_connect_error(self, connecting: Any) -> None:
        """Restore the connection's host name for error messages."""
        if address := self._requested_addresses.pop(connecting.server.id, None):
            self._resolver.mark_unreachable(connecting.server.address[0])
            connecting.server.address = address

    # --- exchanges ---------------------------------------------------------------------------------

    @_guarded
    def requestheaders(self, flow: Any) -> None:
        """Rewrite the request so that the site sends a complete response."""
        if self._control and self._control.owns(flow):
            flow.metadata[_OWN] = True
        elif not self._is_authorized(flow):
            flow.metadata[_OWN] = True
            flow.response = _refusal()
        if flow.metadata.get(_OWN):
            return
        pending = self._pending[flow.id] = _Pending(flow, _url(flow), clock.perf())
        self.recording.digests.begin(pending.url)
        if _is_websocket(flow):
            return
        self.recording.begin(flow.id, _port(flow))
        request = flow.request
        if request.method.upper() in MUTATIONS:
            at = to_timestamp(datetime.fromtimestamp(request.timestamp_start, UTC))
            beacon = request.headers.get("sec-fetch-mode", "") == "no-cors"
            self.recording.mark_mutation(at, beacon=beacon)
        request.headers.fields = upstream_fields(
            request.method, request.headers.fields, http2=request.is_http2
        )
        if has_request_body(request):
            if "content-length" not in request.headers:
                request.headers["transfer-encoding"] = "chunked"  # for HTTP/1.1; HTTP/2 drops it
            request.stream = pending.upload = Body(self._options.max_body)

    async def request(self, flow: Any) -> None:
        """Answer a request to the proxy itself."""
        if flow.metadata.get(_OWN) and flow.response is None and self._control:
            try:
                flow.response = await self._control.answer(flow)
            except Exception as error:  # noqa: BLE001  as in `_guarded`
                self.recording.fail(error)

    @_guarded
    def responseheaders(self, flow: Any) -> None:
        """Stream the body to the client and buffer what is written."""
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
            # Without it mitmproxy ends the body by closing the client's TLS connection.
            response.headers["transfer-encoding"] = "chunked"

    @_guarded
    def response(self, flow: Any) -> None:
        if flow.metadata.get(_OWN):
            return
        trailers, client = flow.response.trailers, flow.request
        if trailers and not (client.is_http2 or client.is_http3):
            flow.response.trailers = None  # mitmproxy cannot send them in HTTP/1.1
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
            self._write(flow, exchange, trailer_record(exchange.request.url, trailers))

    @_guarded
    def error(self, flow: Any) -> None:
        """Store the reason of a failure, and let the browser see a broken connection."""
        if flow.metadata.get(_OWN):
            return
        self.recording.end(flow.id)
        if stream := self.recording.streams.pop(flow.id, None):
            return self._write_stream(
                stream, ConnectionEnd.CLIENT if client_aborted(flow) else ConnectionEnd.SITE
            )
        if flow.id in self._pending:
            outcome = RequestOutcome.ABORTED if client_aborted(flow) else RequestOutcome.FAILED
            self._finish(flow, outcome, failure_reason(flow))
        if flow.response is None and flow.killable:
            # mitmproxy would answer with its own page and status 502, which the site did not send.
            flow.kill()
        return None

    @_guarded
    def websocket_start(self, flow: Any) -> None:
        self.recording.sockets[flow.id] = Socket(self._options.max_body, flow)

    async def websocket_message(self, flow: Any) -> None:
        """Store a frame; hold it back while the baseline of its page is taken."""
        self._store_frame(flow)
        if socket := self.recording.sockets.get(flow.id):
            await socket.wait_until_open()

    @_guarded
    def _store_frame(self, flow: Any) -> None:
        if socket := self.recording.sockets.get(flow.id):
            socket.take()

    @_guarded
    def websocket_end(self, flow: Any) -> None:
        if socket := self.recording.sockets.pop(flow.id, None):
            self._write_socket(socket)

    def finish(self) -> None:
        """Write open streams and sockets, and list requests that are lost; the recording ends."""
        streams, sockets = list(self.recording.streams.values()), list(self.recording.sockets.values())
        self.recording.streams.clear()
        self.recording.sockets.clear()
        for stream in streams:
            self._write_stream(stream, ConnectionEnd.OPEN)
        for socket in sockets:
            self._write_socket(socket)
        for pending in list(self._pending.values()):
            self._finish(pending.flow, RequestOutcome.OPEN, "not complete when the recording ended")
        if self._secrets is not None:
            sweep(self._writer, self._secrets)

    # --- outcomes ----------------------------------------------------------------------------------

    def _write_stream(self, stream: EventStream, end: ConnectionEnd) -> None:
        pending = self._pending.get(stream.flow.id)
        if pending and not self._is_short_enough(pending):
            return
        upload = pending.upload.content() if pending and pending.upload else b""
        exchange = exchange_of(stream.flow, stream.content(), upload)
        self._write(stream.flow, exchange, chunks_beside(exchange.request.url, stream.chunks(end)))

    def _write_socket(self, socket: Socket) -> None:
        if socket.overflow:
            return self._finish(socket.flow, RequestOutcome.TOO_LONG, self._too_long_reason)
        handshake = handshake_of(socket.flow)
        return self._write(
            socket.flow, handshake, frames_beside(handshake.request.url, socket.frames()), socket.size
        )

    def _is_short_enough(self, pending: _Pending) -> bool:
        """Return True if both bodies were buffered completely; otherwise list the request as too long."""
        if (pending.upload and pending.upload.overflow) or (pending.body and pending.body.overflow):
            self._finish(
                pending.flow,
                RequestOutcome.TOO_LONG,
                self._too_long_reason,
                pending.body.size if pending.body else 0,
            )
            return False
        return True

    @property
    def _too_long_reason(self) -> str:
        return f"longer than {self._options.max_body} bytes"

    def _write(
        self, flow: Any, exchange: Exchange, beside: RecordFrames | None = None, size: int = -1
    ) -> None:
        recording = self.recording
        fingerprint = b"" if beside else response_fingerprint(exchange)
        if exchange.request.method == "GET" and exchange.response.status == HTTPStatus.OK:
            resource = destination(tuple(flow.request.headers.items()))
            recording.note_version(exchange.request.url, resource, exchange.response)
        write_redacted(self._writer, self._secrets, exchange, beside)
        recording.exchanges += 1
        recording.body_bytes += len(exchange.response.raw_body)
        recording.failed.pop(exchange.request.url, None)
        size = size if size >= 0 else len(exchange.response.raw_body)
        self._finish(flow, RequestOutcome.RECORDED, size=size, fingerprint=fingerprint)

    def _finish(
        self, flow: Any, outcome: RequestOutcome, reason: str = "", size: int = 0, fingerprint: bytes = b""
    ) -> None:
        pending = self._pending.pop(flow.id, None)
        if pending:
            self.recording.digests.end(pending.url, fingerprint)
        request, response = flow.request, flow.response
        self.recording.finish(
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
                destination(tuple(request.headers.items())),
                request.headers.get("referer", ""),
            )
        )

    def _is_authorized(self, flow: Any) -> bool:
        """Return True if the client may use the proxy; session ports listen on loopback only."""
        given = flow.request.headers.pop("proxy-authorization", "")
        if flow.client_conn.id in self._authorized_connections or (
            self._control and self._control.is_session(_port(flow))
        ):
            return True
        return is_authorized(self._options.user, given)


def _refusal() -> Any:
    from mitmproxy import http

    return http.Response.make(407, b"", {"Proxy-Authenticate": CHALLENGE, "Content-Length": "0"})


def _port(flow: Any) -> int:
    """Return the port of the listener that accepted a flow."""
    return int(flow.client_conn.sockname[1]) if flow.client_conn.sockname else 0


def _url(flow: Any) -> str:
    return socket_url(flow) if _is_websocket(flow) else request_url(flow)


def _is_websocket(flow: Any) -> bool:
    return bool(flow.request.headers.get("upgrade", "").lower() == "websocket")


def _has_body(flow: Any) -> bool:
    """Return True if a response can have a body (RFC 9112 §6.3)."""
    return flow.request.method != "HEAD" and flow.response.status_code not in BODILESS

"""The recording proxy: mitmproxy in the caller's event loop, writing each exchange to a collection.

Browsers speak HTTP/1.1 to the proxy, as they do to the replay, so that the number of connections and
`nextHopProtocol` are equal in both. The proxy speaks to the site in the protocol that the site prefers.
Responses are streamed, and written when they are complete. An exchange that failed, broke off or is longer
than `max_body` is listed in `RecordingProxy` and never written. WebSockets and event streams are written when
they end or when the recording ends; a killed process loses the open ones. Secrets become placeholders
(`redaction`) unless the options keep them.

mitmproxy is imported when a proxy starts, because only the `record` extra installs it. It keeps state in
module globals: run one recording proxy per process at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillweb.errors import ExtraNotInstalled, PortInUse, RecordError, UsageError
from stillweb.model import BODILESS
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.control import RecorderControl
from stillweb.record.proxy.recorder import Recorder
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.proxy.sessions import RecordingSessions, end_connections
from stillweb.scratch import scratch_folder

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.warc.writer import CollectionWriter

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r\n]")
_PATTERN_LENGTH = 13  # bytes that _INTERIM examines
_HEAD_BYTES = 256 << 10  # start line and fields of one message; as much as Chromium accepts
_HEAD_SECONDS = 30.0  # for start line and fields of a request, and for a TLS handshake; as in replay


class HeadTimeouts:
    """mitmproxy add-on that ends client connections whose request head or TLS handshake takes too long.

    mitmproxy ends only connections without any traffic for ten minutes.
    """

    def __init__(self, proxyserver: Any) -> None:
        self._proxyserver = proxyserver
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def begin(self, client: Any) -> None:
        """Start the time limit of a connection, unless it runs already."""
        if client.id not in self._timers:
            timer = asyncio.get_running_loop().call_later(_HEAD_SECONDS, self._end, client)
            self._timers[client.id] = timer

    def complete(self, client: Any) -> None:
        if timer := self._timers.pop(client.id, None):
            timer.cancel()

    def _end(self, client: Any) -> None:
        for connection in self._proxyserver.connections.values():
            io = connection.transports.get(client)
            if io is not None and io.handler is not None:
                io.handler.cancel("the head of a request or the TLS handshake took too long")

    # Hooks of mitmproxy.

    def http_connect(self, flow: Any) -> None:
        self.complete(flow.client_conn)

    def http_connected(self, flow: Any) -> None:
        self.begin(flow.client_conn)  # a handshake or a request follows

    def tls_established_client(self, established: Any) -> None:
        self.complete(established.context.client)

    def requestheaders(self, flow: Any) -> None:
        self.complete(flow.client_conn)

    def client_disconnected(self, client: Any) -> None:
        self.complete(client)


@contextmanager
def http1_extensions(timeouts: HeadTimeouts) -> Iterator[None]:
    """Make mitmproxy accept interim responses, trailer fields and repeated equal Content-Length fields.

    Start line and fields get limits of size and time: mitmproxy has none.
    """
    from mitmproxy.net.http import http1
    from mitmproxy.proxy.layers.http import _http1

    client, server = _http1.Http1Client, _http1.Http1Server
    read_headers, make_reader = client.read_headers, _http1.make_body_reader
    read_head, read_request = http1.read_response_head, server.read_headers
    http1.read_response_head = lambda lines: _with_single_length(read_head(lines))
    client.read_headers = _with_head_limit(_skip_interim(read_headers), _end_response)
    server.read_headers = _with_head_limit(read_request, _end_request, timeouts.begin)
    client.read_body = _with_trailers(client.read_body)
    _http1.make_body_reader = lambda size: _TrailerReader(make_reader(size))
    try:
        yield
    finally:
        client.read_headers, _http1.make_body_reader = read_headers, make_reader
        server.read_headers = read_request
        http1.read_response_head = read_head
        del client.read_body  # restores the inherited method


def _with_single_length(response: Any) -> Any:
    """Return a response with a single body length in its head, as a browser reads it."""
    fields, lengths = response.headers, response.headers.get_all("content-length")
    if "transfer-encoding" in fields:
        fields.pop("content-length" if response.status_code not in BODILESS else "transfer-encoding", None)
    elif len(lengths) > 1 and len(set(lengths)) == 1:
        fields["content-length"] = lengths[0]
    return response


class _TrailerReader:
    """Wraps a body reader and stores the trailer fields."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.read_eof = reader.read_eof
        self.trailers: list[tuple[bytes, bytes]] = []

    def __call__(self, buffer: Any) -> Any:
        import h11

        event = self._reader(buffer)
        if isinstance(event, h11.EndOfMessage) and event.headers:
            self.trailers = [(bytes(name), bytes(value)) for name, value in _raw_items(event.headers)]
            return h11.EndOfMessage()
        return event


def _raw_items(headers: Any) -> Any:
    """Return fields with their names as sent; h11 lower-cases the names that it shows."""
    return headers.raw_items() if hasattr(headers, "raw_items") else headers


def _skip_interim(read_headers: Any) -> Any:
    from mitmproxy.proxy.events import DataReceived

    def skip_interim(self: Any, event: Any) -> Iterator[Any]:
        if isinstance(event, DataReceived) and self.request:
            while _INTERIM.match(bytes(self.buf)[:_PATTERN_LENGTH]) and self.buf.maybe_extract_lines():
                pass
            if _INTERIM.match(bytes(self.buf)[:_PATTERN_LENGTH]):
                return  # the interim head is incomplete
        yield from read_headers(self, event)

    return skip_interim


def _with_head_limit(
    read_headers: Any, end: Callable[[Any], Iterator[Any]], begin: Callable[[Any], None] | None = None
) -> Any:
    from mitmproxy.proxy.events import DataReceived

    def limited(self: Any, event: Any) -> Iterator[Any]:
        yield from read_headers(self, event)
        is_reading = getattr(self.state, "__func__", None) is limited
        if not isinstance(event, DataReceived) or not is_reading:
            return
        if begin is not None and self.buf:
            begin(self.conn)
        if len(self.buf) > _HEAD_BYTES:
            self.state = self.done
            yield from end(self)

    return limited


def _end_request(connection: Any) -> Iterator[Any]:
    from mitmproxy.proxy import commands
    from mitmproxy.proxy.layers.http._http1 import make_error_response

    yield commands.SendData(connection.conn, make_error_response(431, f"Fields over {_HEAD_BYTES} bytes"))
    yield commands.CloseConnection(connection.conn)


def _end_response(connection: Any) -> Iterator[Any]:
    from mitmproxy.proxy import commands
    from mitmproxy.proxy.layers.http._base import ReceiveHttp
    from mitmproxy.proxy.layers.http._events import ResponseProtocolError

    yield commands.CloseConnection(connection.conn)
    reason = f"the response's fields are larger than {_HEAD_BYTES} bytes"
    yield ReceiveHttp(ResponseProtocolError(connection.stream_id, reason))


def _with_trailers(read_body: Any) -> Any:
    from mitmproxy.http import Headers
    from mitmproxy.proxy.layers.http._base import ReceiveHttp
    from mitmproxy.proxy.layers.http._events import ResponseEndOfMessage, ResponseTrailers

    def with_trailers(self: Any, event: Any) -> Iterator[Any]:
        reader = self.body_reader
        for command in read_body(self, event):
            event = getattr(command, "event", None)
            if isinstance(event, ResponseEndOfMessage) and reader.trailers:
                yield ReceiveHttp(ResponseTrailers(event.stream_id, Headers(reader.trailers)))
            yield command

    return with_trailers


@asynccontextmanager
async def recording_proxy(
    writer: CollectionWriter, ca: CertAuthority, options: RecordOptions
) -> AsyncIterator[RecordingProxy]:
    """Run a proxy in this event loop that writes each exchange to `writer`.

    Raises:
        ExtraNotInstalled: if mitmproxy is not installed.
        PortInUse: if the port is taken.
        UsageError: if the upstream CA cannot be read.
    """
    _require_mitmproxy()
    recording = RecordingProxy()
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        trusted = _trusted_bundle(scratch, options.upstream_ca)
        proxyserver = _proxyserver()
        timeouts = HeadTimeouts(proxyserver)
        stack.enter_context(http1_extensions(timeouts))
        control = RecorderControl(recording, RecordingSessions(recording, proxyserver), writer.collection, ca)
        recorder = Recorder(writer, options, recording, control)
        master = _master(ca, options, trusted, (recorder, timeouts, proxyserver))
        try:
            await _start(master, proxyserver, options)
            port = proxyserver.listen_addrs()[0][1]
            recording.url = f"http://{_authority(options.host, port)}"
            yield recording
        finally:
            try:
                recorder.finish()
            finally:
                await _stop(master, proxyserver)


def _require_mitmproxy() -> None:
    try:
        import mitmproxy.http  # noqa: F401
    except ImportError as error:
        raise ExtraNotInstalled(
            f"recording needs mitmproxy, which is not installed ({error})",
            hint="pip install 'stillweb[record]'",
        ) from error


def _proxyserver() -> Any:
    from mitmproxy.addons.proxyserver import Proxyserver

    return Proxyserver()


def _authority(host: str, port: int) -> str:
    """Return host and port by which this machine reaches the listener."""
    reached = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"


def _master(ca: CertAuthority, options: RecordOptions, trusted: Path, ours: tuple[Any, ...]) -> Any:
    from mitmproxy import master
    from mitmproxy import options as mitm_options
    from mitmproxy.addons import next_layer, tlsconfig

    settings = mitm_options.Options(
        listen_host=options.host,
        listen_port=options.port,
        confdir=str(ca.folder / "mitmproxy"),
        upstream_cert=False,  # the client's certificate follows from the host name alone
        ssl_verify_upstream_trusted_ca=str(trusted),
        http2=True,
        rawtcp=False,
    )
    made = master.Master(settings)
    # Only what an explicit proxy needs; mitmproxy's default set of 30 add-ons costs time at each hook.
    made.addons.add(*ours, next_layer.NextLayer(), tlsconfig.TlsConfig())
    # mitmproxy answers heads that it considers invalid with its own page; browsers accept them.
    settings.update(connection_strategy="lazy", validate_inbound_headers=False)
    return made


async def _start(master: Any, proxyserver: Any, options: RecordOptions) -> None:
    # Not Master.run(): it replaces the loop's exception handler and task factory, and never returns.
    if not await proxyserver.setup_servers():
        error = next((s.last_exception for s in proxyserver.servers if s.last_exception), None)
        address = f"{options.host}:{options.port}"
        if isinstance(error, OSError):
            why = os.strerror(error.errno).lower() if error.errno else str(error)  # mitmproxy repeats it
            raise PortInUse(f"cannot listen on {address}: {why}", hint="choose another --port") from error
        raise RecordError(f"the recording proxy did not start on {address}: {error}") from error
    await master.running()


async def _stop(master: Any, proxyserver: Any) -> None:
    await proxyserver.servers.update([])
    await end_connections(proxyserver)
    await master.done()


def _trusted_bundle(scratch: Path, upstream_ca: Path | None) -> Path:
    """Write the system's CAs and the given one into one file, the only form that mitmproxy accepts."""
    import certifi

    system = ssl.get_default_verify_paths()
    sources = [Path(certifi.where())]
    sources += [Path(name) for name in (system.cafile, system.openssl_cafile) if name]
    parts = {path.read_text("ascii", "ignore") for path in sources if path.is_file()}
    if upstream_ca is not None:
        parts.add(_upstream_ca_text(upstream_ca))
    bundle = scratch / "trusted.pem"
    bundle.write_text("\n".join(sorted(parts)), "ascii")
    return bundle


def _upstream_ca_text(path: Path) -> str:
    try:
        text = path.read_text("ascii", "ignore")
        ssl.create_default_context(cadata=text)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"cannot read the upstream CA {path}: {error}", hint="--upstream-ca takes a PEM file"
        ) from error
    return text

"""The parts of a mitmproxy flow that are archived: bodies, timed event-stream chunks, WebSocket frames.

mitmproxy calls a body with each piece, and with b"" at the end. Every buffer has a limit: a longer body
passes through and its bytes are dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from stillweb import clock
from stillweb.collections.warc.frames import (
    BINARY,
    CLOSE,
    FIELDS_TYPE,
    TEXT,
    Chunk,
    Chunks,
    ConnectionEnd,
    Frame,
    Frames,
    MutationMark,
    RecordFrames,
)
from stillweb.model import Exchange, Headers, Request, Response
from stillweb.urls import to_timestamp, wire_url

RawHeaders = Iterable[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),
        *("proxy-authenticate", "proxy-authorization", "proxy-connection"),
    )
)
_VALIDATORS = frozenset(("if-none-match", "if-modified-since", "if-range", "if-match", "if-unmodified-since"))
_DICTIONARY = frozenset(("available-dictionary", "dictionary-id"))
_CLIENT_DISCONNECTED = "Client disconnected."  # mitmproxy/proxy/layers/http/_http1.py, `wait`
_CLIENT_RESET = "stream reset by client"  # _http2.py, `handle_h2_event`, of either end
_PEER_CLOSED = "peer closed connection"  # _http2.py, of either end
_KILLED = "Connection killed: "  # proxy/server.py, `open_connection`, with the error that a hook set
# mitmproxy formats this tuple of OpenSSL's as it is.
_OPENSSL = re.compile(r"OpenSSL Error\(\[\('[^']*', '[^']*', '([^']+)'\)\]\)")
_REWORDED = {
    "server closed connection": "the site closed the connection without a response",
    _PEER_CLOSED: "the site closed the connection before the end of the response",
}
_DECODABLE = frozenset(("gzip", "x-gzip", "deflate", "br", "zstd", "identity", "*"))


def upstream_fields(
    method: str, fields: RawHeaders, *, http2: bool = False
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the request fields to send to the site, without hop-by-hop fields, validators and dictionaries.

    Transfer-Encoding stays, because mitmproxy chunks the body by it. `TE: trailers` of an HTTP/2 client stays
    too: gRPC requires it.
    """
    fields = list(fields)
    dropped = (HOP_BY_HOP - {"transfer-encoding"}) | _DICTIONARY | _connection_options(fields)
    if http2 and (b"te", b"trailers") in fields:
        dropped -= {"te"}
    if method in ("GET", "HEAD"):
        dropped |= _VALIDATORS
    selected = []
    for name, value in fields:
        lower = name.lower().decode("latin-1")
        if lower in dropped or (lower == "range" and value.strip() == b"bytes=0-"):
            continue
        if lower == "accept-encoding":
            value = _decodable(value)
        selected.append((name, value))
    return tuple(selected)


def has_request_body(request: Any) -> bool:
    """Return True if a request has a body or may have one (HTTP/2 does not announce it)."""
    headers = request.headers
    if "content-length" in headers:
        return bool(headers["content-length"].strip() != "0")
    if "transfer-encoding" in headers:
        return True
    return bool(request.is_http2 and request.method in ("POST", "PUT", "PATCH"))


def client_aborted(flow: Any) -> bool:
    """Return True if a flow failed because its client did not wait for the response."""
    reason = str(flow.error.msg)
    if flow.request.is_http2:
        return reason.startswith(_CLIENT_RESET) or reason == _PEER_CLOSED
    return reason == _CLIENT_DISCONNECTED


def failure_reason(flow: Any) -> str:
    """Return why a flow failed, naming the side at fault; mitmproxy words it from one end's view."""
    reason = str(flow.error.msg)
    if client_aborted(flow):
        return "the client did not wait for the response"
    if reason.startswith(_CLIENT_RESET):
        return "the site reset the stream" + reason.removeprefix(_CLIENT_RESET)
    reason = reason.removeprefix(_KILLED)
    if found := _OPENSSL.search(reason):
        return f"TLS: {found[1]}"
    return _REWORDED.get(reason, reason)


def trailer_record(url: str, trailers: Any) -> RecordFrames | None:
    """Return the record of a response's trailer fields, None if it has none.

    The record is a `metadata` record of WARC fields after the response, one `trailer: NAME: VALUE` line each.
    Trailers must not be merged into the head (RFC 9110 §6.5.1).
    """
    if not trailers:
        return None
    lines = (b"trailer: " + name + b": " + value + b"\r\n" for name, value in trailers.fields)
    return RecordFrames("metadata", url, FIELDS_TYPE, b"".join(lines))


def exchange_of(flow: Any, body: bytes, upload: bytes = b"") -> Exchange:
    """Return the exchange of a completed `mitmproxy.http.HTTPFlow`.

    Args:
        flow: mitmproxy's flow.
        body: response body as received.
        upload: request body, if it was streamed.
    """
    return _exchange(flow, request_url(flow), body, end_to_end, upload)


def handshake_of(flow: Any, body: bytes = b"") -> Exchange:
    """Return the exchange of a WebSocket handshake; `body` is that of a refusal. Hop-by-hop fields stay."""
    return _exchange(flow, socket_url(flow), body, _without_proxy_fields)


def request_url(flow: Any) -> str:
    """Return the URL of a request in wire spelling; mitmproxy omits the brackets of an IPv6 address."""
    request = flow.request
    url, host = str(request.url), str(request.host)
    if ":" in host:
        url = url.replace(f"//{host}", f"//[{host}]", 1)
    return wire_url(url)


def socket_url(flow: Any) -> str:
    return "ws" + request_url(flow).removeprefix("http")


def _exchange(
    flow: Any, url: str, body: bytes, select: Callable[[RawHeaders], Headers], upload: bytes = b""
) -> Exchange:
    request, response = flow.request, flow.response
    h2 = response.http_version.startswith("HTTP/2")
    peer = flow.server_conn.peername
    return Exchange(
        Request(
            method=request.method,
            url=url,
            headers=select(request.headers.fields),
            raw_body=request.raw_content or upload,
        ),
        Response(
            status=response.status_code,
            reason=_reason(response.status_code) if h2 else response.reason,
            headers=select(response.headers.fields),
            raw_body=body,
        ),
        timestamp=to_timestamp(datetime.fromtimestamp(request.timestamp_start, UTC)),
        remote_ip=peer[0] if peer else "",
        protocol="h2" if h2 else "http/1.1",
    )


def end_to_end(fields: RawHeaders) -> Headers:
    """Return header fields as text, without those of a single connection."""
    fields = list(fields)
    dropped = HOP_BY_HOP | _connection_options(fields)
    decoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
    return tuple((name, value) for name, value in decoded if name.lower() not in dropped)


def _without_proxy_fields(fields: RawHeaders) -> Headers:
    """Return header fields as text, without those between client and proxy."""
    decoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
    return tuple((name, value) for name, value in decoded if not name.lower().startswith("proxy-"))


def _connection_options(fields: RawHeaders) -> set[str]:
    """Return the fields that a `Connection` field declares hop-by-hop (RFC 9110 §7.6.1)."""
    values = (value.decode("latin-1") for name, value in fields if name.lower() == b"connection")
    options = {option.strip().lower() for value in values for option in value.split(",")}
    return options - {"close", "keep-alive", ""}


def _decodable(value: bytes) -> bytes:
    codings = [coding.strip() for coding in value.decode("latin-1").split(",")]
    accepted = [coding for coding in codings if coding.partition(";")[0].strip().lower() in _DECODABLE]
    return ", ".join(accepted or ["identity"]).encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


_NO_STATUS, _ABNORMAL = 1005, 1006  # RFC 6455 §7.4.1: never sent on the wire


class Body:
    """Collects a body up to a limit.

    Attributes:
        size: bytes received.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.size = 0
        self.overflow = False

    def __call__(self, piece: bytes) -> bytes | tuple[()]:
        """Store a piece and pass it on."""
        if not piece:
            # An empty DATA frame of HTTP/2. Passed on, it would become a chunk of size 0, which ends the
            # body (RFC 9112 §7.1): the client would read the rest as the next response.
            return ()
        self.size += len(piece)
        if self.size > self._limit:
            self.overflow = True
            self._pieces.clear()
        else:
            self._pieces.append(piece)
        return piece

    def content(self) -> bytes:
        return b"".join(self._pieces)


class EventStream(Body):
    """Collects the body of an event stream and the time of each piece; made when the head has arrived.

    Attributes:
        flow: mitmproxy's flow.
        rest_ms: milliseconds until its page settled; None before that.
    """

    def __init__(self, limit: int, flow: Any) -> None:
        super().__init__(limit)
        self.flow = flow
        self._began = clock.monotonic()
        self._chunks: list[Chunk] = []
        self._marks: list[MutationMark] = []
        self.rest_ms: int | None = None

    def __call__(self, piece: bytes) -> bytes | tuple[()]:
        if piece and not self.overflow:
            self._chunks.append(Chunk(self._now(), len(piece)))
        return super().__call__(piece)

    def _now(self) -> int:
        return round((clock.monotonic() - self._began) * 1000)

    def mark_mutation(self, at: str, number: int) -> None:
        """Note a mutation that is passed on to a site."""
        self._marks.append(MutationMark(self._now(), at, number))

    def chunks(self, end: ConnectionEnd) -> Chunks:
        """Return the timing of a stream that has ended."""
        return Chunks(tuple(self._chunks), end, self._now(), self.rest_ms, tuple(self._marks))

    def mark_settled(self) -> None:
        self.rest_ms = self._now()


class Socket:
    """Collects the frames of a WebSocket; made when the handshake is complete.

    Attributes:
        flow: mitmproxy's flow.
        size: bytes of all payloads.
        overflow: whether the payloads exceeded the limit.
        rest_ms: milliseconds until its page settled; None before that.
    """

    def __init__(self, limit: int, flow: Any) -> None:
        self.rest_ms: int | None = None
        self.flow = flow
        self.overflow = False
        self._open = asyncio.Event()
        self._open.set()
        self._limit = limit
        self.size = 0
        self._began = clock.monotonic()
        self._frames: list[Frame] = []
        self._marks: list[MutationMark] = []

    def mark_mutation(self, at: str, number: int) -> None:
        """Note a mutation that is passed on to a site."""
        self._marks.append(MutationMark(self._now(), at, number))

    def take(self) -> None:
        """Take the newest message from mitmproxy, which would hold it until the connection ends."""
        message = self.flow.websocket.messages.pop()
        self.size += len(message.content)
        self.overflow = self.overflow or self.size > self._limit
        if self.overflow:
            self._frames.clear()
        else:
            opcode = TEXT if message.is_text else BINARY
            self._frames.append(Frame(self._now(), message.from_client, opcode, message.content))

    def _now(self) -> int:
        return round((clock.monotonic() - self._began) * 1000)

    def frames(self) -> Frames:
        """Return the frames, and how the connection ended (`OPEN` if it has not)."""
        websocket, now, marks = self.flow.websocket, self._now(), tuple(self._marks)
        if websocket.timestamp_end is None:
            return Frames(tuple(self._frames), ConnectionEnd.OPEN, now, self.rest_ms, marks)
        by_page = bool(websocket.closed_by_client)
        frames = list(self._frames)
        code = websocket.close_code
        if code is not None and code != _ABNORMAL:
            reason = (websocket.close_reason or "").encode("utf-8")
            payload = b"" if code == _NO_STATUS else int(code).to_bytes(2, "big") + reason
            frames.append(Frame(now, by_page, CLOSE, payload))
        return Frames(
            tuple(frames), ConnectionEnd.CLIENT if by_page else ConnectionEnd.SITE, now, self.rest_ms, marks
        )

    def mark_settled(self) -> None:
        """Note that the page has settled, and hold frames back until `resume`."""
        self.rest_ms = self._now()
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def wait_until_open(self) -> None:
        await self._open.wait()

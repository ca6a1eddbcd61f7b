"""From a mitmproxy flow to an `Exchange`, and what is changed in a request on its way up; pure.

The response is kept as received: header order and case, content encoding, status. Hop-by-hop
fields and transfer encoding are not (RFC 9110 §7.6.1), and HTTP/2 is written as HTTP/1.1, as
every archive does. Requests lose what would make the site answer with less than a full 200:
validators on GET and HEAD, the range `bytes=0-` with which media elements start, and offers of
encodings that depend on earlier answers (`dcb`, `dcz`; RFC 9842).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from stillweb.collections.frames import FIELDS_TYPE, Beside
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
_CLIENT_WENT_AWAY = "Client disconnected."  # mitmproxy/proxy/layers/http/_http1.py, `wait`
_CLIENT_RESET = "stream reset by client"  # _http2.py, `handle_h2_event`, of either end
_PEER_CLOSED = "peer closed connection"  # _http2.py, of either end
_OPENSSL = re.compile(
    r"OpenSSL Error\(\[\('[^']*', '[^']*', '([^']+)'\)\]\)"
)  # a tuple that nobody formatted
_PLAINER = {
    "server closed connection": "the site closed the connection without an answer",
    _PEER_CLOSED: "the site closed the connection before the end of the answer",
}
_DECODABLE = frozenset(("gzip", "x-gzip", "deflate", "br", "zstd", "identity", "*"))


def upstream_fields(
    method: str, fields: RawHeaders, *, http2: bool = False
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the request fields to send to the site; see the module for what is left out.

    Transfer-Encoding stays: it is how mitmproxy knows to send a body in chunks. A client of HTTP/2 is one
    that reads trailers if it says so, as gRPC must (`TE: trailers`).
    """
    fields = list(fields)
    dropped = (HOP_BY_HOP - {"transfer-encoding"}) | _DICTIONARY | _connection_options(fields)
    if http2 and (b"te", b"trailers") in fields:
        dropped -= {"te"}
    if method in ("GET", "HEAD"):
        dropped |= _VALIDATORS
    kept = []
    for name, value in fields:
        lower = name.lower().decode("latin-1")
        if lower in dropped or (lower == "range" and value.strip() == b"bytes=0-"):
            continue
        if lower == "accept-encoding":
            value = _decodable(value)
        kept.append((name, value))
    return tuple(kept)


def asks_with_a_body(request: Any) -> bool:
    """Tell whether a request has a body, or may have one (HTTP/2 does not say it beforehand)."""
    headers = request.headers
    if "content-length" in headers:
        return bool(headers["content-length"].strip() != "0")
    if "transfer-encoding" in headers:
        return True
    return bool(request.is_http2 and request.method in ("POST", "PUT", "PATCH"))


def client_left(flow: Any) -> bool:
    """Tell whether a flow failed because its client did not wait for the answer."""
    reason = str(flow.error.msg)
    if flow.request.is_http2:
        return reason.startswith(_CLIENT_RESET) or reason == _PEER_CLOSED
    return reason == _CLIENT_WENT_AWAY


def why_it_failed(flow: Any) -> str:
    """Return why a flow failed, in words that say whose doing it was; mitmproxy's are from one end's view."""
    reason = str(flow.error.msg)
    if client_left(flow):
        return "the client did not wait for the answer"
    if reason.startswith(_CLIENT_RESET):
        return "the site reset the stream" + reason.removeprefix(_CLIENT_RESET)
    if found := _OPENSSL.search(reason):
        return f"TLS: {found[1]}"
    return _PLAINER.get(reason, reason)


def trailers_beside(url: str, trailers: Any) -> Beside | None:
    """Return the record of a response's trailer fields, if it has any.

    A `metadata` record behind the response, as WARC fields: one line `trailer: NAME: VALUE` each. Merged into
    the head they would be what the site did not say there (RFC 9110 §6.5.1).
    """
    if not trailers:
        return None
    lines = (b"trailer: " + name + b": " + value + b"\r\n" for name, value in trailers.fields)
    return Beside("metadata", url, FIELDS_TYPE, b"".join(lines))


def exchange_of(flow: Any, body: bytes, upload: bytes = b"") -> Exchange:
    """Make the exchange of a completed `mitmproxy.http.HTTPFlow` whose response body is `body`.

    Args:
        flow: mitmproxy's.
        body: of the response, as received.
        upload: body of the request, where it passed as it came.
    """
    return _exchange(flow, wire_url(flow.request.url), body, end_to_end, upload)


def handshake_of(flow: Any, body: bytes = b"") -> Exchange:
    """Make the exchange of a WebSocket's handshake; `body` is that of a refusal.

    Its hop-by-hop fields are what it is about, so they are kept.
    """
    return _exchange(flow, socket_url(flow), body, _but_the_proxy)


def socket_url(flow: Any) -> str:
    """Return the `ws:` or `wss:` URL of a handshake."""
    return "ws" + wire_url(flow.request.url).removeprefix("http")


def _exchange(
    flow: Any, url: str, body: bytes, kept: Callable[[RawHeaders], Headers], upload: bytes = b""
) -> Exchange:
    request, response = flow.request, flow.response
    h2 = response.http_version.startswith("HTTP/2")
    peer = flow.server_conn.peername
    return Exchange(
        Request(
            method=request.method,
            url=url,
            headers=kept(request.headers.fields),
            raw_body=request.raw_content or upload,
        ),
        Response(
            status=response.status_code,
            reason=_reason(response.status_code) if h2 else response.reason,
            headers=kept(response.headers.fields),
            raw_body=body,
        ),
        timestamp=to_timestamp(datetime.fromtimestamp(request.timestamp_start, UTC)),
        remote_ip=peer[0] if peer else "",
        protocol="h2" if h2 else "http/1.1",
    )


def end_to_end(fields: RawHeaders) -> Headers:
    """Return header fields as text without those that are about one connection only."""
    fields = list(fields)
    dropped = HOP_BY_HOP | _connection_options(fields)
    decoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
    return tuple((name, value) for name, value in decoded if name.lower() not in dropped)


def _but_the_proxy(fields: RawHeaders) -> Headers:
    """Return header fields as text without those that are between client and proxy."""
    decoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
    return tuple((name, value) for name, value in decoded if not name.lower().startswith("proxy-"))


def _connection_options(fields: RawHeaders) -> set[str]:
    """Return the fields that a `Connection` field declares hop-by-hop (RFC 9110 §7.6.1)."""
    values = (value.decode("latin-1") for name, value in fields if name.lower() == b"connection")
    options = {option.strip().lower() for value in values for option in value.split(",")}
    return options - {"close", "keep-alive", ""}


def _decodable(value: bytes) -> bytes:
    codings = [coding.strip() for coding in value.decode("latin-1").split(",")]
    kept = [coding for coding in codings if coding.partition(";")[0].strip().lower() in _DECODABLE]
    return ", ".join(kept or ["identity"]).encode("latin-1")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""

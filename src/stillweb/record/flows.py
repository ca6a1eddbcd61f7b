"""From a mitmproxy flow to an `Exchange`, and what is changed in a request on its way up; pure.

The response is kept as received: header order and case, content encoding, status. Hop-by-hop
fields and transfer encoding are not (RFC 9110 §7.6.1), and HTTP/2 is written as HTTP/1.1, as
every archive does. Requests lose what would make the site answer with less than a full 200:
validators on GET and HEAD, the range `bytes=0-` with which media elements start, and offers of
encodings that depend on earlier answers (`dcb`, `dcz`; RFC 9842).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

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
_DECODABLE = frozenset(("gzip", "x-gzip", "deflate", "br", "zstd", "identity", "*"))


def upstream_fields(method: str, fields: RawHeaders) -> tuple[tuple[bytes, bytes], ...]:
    """Return the request fields to send to the site; see the module for what is left out."""
    fields = list(fields)
    dropped = HOP_BY_HOP | _DICTIONARY | _connection_options(fields)
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


def exchange_of(flow: Any, body: bytes) -> Exchange:
    """Make the exchange of a completed `mitmproxy.http.HTTPFlow` whose response body is `body`."""
    return _exchange(flow, wire_url(flow.request.url), body, end_to_end)


def handshake_of(flow: Any, body: bytes = b"") -> Exchange:
    """Make the exchange of a WebSocket's handshake; `body` is that of a refusal.

    Its hop-by-hop fields are what it is about, so they are kept.
    """
    return _exchange(flow, socket_url(flow), body, _but_the_proxy)


def socket_url(flow: Any) -> str:
    """Return the `ws:` or `wss:` URL of a handshake."""
    return "ws" + wire_url(flow.request.url).removeprefix("http")


def _exchange(flow: Any, url: str, body: bytes, kept: Callable[[RawHeaders], Headers]) -> Exchange:
    request, response = flow.request, flow.response
    h2 = response.http_version.startswith("HTTP/2")
    peer = flow.server_conn.peername
    return Exchange(
        Request(
            method=request.method,
            url=url,
            headers=kept(request.headers.fields),
            raw_body=request.raw_content or b"",
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

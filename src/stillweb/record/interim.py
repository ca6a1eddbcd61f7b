"""What mitmproxy's HTTP/1.1 cannot read, taught to it while a recording proxy runs.

- *Interim responses* (RFC 9110 §15.2) before the final one, such as 103 (Early Hints): mitmproxy takes the
  first for the answer, and closes the connection at the second. They are passed over, as it does in HTTP/2.
- *Trailer fields* behind a chunked body (RFC 9112 §7.1.2): mitmproxy's connection dies of them. Those of a
  response become its trailers, as in HTTP/2; those of a request are dropped.
- *Heads that say the length of their body twice*, which browsers take (RFC 9112 §6.3): of a chunked body the
  chunks count, a `Content-Length` said again is one, and what has no body is not chunked. Others would be
  told the wrong length after us.

There is no hook for any of them, so that methods and functions of `mitmproxy.proxy.layers.http._http1` are
replaced, and put back. mitmproxy keeps its state in module globals anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interim_and_trailers"]

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r\n]")
_NO_BODY = (204, 304)
_LONGEST = 13  # bytes that the pattern looks at


@contextmanager
def interim_and_trailers() -> Iterator[None]:
    """Let mitmproxy read interim responses, trailer fields and lengths that are said twice."""
    from mitmproxy.net.http import http1
    from mitmproxy.proxy.layers.http import _http1

    client = _http1.Http1Client
    read_headers, make_reader = client.read_headers, _http1.make_body_reader
    read_head = http1.read_response_head
    http1.read_response_head = lambda lines: _of_one_length(read_head(lines))
    client.read_headers = _past_interim(read_headers)
    client.read_body = _with_trailers(client.read_body)
    _http1.make_body_reader = lambda size: _Reader(make_reader(size))
    try:
        yield
    finally:
        client.read_headers, _http1.make_body_reader = read_headers, make_reader
        http1.read_response_head = read_head
        del client.read_body  # it is its parent's


def _of_one_length(response: Any) -> Any:
    """Return a response whose head says one length of its body, as a browser reads it."""
    fields, lengths = response.headers, response.headers.get_all("content-length")
    if "transfer-encoding" in fields:
        fields.pop("content-length" if response.status_code not in _NO_BODY else "transfer-encoding", None)
    elif len(lengths) > 1 and len(set(lengths)) == 1:
        fields["content-length"] = lengths[0]
    return response


class _Reader:
    """A body's reader, which keeps the trailer fields to itself."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.read_eof = reader.read_eof
        self.trailers: list[tuple[bytes, bytes]] = []

    def __call__(self, buffer: Any) -> Any:
        import h11

        event = self._reader(buffer)
        if isinstance(event, h11.EndOfMessage) and event.headers:
            self.trailers = [(bytes(name), bytes(value)) for name, value in _as_they_came(event.headers)]
            return h11.EndOfMessage()
        return event


def _as_they_came(headers: Any) -> Any:
    """Return fields with their names as on the wire; those that h11 shows are in lower case."""
    return headers.raw_items() if hasattr(headers, "raw_items") else headers


def _past_interim(read_headers: Any) -> Any:
    from mitmproxy.proxy.events import DataReceived

    def past_interim(self: Any, event: Any) -> Iterator[Any]:
        if isinstance(event, DataReceived) and self.request:
            while _INTERIM.match(bytes(self.buf)[:_LONGEST]) and self.buf.maybe_extract_lines():
                pass
            if _INTERIM.match(bytes(self.buf)[:_LONGEST]):
                return  # the rest of it is still to come
        yield from read_headers(self, event)

    return past_interim


def _with_trailers(read_body: Any) -> Any:
    from mitmproxy.http import Headers
    from mitmproxy.proxy.layers.http._base import ReceiveHttp
    from mitmproxy.proxy.layers.http._events import ResponseEndOfMessage, ResponseTrailers

    def with_trailers(self: Any, event: Any) -> Iterator[Any]:
        reader = self.body_reader
        for command in read_body(self, event):
            told = getattr(command, "event", None)
            if isinstance(told, ResponseEndOfMessage) and reader.trailers:
                yield ReceiveHttp(ResponseTrailers(told.stream_id, Headers(reader.trailers)))
            yield command

    return with_trailers

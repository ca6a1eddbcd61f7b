"""Bytes of a response, from a match. Pure.

A hit goes out as recorded: its head from the pack, its body byte for byte, its cookies without an end. Only
the request can require another change: a coding that the client does not accept is removed, a range is cut
out, a HEAD gets no body.
Conditions (`If-None-Match`, `If-Modified-Since`) are ignored: the complete response is always right, and
equal in each run.

CORS fields of a hit stay as recorded, even if they name another origin: the site would have refused, too
(docs/decisions/0005-cors-as-recorded.md). Responses that stillweb makes reflect the origin, so that a page
sees the status of a miss and not a CORS error.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Protocol

from stillweb.errors import LimitExceeded
from stillweb.http.codec import CONTENT_ENCODING, accepts, decode
from stillweb.http.cookies import without_ends
from stillweb.http.wire import simple_head, status_line
from stillweb.matching.captures import Entry
from stillweb.matching.ranges import ByteRange, recorded_span, requested_span
from stillweb.model import Headers, Request, header
from stillweb.replay.server.pageclock import MessageCounts

logger = logging.getLogger(__name__)

_NO_BODY = frozenset({204, 304})
_CONTENT_RANGE = re.compile(rb"(?<=\r\n)content-range:[^\r\n]*\r\n", re.IGNORECASE)
_NO_RANGES = re.compile(rb"\r\naccept-ranges:[ \t]*none[ \t]*\r\n", re.IGNORECASE)
_VALIDATORS = re.compile(rb"\r\n(?:etag|last-modified):[ \t]*([^\r\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """A response whose head lacks the blank line.

    Attributes:
        head: status line and fields, Content-Length included.
        body: a view of the pack if it is as recorded.
    """

    status: int
    head: bytes
    body: bytes | memoryview = b""


def recorded(request: Request, entry: Entry) -> PreparedResponse:
    """Return a recorded response, adapted to the request."""
    head = bytes(entry.head)
    if b"cookie:" in head.lower():
        head = without_ends(head, entry.timestamp)
    body: bytes | memoryview = entry.body
    status = entry.status
    if entry.encoding and not accepts(header(request.headers, "accept-encoding"), entry.encoding):
        plain = _decoded(entry)
        if plain is not None and status == 206:  # its range counts the coded bytes
            held = recorded_span(head)
            if held is not None and held.whole:
                status, head = 200, _with_status(_CONTENT_RANGE.sub(b"", head), 200)
            else:
                plain = None
        if plain is not None:
            body, head = plain, CONTENT_ENCODING.sub(b"", head)
    if entry.method == "GET" and (status == 206 or (status == 200 and header(request.headers, "range"))):
        status, head, body = _cut(request, status, head, body)
    if status in _NO_BODY:
        return PreparedResponse(status, head)
    if status == 205:  # has no body, but is framed as if (RFC 9112 §6.3): clients wait for one
        return PreparedResponse(status, head + b"Content-Length: 0\r\n")
    if entry.method == "HEAD":  # the length of the GET's body is unknown
        return PreparedResponse(status, head)
    head += b"Content-Length: %d\r\n" % len(body)
    return PreparedResponse(status, head, b"" if request.method == "HEAD" else body)


def _decoded(entry: Entry) -> bytes | None:
    try:
        return decode(entry.body, entry.encoding)
    except LimitExceeded as error:
        logger.warning("%s is sent under its coding, which the client does not accept: %s", entry.url, error)
        return None


def _cut(
    request: Request, status: int, head: bytes, body: bytes | memoryview
) -> tuple[int, bytes, bytes | memoryview]:
    """Return status, head and body of the requested range, or of the whole body.

    A recorded part arrives here only if it contains the requested range (`resolver`).
    """
    held = recorded_span(head) if status == 206 else ByteRange(0, len(body), len(body))
    if held is None or (status == 200 and _NO_RANGES.search(head)):  # of another unit; or never in part
        return status, head, body
    if held.stop - held.start != len(body):  # its coding was removed, so the recorded range is meaningless
        return status, head, body
    requested = requested_span(header(request.headers, "range"), held.total)
    if requested is not None and not _range_applies(request, head):
        requested = None
    plain = _CONTENT_RANGE.sub(b"", head)
    if requested is None:
        return 200, _with_status(plain, 200) if status != 200 else head, body
    if requested.empty:
        return 416, _with_status(plain, 416) + b"Content-Range: bytes */%d\r\n" % requested.total, b""
    numbers = (requested.start, requested.stop - 1, requested.total)
    head = _with_status(plain, 206) + b"Content-Range: bytes %d-%d/%d\r\n" % numbers
    return 206, head, memoryview(body)[requested.start - held.start : requested.stop - held.start]


def _range_applies(request: Request, head: bytes) -> bool:
    """Return whether `If-Range`, if present, names the recorded version (RFC 9110 §13.1.5)."""
    condition = header(request.headers, "if-range").strip().encode("latin-1", "replace")
    return not condition or condition in (found.strip() for found in _VALIDATORS.findall(head))


def _with_status(head: bytes, status: int) -> bytes:
    return status_line(status) + head.partition(b"\r\n")[2]


def preflight(request: Request) -> PreparedResponse:
    """Return a 204 that allows the request of a CORS preflight."""
    fields = [
        *_cors(request),
        ("Access-Control-Allow-Methods", header(request.headers, "access-control-request-method")),
    ]
    if wanted := header(request.headers, "access-control-request-headers"):
        fields.append(("Access-Control-Allow-Headers", wanted))
    if header(request.headers, "access-control-request-private-network") == "true":
        fields.append(("Access-Control-Allow-Private-Network", "true"))
    fields.append(("Access-Control-Max-Age", "0"))
    return PreparedResponse(204, simple_head(204, tuple(fields)))


def empty(request: Request, status: int) -> PreparedResponse:
    """Return a response without a body whose status a page of any origin can read."""
    head = simple_head(status, _cors(request))
    return PreparedResponse(status, head if status in _NO_BODY else head + b"Content-Length: 0\r\n")


def _cors(request: Request) -> Headers:
    origin = header(request.headers, "origin")
    if not origin:
        return ()
    return (("Access-Control-Allow-Origin", origin), ("Access-Control-Allow-Credentials", "true"))


class Script(Protocol):
    """Player of a connection after its last request; times are seconds of one clock.

    Attributes:
        closed: whether the connection must close after the returned bytes.
        next_ms: time of the page's clock at which more is released; None if nothing waits for it.
        next_due: time of the next bytes; None if they depend on the client or the session, or none are left.
    """

    closed: bool
    traffic: MessageCounts

    @property
    def next_ms(self) -> int | None: ...

    @property
    def next_due(self) -> float | None: ...

    def due(self, now: float) -> bytes:
        """Return the bytes that are due."""

    def receive(self, text: bytes, now: float) -> bytes:
        """Take bytes of the client; return the bytes that are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedResponse(PreparedResponse):
    """A response whose head is followed by a script; it serves one connection."""

    script: Script

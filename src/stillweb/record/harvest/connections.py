"""HTTP/1.1 connections of the harvest: kept alive, parsed by llhttp, responses as they were received.

A general HTTP client takes several milliseconds of a processor for each request, more than a page's redaction
or its records take. This one writes the bytes of a request and returns the fields and body of the response.
It reads what browsers read: bare line feeds, a length beside chunks, bytes after the last response.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httptools

from stillweb.model import BODILESS
from stillweb.record.proxy.upstream import UpstreamResolver

_TIMEOUT = 30.0  # seconds without a byte, and for connecting
_IDLE = 5.0  # seconds after which an idle connection is not used again: many servers close it soon after
_HEAD = 256 * 1024  # bytes of a response head

RawFields = Sequence[tuple[bytes, bytes]]


class BrokenResponse(Exception):
    """A connection ended before its response was complete, or the response is not HTTP/1.1.

    Attributes:
        is_stale: whether a connection that was used before ended without a byte. The site has closed an
            idle connection then, and may not have seen the request.
    """

    def __init__(self, what: str, *, is_stale: bool = False) -> None:
        super().__init__(what)
        self.is_stale = is_stale


class TooLarge(Exception):
    """A response body is longer than the limit."""


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """A response without its transfer coding; `address` is that of the server."""

    status: int
    reason: str
    fields: RawFields
    body: bytes
    address: str


@dataclass(slots=True)
class _Incoming:
    """The response that a connection is receiving."""

    done: asyncio.Future[None]
    max_body: int
    timeout: asyncio.Timeout
    reason: bytes = b""
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    in_head: bool = True
    head_size: int = 0
    ends_at_close: bool = False


class _OriginConnection(asyncio.Protocol):
    """One connection. Methods without a docstring are those of `asyncio.Protocol` and of httptools."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.is_usable = True
        self._incoming: _Incoming | None = None
        self._responses = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_data_after_close=True,
            lenient_optional_lf_after_cr=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )

    async def exchange(self, request: bytes, max_body: int) -> ReceivedResponse:
        """Send a request and return its response.

        Raises:
            TooLarge, BrokenResponse, TimeoutError, OSError: the connection is closed then.
        """
        assert self._transport is not None
        try:
            async with asyncio.timeout(_TIMEOUT) as timeout:
                incoming = self._incoming = _Incoming(self._loop.create_future(), max_body, timeout)
                self._transport.write(request)
                await incoming.done
        except BaseException:
            self.close()
            raise
        finally:
            self._incoming = None
        self._responses += 1
        self.idle_since = self._loop.time()
        peer = self._transport.get_extra_info("peername")
        return ReceivedResponse(
            self._parser.get_status_code(),
            incoming.reason.decode("latin-1"),
            incoming.fields,
            b"".join(incoming.pieces),
            str(peer[0]) if peer else "",
        )

    def close(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self.is_usable = False
        if self._incoming is not None and not self._incoming.done.done():
            self._incoming.done.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None or incoming.done.done():
            return self.close()  # bytes without a request, such as a 408 before the end
        incoming.timeout.reschedule(self._loop.time() + _TIMEOUT)
        if incoming.in_head:
            incoming.head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BrokenResponse("the site switched protocols without being asked"))
        except httptools.HttpParserError as error:
            self._fail(BrokenResponse(f"not an HTTP/1.1 response: {error}"))
        if incoming.in_head and incoming.head_size > _HEAD:
            self._fail(BrokenResponse(f"a response head of more than {_HEAD} bytes"))

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        incoming, self.is_usable = self._incoming, False
        if incoming is None or incoming.done.done():
            return
        if incoming.ends_at_close and error is None:
            incoming.done.set_result(None)
        elif error is not None and not isinstance(error, ConnectionError):
            self._fail(error)
        else:
            is_stale = bool(self._responses) and not incoming.head_size
            self._fail(BrokenResponse("the site closed the connection too early", is_stale=is_stale))

    def on_status(self, reason: bytes) -> None:
        if self._incoming is not None:
            self._incoming.reason += reason

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if self._incoming is not None and self._incoming.in_head:  # else a trailer (RFC 9112 §7.1.2)
            self._incoming.fields.append((name.strip(b" \t"), (value or b"").strip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._incoming is not None:
            self._incoming.in_head = False
            names = {name.lower() for name, _ in self._incoming.fields}
            self._incoming.ends_at_close = (
                not names & {b"content-length", b"transfer-encoding"}
                and self._parser.get_status_code() not in BODILESS
            )

    def on_body(self, piece: bytes) -> None:
        incoming = self._incoming
        if incoming is None or incoming.done.done():
            return
        incoming.size += len(piece)
        incoming.pieces.append(piece)
        if incoming.size > incoming.max_body:
            self._fail(TooLarge(f"a body of more than {incoming.max_body} bytes"))

    def on_message_complete(self) -> None:
        incoming = self._incoming
        if incoming is None or incoming.done.done():
            return
        if self._parser.get_status_code() < HTTPStatus.OK:  # 1xx: the response follows (RFC 9110 §15.2)
            incoming.reason, incoming.in_head = b"", True
            incoming.fields.clear()
            return
        self.is_usable = self.is_usable and bool(self._parser.should_keep_alive())
        incoming.done.set_result(None)


class ConnectionPool:
    """Connections by origin, opened as they are needed.

    Args:
        most: number of idle connections that are kept.
    """

    def __init__(self, resolver: UpstreamResolver, context: ssl.SSLContext, most: int) -> None:
        self._resolver = resolver
        self._context = context
        self._most = most
        self._idle: dict[tuple[str, str, int], list[_OriginConnection]] = {}

    async def send(
        self, scheme: str, host: str, port: int, request: bytes, *, max_body: int, repeats: bool
    ) -> ReceivedResponse:
        """Send the bytes of a request to an origin.

        Args:
            scheme: "http" or "https".
            host: of the URL, without brackets.
            max_body: bytes of the response body.
            repeats: whether the request may be sent again if the site closed an idle connection.

        Raises:
            AddressRefused: if the host may not be connected to.
            TooLarge, BrokenResponse, TimeoutError, OSError: if there is no complete response.
        """
        origin = (scheme, host, port)
        connection = self._take(origin) or await self._connect(*origin)
        try:
            received = await connection.exchange(request, max_body)
        except BrokenResponse as error:
            if not (error.is_stale and repeats):
                raise
            connection = await self._connect(*origin)
            received = await connection.exchange(request, max_body)
        self._keep(origin, connection)
        return received

    def close(self) -> None:
        for connections in self._idle.values():
            for each in connections:
                each.close()
        self._idle.clear()

    async def _connect(self, scheme: str, host: str, port: int) -> _OriginConnection:
        is_tls = scheme == "https"
        async with asyncio.timeout(_TIMEOUT):
            address, to_port = await self._resolver.resolve(host, port)
            _, connection = await asyncio.get_running_loop().create_connection(
                _OriginConnection,
                address.strip("[]"),
                to_port,
                ssl=self._context if is_tls else None,
                server_hostname=host if is_tls else None,
            )
        return connection

    def _take(self, origin: tuple[str, str, int]) -> _OriginConnection | None:
        idle, now = self._idle.get(origin, []), asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            if connection.is_usable and now - connection.idle_since < _IDLE:
                return connection
            connection.close()
        return None

    def _keep(self, origin: tuple[str, str, int], connection: _OriginConnection) -> None:
        if not connection.is_usable or sum(map(len, self._idle.values())) >= self._most:
            return connection.close()
        self._idle.setdefault(origin, []).append(connection)

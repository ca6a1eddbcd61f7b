"""Access control, limits, error handling and the monitor's page, which rollout server and master share.

Without a key a server answers only requests whose `Host` is a loopback name, so that DNS rebinding does not
reach it. Requests of web pages from other origins are always refused.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stillweb import __version__
from stillweb.errors import StillwebError
from stillweb.server.failures import FailureKind, RequestRefused, ServerFault, fault_of
from stillweb.server.keys import AccessKeys, KeyHolder
from stillweb.server.responses import failed, failed_bug, failed_http, failed_validation, fault_response
from stillweb.urls import is_loopback

BODY_BYTES = 8 << 20
"""Maximum bytes of a request body or WebSocket message: a batch of 4,096 resets with tasks has about 8 MB."""

_TOTAL_BYTES = 16 * BODY_BYTES
_BODY_SECONDS = 30.0


class LimitedConnection(HttpToolsProtocol):
    """A connection that ends if the request line and fields are late or large: uvicorn limits neither.

    Without a limit, anyone who can connect could fill the memory with one endless request.

    Attributes:
        head_bytes: maximum bytes of the request line and fields.
        head_seconds: maximum time until they have arrived.
    """

    head_bytes = 64 << 10
    head_seconds = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._received = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is not None:
            self._received += len(data)
        super().data_received(data)  # may find the end of the fields, and a body after it
        if self._received > self.head_bytes and not self.transport.is_closing():
            self.send_400_response(f"The request's fields are larger than {self.head_bytes:,} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_arrived()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _head_arrived(self) -> None:
        self._received = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class BodyLimit:
    """ASGI middleware that receives a whole body before the application gets the request.

    So a large, slow or endless body holds no lease and no queue.

    Args:
        limit: maximum bytes of one body.
        total: maximum bytes of all bodies in memory.
        seconds: maximum time to receive a body.
    """

    def __init__(
        self, app: ASGIApp, limit: int = BODY_BYTES, total: int = _TOTAL_BYTES, seconds: float = _BODY_SECONDS
    ) -> None:
        self._app = app
        self._limit = limit
        self._total = total
        self._seconds = seconds
        self._in_memory = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            try:
                declared = Headers(scope=scope).get("content-length", "")
                self._check(int(declared) if declared.isdecimal() else 0)
                async with asyncio.timeout(self._seconds):
                    last = await self._read(receive, body)
            except TimeoutError:
                text = f"the body did not arrive within {self._seconds:g} s"
                await _refuse(RequestRefused(FailureKind.TIMEOUT, text), scope, receive, send)
            except RequestRefused as refusal:
                await self._discard(receive)
                await _refuse(refusal, scope, receive, send)
            else:
                await self._app(scope, _replayed(last, body, receive), send)
        finally:
            self._in_memory -= len(body)

    async def _read(self, receive: Receive, body: bytearray) -> Message:
        """Receive a body; return the last message."""
        while (message := await receive())["type"] == "http.request":
            part = message.get("body", b"")
            self._check(len(body) + len(part), len(part))
            self._in_memory += len(part)
            body += part
            if not message.get("more_body"):
                break
        return message

    async def _discard(self, receive: Receive) -> None:
        """Read a part of the rest: a reset connection would hide the response from a sending client."""
        left = 4 * self._limit
        with suppress(TimeoutError):
            async with asyncio.timeout(min(5.0, self._seconds)):
                while left > 0 and (message := await receive()).get("more_body"):
                    left -= len(message.get("body", b""))

    def _check(self, size: int, more: int = 0) -> None:
        if size > self._limit:
            raise RequestRefused(
                FailureKind.TOO_LARGE,
                f"the body is larger than {self._limit:,} bytes",
                hint="send smaller batches",
            )
        if self._in_memory + more > self._total:
            raise RequestRefused(
                FailureKind.BUSY, "too many large bodies are in memory", hint="send the request again later"
            )


async def _refuse(refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
    response: Response = fault_response(fault_of(refusal))
    response.headers["connection"] = "close"  # the rest of the body is not read
    await response(scope, receive, send)


def _replayed(last: Message, body: bytearray, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first."""
    pending = [{**last, "body": bytes(body)}] if last["type"] == "http.request" else [last]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


# Pages of monitor and viewer: static files without data that load nothing from other origins.
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_PAGE_HEADERS = {
    # Pictures are blobs: an <img> cannot send the API key.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}

VIEWER = "/view"
"""Path of the viewer on a rollout server; its page is static, its API requires the key."""

PUBLIC = frozenset(
    (
        *("/health", "/ready", "/docs", "/openapi.json"),
        *("/", "/monitor.css", "/monitor.js", f"{VIEWER}/", f"{VIEWER}/viewer.css", f"{VIEWER}/viewer.js"),
    )
)


def check_request(path: str, headers: Headers, key: str | AccessKeys) -> ServerFault | None:
    keys = AccessKeys.of(key)
    host = headers.get("host", "")
    origin = headers.get("origin", "")
    own = bool(origin) and urlsplit(origin).netloc == host
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or (origin and not own):
        return fault_of(
            RequestRefused(FailureKind.FORBIDDEN, "requests of pages from other origins are refused")
        )
    if not keys:
        if is_loopback(urlsplit(f"//{host}").hostname or ""):
            return None
        return fault_of(
            RequestRefused(FailureKind.FORBIDDEN, "a server without a key answers only to localhost")
        )
    if path in PUBLIC or keys.holder(headers):
        return None
    hint = "send the header x-api-key, or Authorization: Bearer"
    return fault_of(RequestRefused(FailureKind.UNAUTHORIZED, "the API key is missing or wrong", hint=hint))


class Guard:
    """ASGI middleware that refuses requests and WebSockets by `check_request`, and identifies their key."""

    def __init__(self, app: ASGIApp, keys: AccessKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = None
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            fault = check_request(scope["path"], headers, self._keys)
            scope.setdefault("state", {})["holder"] = self._keys.holder(headers) or KeyHolder()
        if fault is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1008, reason=fault.kind)(scope, receive, send)
        else:
            refusal: Response = fault_response(fault)
            await refusal(scope, receive, send)


def base_app(title: str, description: str, keys: AccessKeys) -> FastAPI:
    """Return an application with error handlers, access control, body limits and the monitor page."""
    app = FastAPI(
        title=title,
        version=__version__,
        description=description,
        openapi_url=None,  # see `_add_schema`
        docs_url=None,  # see `serving.page`
        redoc_url=None,
    )
    _add_schema(app)
    app.add_exception_handler(StillwebError, failed)
    app.add_exception_handler(HTTPException, failed_http)
    app.add_exception_handler(RequestValidationError, failed_validation)
    app.add_exception_handler(Exception, failed_bug)
    app.add_middleware(BodyLimit)
    app.add_middleware(Guard, keys=keys)  # added last, so it runs first
    app.include_router(page_router("monitor"))
    return app


def _add_schema(app: FastAPI) -> None:
    """Add /openapi.json, written once: clients without a key can request it as often as they like."""

    @cache
    def schema() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False).encode()

    async def send() -> Response:
        return Response(schema(), media_type="application/json")

    app.add_api_route("/openapi.json", send, methods=["GET"], include_in_schema=False)


def page_router(page: str) -> APIRouter:
    """Return the routes of a page ("monitor" or "viewer") with its style sheet and its script."""
    routes = APIRouter()
    for suffix, media_type in _MEDIA_TYPES.items():
        name = f"{page}.{suffix}"
        content = files(f"stillweb.server.{page}").joinpath("web", name).read_bytes()
        send = partial(_page_file, content, media_type)
        path = "/" if suffix == "html" else f"/{name}"
        routes.add_api_route(path, send, methods=["GET"], include_in_schema=False, name=name)
    return routes


async def _page_file(content: bytes, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

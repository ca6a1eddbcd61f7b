"""Access control and error handling that rollout server and master share.

Without a key a server answers only requests whose `Host` is a loopback name, so that DNS rebinding does not
reach it. Requests of web pages from other origins are always refused.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from stillweb import __version__
from stillweb.errors import StillwebError
from stillweb.server.failures import FailureKind, RequestRefused, ServerFault, fault_of
from stillweb.server.monitor import page as monitorpage
from stillweb.server.protocols.web import failed, failed_bug, failed_http, failed_validation, fault_response

__all__ = ["Guard", "base_app", "check_request", "is_loopback"]

PUBLIC = frozenset(("/health", "/ready", "/docs", "/openapi.json")) | monitorpage.PATHS


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_request(path: str, headers: Headers, key: str) -> ServerFault | None:
    """Return why a request is refused, or None."""
    host = headers.get("host", "")
    origin = headers.get("origin", "")
    own = bool(origin) and urlsplit(origin).netloc == host
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or (origin and not own):
        return fault_of(
            RequestRefused(FailureKind.FORBIDDEN, "requests of pages from other origins are refused")
        )
    if not key:
        if is_loopback(urlsplit(f"//{host}").hostname or ""):
            return None
        return fault_of(
            RequestRefused(FailureKind.FORBIDDEN, "a server without a key answers only to localhost")
        )
    if path in PUBLIC or _has(headers, key):
        return None
    hint = "send the header x-api-key, or Authorization: Bearer"
    return fault_of(RequestRefused(FailureKind.UNAUTHORIZED, "the API key is missing or wrong", hint=hint))


def _has(headers: Headers, key: str) -> bool:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = (headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else "")
    return any([hmac.compare_digest(each.encode(), key.encode()) for each in given])


class Guard:
    """ASGI middleware that refuses requests and WebSockets by `check_request`.

    Args:
        app: the application behind it.
        key: API key that clients must send; "" for none.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = None
        if scope["type"] in ("http", "websocket"):
            fault = check_request(scope["path"], Headers(scope=scope), self._key)
        if fault is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1008, reason=fault.kind)(scope, receive, send)
        else:
            refusal: Response = fault_response(fault)
            await refusal(scope, receive, send)


def base_app(title: str, description: str, key: str) -> FastAPI:
    """Return an application with error handlers, `Guard` and the monitor page; `key` is "" for none."""
    app = FastAPI(
        title=title,
        version=__version__,
        description=description,
        docs_url=None,  # see `app.page`
        redoc_url=None,
    )
    app.add_exception_handler(StillwebError, failed)
    app.add_exception_handler(HTTPException, failed_http)
    app.add_exception_handler(RequestValidationError, failed_validation)
    app.add_exception_handler(Exception, failed_bug)
    app.add_middleware(Guard, key=key)
    app.include_router(monitorpage.router())
    return app

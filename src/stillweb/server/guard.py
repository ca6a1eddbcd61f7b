"""Who may ask: programs with the key, and pages of this server's own; no web page of somebody else's.

A server without a key is reached by this machine alone, and there by names of this machine only, so that no
page in somebody's ordinary browser can steer it, be it by a name that it lets point here.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from stillweb.server import monitorpage
from stillweb.server.refusals import Fault, Refusal, Refused, fault_of
from stillweb.server.web import fault_response

__all__ = ["Guard", "is_loopback", "judge"]

OPEN = frozenset(("/health", "/ready", "/docs", "/openapi.json")) | monitorpage.PATHS


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine and nobody else reaches it by that."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def judge(path: str, headers: Headers, key: str) -> Fault | None:
    """Return why a request is refused, if it is."""
    host = headers.get("host", "")
    origin = headers.get("origin", "")
    own = bool(origin) and urlsplit(origin).netloc == host
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or (origin and not own):
        return fault_of(Refused(Refusal.FORBIDDEN, "pages of other sites are not answered"))
    if not key:
        if is_loopback(urlsplit(f"//{host}").hostname or ""):
            return None
        return fault_of(Refused(Refusal.FORBIDDEN, "without a key this server answers to localhost only"))
    if path in OPEN or _has(headers, key):
        return None
    hint = "header x-api-key, or Authorization: Bearer"
    return fault_of(Refused(Refusal.KEY, "the API key is missing or another one", hint=hint))


def _has(headers: Headers, key: str) -> bool:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = (headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else "")
    return any([hmac.compare_digest(each.encode(), key.encode()) for each in given])


class Guard:
    """Middleware that asks `judge`, also of WebSockets.

    Args:
        app: behind it.
        key: of the API; "" for none.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may ask."""
        fault = None
        if scope["type"] in ("http", "websocket"):
            fault = judge(scope["path"], Headers(scope=scope), self._key)
        if fault is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1008, reason=fault.kind)(scope, receive, send)
        else:
            refusal: Response = fault_response(fault)
            await refusal(scope, receive, send)

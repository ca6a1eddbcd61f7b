"""The control API, without sockets: a request in, a status and JSON out.

    GET    /health                       200 if it lives
    GET    /ready                        200 if it can take episodes; else 503 and what is missing
    GET    /metrics                      figures as Prometheus reads them; GET /figures: as JSON
    GET    /info                         back-end, collections, environment ids, SPKI hashes, features
    POST   /collections/NAME/reload      look for a newer pack now, not when the next session opens
    GET    /sessions                     all sessions, the default one first; ?closed=1: those closed last
    POST   /sessions                     {"collection": NAME or null} opens one, with a port of its own
    GET    /sessions/ID                  how it stands: epoch, in_flight, counts
    GET    /sessions/ID/ledger?after=N   what it answered, and why; for a while after closing, too
    POST   /sessions/ID/misses           what became of a miss: for `replay.fallback` only
    POST   /sessions/ID/reset            as new: first answers, empty ledger
    DELETE /sessions/ID                  closes it and its connections

Each back-end is a `Desk`. Errors are `{"error": ..., "hint": ...}`: 404 there is none, 409 not so,
410 the session's worker has died, 503 no port is free, 500 the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from stillweb.errors import CollectionNotFound, PortInUse, SessionLost, StillwebError, UsageError
from stillweb.http.wire import RequestReceived, simple_head
from stillweb.model import Headers, header
from stillweb.replay.server.answer import PreparedResponse
from stillweb.replay.server.metrics import ReplayMetrics

__all__ = ["DEFAULT_SESSION", "ControlBackend", "ControlResponse", "Readiness", "answer", "render"]

DEFAULT_SESSION = "default"
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]+)?")
_COLLECTION = re.compile(r"/collections/([a-z0-9][a-z0-9._-]*)/reload")
_ONE = re.compile(r"/sessions/([A-Za-z0-9._-]+)(?:/(ledger|reset|misses))?")


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether episodes can be taken.

    Attributes:
        missing: what is not there yet, or any more; ready if nothing is.
        refused: newer packs that are damaged, by collection; the older ones go on.
    """

    missing: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class ControlBackend(Protocol):
    """A back-end, as the control API sees it; what has a body here need not be written by one."""

    def knows(self, session_id: str) -> bool:
        """Return whether there is a session of that id, be it lost. Only such are asked for below."""

    async def info(self) -> dict[str, Any]:
        """Return what `/info` shows."""

    async def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the default one first."""

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return how a session stands."""

    async def ledger(self, session_id: str, after: int) -> dict[str, Any] | None:
        """Return the ledger of any session, also of one closed not long ago; None if there is none."""

    async def closed_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions closed most recently."""
        return []

    async def conclude(self, session_id: str, outcome: Mapping[str, Any]) -> bool:
        """Put a held miss on the ledger of a session; return whether there was one."""
        return False

    async def open_session(self, collection: str | None, port: int | None = None) -> dict[str, Any]:
        """Open a session on a collection, on the first one for None; on a port of our choice for None."""

    async def reset_session(self, session_id: str) -> dict[str, Any]:
        """Make a session as new."""

    async def close_session(self, session_id: str) -> None:
        """Close a session."""

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken."""
        return Readiness()

    async def figures(self) -> ReplayMetrics:
        """Return what `/metrics` shows."""
        return ReplayMetrics()

    async def reload(self, collection: str) -> dict[str, Any]:
        """Look for a newer pack of a collection."""
        raise UsageError("this back-end reads collections as they lie: there is nothing to reload")


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """A status and what goes out: a value as JSON, `raw` as it is, or nothing."""

    status: HTTPStatus
    value: Any = None
    raw: bytes = b""
    media_type: str = "application/json"


Verbs = dict[str, Callable[[], Awaitable[ControlResponse]]]

# The first that an error is one of.
_STATUS = (
    (CollectionNotFound, HTTPStatus.NOT_FOUND),
    (PortInUse, HTTPStatus.SERVICE_UNAVAILABLE),
    (SessionLost, HTTPStatus.GONE),
    (UsageError, HTTPStatus.CONFLICT),
    (StillwebError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


async def answer(desk: ControlBackend, request: RequestReceived) -> ControlResponse:
    """Return the reply to a control request."""
    if _from_a_page(request.headers):
        return _error(HTTPStatus.FORBIDDEN, "the control API answers programs, not web pages")
    try:
        reply = await _route(desk, request)
    except StillwebError as error:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        return _error(status, str(error), error.hint)
    return replace(reply, value=_as_reached(reply.value, header(request.headers, "host")))


def render(reply: ControlResponse) -> PreparedResponse:
    """Return a reply as a response."""
    body = reply.raw
    if reply.value is not None:
        body = json.dumps(reply.value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if not body:
        return PreparedResponse(reply.status, simple_head(reply.status))
    fields = (("Content-Type", reply.media_type), ("Content-Length", str(len(body))))
    return PreparedResponse(reply.status, simple_head(reply.status, fields), body)


def _from_a_page(headers: Headers) -> bool:
    # A site open in somebody's ordinary browser must not steer replay (cross-site requests to loopback).
    return bool(header(headers, "origin")) or header(headers, "sec-fetch-site") not in ("", "none")


def _as_reached(value: Any, authority: str) -> Any:
    """Name proxies by the host that the client asked: a container knows itself by another name."""
    if isinstance(value, dict):
        if "sessions" in value:
            return {**value, "sessions": [_as_reached(session, authority) for session in value["sessions"]]}
        if "proxy" in value and (found := _AUTHORITY.fullmatch(authority)):
            return {**value, "proxy": f"http://{found[1]}:{value['proxy'].rpartition(':')[2]}"}
    return value


def _error(status: HTTPStatus, message: str, hint: str = "") -> ControlResponse:
    return ControlResponse(status, {"error": message, "hint": hint})


async def _route(desk: ControlBackend, request: RequestReceived) -> ControlResponse:
    path, _, query = request.target.partition("?")
    path = path.rstrip("/") or "/"
    if found := _ONE.fullmatch(path):
        return await _one_session(desk, request, found, query)
    if found := _COLLECTION.fullmatch(path):
        name = found[1]
        return await _choose(request.method, {"POST": lambda: _ok(desk.reload(name))}, path)
    places: dict[str, Verbs] = {
        "/": {"GET": _root},
        "/health": {"GET": _health},
        "/ready": {"GET": lambda: _ready(desk)},
        "/metrics": {"GET": lambda: _metrics(desk)},
        "/figures": {"GET": lambda: _figures(desk)},
        "/info": {"GET": lambda: _ok(desk.info())},
        "/sessions": {"GET": lambda: _sessions(desk, query), "POST": lambda: _open(desk, request.raw_body)},
    }
    return await _choose(request.method, places.get(path), path)


async def _choose(method: str, verbs: Verbs | None, path: str) -> ControlResponse:
    if verbs is None:
        return _error(HTTPStatus.NOT_FOUND, f"no {path} here", "GET /health, /info or /sessions")
    if method not in verbs:
        return _error(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {', '.join(verbs)}")
    return await verbs[method]()


async def _one_session(
    desk: ControlBackend, request: RequestReceived, found: re.Match[str], query: str
) -> ControlResponse:
    session_id, part = found[1], found[2]
    if not desk.knows(session_id) and part != "ledger":
        return _no_session(session_id)
    verbs: dict[str | None, Verbs] = {
        None: {"GET": lambda: _ok(desk.session(session_id)), "DELETE": lambda: _close(desk, session_id)},
        "ledger": {"GET": lambda: _ledger(desk, session_id, query)},
        "reset": {"POST": lambda: _ok(desk.reset_session(session_id))},
        "misses": {"POST": lambda: _conclude(desk, session_id, request.raw_body)},
    }
    where = f"/sessions/{session_id}" + (f"/{part}" if part else "")
    return await _choose(request.method, verbs[part], where)


def _no_session(session_id: str) -> ControlResponse:
    return _error(HTTPStatus.NOT_FOUND, f"no session {session_id}", "GET /sessions lists them")


async def _ledger(desk: ControlBackend, session_id: str, query: str) -> ControlResponse:
    ledger = await desk.ledger(session_id, _after(query))
    return _no_session(session_id) if ledger is None else ControlResponse(HTTPStatus.OK, ledger)


async def _conclude(desk: ControlBackend, session_id: str, raw_body: bytes) -> ControlResponse:
    try:
        outcome = json.loads(raw_body)
    except (ValueError, RecursionError):
        outcome = None
    if not isinstance(outcome, dict) or not await desk.conclude(session_id, outcome):
        return _error(HTTPStatus.CONFLICT, f"session {session_id} holds no such miss")
    return ControlResponse(HTTPStatus.NO_CONTENT)


async def _ok(value: Awaitable[Any]) -> ControlResponse:
    return ControlResponse(HTTPStatus.OK, await value)


async def _root() -> ControlResponse:
    see = ["/health", "/ready", "/metrics", "/info", "/sessions"]
    return ControlResponse(HTTPStatus.OK, {"stillweb": "replay", "see": see})


async def _health() -> ControlResponse:
    return ControlResponse(HTTPStatus.OK, {"status": "ok"})


async def _ready(desk: ControlBackend) -> ControlResponse:
    readiness = await desk.readiness()
    status = HTTPStatus.SERVICE_UNAVAILABLE if readiness.missing else HTTPStatus.OK
    shown = {"ready": not readiness.missing, "missing": list(readiness.missing)}
    return ControlResponse(status, {**shown, "refused": dict(readiness.refused)})


async def _metrics(desk: ControlBackend) -> ControlResponse:
    from stillweb.replay.server import metrics  # clients import this file, and have no use for Prometheus

    return ControlResponse(
        HTTPStatus.OK, raw=metrics.render(await desk.figures()), media_type=metrics.MEDIA_TYPE
    )


async def _figures(desk: ControlBackend) -> ControlResponse:
    return ControlResponse(HTTPStatus.OK, (await desk.figures()).to_dict())


async def _sessions(desk: ControlBackend, query: str) -> ControlResponse:
    closed = parse_qs(query).get("closed", ["0"])[-1] == "1"
    return ControlResponse(
        HTTPStatus.OK, {"sessions": await (desk.closed_sessions() if closed else desk.sessions())}
    )


async def _open(desk: ControlBackend, raw_body: bytes) -> ControlResponse:
    try:
        wanted = json.loads(raw_body or b"{}")
    except (ValueError, RecursionError):  # the latter: a hundred thousand of "["
        wanted = None
    collection, port = (
        (wanted.get("collection"), wanted.get("port")) if isinstance(wanted, dict) else ("", "")
    )
    if not isinstance(collection, str | None) or not isinstance(port, int | None):
        return _error(HTTPStatus.BAD_REQUEST, 'the body must be JSON such as {"collection": "shop"}')
    return ControlResponse(HTTPStatus.CREATED, await desk.open_session(collection, port))


async def _close(desk: ControlBackend, session_id: str) -> ControlResponse:
    if session_id == DEFAULT_SESSION:
        return _error(HTTPStatus.CONFLICT, "the default session lives as long as the server")
    await desk.close_session(session_id)
    return ControlResponse(HTTPStatus.NO_CONTENT)


def _after(query: str) -> int:
    value = parse_qs(query).get("after", ["0"])[-1]
    # No int() of thousands of digits, which it refuses; no session has that many requests.
    return int(value[:18]) if value.isascii() and value.isdigit() else 0

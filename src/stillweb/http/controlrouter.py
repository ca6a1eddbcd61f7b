"""The server's side of the control API: the interface of back-ends and the router, without I/O."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs

from pydantic import TypeAdapter, ValidationError

from stillweb.errors import StillwebError, UsageError
from stillweb.http.control import (
    COMMANDS,
    DEFAULT_SESSION,
    KEY_VARIABLE,
    MISS_OUTCOME,
    SESSION_REQUEST,
    STATUS,
    Ledger,
    MissOutcome,
    Readiness,
    ReloadResult,
    ReplayInfo,
    SessionInfo,
)
from stillweb.http.wire import RequestReceived, simple_head
from stillweb.model import Headers, header


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """A response: `value` as JSON, or `raw` as it is, or nothing."""

    status: HTTPStatus
    value: Any = None
    raw: bytes = b""
    media_type: str = "application/json"

    @property
    def body(self) -> bytes:
        if self.value is None:
            return self.raw
        return json.dumps(self.value, ensure_ascii=False, default=_members).encode("utf-8", "replace") + b"\n"


def _members(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


class ControlBackend(Protocol):
    """A server behind the control API. Methods that have a body here are optional."""

    hosts: Iterable[str] = ()
    """Names, besides addresses and single labels, that the `Host` field of a control request may have."""

    key: str = ""
    """Key that control requests must carry; "" for none."""

    def knows(self, session_id: str) -> bool:
        """Return whether a session of that id is open or lost; other ids reach `ledger` only."""

    async def health(self) -> None:
        """Raise a StillwebError if the server does not work."""
        return

    async def info(self) -> ReplayInfo:
        """Return what `/info` shows."""

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions, the default one first."""

    async def session(self, session_id: str) -> SessionInfo:
        """Return the state of a session."""

    async def ledger(self, session_id: str, after: int) -> Ledger | None:
        """Return the ledger of an open session, or of one closed recently; None if it is unknown."""

    async def closed_sessions(self) -> list[SessionInfo]:
        """Return the sessions closed most recently."""
        return []

    async def conclude(self, session_id: str, outcome: MissOutcome) -> bool | None:
        """Put a held miss on the ledger of a session.

        Returns:
            False if the session holds no such miss, None if this back-end holds none at all.
        """
        return None

    async def command(self, session_id: str, name: str, body: Any) -> Any:
        """Carry out a command of `COMMANDS`; return the value of the response, None if it has none."""
        raise UsageError(COMMANDS[name].lacking)

    async def open_session(self, collection: str | None, port: int | None = None) -> SessionInfo:
        """Open a session on a collection (None: the first one) and a port (None: the server chooses)."""

    async def reset_session(self, session_id: str) -> SessionInfo:
        """Reset a session."""

    async def close_session(self, session_id: str) -> None:
        """Close a session."""

    async def readiness(self) -> Readiness:
        """Return whether episodes can be taken."""
        return Readiness()

    async def metrics(self) -> ControlResponse:
        """Return what `/metrics` shows."""
        return _not_here("/metrics")

    async def figures(self) -> Any:
        """Return what `/figures` shows."""
        raise UsageError("this back-end counts nothing")

    async def reload(self, collection: str) -> ReloadResult:
        """Look for a newer pack of a collection."""
        raise UsageError("this back-end has no packs to reload")


T = TypeVar("T")

Verbs = Mapping[str, Callable[[], Awaitable[ControlResponse]]]

_COLLECTION = re.compile(r"/collections/([a-z0-9][a-z0-9._-]*)/reload")
_PARTS = "|".join(("ledger", "reset", "misses", *COMMANDS))
_ONE = re.compile(rf"/sessions/([A-Za-z0-9._-]+)(?:/({_PARTS}))?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]+)?")
_WITHOUT_KEY = ("/health", "/ready", "/metrics")  # for probes and Prometheus: no URLs, no bodies
_PRIVATE_NAMES = (".localhost", ".local", ".internal")  # RFC 6761, RFC 6762, and ICANN's reserved `internal`


async def answer(backend: ControlBackend, request: RequestReceived) -> ControlResponse:
    if refused := _why_refused(backend, request.headers):
        return error_response(HTTPStatus.FORBIDDEN, *refused)
    if not _has_key(backend.key, request):
        message = "the control API of this server needs its key"
        return error_response(HTTPStatus.UNAUTHORIZED, message, f"set {KEY_VARIABLE} in the environment")
    try:
        reply = await _route(backend, request)
    except _MalformedBody as error:
        return error_response(HTTPStatus.BAD_REQUEST, str(error))
    except StillwebError as error:
        status = next(status for kind, status in STATUS if isinstance(error, kind))
        return error_response(status, str(error), error.hint)
    return replace(reply, value=_as_reached(reply.value, header(request.headers, "host")))


def render(reply: ControlResponse) -> tuple[bytes, bytes]:
    """Return head and body of a response; the head lacks the blank line."""
    body = reply.body
    if not body:
        return simple_head(reply.status), b""
    fields = (("Content-Type", reply.media_type), ("Content-Length", str(len(body))))
    return simple_head(reply.status, fields), body


def error_response(status: HTTPStatus, message: str, hint: str = "") -> ControlResponse:
    return ControlResponse(status, {"error": message, "hint": hint})


def _why_refused(backend: ControlBackend, headers: Headers) -> tuple[str, str] | None:
    """Return message and hint if a request may come from a web page."""
    # A site open in a user's ordinary browser must not steer replay (cross-site requests to loopback).
    if header(headers, "origin") or header(headers, "sec-fetch-site") not in ("", "none"):
        return "the control API answers programs, not web pages", ""
    host = header(headers, "host")
    if host and not _is_own(host, backend.hosts):
        return f"the control API is not known as {host!r}", "stillweb replay NAME --allow-host HOST"
    return None


def _has_key(key: str, request: RequestReceived) -> bool:
    if not key or request.target.partition("?")[0].rstrip("/") in _WITHOUT_KEY:
        return True
    scheme, _, given = header(request.headers, "authorization").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())


def _is_own(authority: str, allowed: Iterable[str]) -> bool:
    """Return whether a Host field names a server that no stranger's DNS can point at this machine.

    DNS rebinding needs a name that the attacker registered. An IP address, a name of one label and a name
    under a reserved domain cannot be registered.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return False
    name = found[1].strip("[]").rstrip(".").lower()
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_PRIVATE_NAMES) or name in allowed
    return True


def _as_reached(value: Any, authority: str) -> Any:
    """Name proxies by the host that the client used: a container knows itself by another name."""
    if isinstance(value, dict):
        if "sessions" in value:
            return {**value, "sessions": [_as_reached(session, authority) for session in value["sessions"]]}
        if "proxy" in value and (found := _AUTHORITY.fullmatch(authority)):
            return {**value, "proxy": f"http://{found[1]}:{value['proxy'].rpartition(':')[2]}"}
    return value


async def _route(backend: ControlBackend, request: RequestReceived) -> ControlResponse:
    path, _, query = request.target.partition("?")
    path = path.rstrip("/") or "/"
    if found := _ONE.fullmatch(path):
        return await _one_session(backend, request, found, query)
    if found := _COLLECTION.fullmatch(path):
        name = found[1]
        return await _choose(request.method, {"POST": lambda: _ok(backend.reload(name))}, path)
    routes: dict[str, Verbs] = {
        "/": {"GET": _root},
        "/health": {"GET": lambda: _health(backend)},
        "/ready": {"GET": lambda: _ready(backend)},
        "/metrics": {"GET": lambda: backend.metrics()},
        "/figures": {"GET": lambda: _ok(backend.figures())},
        "/info": {"GET": lambda: _info(backend)},
        "/sessions": {
            "GET": lambda: _sessions(backend, query),
            "POST": lambda: _open(backend, request.raw_body),
        },
    }
    return await _choose(request.method, routes.get(path), path)


async def _choose(method: str, verbs: Verbs | None, path: str) -> ControlResponse:
    if verbs is None:
        return _not_here(path)
    if method not in verbs:
        return error_response(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {', '.join(verbs)}")
    return await verbs[method]()


def _not_here(path: str) -> ControlResponse:
    return error_response(HTTPStatus.NOT_FOUND, f"no {path} here", "GET /health, /info or /sessions")


async def _one_session(
    backend: ControlBackend, request: RequestReceived, found: re.Match[str], query: str
) -> ControlResponse:
    session_id, part = found[1], found[2]
    if not backend.knows(session_id) and part != "ledger":
        return _no_session(session_id)
    verbs: dict[str | None, Verbs] = {
        None: {
            "GET": lambda: _ok(backend.session(session_id)),
            "DELETE": lambda: _close(backend, session_id),
        },
        "ledger": {"GET": lambda: _ledger(backend, session_id, query)},
        "reset": {"POST": lambda: _ok(backend.reset_session(session_id))},
        "misses": {"POST": lambda: _conclude(backend, session_id, request.raw_body)},
        **{
            name: {"POST": partial(_command, backend, session_id, name, request.raw_body)}
            for name in COMMANDS
        },
    }
    path = f"/sessions/{session_id}" + (f"/{part}" if part else "")
    return await _choose(request.method, verbs[part], path)


def _no_session(session_id: str) -> ControlResponse:
    return error_response(HTTPStatus.NOT_FOUND, f"no session {session_id}", "GET /sessions lists them")


async def _ledger(backend: ControlBackend, session_id: str, query: str) -> ControlResponse:
    ledger = await backend.ledger(session_id, _after(query))
    return _no_session(session_id) if ledger is None else ControlResponse(HTTPStatus.OK, ledger)


async def _conclude(backend: ControlBackend, session_id: str, raw_body: bytes) -> ControlResponse:
    concluded: bool | None = False
    with suppress(ValidationError):
        concluded = await backend.conclude(session_id, MISS_OUTCOME.validate_json(raw_body, strict=True))
    if concluded is None:
        return _not_here(f"/sessions/{session_id}/misses")
    if not concluded:
        return error_response(HTTPStatus.CONFLICT, f"session {session_id} holds no such miss")
    return ControlResponse(HTTPStatus.NO_CONTENT)


async def _command(backend: ControlBackend, session_id: str, name: str, raw_body: bytes) -> ControlResponse:
    command = COMMANDS[name]
    value = await backend.command(session_id, name, _parsed(command.schema, raw_body, command.example))
    return ControlResponse(HTTPStatus.NO_CONTENT if value is None else HTTPStatus.OK, value)


class _MalformedBody(Exception):
    """A request whose body is not what its path takes; the message says what that is."""


def _parsed(schema: TypeAdapter[T], raw_body: bytes, example: str) -> T:
    try:
        return schema.validate_json(raw_body, strict=True)
    except ValidationError:
        raise _MalformedBody(f"the body must be {example}") from None


async def _ok(value: Awaitable[Any]) -> ControlResponse:
    return ControlResponse(HTTPStatus.OK, await value)


async def _root() -> ControlResponse:
    see = ["/health", "/ready", "/metrics", "/info", "/sessions"]
    return ControlResponse(HTTPStatus.OK, {"stillweb": "replay", "see": see})


async def _health(backend: ControlBackend) -> ControlResponse:
    await backend.health()
    return ControlResponse(HTTPStatus.OK, {"status": "ok"})


async def _info(backend: ControlBackend) -> ControlResponse:
    shown = _members(await backend.info())
    return ControlResponse(HTTPStatus.OK, {name: each for name, each in shown.items() if each is not None})


async def _ready(backend: ControlBackend) -> ControlResponse:
    readiness = await backend.readiness()
    status = HTTPStatus.SERVICE_UNAVAILABLE if readiness.missing else HTTPStatus.OK
    shown = {"ready": not readiness.missing, "missing": list(readiness.missing)}
    return ControlResponse(status, {**shown, "refused": dict(readiness.refused)})


async def _sessions(backend: ControlBackend, query: str) -> ControlResponse:
    closed = parse_qs(query).get("closed", ["0"])[-1] == "1"
    found = await (backend.closed_sessions() if closed else backend.sessions())
    return ControlResponse(HTTPStatus.OK, {"sessions": found})


async def _open(backend: ControlBackend, raw_body: bytes) -> ControlResponse:
    request = _parsed(SESSION_REQUEST, raw_body or b"{}", 'JSON such as {"collection": "shop"}')
    opened = await backend.open_session(request.get("collection"), request.get("port"))
    return ControlResponse(HTTPStatus.CREATED, opened)


async def _close(backend: ControlBackend, session_id: str) -> ControlResponse:
    if session_id == DEFAULT_SESSION:
        return error_response(HTTPStatus.CONFLICT, "the default session lives as long as the server")
    await backend.close_session(session_id)
    return ControlResponse(HTTPStatus.NO_CONTENT)


def _after(query: str) -> int:
    value = parse_qs(query).get("after", ["0"])[-1]
    # int() refuses thousands of digits; no session has that many requests.
    return int(value[:18]) if value.isascii() and value.isdigit() else 0

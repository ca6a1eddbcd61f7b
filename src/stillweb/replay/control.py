"""The control API, without sockets: a request in, a status and JSON out.

    GET    /health                       whether it lives
    GET    /info                         back-end, collections, environment ids, SPKI hashes, features
    GET    /sessions                     all sessions, the default one first; ?closed=1: those closed last
    POST   /sessions                     {"collection": NAME or null} opens one, with a port of its own
    GET    /sessions/ID                  how it stands: epoch, in_flight, counts
    GET    /sessions/ID/ledger?after=N   what it answered, and why; for a while after closing, too
    POST   /sessions/ID/misses           what became of a miss: for `replay.fallback` only
    POST   /sessions/ID/reset            as new: first answers, empty ledger
    DELETE /sessions/ID                  closes it and its connections

Both back-ends speak it; each is a `Desk`. Errors are `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from stillweb.errors import CollectionNotFound, PortInUse, StillwebError, UsageError
from stillweb.model import Headers, header
from stillweb.replay.answer import Answer
from stillweb.replay.wire import RequestReceived, simple_head

__all__ = ["DEFAULT_SESSION", "Desk", "Reply", "answer", "render"]

DEFAULT_SESSION = "default"
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]+)?")
_ONE = re.compile(r"/sessions/([A-Za-z0-9._-]+)(?:/(ledger|reset|misses))?")


class Desk(Protocol):
    """A back-end, as the control API sees it."""

    def info(self) -> dict[str, Any]:
        """Return what `/info` shows."""

    def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, the default one first."""

    def session(self, session_id: str) -> dict[str, Any] | None:
        """Return one session; None if there is none of that id."""

    def closed_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions closed most recently, as they stood."""

    def ledger(self, session_id: str, after: int) -> dict[str, Any] | None:
        """Return the ledger of a session that exists, or of one closed not long ago; None of any other."""

    def conclude(self, session_id: str, outcome: Mapping[str, Any]) -> bool:
        """Put a miss that was held on the ledger of a session that exists; return whether there was one."""

    async def open_session(self, collection: str | None) -> dict[str, Any]:
        """Open a session on a collection; on the first one for None."""

    async def reset_session(self, session_id: str) -> dict[str, Any]:
        """Make a session that exists as new."""

    async def close_session(self, session_id: str) -> None:
        """Close a session that exists."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A status and what goes out as JSON; nothing for None."""

    status: HTTPStatus
    value: Any = None


Verbs = dict[str, Callable[[], Awaitable[Reply]]]


async def answer(desk: Desk, request: RequestReceived) -> Reply:
    """Return the reply to a control request."""
    if _from_a_page(request.headers):
        return _error(HTTPStatus.FORBIDDEN, "the control API answers programs, not web pages")
    try:
        reply = await _route(desk, request)
        return Reply(reply.status, _as_reached(reply.value, header(request.headers, "host")))
    except CollectionNotFound as error:
        return _error(HTTPStatus.NOT_FOUND, str(error), error.hint)
    except PortInUse as error:
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, str(error), error.hint)
    except UsageError as error:
        return _error(HTTPStatus.CONFLICT, str(error), error.hint)
    except StillwebError as error:
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), error.hint)


def render(reply: Reply) -> Answer:
    """Return a reply as a response."""
    if reply.value is None:
        return Answer(reply.status, simple_head(reply.status))
    body = json.dumps(reply.value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    fields = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    return Answer(reply.status, simple_head(reply.status, fields), body)


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


def _error(status: HTTPStatus, message: str, hint: str = "") -> Reply:
    return Reply(status, {"error": message, "hint": hint})


async def _route(desk: Desk, request: RequestReceived) -> Reply:
    path, _, query = request.target.partition("?")
    path = path.rstrip("/") or "/"
    if found := _ONE.fullmatch(path):
        return await _one_session(desk, request, found, query)
    places: dict[str, Verbs] = {
        "/": {"GET": lambda: _now({"stillweb": "replay", "see": ["/health", "/info", "/sessions"]})},
        "/health": {"GET": lambda: _now({"status": "ok"})},
        "/info": {"GET": lambda: _now(desk.info())},
        "/sessions": {
            "GET": lambda: _now({"sessions": desk.closed_sessions() if _closed(query) else desk.sessions()}),
            "POST": lambda: _open(desk, request.raw_body),
        },
    }
    return await _choose(request.method, places.get(path), path)


async def _choose(method: str, verbs: Verbs | None, path: str) -> Reply:
    if verbs is None:
        return _error(HTTPStatus.NOT_FOUND, f"no {path} here", "GET /health, /info or /sessions")
    if method not in verbs:
        return _error(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {', '.join(verbs)}")
    return await verbs[method]()


async def _one_session(desk: Desk, request: RequestReceived, found: re.Match[str], query: str) -> Reply:
    session_id, part = found[1], found[2]
    method, raw_body = request.method, request.raw_body
    session = desk.session(session_id)
    kept = desk.ledger(session_id, _after(query)) if part == "ledger" else None
    if session is None and kept is None:
        return _error(HTTPStatus.NOT_FOUND, f"no session {session_id}", "GET /sessions lists them")
    verbs: dict[str | None, Verbs] = {
        None: {"GET": lambda: _now(session), "DELETE": lambda: _close(desk, session_id)},
        "ledger": {"GET": lambda: _now(kept)},
        "reset": {"POST": lambda: _reset(desk, session_id)},
        "misses": {"POST": lambda: _conclude(desk, session_id, raw_body)},
    }
    return await _choose(method, verbs[part], f"/sessions/{session_id}" + (f"/{part}" if part else ""))


async def _now(value: Any) -> Reply:
    return Reply(HTTPStatus.OK, value)


async def _open(desk: Desk, raw_body: bytes) -> Reply:
    try:
        wanted = json.loads(raw_body or b"{}")
    except ValueError:
        wanted = None
    collection = wanted.get("collection") if isinstance(wanted, dict) else False
    if not isinstance(collection, str | None):
        return _error(HTTPStatus.BAD_REQUEST, 'the body must be JSON such as {"collection": "shop"}')
    return Reply(HTTPStatus.CREATED, await desk.open_session(collection))


async def _reset(desk: Desk, session_id: str) -> Reply:
    return Reply(HTTPStatus.OK, await desk.reset_session(session_id))


async def _conclude(desk: Desk, session_id: str, raw_body: bytes) -> Reply:
    try:
        outcome = json.loads(raw_body)
    except ValueError:
        outcome = None
    if not isinstance(outcome, dict) or not desk.conclude(session_id, outcome):
        return _error(HTTPStatus.CONFLICT, f"session {session_id} holds no such miss")
    return Reply(HTTPStatus.NO_CONTENT)


async def _close(desk: Desk, session_id: str) -> Reply:
    if session_id == DEFAULT_SESSION:
        return _error(HTTPStatus.CONFLICT, "the default session lives as long as the server")
    await desk.close_session(session_id)
    return Reply(HTTPStatus.NO_CONTENT)


def _closed(query: str) -> bool:
    return parse_qs(query).get("closed", ["0"])[-1] == "1"


def _after(query: str) -> int:
    value = parse_qs(query).get("after", ["0"])[-1]
    return int(value) if value.isascii() and value.isdigit() else 0

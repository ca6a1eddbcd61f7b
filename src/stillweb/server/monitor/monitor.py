"""How the server stands: as JSON, as a stream of events, as Prometheus reads it, and whether it is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import Response
from sse_starlette.sse import EventSourceResponse

from stillweb import clock
from stillweb.server.engine import Engine
from stillweb.server.leases.queue import Semaphore
from stillweb.server.monitor import status as figures
from stillweb.server.monitor.status import (
    BrowserStatus,
    Letter,
    Queue,
    Rates,
    RecentMiss,
    SessionStatus,
    Status,
)
from stillweb.server.protocols.web import EngineOf, JsonResponse

__all__ = ["router", "status_of"]


def status_of(engine: Engine) -> Status:
    """Return how a server stands."""
    now = clock.monotonic()
    tally = engine.tally
    return Status(
        state="draining" if engine.desk.draining else "serving",
        uptime=round(now - engine.began, 3),
        replay=engine.proxy,
        level=engine.options.level,
        observe=list(engine.options.observe),
        sessions=_sessions(engine, now),
        queues={"allocate": _allocate(engine)} | {name: _queue(gate) for name, gate in engine.queues.items()},
        rates=Rates(steps=round(tally.steps.value(now), 3), resets=round(tally.resets.value(now), 3)),
        steps=tally.steps.total,
        resets=tally.resets.total,
        episodes=dict(tally.episodes),
        leases=dict(tally.leases),
        failures=dict(tally.failures),
        traffic=dict(tally.traffic),
        misses=[
            RecentMiss(age=round(now - each.at, 3), task=each.task, request=each.request)
            for each in reversed(tally.misses)
        ],
        browsers=[BrowserStatus(**each) for each in engine.vector.browsers()],
        pictures={"count": len(engine.pictures), "bytes": engine.pictures.bytes},
    )


def _sessions(engine: Engine, now: float) -> list[SessionStatus]:
    shown = {held.lease.session: held.to_status(now) for held in engine.desk.held.values()}
    nobody = Letter.NOBODY.value
    return [shown.get(i) or SessionStatus(index=i, letter=nobody) for i in range(engine.options.sessions)]


def _allocate(engine: Engine) -> Queue:
    line = engine.desk.leases.line
    return Queue(
        limit=line.limit,
        under_way=line.inside,
        waiting=line.waiting,
        room=line.room,
        begun=engine.tally.leases["granted"],
    )


def _queue(gate: Semaphore) -> Queue:
    line = gate.line
    return Queue(
        limit=line.limit, under_way=line.inside, waiting=line.waiting, room=line.room, begun=gate.begun
    )


_APART = 0.25  # seconds between two events at least
_AGES = 5.0  # at most: ages grow though nothing happens


def router() -> APIRouter:
    """Return the routes."""
    made = APIRouter(tags=["monitor"])
    made.add_api_route("/v1/status", status, methods=["GET"], response_model=Status)
    made.add_api_route("/v1/stream", stream, methods=["GET"], response_class=EventSourceResponse)
    made.add_api_route("/metrics", metrics, methods=["GET"], response_class=Response)
    made.add_api_route("/health", health, methods=["GET"])
    made.add_api_route("/ready", ready, methods=["GET"])
    return made


async def status(engine: EngineOf) -> Status:
    """Tell how the server and each session stands."""
    return status_of(engine)


async def stream(engine: EngineOf) -> EventSourceResponse:
    """Send the status as events: one at once, then at every change, at most four a second."""
    return EventSourceResponse(_events(engine), ping=15)


async def metrics(engine: EngineOf) -> Response:
    """Give figures to Prometheus."""
    return Response(figures.render(status_of(engine)), headers={"Content-Type": figures.MEDIA_TYPE})


async def health() -> Response:
    """Tell that the program lives."""
    return JsonResponse({"status": "ok"})


async def ready(engine: EngineOf) -> Response:
    """Tell whether leases are given and the replay can take episodes; else 503 and what is missing."""
    missing = ["this server ends"] if engine.desk.draining else []
    if not await engine.vector.proxy_ready(0):
        missing.append(f"the replay at {engine.proxy}")
    code = HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
    return JsonResponse({"ready": not missing, "missing": missing}, status_code=code)


async def _events(engine: Engine) -> AsyncIterator[dict[str, str]]:
    closing = asyncio.ensure_future(engine.closing.wait())
    seen = engine.changes
    try:
        while not closing.done():
            yield {"event": "status", "data": status_of(engine).model_dump_json()}
            await asyncio.wait([closing], timeout=_APART)
            seen = await engine.changed(seen, _AGES)
    finally:
        closing.cancel()

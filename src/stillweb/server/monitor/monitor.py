"""Routes of the monitor: status as JSON, events and Prometheus metrics, and the health checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sse_starlette.sse import EventSourceResponse

from stillweb import clock
from stillweb.polling import wait_event
from stillweb.server.engine import Engine
from stillweb.server.leases.queue import OperationQueue
from stillweb.server.monitor import status as figures
from stillweb.server.monitor.history import History, HistoryRecorder, memory_of
from stillweb.server.monitor.status import (
    BrowserStatus,
    Queue,
    Rates,
    RecentMiss,
    SessionLetter,
    SessionStatus,
    Status,
    visible_to,
)
from stillweb.server.protocols.web import Caller, CallerOf, EngineOf
from stillweb.server.responses import JsonResponse


def status_of(engine: Engine) -> Status:
    """Return the status of a server."""
    now = clock.monotonic()
    counters = engine.counters
    return Status(
        state="draining" if engine.leases.draining else "serving",
        uptime=round(now - engine.started_at, 3),
        replay=engine.proxy,
        level=engine.vector.level.value,
        observe=list(engine.options.observe),
        sessions=_sessions(engine, now),
        queues={"allocate": _allocate(engine)}
        | {name: _queue(queue) for name, queue in engine.queues.items()},
        rates=Rates(steps=round(counters.steps.value(now), 3), resets=round(counters.resets.value(now), 3)),
        steps=counters.steps.total,
        resets=counters.resets.total,
        episodes=dict(counters.episodes),
        leases=dict(counters.leases),
        failures=dict(counters.failures),
        traffic=dict(counters.traffic),
        misses=[
            RecentMiss(age=round(now - each.at, 3), task=each.task, request=each.request)
            for each in reversed(counters.misses)
        ],
        browsers=[BrowserStatus(**each) for each in engine.vector.browsers()],
        pictures={"count": len(engine.pictures), "bytes": engine.pictures.bytes},
        latency={name: each.model_copy(deep=True) for name, each in counters.latency.items()},
        memory=dict(engine.memory),
    )


async def sampled_status(engine: Engine) -> Status:
    """Measure the memory and return the status."""
    pids = [pid for each in engine.vector.browsers() for pid in (each["pid"], each["driver_pid"]) if pid > 0]
    engine.memory = await asyncio.to_thread(memory_of, pids)
    return status_of(engine)


def _sessions(engine: Engine, now: float) -> list[SessionStatus]:
    shown = {held.lease.session: held.to_status(now) for held in engine.leases.held.values()}
    free = SessionLetter.FREE.value
    return [shown.get(i) or SessionStatus(index=i, letter=free) for i in range(engine.options.sessions)]


def _allocate(engine: Engine) -> Queue:
    table = engine.leases.table
    return Queue(
        limit=table.limit,
        under_way=table.leased,
        waiting=table.waiting,
        room=table.capacity,
        begun=engine.counters.leases["granted"],
    )


def _queue(queue: OperationQueue) -> Queue:
    return Queue(
        limit=queue.limit,
        under_way=queue.active,
        waiting=queue.waiting,
        room=queue.capacity,
        begun=queue.started,
    )


_NO_STORE = {"Cache-Control": "no-store"}
_MIN_INTERVAL = 0.25  # seconds between two events
_MAX_INTERVAL = 5.0  # ages change even if nothing happens


def router() -> APIRouter:
    routes = APIRouter(tags=["monitor"])
    routes.add_api_route("/v1/status", status, methods=["GET"], response_model=Status)
    routes.add_api_route("/v1/stream", stream, methods=["GET"], response_class=EventSourceResponse)
    routes.add_api_route("/v1/history", history, methods=["GET"], response_model=History)
    routes.add_api_route("/v1/leases/{lease}/thumbnail", thumbnail, methods=["GET"], response_class=Response)
    routes.add_api_route("/metrics", metrics, methods=["GET"], response_class=Response)
    routes.add_api_route("/health", health, methods=["GET"])
    routes.add_api_route("/ready", ready, methods=["GET"])
    return routes


async def status(caller: CallerOf) -> Status:
    """Return the status of the server and of each session."""
    return visible_to(status_of(caller.engine), caller.client)


async def history(request: Request) -> History:
    """Return rates, latencies, failures, misses and memory of the last hour."""
    recorder: HistoryRecorder = request.app.state.history
    return recorder.history(clock.monotonic())


async def thumbnail(caller: CallerOf, lease: str) -> Response:
    """Return a small JPEG of the lease's current page; 204 during a call and after the end.

    The request does not renew the lease. A picture may be two seconds old.
    """
    if caller.engine.leases.table.why_ended(lease):
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=_NO_STORE)
    held = caller.engine.leases.find(lease, caller.client)
    picture = await caller.engine.thumbnail(held)
    if not picture:
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=_NO_STORE)
    return Response(picture, media_type="image/jpeg", headers=_NO_STORE)


async def stream(caller: CallerOf) -> EventSourceResponse:
    """Send the status as events: immediately, then at every change, at most four per second."""
    return EventSourceResponse(_events(caller), ping=15)


async def metrics(engine: EngineOf) -> Response:
    """Return the metrics for Prometheus."""
    return Response(figures.render(status_of(engine)), headers={"Content-Type": figures.MEDIA_TYPE})


async def health() -> Response:
    """Return 200 while the process runs."""
    return JsonResponse({"status": "ok"})


async def ready(engine: EngineOf) -> Response:
    """Return 200 if the server can start episodes; otherwise 503 and what is missing."""
    missing = ["the server is shutting down"] if engine.leases.draining else []
    if not await engine.replay_ready():
        missing.append(f"the replay server at {engine.proxy} is not ready")
    code = HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
    return JsonResponse({"ready": not missing, "missing": missing}, status_code=code)


async def _events(caller: Caller) -> AsyncIterator[dict[str, str]]:
    engine = caller.engine
    seen = engine.changes
    while not engine.closing.is_set():
        shown = visible_to(status_of(engine), caller.client)
        yield {"event": "status", "data": shown.model_dump_json()}
        await wait_event(engine.closing, _MIN_INTERVAL)
        seen = await engine.changed(seen, _MAX_INTERVAL)

"""The native API: leases, resets and steps, single or in batches, and pictures by SHA-256."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response, StreamingResponse

from stillweb import clock
from stillweb.errors import UsageError
from stillweb.server.engine import STARTS, Engine, Start
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols import models
from stillweb.server.protocols.web import (
    Caller,
    CallerOf,
    EngineOf,
    inline,
    left,
    step_result,
    while_connected,
)
from stillweb.server.responses import JsonResponse

_NDJSON = "application/x-ndjson"
_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": models.ErrorBody, "description": what}
    for status, what in {
        400: "The request is wrong",
        404: "The lease is unknown",
        409: "No episode is under way, or the request_id belongs to another request",
        410: "The lease is over",
        413: "The body is too large",
        422: "The task cannot be played here",
        502: "infra_error: browser, page or replay failed; never a reward",
        503: "Full, busy or shutting down; see Retry-After",
    }.items()
}


def router() -> APIRouter:
    """Return the routes below `/v1`."""
    routes = APIRouter(prefix="/v1", tags=["native"], responses=_FAILURES)
    routes.add_api_route(
        "/leases", create_lease, methods=["POST"], status_code=201, response_model=models.EpisodeStarted
    )
    one = "/leases/{lease}"
    routes.add_api_route(one, get_lease, methods=["GET"], response_model=models.LeaseInfo)
    routes.add_api_route(one, release_lease, methods=["DELETE"], status_code=204)
    routes.add_api_route(one + "/heartbeat", heartbeat, methods=["POST"], response_model=models.Heartbeat)
    routes.add_api_route(one + "/reset", reset, methods=["POST"], response_model=models.StepResponse)
    routes.add_api_route(one + "/step", step, methods=["POST"], response_model=models.StepResponse)
    routes.add_api_route(one + "/observe", observe, methods=["POST"], response_model=models.ObservationModel)
    routes.add_api_route("/batch/step", batch_step, methods=["POST"], response_model=models.BatchResults)
    routes.add_api_route("/batch/reset", batch_reset, methods=["POST"], response_model=models.BatchResults)
    routes.add_api_route("/tasks", list_tasks, methods=["GET"], response_model=models.TaskList)
    routes.add_api_route("/pictures/{sha256}", picture, methods=["GET"], response_class=Response)
    return routes


# --- one lease -------------------------------------------------------------------------------------


async def create_lease(caller: CallerOf, request: Request, given: models.LeaseRequest) -> Response:
    """Lease a session; with a task or URL, also start an episode: if that fails, the lease ends.

    A client that disconnects while it waits for a session leaves the queue, unless it set a `request_id` with
    which it may repeat the request.
    """
    if given.request_id and not given.owner:
        raise UsageError("request_id requires an owner: another client may use the same request_id")
    engine = caller.engine
    body = given.model_dump()
    start = Start.of(engine.options.tasks, body) if any(body[name] is not None for name in STARTS) else None

    async def create() -> dict[str, Any]:
        acquiring = caller.acquire(given.owner, ttl=given.ttl, lifetime=given.lifetime, wait=given.wait)
        held = await (acquiring if given.request_id else while_connected(request, acquiring))
        if start is None:
            return {**_info(held), "reset": None}
        stepped = await caller.start_or_release(held, start)
        return {**_info(held), "reset": step_result(held, stepped)}

    key = "\n".join((caller.client, given.owner, given.request_id)) if given.request_id else ""
    created = await engine.lease_requests.do(key, body, create)
    if created["reset"]:
        created = {**created, "reset": _with_pictures(engine, created["reset"], given.inline_pictures)}
    return JsonResponse(created, status_code=201)


async def list_tasks(engine: EngineOf) -> Response:
    """List the tasks that clients may name."""
    names = ("id", "goal", "start_url", "collection", "max_steps")
    tasks = engine.options.tasks.values()
    return JsonResponse({"tasks": [{name: getattr(task, name) for name in names} for task in tasks]})


async def get_lease(caller: CallerOf, lease: str) -> Response:
    """Return the state of a lease and renew it."""
    return JsonResponse(_info(caller.lease(lease)))


async def release_lease(caller: CallerOf, lease: str) -> Response:
    """End a lease and its running call; the response follows when the session is cleared. Idempotent."""
    if not caller.engine.leases.table.why_ended(lease):
        await caller.engine.leases.release(caller.lease(lease))
    return Response(status_code=204)


async def heartbeat(caller: CallerOf, lease: str) -> Response:
    """Renew a lease; every other call of the lease does so, too."""
    held = caller.lease(lease)
    return JsonResponse({"lease": lease, "ttl": held.lease.terms.ttl, "seconds_left": left(held)})


async def reset(caller: CallerOf, lease: str, given: models.ResetRequest) -> Response:
    """Start an episode; a running one is left."""
    return JsonResponse(await _reset(caller, lease, given))


async def step(caller: CallerOf, lease: str, given: models.StepRequest) -> Response:
    """Take an action."""
    return JsonResponse(await _step(caller, lease, given))


async def observe(caller: CallerOf, lease: str, given: models.ObserveRequest) -> Response:
    """Observe the current page without a step."""
    engine = caller.engine
    seen = await engine.observe(caller.lease(lease), given.observe)
    return JsonResponse(inline(seen, engine.pictures) if given.inline_pictures else seen)


async def picture(engine: EngineOf, sha256: str) -> Response:
    """Return a picture by its SHA-256. The server drops the pictures that were not used for longest."""
    body = engine.pictures.get(sha256)
    if body is None:
        raise RequestRefused(
            FailureKind.NOT_FOUND,
            f"no picture {sha256}: it is unknown or was dropped from memory",
            hint="stillweb serve --trajectories DIR keeps all pictures",
        )
    headers = {"Cache-Control": "private, max-age=31536000, immutable", "ETag": f'"{sha256}"'}
    return Response(body, media_type="image/png", headers=headers)


# --- many leases -----------------------------------------------------------------------------------


async def batch_step(caller: CallerOf, given: models.BatchStep, accept: str = Header("")) -> Response:
    """Step many leases; each item succeeds or fails independently.

    `stream` sends results as they complete.
    """
    calls = [(item.lease, lambda item=item: _step(caller, item.lease, item)) for item in given.items]
    return await _batch(calls, streamed=given.stream or _NDJSON in accept)


async def batch_reset(caller: CallerOf, given: models.BatchReset, accept: str = Header("")) -> Response:
    """Reset many leases, in the same way as `batch/step`."""
    calls = [(item.lease, lambda item=item: _reset(caller, item.lease, item)) for item in given.items]
    return await _batch(calls, streamed=given.stream or _NDJSON in accept)


Call = tuple[str, Callable[[], Awaitable[dict[str, Any]]]]


async def _batch(calls: Sequence[Call], *, streamed: bool) -> Response:
    items = [asyncio.ensure_future(_item(index, *call)) for index, call in enumerate(calls)]
    if streamed:
        return StreamingResponse(_lines(items), media_type=_NDJSON)
    return JsonResponse({"results": await asyncio.gather(*items)})


async def _item(index: int, lease: str, call: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    item = {"index": index, "lease": lease}
    gathered = await asyncio.gather(call(), return_exceptions=True)  # a bug in one item ends no other
    result = gathered[0]
    if not isinstance(result, BaseException):
        return {**item, "status": 200, "result": result}
    fault = fault_of(result)
    return {**item, "status": int(fault.status), **fault.body}


async def _lines(items: Sequence[asyncio.Future[dict[str, Any]]]) -> AsyncIterator[bytes]:
    for item in asyncio.as_completed(items):
        yield json.dumps(await item, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


# --- shared ----------------------------------------------------------------------------------------


async def _reset(caller: Caller, lease: str, given: models.ResetRequest) -> dict[str, Any]:
    held, engine = caller.lease(lease), caller.engine
    stepped = await engine.reset(
        held, Start.of(engine.options.tasks, given.model_dump()), request_id=given.request_id
    )
    return _with_pictures(engine, step_result(held, stepped, given.request_id), given.inline_pictures)


async def _step(caller: Caller, lease: str, given: models.StepRequest) -> dict[str, Any]:
    held, engine = caller.lease(lease), caller.engine
    stepped = await engine.step(held, given.action, request_id=given.request_id)
    return _with_pictures(engine, step_result(held, stepped, given.request_id), given.inline_pictures)


def _with_pictures(engine: Engine, result: dict[str, Any], inlined: bool) -> dict[str, Any]:
    if not inlined:
        return result
    return {**result, "observation": inline(result["observation"], engine.pictures)}


def _info(held: HeldLease) -> Mapping[str, Any]:
    shown = held.to_status(clock.monotonic())
    return {
        "lease": held.lease.id,
        "owner": held.lease.terms.owner,
        "session": held.lease.session,
        "ttl": held.lease.terms.ttl,
        "seconds_left": left(held),
        "state": shown.letter,
        **{name: getattr(shown, name) for name in ("doing", "step", "task", "url", "reward", "error")},
    }

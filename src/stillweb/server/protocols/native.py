"""The native API: leases, resets and steps, one by one or in batches, and pictures by their digests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response, StreamingResponse

from stillweb import clock
from stillweb.errors import UsageError
from stillweb.server.engine import Engine
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols import models
from stillweb.server.protocols.web import (
    STARTS,
    EngineOf,
    JsonResponse,
    inline,
    left,
    start_of,
    step_result,
    while_connected,
)

__all__ = ["router"]

_NDJSON = "application/x-ndjson"
_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": models.ErrorBody, "description": what}
    for status, what in {
        400: "The request is wrong",
        404: "No such lease",
        409: "No episode is under way, or the request_id was another request's",
        410: "The lease is over",
        422: "The task cannot be played here",
        502: "infra_error: browser, page or replay failed; never a reward",
        503: "Full, busy or ending; see Retry-After",
    }.items()
}


def router() -> APIRouter:
    """Return the routes below `/v1`."""
    made = APIRouter(prefix="/v1", tags=["native"], responses=_FAILURES)
    made.add_api_route(
        "/leases", create_lease, methods=["POST"], status_code=201, response_model=models.EpisodeStarted
    )
    one = "/leases/{lease}"
    made.add_api_route(one, get_lease, methods=["GET"], response_model=models.LeaseInfo)
    made.add_api_route(one, release_lease, methods=["DELETE"], status_code=204)
    made.add_api_route(one + "/heartbeat", heartbeat, methods=["POST"], response_model=models.Heartbeat)
    made.add_api_route(one + "/reset", reset, methods=["POST"], response_model=models.StepResponse)
    made.add_api_route(one + "/step", step, methods=["POST"], response_model=models.StepResponse)
    made.add_api_route(one + "/observe", observe, methods=["POST"], response_model=models.ObservationModel)
    made.add_api_route("/batch/step", batch_step, methods=["POST"], response_model=models.BatchResults)
    made.add_api_route("/batch/reset", batch_reset, methods=["POST"], response_model=models.BatchResults)
    made.add_api_route("/tasks", list_tasks, methods=["GET"], response_model=models.TaskList)
    made.add_api_route("/pictures/{sha256}", picture, methods=["GET"], response_class=Response)
    return made


# --- one lease -------------------------------------------------------------------------------------


async def create_lease(engine: EngineOf, request: Request, given: models.LeaseRequest) -> Response:
    """Lease a session; begin an episode where a task or URL is given: if that fails, the lease ends.

    A client that hangs up while it waits for a session leaves the line, unless its `request_id` says that it
    may come back.
    """
    if given.request_id and not given.owner:
        raise UsageError("request_id needs an owner here: another client may use the same one")
    asked = given.model_dump()
    start = start_of(engine, asked) if any(asked[name] is not None for name in STARTS) else None

    async def create() -> dict[str, Any]:
        getting = engine.desk.get(given.owner, ttl=given.ttl, lifetime=given.lifetime, wait=given.wait)
        held = await (getting if given.request_id else while_connected(request, getting))
        if start is None:
            return {**_info(held), "reset": None}
        try:
            stepped = await engine.reset(held, start)
        except BaseException:
            await engine.desk.end(held)  # the client does not even know its name
            raise
        return {**_info(held), "reset": step_result(held, stepped)}

    key = f"{given.owner}\n{given.request_id}" if given.request_id else ""
    told = await engine.leasing.do(key, asked, create)
    if told["reset"]:
        told = {**told, "reset": _told(engine, told["reset"], given.inline_pictures)}
    return JsonResponse(told, status_code=201)


async def list_tasks(engine: EngineOf) -> Response:
    """List the tasks that clients may name."""
    names = ("id", "goal", "start_url", "collection", "max_steps")
    tasks = engine.options.tasks.values()
    return JsonResponse({"tasks": [{name: getattr(task, name) for name in names} for task in tasks]})


async def get_lease(engine: EngineOf, lease: str) -> Response:
    """Tell how a lease stands; renews it."""
    return JsonResponse(_info(_called(engine, lease)))


async def release_lease(engine: EngineOf, lease: str) -> Response:
    """End a lease, whatever is under way; answered when its session was left. Twice is once."""
    if not engine.desk.leases.why_ended(lease):
        await engine.desk.end(_called(engine, lease))
    return Response(status_code=204)


async def heartbeat(engine: EngineOf, lease: str) -> Response:
    """Renew a lease, as every other call of it does."""
    held = _called(engine, lease)
    return JsonResponse({"lease": lease, "ttl": held.lease.wanted.ttl, "seconds_left": left(held)})


async def reset(engine: EngineOf, lease: str, given: models.ResetRequest) -> Response:
    """Begin an episode; one that is under way is left."""
    return JsonResponse(await _reset(engine, lease, given))


async def step(engine: EngineOf, lease: str, given: models.StepRequest) -> Response:
    """Take an action."""
    return JsonResponse(await _step(engine, lease, given))


async def observe(engine: EngineOf, lease: str, given: models.ObserveRequest) -> Response:
    """Look at the page as it is now, without a step."""
    seen = await engine.observe(_called(engine, lease), given.observe)
    return JsonResponse(inline(seen, engine.pictures) if given.inline_pictures else seen)


async def picture(engine: EngineOf, sha256: str) -> Response:
    """Fetch a picture by its SHA-256. What was not fetched for long may have been dropped."""
    body = engine.pictures.get(sha256)
    if body is None:
        raise RequestRefused(
            FailureKind.ABSENT,
            f"no picture {sha256}, or not any more",
            hint="stillweb serve --trajectories DIR keeps all",
        )
    headers = {"Cache-Control": "private, max-age=31536000, immutable", "ETag": f'"{sha256}"'}
    return Response(body, media_type="image/png", headers=headers)


# --- many leases -----------------------------------------------------------------------------------


async def batch_step(engine: EngineOf, given: models.BatchStep, accept: str = Header("")) -> Response:
    """Step many leases at once; each item succeeds or fails by itself. `stream`: told as they end."""
    calls = [(item.lease, lambda item=item: _step(engine, item.lease, item)) for item in given.items]
    return await _batch(calls, streamed=given.stream or _NDJSON in accept)


async def batch_reset(engine: EngineOf, given: models.BatchReset, accept: str = Header("")) -> Response:
    """Reset many leases at once, as `batch/step` does."""
    calls = [(item.lease, lambda item=item: _reset(engine, item.lease, item)) for item in given.items]
    return await _batch(calls, streamed=given.stream or _NDJSON in accept)


Call = tuple[str, Callable[[], Awaitable[dict[str, Any]]]]


async def _batch(calls: Sequence[Call], *, streamed: bool) -> Response:
    items = [asyncio.ensure_future(_item(index, *call)) for index, call in enumerate(calls)]
    if streamed:
        return StreamingResponse(_lines(items), media_type=_NDJSON)
    return JsonResponse({"results": await asyncio.gather(*items)})


async def _item(index: int, lease: str, call: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    told = {"index": index, "lease": lease}
    gathered = await asyncio.gather(call(), return_exceptions=True)  # a bug of ours ends no other item
    result = gathered[0]
    if not isinstance(result, BaseException):
        return {**told, "status": 200, "result": result}
    fault = fault_of(result)
    return {**told, "status": int(fault.status), **fault.to_dict()}


async def _lines(items: Sequence[asyncio.Future[dict[str, Any]]]) -> AsyncIterator[bytes]:
    for item in asyncio.as_completed(items):
        yield json.dumps(await item, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


# --- shared ----------------------------------------------------------------------------------------


def _called(engine: Engine, lease: str) -> HeldLease:
    held = engine.desk.find(lease)
    engine.desk.heard(held)
    return held


async def _reset(engine: Engine, lease: str, given: models.ResetRequest) -> dict[str, Any]:
    held = _called(engine, lease)
    stepped = await engine.reset(held, start_of(engine, given.model_dump()), request_id=given.request_id)
    return _told(engine, step_result(held, stepped, given.request_id), given.inline_pictures)


async def _step(engine: Engine, lease: str, given: models.StepRequest) -> dict[str, Any]:
    held = _called(engine, lease)
    stepped = await engine.step(held, given.action, request_id=given.request_id)
    return _told(engine, step_result(held, stepped, given.request_id), given.inline_pictures)


def _told(engine: Engine, result: dict[str, Any], inlined: bool) -> dict[str, Any]:
    if not inlined:
        return result
    return {**result, "observation": inline(result["observation"], engine.pictures)}


def _info(held: HeldLease) -> Mapping[str, Any]:
    shown = held.to_status(clock.monotonic())
    return {
        "lease": held.lease.id,
        "owner": held.lease.wanted.owner,
        "session": held.lease.session,
        "ttl": held.lease.wanted.ttl,
        "seconds_left": left(held),
        "state": shown.letter,
        **{name: getattr(shown, name) for name in ("doing", "step", "task", "url", "reward", "error")},
    }

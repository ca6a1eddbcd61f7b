"""What the routes of all protocols share: the engine behind a request, answers as JSON, failures as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from stillweb import clock
from stillweb.env.tasks.load import task_from_dict
from stillweb.errors import StillwebError, UsageError
from stillweb.server.engine import Engine, Start, Stepped
from stillweb.server.failures import FailureKind, RequestRefused, ServerFault, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.pictures import PictureStore

__all__ = [
    "STARTS",
    "EngineOf",
    "JsonResponse",
    "failed",
    "failed_bug",
    "failed_http",
    "failed_validation",
    "fault_response",
    "inline",
    "left",
    "start_of",
    "step_result",
    "while_connected",
]

STARTS = ("task", "task_id", "url")  # one of them says what an episode begins with


class JsonResponse(Response):
    """JSON, of values that are plain or have a text."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", "replace")


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


T = TypeVar("T")
EngineOf = Annotated[Engine, Depends(_engine)]


# --- failures --------------------------------------------------------------------------------------


def failed(_: Request, error: Exception) -> Response:
    """Answer an error of ours."""
    assert isinstance(error, StillwebError)
    return fault_response(fault_of(error))


def failed_bug(_: Request, error: Exception) -> Response:
    """Answer what should not happen; it goes on into the log."""
    return fault_response(fault_of(error))


def failed_http(_: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)
    body = ServerFault(error.status_code, FailureKind.ABSENT.value, str(error.detail), "GET /docs").to_dict()  # type: ignore[arg-type]
    return JsonResponse(body, status_code=error.status_code, headers=error.headers)


def failed_validation(_: Request, error: Exception) -> Response:
    """Answer a body or parameter that is wrong, and say each place."""
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return fault_response(
        fault_of(RequestRefused(FailureKind.BAD, wrong, hint="GET /docs shows what is taken"))
    )


def fault_response(fault: ServerFault, more: Mapping[str, Any] | None = None) -> Response:
    """Return a failure as a response."""
    headers = {"Retry-After": str(fault.after)} if fault.after else None
    return JsonResponse({**fault.to_dict(), **(more or {})}, status_code=fault.status, headers=headers)


# --- requests and answers --------------------------------------------------------------------------


def start_of(engine: Engine, given: Mapping[str, Any], where: str = "the request") -> Start:
    """Return what an episode begins with, of the fields `task`, `task_id`, `url` and `seed`.

    Raises:
        UsageError: if not exactly one of the first three is given, or there is no such task.
        TaskError: if the task is none.
    """
    named = [name for name in STARTS if given.get(name) is not None]
    if len(named) != 1:
        raise UsageError(f"{where} needs one of task, task_id and url, not {' and '.join(named) or 'none'}")
    seed = given.get("seed")
    if named == ["url"]:
        return Start(url=str(given["url"]), seed=seed)
    if named == ["task"]:
        return Start(task=task_from_dict(given["task"], where), seed=seed)
    task = engine.options.tasks.get(given["task_id"])
    if task is None:
        raise UsageError(
            f"no task {given['task_id']!r} among the {len(engine.options.tasks)} known here",
            hint="stillweb serve --tasks FILE, or send the task itself",
        )
    return Start(task=task, seed=seed)


async def while_connected(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """Wait for something for as long as the client does.

    Raises:
        Refused: if it has hung up; nobody will see that.
    """
    waits, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([waits, gone], return_when=asyncio.FIRST_COMPLETED)
        if not waits.done():
            waits.cancel()
            await asyncio.wait([waits])
            raise RequestRefused(FailureKind.OVER, "the client has gone")
        return waits.result()
    finally:
        waits.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def step_result(held: HeldLease, stepped: Stepped, request_id: str = "") -> dict[str, Any]:
    """Return what a reset or step gave, as `models.StepResult`."""
    return {
        "lease": held.lease.id,
        "observation": stepped.observation,
        "reward": stepped.reward,
        "terminated": stepped.terminated,
        "truncated": stepped.truncated,
        "info": stepped.info,
        "request_id": request_id,
    }


def inline(observation: dict[str, Any], pictures: PictureStore) -> dict[str, Any]:
    """Return an observation with its pictures in it, as far as they are still kept."""
    shown = {}
    for name, reference in observation["pictures"].items():
        body = pictures.get(reference["sha256"])
        data = {"data": base64.b64encode(body).decode()} if body else {}
        shown[name] = {**reference, **data}
    return {**observation, "pictures": shown}


def left(held: HeldLease) -> float:
    """Return the seconds until a lease's lifetime is over."""
    return round(max(0.0, held.lease.until - clock.monotonic()), 3)

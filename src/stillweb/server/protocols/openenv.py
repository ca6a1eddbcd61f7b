"""OpenEnv's protocol: a WebSocket with one lease for each connection, and the same over HTTP.

    {"type": "reset", "data": {"task_id": "t1", "seed": 7}}   ->  {"type": "observation", "data": {...}}
    {"type": "step", "data": {"action": "click", "bid": "a12"}}
    {"type": "state"}   {"type": "close"}

A reset takes `task_id`, `task` or `url`; otherwise `seed` draws one of the server's tasks. `page_seed` sets
the randomness of the page [default: the task's or the recording's]: with another seed, pages request what was
not recorded. Every observation holds the `goal`, since OpenEnv's clients show the model nothing else.

An open connection keeps its lease alive; when it closes, the session is left. A failure of the server is an
error with `kind` "infra_error", never an observation with a reward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, WebSocket
from fastapi.responses import Response
from pydantic import Field
from starlette.websockets import WebSocketDisconnect

from stillweb import __version__
from stillweb.env import action_schema
from stillweb.errors import InfraError, ResetNeeded, StillwebError, UsageError
from stillweb.server.engine import STARTS, Engine, Start, Stepped
from stillweb.server.failures import RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols.models import ObservationModel
from stillweb.server.protocols.web import CallerOf, caller_of
from stillweb.server.responses import JsonResponse

Given = Annotated[dict[str, Any], Body(default_factory=dict)]


class GoalObservation(ObservationModel):
    """An observation with the goal of its task."""

    goal: str = Field(description="Goal of the task")


def router(prefix: str) -> APIRouter:
    """Return the routes below a prefix."""
    routes = APIRouter(prefix=prefix, tags=["openenv"])
    routes.add_api_websocket_route("/ws", socket)
    routes.add_api_route("/reset", reset, methods=["POST"])
    routes.add_api_route("/step", step, methods=["POST"])
    routes.add_api_route("/state", state, methods=["GET"])
    routes.add_api_route("/schema", schema, methods=["GET"])
    routes.add_api_route("/metadata", metadata, methods=["GET"])
    routes.add_api_route("/health", health, methods=["GET"])
    return routes


# --- HTTP ------------------------------------------------------------------------------------------


async def reset(caller: CallerOf, given: Given) -> Response:
    """Start an episode in a new lease (`metadata.episode_id`), or in that of a given `episode_id`."""
    if episode_id := given.get("episode_id"):
        return JsonResponse(await _reset(caller.engine, caller.lease(str(episode_id)), given))
    start = _start(caller.engine, given)
    held = await caller.acquire("openenv")
    return JsonResponse(_result(held, await caller.start_or_release(held, start)))


async def step(caller: CallerOf, given: Given) -> Response:
    """Take an action in the episode `episode_id`; `request_id` makes retries safe."""
    held = caller.lease(str(given.get("episode_id", "")))
    request_id = str(given.get("request_id") or "")
    return JsonResponse(await _step(caller.engine, held, given.get("action"), request_id))


async def state(caller: CallerOf, episode_id: Annotated[str, Query()] = "") -> Response:
    """Return the state of an episode."""
    if not episode_id:
        return JsonResponse({"episode_id": None, "step_count": 0})
    return JsonResponse(_state(caller.lease(episode_id)))


async def schema() -> Response:
    """Return the JSON schemas of actions, observations and state."""
    counted = {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}
    return JsonResponse(
        {
            "action": action_schema(),
            "observation": GoalObservation.model_json_schema(),
            "state": {"type": "object", "properties": counted},
        }
    )


async def metadata() -> Response:
    """Return name, description and version of the environment."""
    return JsonResponse(
        {
            "name": "stillweb",
            "description": "Tasks on recorded web sites that replay frozen.",
            "version": __version__,
        }
    )


async def health() -> Response:
    """Return 200 while the process runs."""
    return JsonResponse({"status": "healthy"})


# --- WebSocket -------------------------------------------------------------------------------------


async def socket(websocket: WebSocket) -> None:
    """Serve one client in a lease of its own."""
    caller = caller_of(websocket)
    engine = caller.engine
    await websocket.accept()
    try:
        held = await caller.acquire("openenv")
    except RequestRefused as error:
        await _send(websocket, _error(error, "CAPACITY_REACHED"))
        await websocket.close()
        return
    engine.leases.renew(held, calls=1)  # an open connection counts as a call: the lease does not expire
    try:
        with suppress(WebSocketDisconnect):
            while (response := await _respond(engine, held, await websocket.receive_text())) is not None:
                await _send(websocket, response)
            await websocket.close()
    finally:
        engine.leases.renew(held, calls=-1)
        await engine.leases.release(held)


async def _send(websocket: WebSocket, message: Mapping[str, Any]) -> None:
    await websocket.send_text(json.dumps(message, ensure_ascii=False, default=str))


async def _respond(engine: Engine, held: HeldLease, text: str) -> dict[str, Any] | None:
    """Return the response to a message; None for `close`."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _error(UsageError(f"the message is not JSON: {error}"), "INVALID_JSON")
    kind = message.get("type") if isinstance(message, dict) else None
    data = message.get("data", {}) if isinstance(message, dict) else {}
    if kind == "close":
        return None
    if kind == "state":
        return {"type": "state", "data": _state(held)}
    try:
        if kind == "reset":
            return {"type": "observation", "data": await _reset(engine, held, data)}
        if kind == "step":
            return {"type": "observation", "data": await _step(engine, held, data)}
    except (UsageError, ResetNeeded) as error:
        return _error(error, "VALIDATION_ERROR")
    except RequestRefused as error:
        return _error(error, "SESSION_ERROR")
    except StillwebError as error:
        return _error(error, "EXECUTION_ERROR")
    return _error(
        UsageError(f"no message of type {kind!r}", hint="send reset, step, state or close"), "UNKNOWN_TYPE"
    )


def _error(error: StillwebError, code: str) -> dict[str, Any]:
    fault = fault_of(error)
    code = "EXECUTION_ERROR" if isinstance(error, InfraError) else code
    return {"type": "error", "data": {"message": fault.error.message, "code": code, "kind": fault.kind}}


# --- shared ----------------------------------------------------------------------------------------


async def _reset(engine: Engine, held: HeldLease, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"reset takes an object, not {type(given).__name__}")
    engine.leases.renew(held)
    return _result(held, await engine.reset(held, _start(engine, given)))


def _start(engine: Engine, given: Mapping[str, Any]) -> Start:
    """Return the start of an episode. Without a task, the seed draws one, as in Gymnasium."""
    seed, tasks = given.get("seed"), list(engine.options.tasks)
    if not isinstance(seed, int | None):
        raise UsageError(f"seed must be a number, not {seed!r}")
    if tasks and not any(given.get(name) is not None for name in STARTS):
        given = {**given, "task_id": tasks[(seed or 0) % len(tasks)]}
    return Start.of(engine.options.tasks, {**given, "seed": given.get("page_seed")}, "reset")


async def _step(engine: Engine, held: HeldLease, action: Any, request_id: str = "") -> dict[str, Any]:
    if not isinstance(action, Mapping | str):
        raise UsageError(f"action must be an object or a text, not {type(action).__name__}")
    if isinstance(action, Mapping):  # every OpenEnv Action has the field metadata
        action = {name: value for name, value in action.items() if name != "metadata"}
    engine.leases.renew(held)
    return _result(held, await engine.step(held, action, request_id=request_id))


def _result(held: HeldLease, stepped: Stepped) -> dict[str, Any]:
    return {
        "observation": {"goal": held.goal, **stepped.observation},
        "reward": stepped.reward,
        "done": stepped.terminated or stepped.truncated,
        "metadata": {"episode_id": held.lease.id, "truncated": stepped.truncated, "info": stepped.info},
    }


def _state(held: HeldLease) -> dict[str, Any]:
    episode = {name: getattr(held, name) for name in ("task", "url", "reward", "error")}
    return {"episode_id": held.lease.id, "step_count": held.step, "done": held.finished, **episode}

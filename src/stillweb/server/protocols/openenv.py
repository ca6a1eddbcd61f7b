"""OpenEnv's protocol: a WebSocket whose connection is the lease, and the same over HTTP by `episode_id`.

    {"type": "reset", "data": {"task_id": "t1", "seed": 7}}   ->  {"type": "observation", "data": {...}}
    {"type": "step", "data": {"action": "click", "bid": "a12"}}
    {"type": "state"}   {"type": "close"}

A reset takes `task_id`, `task` or `url`; otherwise `seed` draws one of the server's tasks. The page's own
randomness is the task's or the recording's, or `page_seed`: under another seed pages ask for what was not
recorded.

While a connection is open its lease does not fall silent; when it goes, the session is left. A failure of
ours is an error with `kind` "infra_error", and never an observation with a reward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, WebSocket
from fastapi.responses import Response
from starlette.websockets import WebSocketDisconnect

from stillweb import __version__
from stillweb.env.actions.action import action_schema
from stillweb.errors import InfraError, ResetNeeded, StillwebError, UsageError
from stillweb.server.engine import Engine, Start, Stepped
from stillweb.server.failures import RequestRefused, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols.models import ObservationModel
from stillweb.server.protocols.web import STARTS, EngineOf, JsonResponse, start_of

__all__ = ["router", "socket"]

Given = Annotated[dict[str, Any], Body(default_factory=dict)]


def router(prefix: str) -> APIRouter:
    """Return the routes below a prefix."""
    made = APIRouter(prefix=prefix, tags=["openenv"])
    made.add_api_websocket_route("/ws", socket)
    made.add_api_route("/reset", reset, methods=["POST"])
    made.add_api_route("/step", step, methods=["POST"])
    made.add_api_route("/state", state, methods=["GET"])
    made.add_api_route("/schema", schema, methods=["GET"])
    made.add_api_route("/metadata", metadata, methods=["GET"])
    made.add_api_route("/health", health, methods=["GET"])
    return made


# --- HTTP ------------------------------------------------------------------------------------------


async def reset(engine: EngineOf, given: Given) -> Response:
    """Begin an episode, in the lease that `metadata.episode_id` names, or that `episode_id` named before."""
    episode_id = given.get("episode_id")
    held = engine.desk.find(str(episode_id)) if episode_id else await engine.desk.get("openenv")
    try:
        return JsonResponse(await _reset(engine, held, given))
    except StillwebError:
        if not episode_id:
            await engine.desk.end(held)
        raise


async def step(engine: EngineOf, given: Given) -> Response:
    """Take an action in the episode that `episode_id` names; `request_id` makes retries safe."""
    held = engine.desk.find(str(given.get("episode_id", "")))
    return JsonResponse(await _step(engine, held, given.get("action"), str(given.get("request_id") or "")))


async def state(engine: EngineOf, episode_id: Annotated[str, Query()] = "") -> Response:
    """Tell how an episode stands."""
    if not episode_id:
        return JsonResponse({"episode_id": None, "step_count": 0})
    held = engine.desk.find(episode_id)
    engine.desk.heard(held)
    return JsonResponse(_state(held))


async def schema() -> Response:
    """Return the JSON schemas of actions, observations and state."""
    counted = {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}
    return JsonResponse(
        {
            "action": action_schema(),
            "observation": ObservationModel.model_json_schema(),
            "state": {"type": "object", "properties": counted},
        }
    )


async def metadata() -> Response:
    """Return what the environment is."""
    return JsonResponse(
        {
            "name": "stillweb",
            "description": "Tasks on recorded web sites that replay frozen.",
            "version": __version__,
        }
    )


async def health() -> Response:
    """Tell that the server lives."""
    return JsonResponse({"status": "healthy"})


# --- WebSocket -------------------------------------------------------------------------------------


async def socket(websocket: WebSocket) -> None:
    """Speak with one client, in a lease of its own."""
    engine: Engine = websocket.app.state.engine
    await websocket.accept()
    try:
        held = await engine.desk.get("openenv")
    except RequestRefused as error:
        await _send(websocket, _error(error, "CAPACITY_REACHED"))
        await websocket.close()
        return
    engine.desk.heard(held, calls=1)  # an open connection is no silence
    try:
        with suppress(WebSocketDisconnect):
            while (answer := await _answer(engine, held, await websocket.receive_text())) is not None:
                await _send(websocket, answer)
            await websocket.close()
    finally:
        engine.desk.heard(held, calls=-1)
        await engine.desk.end(held)


async def _send(websocket: WebSocket, message: Mapping[str, Any]) -> None:
    await websocket.send_text(json.dumps(message, ensure_ascii=False, default=str))


async def _answer(engine: Engine, held: HeldLease, text: str) -> dict[str, Any] | None:
    """Return the answer to a message; None to a goodbye."""
    try:
        message = json.loads(text)
    except ValueError as error:
        return _error(UsageError(f"not JSON: {error}"), "INVALID_JSON")
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
    return _error(UsageError(f"no message of type {kind!r}: reset, step, state or close"), "UNKNOWN_TYPE")


def _error(error: StillwebError, code: str) -> dict[str, Any]:
    fault = fault_of(error)
    code = "EXECUTION_ERROR" if isinstance(error, InfraError) else code
    return {"type": "error", "data": {"message": fault.message, "code": code, "kind": fault.kind}}


# --- shared ----------------------------------------------------------------------------------------


async def _reset(engine: Engine, held: HeldLease, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"reset takes an object, not {type(given).__name__}")
    engine.desk.heard(held)
    return _shown(held, await engine.reset(held, _start(engine, given)))


def _start(engine: Engine, given: Mapping[str, Any]) -> Start:
    """Return what an episode begins with. The seed draws a task where none is named, as in Gymnasium."""
    seed, tasks = given.get("seed"), list(engine.options.tasks)
    if not isinstance(seed, int | None):
        raise UsageError(f"seed is a number, not {seed!r}")
    if tasks and not any(given.get(name) is not None for name in STARTS):
        given = {**given, "task_id": tasks[(seed or 0) % len(tasks)]}
    return start_of(engine, {**given, "seed": given.get("page_seed")}, "reset")


async def _step(engine: Engine, held: HeldLease, action: Any, request_id: str = "") -> dict[str, Any]:
    if not isinstance(action, Mapping | str):
        raise UsageError(f"action is an object or a text, not {type(action).__name__}")
    if isinstance(action, Mapping):
        action = {name: value for name, value in action.items() if name != "metadata"}  # every Action has it
    engine.desk.heard(held)
    return _shown(held, await engine.step(held, action, request_id=request_id))


def _shown(held: HeldLease, stepped: Stepped) -> dict[str, Any]:
    return {
        "observation": stepped.observation,
        "reward": stepped.reward,
        "done": stepped.terminated or stepped.truncated,
        "metadata": {"episode_id": held.lease.id, "truncated": stepped.truncated, "info": stepped.info},
    }


def _state(held: HeldLease) -> dict[str, Any]:
    told = {name: getattr(held, name) for name in ("task", "url", "reward", "error")}
    return {"episode_id": held.lease.id, "step_count": held.step, "done": held.over, **told}

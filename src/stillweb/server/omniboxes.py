"""WebGym's Omniboxes, spoken by this server: its clients find frozen pages where they had the live web.

An instance is a lease. It has no episode until `visit_page`, which begins one without a task or reward;
further visits go on in it, as in a browser. `reset` gives the instance back. There is one node, this server.
What clients wait for by sleeping, this server waits for itself: an answer comes when the page has settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response

from stillweb.env.task import Task
from stillweb.errors import StillwebError, UsageError
from stillweb.server.commands import Command, command_of, first_lines, rects_of, sequential_ids
from stillweb.server.engine import Engine, Start
from stillweb.server.held import Held
from stillweb.server.refusals import Fault, Refusal, Refused, fault_of
from stillweb.server.web import EngineOf, Json, fault_response

__all__ = ["router"]

NODE = "stillweb"
_ENDLESS = 1_000_000  # an instance has no last step
_BLANK_SIZE = (1280, 768)  # Omniboxes' own, until a page is open
_MODES = {"set_of_marks": "som", "coordinates": "screenshot"}

Instance = Annotated[str, Query(description="As /get gave it")]


def router(prefix: str) -> APIRouter:
    """Return the routes below a prefix."""
    made = APIRouter(prefix=prefix, tags=["omniboxes"])
    made.add_api_route("/get", get_instance, methods=["POST"])
    made.add_api_route("/reset", reset, methods=["POST"])
    made.add_api_route("/screenshot", screenshot, methods=["GET"], response_class=Response)
    made.add_api_route("/execute", execute, methods=["POST"])
    made.add_api_route("/info", info, methods=["GET"])
    made.add_api_route("/probe", probe, methods=["GET"])
    made.add_api_route("/metadata", metadata, methods=["GET"])
    return made


async def get_instance(
    engine: EngineOf,
    lifetime_mins: Annotated[float, Query(gt=0)] = 60,
    owner: Annotated[str, Query(description="Shown by the monitor; ours")] = "omniboxes",
    ttl: Annotated[float | None, Query(gt=0, description="Seconds of silence that end it; ours")] = None,
) -> Response:
    """Lease an instance; 503 at once if there is none."""
    try:
        held = await engine.desk.get(owner, ttl=ttl, lifetime=lifetime_mins * 60)
    except Refused as error:
        return _failure(error)
    return Json({"instance_id": held.lease.id, "node": _node(engine)})


async def reset(engine: EngineOf, instance_id: Instance, node: Instance) -> Response:
    """Give an instance back."""
    try:
        await engine.desk.end(_instance(engine, instance_id, node))
    except StillwebError as error:
        return _failure(error)
    return Json({"status": "success"})


async def screenshot(
    engine: EngineOf, instance_id: Instance, node: Instance, interaction_mode: str = "set_of_marks"
) -> Response:
    """Take a picture, with numbered marks or without."""
    try:
        held = _instance(engine, instance_id, node)
        form = _MODES.get(interaction_mode)
        if form is None:
            raise UsageError(f"no interaction_mode {interaction_mode!r}: {' or '.join(_MODES)}")
        seen = await engine.observe(held, [form], queue="screenshot")
    except StillwebError as error:
        return _failure(error)
    body = engine.pictures.get(seen["pictures"][form]["sha256"])
    return Response(body, media_type="image/png")


async def execute(engine: EngineOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Do exactly one command."""
    try:
        held = _instance(engine, str(body.get("instance_id", "")), str(body.get("node", "")))
        return Json(await _execute(engine, held, command_of(body)))
    except StillwebError as error:
        return _failure(error)


async def info(engine: EngineOf, request: Request) -> Response:
    """Tell of the nodes, of which there is one."""
    capacity = engine.options.sessions
    instances = [lease.id for lease in engine.desk.leases.running]
    node = {
        "url": str(request.base_url).rstrip("/"),
        "hash": _node(engine),
        "healthy": not engine.desk.draining,
        "capacity": capacity,
        "available": 0 if engine.desk.draining else capacity - engine.desk.leases.line.inside,
        "instances": instances,
    }
    return Json({"nodes": [node]})


async def probe(engine: EngineOf, instance_id: Instance, node: Instance) -> Response:
    """Tell whether an instance lives; renews its lease."""
    try:
        held = _instance(engine, instance_id, node)
    except StillwebError as error:
        return _failure(error)
    if held.error:
        return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"Probe failed: {held.error}")
    return Json({"status": "success", "message": "Probe successful"})


async def metadata(engine: EngineOf, instance_id: Instance, node: Instance) -> Response:
    """Tell size, title and address of an instance's page."""
    try:
        held = _instance(engine, instance_id, node)
    except StillwebError as error:
        return _failure(error)
    profile = held.info.get("determinism", {}).get("profile", {})
    width, height = profile.get("viewport") or _BLANK_SIZE
    return Json({"width": width, "height": height, **_page(held)})


# --- commands --------------------------------------------------------------------------------------


async def _execute(engine: Engine, held: Held, command: Command) -> dict[str, Any]:
    if command.action is None:
        return await _look(engine, held, command)
    if command.name == "visit_page" and not held.playing:
        url = str(command.action["url"])
        await engine.reset(held, Start(task=Task("", "", url, max_steps=_ENDLESS)))
        return {"status": "success"}
    stepped = await engine.step(held, command.action)
    went = stepped.info["action"]
    if went["status"] == "invalid_action":
        raise UsageError(f"{command.name}: {went['error']}")
    if went["status"] != "ok":
        return {"status": "failed", "message": went["error"]}
    return {"status": "success"}


async def _look(engine: Engine, held: Held, command: Command) -> dict[str, Any]:
    if command.name == "get_page_metadata":
        return _page(held)
    if command.name == "get_webpage_text":
        seen = await engine.observe(held, ["text"])
        return {"text": first_lines(seen["text"], command.args)}
    if command.name == "get_interactive_rects":
        seen = await engine.observe(held, ["elements:viewport"])
        return rects_of(seen["elements"])
    seen = await engine.observe(held, ["som"], queue="screenshot")
    return sequential_ids(seen) if command.name == "get_screenshot_info" else {"status": "screenshot_taken"}


def _page(held: Held) -> dict[str, str]:
    return {"title": held.title, "url": held.url}


# --- instances and failures ------------------------------------------------------------------------


def _node(engine: Engine) -> str:
    return engine.options.node or NODE


def _instance(engine: Engine, instance_id: str, node: str) -> Held:
    if node != _node(engine):
        raise UsageError(f"Node {node} is not found")
    held = engine.desk.find(instance_id)
    engine.desk.heard(held)
    return held


def _failure(error: StillwebError) -> Response:
    """Answer as Omniboxes does, and as we do beside it."""
    fault = fault_of(error)
    if isinstance(error, Refused) and error.refusal in (Refusal.UNKNOWN, Refusal.OVER):
        fault = Fault(HTTPStatus.BAD_REQUEST, fault.kind, f"Invalid instance UUID: {error}", fault.hint)
    return fault_response(fault, _told(fault.message))


def _answer(status: HTTPStatus, message: str) -> Response:
    return Json(_told(message), status_code=status)


def _told(message: str) -> Mapping[str, str]:
    return {"status": "error", "message": message, "detail": message}

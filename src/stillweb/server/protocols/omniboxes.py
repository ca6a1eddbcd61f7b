"""WebGym's Omniboxes, spoken by this server: its clients find frozen pages where they had the live web.

An instance is a lease. It has no episode until `visit_page`, which begins one without a task or reward;
further visits go on in it, as in a browser. `reset` gives the instance back. There is one node, this server.
What clients wait for by sleeping, this server waits for itself: an answer comes when the page has settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response

from stillweb.env.actions.action import InvalidAction, parse
from stillweb.env.actions.aliases import ALIASES
from stillweb.env.tasks.load import Task
from stillweb.errors import StillwebError, UsageError
from stillweb.server.engine import Engine, Start
from stillweb.server.failures import FailureKind, RequestRefused, ServerFault, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols.web import EngineOf, JsonResponse, fault_response

__all__ = ["Command", "command_of", "first_lines", "rects_of", "router", "sequential_ids"]

ACTIONS = frozenset(alias.name for alias in ALIASES if alias.source == "WebGym")
LOOKS = frozenset(
    ("get_page_metadata", "get_webpage_text", "get_interactive_rects", "get_screenshot_info", "screenshot")
)
_LINES = 100


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it was sent.

    Attributes:
        name: which.
        args: of it.
        action: our action, where it is one.
    """

    name: str
    args: Mapping[str, Any]
    action: Mapping[str, Any] | None = None


def command_of(body: Mapping[str, Any]) -> Command:
    """Return the one command of a request.

    Raises:
        UsageError: if there is none, more than one, or one that cannot be done here.
    """
    names = [name for name in body if name not in ("node", "instance_id")]
    if len(names) != 1:
        raise UsageError(f"exactly one command is expected, not {' and '.join(names) or 'none'}")
    name, args = names[0], body[names[0]]
    if not isinstance(args, Mapping):
        raise UsageError(f"{name} takes an object, not {type(args).__name__}")
    if name in LOOKS:
        return Command(name, args)
    if name not in ACTIONS:
        known = ", ".join(sorted(ACTIONS | LOOKS))
        raise UsageError(f"there is no command {name!r} here", hint=f"known: {known}")
    action = parse({name: dict(args)})
    if isinstance(action, InvalidAction):
        raise UsageError(f"{name}: {action.error}")
    return Command(name, args, action.to_dict())


def first_lines(text: str, given: Mapping[str, Any]) -> str:
    """Return as many lines of a page as are asked for.

    Raises:
        UsageError: if that is no number.
    """
    count = given.get("n_lines", _LINES)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UsageError(f"n_lines is a number, not {count!r}")
    return "\n".join(text.splitlines()[:count])


def rects_of(elements: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return elements as `get_interactive_rects` shows them, by their identifiers."""
    return {
        each["bid"]: {
            "tag_name": "",
            "role": each["role"],
            "aria-name": each["name"],
            "v-scrollable": False,
            "rects": [_rect(*each["box"])],
        }
        for each in elements
    }


def _rect(x: float, y: float, width: float, height: float) -> dict[str, float]:
    sides = {"left": x, "top": y, "right": x + width, "bottom": y + height}
    return {"x": x, "y": y, "width": width, "height": height, **sides}


def sequential_ids(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `get_screenshot_info` shows of the last picture with marks."""
    rects = rects_of(observation.get("elements", []))
    return {
        "id_mapping": dict(observation.get("marks", {})),
        "visible_rects": list(rects),
        "rects_above": [],
        "rects_below": [],
        "interactive_regions": rects,
    }


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
    except RequestRefused as error:
        return _failure(error)
    return JsonResponse({"instance_id": held.lease.id, "node": _node(engine)})


async def reset(engine: EngineOf, instance_id: Instance, node: Instance) -> Response:
    """Give an instance back."""
    try:
        await engine.desk.end(_instance(engine, instance_id, node))
    except StillwebError as error:
        return _failure(error)
    return JsonResponse({"status": "success"})


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
        return JsonResponse(await _execute(engine, held, command_of(body)))
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
    return JsonResponse({"nodes": [node]})


async def probe(engine: EngineOf, instance_id: Instance, node: Instance) -> Response:
    """Tell whether an instance lives; renews its lease."""
    try:
        held = _instance(engine, instance_id, node)
    except StillwebError as error:
        return _failure(error)
    if held.error:
        return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"Probe failed: {held.error}")
    return JsonResponse({"status": "success", "message": "Probe successful"})


async def metadata(engine: EngineOf, instance_id: Instance, node: Instance) -> Response:
    """Tell size, title and address of an instance's page."""
    try:
        held = _instance(engine, instance_id, node)
    except StillwebError as error:
        return _failure(error)
    profile = held.info.get("determinism", {}).get("profile", {})
    width, height = profile.get("viewport") or _BLANK_SIZE
    return JsonResponse({"width": width, "height": height, **_page(held)})


# --- commands --------------------------------------------------------------------------------------


async def _execute(engine: Engine, held: HeldLease, command: Command) -> dict[str, Any]:
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


async def _look(engine: Engine, held: HeldLease, command: Command) -> dict[str, Any]:
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


def _page(held: HeldLease) -> dict[str, str]:
    return {"title": held.title, "url": held.url}


# --- instances and failures ------------------------------------------------------------------------


def _node(engine: Engine) -> str:
    return engine.options.node or NODE


def _instance(engine: Engine, instance_id: str, node: str) -> HeldLease:
    if node != _node(engine):
        raise UsageError(f"Node {node} is not found")
    held = engine.desk.find(instance_id)
    engine.desk.heard(held)
    return held


def _failure(error: StillwebError) -> Response:
    """Answer as Omniboxes does, and as we do beside it."""
    fault = fault_of(error)
    if isinstance(error, RequestRefused) and error.refusal in (FailureKind.UNKNOWN, FailureKind.OVER):
        fault = ServerFault(HTTPStatus.BAD_REQUEST, fault.kind, f"Invalid instance UUID: {error}", fault.hint)
    return fault_response(fault, _told(fault.message))


def _answer(status: HTTPStatus, message: str) -> Response:
    return JsonResponse(_told(message), status_code=status)


def _told(message: str) -> Mapping[str, str]:
    return {"status": "error", "message": message, "detail": message}

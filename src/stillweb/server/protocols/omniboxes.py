"""WebGym's Omniboxes protocol: its clients get replayed pages instead of the live web.

An instance is a lease. Its first `visit_page` starts an episode without a task or reward; later visits
continue it, as in a browser. `reset` returns the instance. The server is the only node. Omniboxes clients
sleep until a page has loaded; this server instead responds when the page has settled.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from stillweb.env import InvalidAction, Task, parse
from stillweb.env.actions.aliases import ALIASES
from stillweb.errors import StillwebError, UsageError
from stillweb.server.engine import Engine, Start
from stillweb.server.failures import FailureKind, RequestRefused, ServerFault, fault_of
from stillweb.server.leases.held import HeldLease
from stillweb.server.protocols.web import Caller, CallerOf
from stillweb.server.responses import JsonResponse, fault_response

ACTIONS = frozenset(alias.name for alias in ALIASES if alias.source == "WebGym")
QUERIES = frozenset(
    ("get_page_metadata", "get_webpage_text", "get_interactive_rects", "get_screenshot_info", "screenshot")
)
_LINES = 100


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a client; `action` is the equivalent stillweb action, or None for a query."""

    name: str
    args: Mapping[str, Any]
    action: Mapping[str, Any] | None = None


def command_of(body: Mapping[str, Any]) -> Command:
    """Return the one command of a request.

    Raises:
        UsageError: if the request has no command, several commands, or an unsupported one.
    """
    names = [name for name in body if name not in ("node", "instance_id")]
    if len(names) != 1:
        raise UsageError(f"exactly one command is expected, not {' and '.join(names) or 'none'}")
    name, args = names[0], body[names[0]]
    if not isinstance(args, Mapping):
        raise UsageError(f"{name} takes an object, not {type(args).__name__}")
    if name in QUERIES:
        return Command(name, args)
    if name not in ACTIONS:
        known = ", ".join(sorted(ACTIONS | QUERIES))
        raise UsageError(f"no command {name!r}", hint=f"known commands: {known}")
    action = parse({name: dict(args)})
    if isinstance(action, InvalidAction):
        raise UsageError(f"{name}: {action.error}")
    return Command(name, args, action.to_dict())


def first_lines(text: str, given: Mapping[str, Any]) -> str:
    """Return the first `n_lines` lines of a page's text.

    Raises:
        UsageError: if `n_lines` is not a number.
    """
    count = given.get("n_lines", _LINES)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UsageError(f"n_lines must be a number, not {count!r}")
    return "\n".join(text.splitlines()[:count])


def rects_of(elements: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return elements in the form of `get_interactive_rects`, by identifier."""
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
    """Return the last marked picture in the form of `get_screenshot_info`."""
    rects = rects_of(observation.get("elements", []))
    return {
        "id_mapping": dict(observation.get("marks", {})),
        "visible_rects": list(rects),
        "rects_above": [],
        "rects_below": [],
        "interactive_regions": rects,
    }


NODE = "stillweb"
_NO_LIMIT = 1_000_000  # steps: instances have no step limit
_BLANK_SIZE = (1280, 768)  # the size that Omniboxes reports before a page is open
_MODES = {"set_of_marks": "som", "coordinates": "screenshot"}

Instance = Annotated[str, Query(description="Value that /get returned")]


class _Route(APIRoute):
    """Route that reports errors as Omniboxes does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond = super().get_route_handler()

        async def reported(request: Request) -> Response:
            try:
                return await respond(request)
            except StillwebError as error:
                return _failure(error)

        return reported


def router(prefix: str) -> APIRouter:
    """Return the routes below a prefix."""
    routes = APIRouter(prefix=prefix, tags=["omniboxes"], route_class=_Route)
    routes.add_api_route("/get", get_instance, methods=["POST"])
    routes.add_api_route("/reset", reset, methods=["POST"])
    routes.add_api_route("/screenshot", screenshot, methods=["GET"], response_class=Response)
    routes.add_api_route("/execute", execute, methods=["POST"])
    routes.add_api_route("/info", info, methods=["GET"])
    routes.add_api_route("/probe", probe, methods=["GET"])
    routes.add_api_route("/metadata", metadata, methods=["GET"])
    return routes


async def get_instance(
    caller: CallerOf,
    lifetime_mins: Annotated[float, Query(gt=0)] = 60,
    owner: Annotated[
        str, Query(description="Label that the monitor shows; extension of stillweb")
    ] = "omniboxes",
    ttl: Annotated[
        float | None, Query(gt=0, description="Seconds of silence that end the lease; extension of stillweb")
    ] = None,
) -> Response:
    """Lease an instance; 503 if none is free."""
    held = await caller.acquire(owner, ttl=ttl, lifetime=lifetime_mins * 60)
    return JsonResponse({"instance_id": held.lease.id, "node": _node(caller.engine)})


async def reset(caller: CallerOf, instance_id: Instance, node: Instance) -> Response:
    """Return an instance."""
    await caller.engine.leases.release(_instance(caller, instance_id, node))
    return JsonResponse({"status": "success"})


async def screenshot(
    caller: CallerOf, instance_id: Instance, node: Instance, interaction_mode: str = "set_of_marks"
) -> Response:
    """Return a screenshot, with or without numbered marks."""
    held = _instance(caller, instance_id, node)
    form = _MODES.get(interaction_mode)
    if form is None:
        raise UsageError(f"no interaction_mode {interaction_mode!r}", hint=f"use {' or '.join(_MODES)}")
    seen = await caller.engine.observe(held, [form], queue="screenshot")
    body = caller.engine.pictures.get(seen["pictures"][form]["sha256"])
    return Response(body, media_type="image/png")


async def execute(caller: CallerOf, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Execute exactly one command."""
    held = _instance(caller, str(body.get("instance_id", "")), str(body.get("node", "")))
    return JsonResponse(await _execute(caller.engine, held, command_of(body)))


async def info(caller: CallerOf, request: Request) -> Response:
    """List the nodes: one, with the instances of this client."""
    leases, capacity = caller.engine.leases, caller.engine.options.sessions
    node = {
        "url": str(request.base_url).rstrip("/"),
        "hash": _node(caller.engine),
        "healthy": not leases.draining,
        "capacity": capacity,
        "available": 0 if leases.draining else capacity - leases.table.leased,
        "instances": [each.id for each in leases.table.running if each.terms.client == caller.client],
    }
    return JsonResponse({"nodes": [node]})


async def probe(caller: CallerOf, instance_id: Instance, node: Instance) -> Response:
    """Report whether an instance is usable, and renew its lease."""
    held = _instance(caller, instance_id, node)
    if held.error:
        message = _messages(f"Probe failed: {held.error}")
        return JsonResponse(message, status_code=HTTPStatus.INTERNAL_SERVER_ERROR)
    return JsonResponse({"status": "success", "message": "Probe successful"})


async def metadata(caller: CallerOf, instance_id: Instance, node: Instance) -> Response:
    """Return size, title and URL of an instance's page."""
    held = _instance(caller, instance_id, node)
    profile = held.info.get("determinism", {}).get("profile", {})
    width, height = profile.get("viewport") or _BLANK_SIZE
    return JsonResponse({"width": width, "height": height, **_page(held)})


# --- commands --------------------------------------------------------------------------------------


async def _execute(engine: Engine, held: HeldLease, command: Command) -> dict[str, Any]:
    if command.action is None:
        return await _query(engine, held, command)
    if command.name == "visit_page" and not held.playing:
        url = str(command.action["url"])
        await engine.reset(held, Start(task=Task("", "", url, max_steps=_NO_LIMIT)))
        return {"status": "success"}
    stepped = await engine.step(held, command.action)
    result = stepped.info["action"]
    if result["status"] == "invalid_action":
        raise UsageError(f"{command.name}: {result['error']}")
    if result["status"] != "ok":
        return {"status": "failed", "message": result["error"]}
    return {"status": "success"}


async def _query(engine: Engine, held: HeldLease, command: Command) -> dict[str, Any]:
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


def _instance(caller: Caller, instance_id: str, node: str) -> HeldLease:
    if node != _node(caller.engine):
        raise UsageError(f"Node {node} is not found")
    return caller.lease(instance_id)


def _failure(error: StillwebError) -> Response:
    """Return an error response with the fields of Omniboxes and those of stillweb."""
    fault = fault_of(error)
    if isinstance(error, RequestRefused) and error.kind in (FailureKind.NO_LEASE, FailureKind.LEASE_OVER):
        message = f"Invalid instance UUID: {error}"
        fault = ServerFault.of(HTTPStatus.BAD_REQUEST, fault.kind, message, fault.error.hint)
    return fault_response(fault, _messages(fault.error.message))


def _messages(message: str) -> Mapping[str, str]:
    return {"status": "error", "message": message, "detail": message}

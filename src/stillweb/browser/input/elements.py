"""Elements for actions: lookup by bid or point, state queries, and the point to click.

An element is scrolled into view. The uppermost element at the chosen point must be the element itself, a
descendant, or its label. If its middle is covered, its corners are tried. If all of it is covered, it is
scrolled to the middle of the window, since sticky bars cover what was scrolled to the edge. A remaining
obstacle is named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.input.pointer import Point
from stillweb.errors import InfraError

if TYPE_CHECKING:
    from stillweb.browser.observe.bids import Bids


Target = str | Point
"""A bid, or a point in CSS pixels of the viewport."""

# Errors of CDP's DOM domain for a node without a box.
_NOT_DRAWN = ("does not have a layout object", "Could not compute content quads", "not visible")


class ActionFailed(Exception):
    """Raised when the page prevents an action: a fact to report to the agent.

    Attributes:
        reason: one clause.
        kind: "unknown_bid", "outside" and "value_missing", which the agent could have avoided; "gone",
            "invisible", "obstructed", "disabled", "unsuitable" or "navigation", which depend on the page.
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """Element of an action: its name in messages, and its handle in its frame's isolated world."""

    name: str
    probe: PageProbe
    object_id: str
    backend_node_id: int
    frame_id: str

    def failed(self, why: str, kind: str) -> ActionFailed:
        return ActionFailed(f"{self.name} {why}", kind)


async def find(page: Page, bids: Bids, bid: str) -> ActionTarget:
    """Return the element of a bid.

    Raises:
        ActionFailed: if the bid never existed, or its element is gone.
    """
    known = bids.find(page, bid)
    if known is None:
        raise ActionFailed(f"no element [{bid}] on this page", "unknown_bid")
    frame_id, backend_node_id = known
    probe = await PageProbe.of(page)
    try:
        object_id = await probe.handle(frame_id, backend_node_id)
    except FrameGone as error:
        raise ActionFailed(f"[{bid}] is no longer on this page", "gone") from error
    element = ActionTarget(name_of(bid), probe, object_id, backend_node_id, frame_id)
    if not await ask(element, "connected"):
        raise element.failed("is no longer on this page", "gone")
    return element


async def locate(page: Page, bids: Bids, target: Target) -> ActionTarget:
    """Return the element of a bid, or the uppermost element at a point.

    Raises:
        ActionFailed: if none exists.
    """
    if isinstance(target, str):
        return await find(page, bids, target)
    _require_inside(page, target)
    probe = await PageProbe.of(page)
    at = await _node_at(probe, target)
    if at is None:
        raise ActionFailed(f"there is nothing at {name_of(target)}", "gone")
    frame_id, backend_node_id = at
    try:
        object_id = await probe.handle(frame_id, backend_node_id)
    except FrameGone as error:
        raise ActionFailed(f"what was at {name_of(target)} is gone", "gone") from error
    return ActionTarget(f"what is at {name_of(target)}", probe, object_id, backend_node_id, frame_id)


async def place(element: ActionTarget, *, hit: bool = True, scroll: bool = True) -> Point:
    """Scroll an element into view and return the point to use, in CSS pixels of the viewport.

    Args:
        element: from `find`.
        hit: whether the element must be uppermost there.
        scroll: whether to scroll at all.

    Raises:
        ActionFailed: if it is not drawn, or covered.
    """
    if image := await related(element, "image"):
        return await _place_area(element, image, hit)
    shown = await shown_parts(element, scroll=scroll)
    if not shown:
        if instead := await related(element, "standIn"):
            return await place(instead, hit=hit, scroll=scroll)
        raise element.failed("is not drawn", "invisible")
    if not hit:
        return _middle(shown[0][1])
    obstacle, at = await _uncovered(element, shown)
    if obstacle:
        # For example below a sticky bar.
        await ask(element, "centre")
        obstacle, at = await _uncovered(element, await shown_parts(element, scroll=False) or shown)
    if not obstacle:
        return at
    if instead := await related(element, "standIn"):
        return await place(instead)
    raise element.failed(f"is covered by {obstacle}", "obstructed")


async def clickable_point(page: Page, bids: Bids, target: Target) -> Point:
    """Return the point to click, as `point_of`; fail for an element that takes no clicks."""
    if isinstance(target, tuple):
        return await point_of(page, bids, target)
    element = await find(page, bids, target)
    if await ask(element, "disabled"):
        raise element.failed("is disabled", "disabled")
    if await ask(element, "option"):
        raise element.failed("is an option: choose it with select", "unsuitable")
    return await place(element)


async def point_of(page: Page, bids: Bids, target: Target, *, hit: bool = True) -> Point:
    """Return the point of an element, as `place`; a given point is checked against the viewport."""
    if isinstance(target, str):
        return await place(await find(page, bids, target), hit=hit)
    _require_inside(page, target)
    return target


def _require_inside(page: Page, at: Point) -> None:
    size = page.viewport_size
    if size and not (0 <= at[0] < size["width"] and 0 <= at[1] < size["height"]):
        shape = f"{size['width']} by {size['height']}"
        raise ActionFailed(f"{name_of(at)} is outside of the viewport, which is {shape} pixels", "outside")


def name_of(target: Target) -> str:
    """Return a target's name for messages."""
    return f"[{target}]" if isinstance(target, str) else f"({target[0]:g}, {target[1]:g})"


async def shown_parts(element: ActionTarget, *, scroll: bool) -> list[tuple[int, list[float]]]:
    """Return the visible parts of an element: quadrilaterals, with the index of their box."""
    probe, backend = element.probe, element.backend_node_id
    try:
        if scroll:
            await probe.send("DOM.scrollIntoViewIfNeeded", backendNodeId=backend)
        quads = (await probe.send("DOM.getContentQuads", backendNodeId=backend))["quads"]
    except FrameGone as error:
        raise element.failed("is no longer on this page", "gone") from error
    except InfraError as error:
        if not any(sign in str(error) for sign in _NOT_DRAWN):
            raise
        return []
    shown = [(index, _in_view(probe.page, quad)) for index, quad in enumerate(quads)]
    return [(index, quad) for index, quad in shown if _area(quad) > 0.99]


async def _uncovered(element: ActionTarget, shown: Sequence[tuple[int, list[float]]]) -> tuple[str, Point]:
    """Return "" and a point at which the element is uppermost, or the name of its cover."""
    first = ""
    for candidates in (_middle, _upper_left, _lower_right, _upper_right, _lower_left):
        for index, quad in shown:
            at = candidates(quad)
            # Only a box's middle is checked in the document itself.
            obstacle = await _obstacle(element, at, index if candidates is _middle else -1)
            if not obstacle:
                return "", at
            first = first or obstacle
    return first, (0.0, 0.0)


async def _place_area(area: ActionTarget, image: ActionTarget, hit: bool) -> Point:
    """Return the point of an area of an image map, which has no box of its own."""
    shown = await shown_parts(image, scroll=True)
    if not shown:
        raise area.failed("belongs to an image that is not drawn", "invisible")
    quads = (await area.probe.send("DOM.getContentQuads", backendNodeId=image.backend_node_id))["quads"]
    spot = await ask(area, "spot")
    at = quads[0][0] + spot[0], quads[0][1] + spot[1]
    obstacle = await _obstacle(area, at, -1) if hit else ""
    # The browser may report either the image or its area at a point.
    if obstacle and await _obstacle(image, at, -1):
        raise area.failed(f"is covered by {obstacle}", "obstructed")
    return at


async def _node_at(probe: PageProbe, at: Point) -> tuple[str, int] | None:
    try:
        # CDP returns boxes in viewport coordinates, and takes document coordinates.
        scrolled = (await probe.send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        point = {"x": round(at[0] + scrolled["pageX"]), "y": round(at[1] + scrolled["pageY"])}
        found = await probe.send("DOM.getNodeForLocation", **point, includeUserAgentShadowDOM=False)
    except FrameGone:
        return None
    return found["frameId"], found["backendNodeId"]


async def _owner(probe: PageProbe, frame_id: str, within: str) -> int | None:
    """Return the element of a frame, or of its enclosing frame, within another frame; None outside of it."""
    parents = {frame.id: frame.parent for frame in await probe.frames()}
    while frame_id in parents and parents[frame_id] != within:
        frame_id = parents[frame_id]
    if frame_id not in parents:
        return None
    try:
        owner = await probe.send("DOM.getFrameOwner", frameId=frame_id)
    except FrameGone:
        return None
    backend: int = owner["backendNodeId"]
    return backend


async def _obstacle(element: ActionTarget, at: Point, index: int) -> str:
    """Return the name of the element that covers a point of an element, "" if none does."""
    probe = element.probe
    found = await _node_at(probe, at)
    if found is None:
        return "the edge of the page"
    frame_id, backend = found
    if backend == element.backend_node_id:
        return ""
    if frame_id != element.frame_id:
        # A script takes nodes of one frame only, so the frame's element in this frame is compared.
        owner = await _owner(probe, frame_id, element.frame_id)
        if owner is None:
            return "something outside of its frame"
        if owner == element.backend_node_id:
            return ""
        frame_id, backend = element.frame_id, owner
    try:
        hit = (await probe.send("DOM.describeNode", backendNodeId=backend))["node"]
        if "pseudoType" in hit and index >= 0:
            # An icon drawn by ::before is not a node, so its owner cannot be queried.
            return str(await ask(element, "obstacleAt", index))
        other = await probe.handle(frame_id, backend)
    except FrameGone:
        return "the edge of the page"
    except InfraError:
        if "pseudoType" in hit:
            return "another element"
        raise
    return str(await ask(element, "obstacle", handle=other))


async def related(element: ActionTarget, question: str) -> ActionTarget | None:
    """Return the element that a function of js/act.js returns, or None."""
    answer = await _call(element, question, [], by_value=False)
    if "objectId" not in answer:
        return None
    probe, handle = element.probe, answer["objectId"]
    backend = (await probe.send("DOM.describeNode", objectId=handle))["node"]["backendNodeId"]
    return ActionTarget(element.name, probe, handle, backend, element.frame_id)


async def ask(element: ActionTarget, question: str, *values: Any, handle: str = "") -> Any:
    arguments: list[dict[str, Any]] = [{"value": value} for value in values]
    if handle:
        arguments.append({"objectId": handle})
    return (await _call(element, question, arguments)).get("value")


async def _call(
    element: ActionTarget, question: str, arguments: list[dict[str, Any]], *, by_value: bool = True
) -> dict[str, Any]:
    try:
        answer = await element.probe.send(
            "Runtime.callFunctionOn",
            objectId=element.object_id,
            functionDeclaration=_functions(question),
            arguments=arguments,
            returnByValue=by_value,
        )
    except FrameGone as error:
        raise element.failed("is no longer on this page", "gone") from error
    if thrown := answer.get("exceptionDetails"):
        raise InfraError(f"{element.probe.page.url}: {question}: {json.dumps(thrown)[:300]}")
    result: dict[str, Any] = answer["result"]
    return result


def _functions(question: str) -> str:
    script = resources.files("stillweb.browser").joinpath("js", "act.js").read_text("utf-8")
    return f"function (...given) {{ return ({script.strip()}).{question}(this, ...given); }}"


def _in_view(page: Page, quad: Sequence[float]) -> list[float]:
    """Return the part of a box inside the viewport: the middle of a tall element may be far outside."""
    size = page.viewport_size
    if size is None:
        return list(quad)
    edges = (size["width"], size["height"])
    return [min(max(value, 0.0), edges[index % 2]) for index, value in enumerate(quad)]


def _area(quad: Sequence[float]) -> float:
    """Return the area of a quadrilateral (shoelace formula)."""
    xs, ys = quad[0::2], quad[1::2]
    return abs(sum(xs[i] * ys[(i + 1) % 4] - xs[(i + 1) % 4] * ys[i] for i in range(4))) / 2


def _middle(quad: Sequence[float]) -> Point:
    return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4


def _upper_left(quad: Sequence[float]) -> Point:
    return _towards(quad, 0)


def _upper_right(quad: Sequence[float]) -> Point:
    return _towards(quad, 1)


def _lower_right(quad: Sequence[float]) -> Point:
    return _towards(quad, 2)


def _lower_left(quad: Sequence[float]) -> Point:
    return _towards(quad, 3)


def _towards(quad: Sequence[float], corner: int) -> Point:
    """Return the point at four fifths of the way from the middle of a box to a corner."""
    x, y = _middle(quad)
    return x + (quad[2 * corner] - x) * 0.8, y + (quad[2 * corner + 1] - y) * 0.8

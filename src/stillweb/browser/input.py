"""Acting on a page by bid: node → place on screen → mouse and keyboard, as a person would.

A node is scrolled into view, its place is asked for, and what lies at that place must be the node
itself or something within it; otherwise the action fails and says what is in the way. An action
that fails is a fact about the page, not about us: `ActionFailed` is no `StillwebError`, and whoever
steps an episode turns it into a value. Nothing here waits for the page: that is `settle`.

No function uses the page's timers, so a pinned clock holds nothing up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.activity import is_ours
from stillweb.browser.axtree import Bids
from stillweb.browser.probe import FrameGone, Probe
from stillweb.errors import InfraError

Button = Literal["left", "middle", "right"]
Modifier = Literal["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]


class ActionFailed(Exception):
    """Raised when the page does not let an action happen: data, to be reported to who acted.

    Attributes:
        reason: one clause.
        kind: "unknown_bid", "gone", "invisible", "obstructed", "disabled", "unsuitable" or "navigation".
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Element:
    """An element that an action is about: its bid, and its handle in the isolated world."""

    bid: str
    probe: Probe
    object_id: str
    backend_node_id: int


async def click(
    page: Page,
    bids: Bids,
    bid: str,
    *,
    button: Button = "left",
    count: int = 1,
    modifiers: Sequence[Modifier] = (),
) -> None:
    """Click an element at its middle.

    Raises:
        ActionFailed: if it is gone, disabled, invisible, or something else lies over it.
    """
    element = await find(page, bids, bid)
    if await _ask(element, "disabled"):
        raise ActionFailed(f"[{bid}] is disabled", "disabled")
    if await _ask(element, "option"):
        raise ActionFailed(f"[{bid}] is an option: select it in its list instead", "unsuitable")
    x, y = await place(element)
    await _with_modifiers(page, modifiers, page.mouse.click(x, y, button=button, click_count=count))


async def dblclick(page: Page, bids: Bids, bid: str, *, button: Button = "left") -> None:
    """Click an element twice, as one double click."""
    await click(page, bids, bid, button=button, count=2)


async def hover(page: Page, bids: Bids, bid: str) -> None:
    """Move the pointer over an element."""
    x, y = await place(await find(page, bids, bid))
    await page.mouse.move(x, y)


async def fill(page: Page, bids: Bids, bid: str, text: str) -> None:
    """Set the text of a field, in place of what it held; the page gets `input` and `change`.

    Dates, times, colours and ranges are set by their value (`2024-01-31`, `13:45`, `#ff0000`, `7`).

    Raises:
        ActionFailed: if it is no field, read-only, disabled, or does not take the value.
    """
    element = await find(page, bids, bid)
    told = await _ask(element, "fill", text)
    if "failed" in told:
        raise ActionFailed(f"[{bid}] {told['failed']}", told["kind"])
    if told["typed"]:  # focused and selected: what is typed replaces it
        if text:
            await page.keyboard.insert_text(text)
        else:
            await page.keyboard.press("Delete")
        await _ask(element, "changed")


async def check(page: Page, bids: Bids, bid: str, *, checked: bool = True) -> None:
    """Click a checkbox, radio button or switch unless it is in the state wanted."""
    element = await find(page, bids, bid)
    state = await _ask(element, "checked")
    if state is None:
        raise ActionFailed(f"[{bid}] is nothing to check", "unsuitable")
    if state != checked:
        await click(page, bids, bid)


async def select_option(page: Page, bids: Bids, bid: str, options: str | Sequence[str]) -> None:
    """Select options of a list, by their values or else their labels, in place of those selected.

    Raises:
        ActionFailed: if it is no list, or has no such options.
    """
    wanted = [options] if isinstance(options, str) else list(options)
    told = await _ask(await find(page, bids, bid), "select", wanted)
    if "failed" in told:
        raise ActionFailed(f"[{bid}] {told['failed']}", told["kind"])


async def press(page: Page, keys: str, *, bids: Bids | None = None, bid: str = "") -> None:
    """Press keys together, such as `Enter` or `Control+a`; in an element if one is given."""
    if bids is not None and bid:
        await focus(page, bids, bid)
    try:
        await page.keyboard.press(keys)
    except PlaywrightError as error:
        if "Unknown key" in error.message:
            raise ActionFailed(f"no key is called {keys!r}", "unsuitable") from error
        raise InfraError(f"{page.url}: {error.message}") from error


async def type_text(page: Page, text: str, *, bids: Bids | None = None, bid: str = "") -> None:
    """Type text key by key; into an element if one is given."""
    if bids is not None and bid:
        await focus(page, bids, bid)
    await page.keyboard.type(text)


async def focus(page: Page, bids: Bids, bid: str) -> None:
    """Give an element the keyboard."""
    element = await find(page, bids, bid)
    if not await _ask(element, "focus"):
        raise ActionFailed(f"[{bid}] takes no keyboard focus", "unsuitable")


async def scroll(page: Page, dx: float, dy: float, *, bids: Bids | None = None, bid: str = "") -> None:
    """Turn the wheel over an element, or over the middle of the page."""
    if bids is not None and bid:
        x, y = await place(await find(page, bids, bid), hit=False)
    else:
        size = page.viewport_size or {"width": 2, "height": 2}
        x, y = size["width"] / 2, size["height"] / 2
    await page.mouse.move(x, y)
    await page.mouse.wheel(dx, dy)


async def scroll_into_view(page: Page, bids: Bids, bid: str) -> None:
    """Scroll until an element can be seen."""
    await place(await find(page, bids, bid), hit=False)


async def drag(page: Page, bids: Bids, bid: str, target: str | tuple[float, float]) -> None:
    """Press on an element, move to another one or by so many pixels, and release."""
    x, y = await place(await find(page, bids, bid))
    if isinstance(target, str):
        to_x, to_y = await place(await find(page, bids, target), hit=False)
        x, y = await place(await find(page, bids, bid))  # the second may have scrolled the first
    else:
        to_x, to_y = x + target[0], y + target[1]
    await page.mouse.move(x, y)
    await page.mouse.down()
    await page.mouse.move(to_x, to_y, steps=8)
    await page.mouse.up()


async def goto(page: Page, url: str, *, timeout: float = 30.0) -> int:
    """Navigate to a URL until its document begins; return its HTTP status, 0 if it has none.

    Raises:
        ActionFailed: if there is no such page.
    """
    return await _navigate(page, page.goto(url, wait_until="commit", timeout=timeout * 1000))


async def back(page: Page, *, timeout: float = 30.0) -> int:
    """Go back in history; return the HTTP status, 0 if there is none or nowhere to go."""
    return await _navigate(page, page.go_back(wait_until="commit", timeout=timeout * 1000))


async def forward(page: Page, *, timeout: float = 30.0) -> int:
    """Go forward in history; return the HTTP status, 0 if there is none or nowhere to go."""
    return await _navigate(page, page.go_forward(wait_until="commit", timeout=timeout * 1000))


async def reload(page: Page, *, timeout: float = 30.0) -> int:
    """Load the document anew; return the HTTP status, 0 if there is none."""
    return await _navigate(page, page.reload(wait_until="commit", timeout=timeout * 1000))


async def find(page: Page, bids: Bids, bid: str) -> Element:
    """Return the element that a bid names.

    Raises:
        ActionFailed: if no element was ever called so, or it is gone.
    """
    known = bids.find(page, bid)
    if known is None:
        raise ActionFailed(f"there is no element [{bid}] on this page", "unknown_bid")
    frame_id, backend_node_id = known
    probe = await Probe.of(page)
    try:
        object_id = await probe.handle(frame_id, backend_node_id)
    except FrameGone as error:
        raise ActionFailed(f"[{bid}] is no longer on this page", "gone") from error
    element = Element(bid, probe, object_id, backend_node_id)
    if not await _ask(element, "connected"):
        raise ActionFailed(f"[{bid}] is no longer on this page", "gone")
    return element


async def place(element: Element, *, hit: bool = True) -> tuple[float, float]:
    """Scroll an element into view and return where to point at it, in CSS pixels of the viewport.

    Args:
        element: from `find`.
        hit: whether the element must be what lies uppermost there.

    Raises:
        ActionFailed: if it is not drawn, or something else lies over it.
    """
    probe, backend = element.probe, element.backend_node_id
    try:
        await probe.send("DOM.scrollIntoViewIfNeeded", backendNodeId=backend)
        quads = (await probe.send("DOM.getContentQuads", backendNodeId=backend))["quads"]
    except FrameGone as error:
        raise ActionFailed(f"[{element.bid}] is no longer on this page", "gone") from error
    except InfraError as error:
        raise ActionFailed(f"[{element.bid}] is not drawn", "invisible") from error
    shown = [(index, _in_view(element.probe.page, quad)) for index, quad in enumerate(quads)]
    shown = [(index, quad) for index, quad in shown if _area(quad) > 0.99]
    if not shown:
        raise ActionFailed(f"[{element.bid}] is not drawn", "invisible")
    obstacle = ""
    for index, quad in shown:
        x, y = sum(quad[0::2]) / 4, sum(quad[1::2]) / 4
        obstacle = await _obstacle(element, x, y, index) if hit else ""
        if not obstacle:
            return x, y
    raise ActionFailed(f"[{element.bid}] is covered by {obstacle}", "obstructed")


async def _obstacle(element: Element, x: float, y: float, index: int) -> str:
    """Return what lies over the middle of an element's box, "" if nothing does."""
    probe = element.probe
    try:
        # Boxes are told in the viewport's coordinates, but asked for in the document's.
        scrolled = (await probe.send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        x, y = x + scrolled["pageX"], y + scrolled["pageY"]
        point = {"x": round(x), "y": round(y)}
        at = await probe.send("DOM.getNodeForLocation", **point, includeUserAgentShadowDOM=False)
        if at["backendNodeId"] == element.backend_node_id:
            return ""
        hit = (await probe.send("DOM.describeNode", backendNodeId=at["backendNodeId"]))["node"]
    except FrameGone:
        return "the edge of the page"
    if "pseudoType" in hit:  # an icon drawn by ::before is no node that could be asked whose it is
        return str(await _ask(element, "obstacleAt", index))
    other = await probe.handle(at["frameId"], at["backendNodeId"])
    return str(await _ask(element, "obstacle", handle=other))


async def _ask(element: Element, question: str, *values: Any, handle: str = "") -> Any:
    """Call one of the functions of js/act.js on an element."""
    arguments: list[dict[str, Any]] = [{"value": value} for value in values]
    if handle:
        arguments.append({"objectId": handle})
    try:
        answer = await element.probe.send(
            "Runtime.callFunctionOn",
            objectId=element.object_id,
            functionDeclaration=_functions(question),
            arguments=arguments,
            returnByValue=True,
        )
    except FrameGone as error:
        raise ActionFailed(f"[{element.bid}] is no longer on this page", "gone") from error
    if thrown := answer.get("exceptionDetails"):
        raise InfraError(f"{element.probe.page.url}: {question}: {json.dumps(thrown)[:300]}")
    return answer["result"].get("value")


def _functions(question: str) -> str:
    script = resources.files(__package__).joinpath("js", "act.js").read_text("utf-8")
    return f"function (...given) {{ return ({script.strip()}).{question}(this, ...given); }}"


async def _with_modifiers(page: Page, modifiers: Sequence[Modifier], action: Any) -> None:
    try:
        for key in modifiers:
            await page.keyboard.down(key)
        await action
        for key in reversed(modifiers):
            await page.keyboard.up(key)
    except PlaywrightError as error:
        raise InfraError(f"{page.url}: {error.message}") from error


async def _navigate(page: Page, navigation: Any) -> int:
    try:
        response = await navigation
    except PlaywrightError as error:
        if page.is_closed() or is_ours(error.message):
            raise InfraError(error.message.splitlines()[0]) from error
        # net::ERR_... and the like: the page's or the archive's fact, not ours.
        raise ActionFailed(error.message.splitlines()[0], "navigation") from error
    return response.status if response else 0


def _in_view(page: Page, quad: Sequence[float]) -> list[float]:
    """Return the part of a box that the viewport shows: the middle of a tall element may be far outside."""
    size = page.viewport_size
    if size is None:
        return list(quad)
    edges = (size["width"], size["height"])
    return [min(max(value, 0.0), edges[index % 2]) for index, value in enumerate(quad)]


def _area(quad: Sequence[float]) -> float:
    """Return the area of a quadrilateral (shoelace formula)."""
    xs, ys = quad[0::2], quad[1::2]
    return abs(sum(xs[i] * ys[(i + 1) % 4] - xs[(i + 1) % 4] * ys[i] for i in range(4))) / 2

"""The mouse, by CDP `Input` alone, without the page's timers.

Playwright's mouse needs those timers. Over a draggable element it queries the page with `setTimeout`. Such a
call never returns while the page's clock is stopped (level EXACT), and the button stays pressed. This module
handles this behaviour of the browser:

- A move is dispatched at the next frame, and earlier moves are merged into it. No frame may come while the
  page's clock is stopped. An input that waits for no frame flushes the moves: the press of a click does, and
  so does bringing the front page to the front, which the page does not notice.
- HTML drag and drop begins in the renderer and ends in the window system, which a headless browser lacks. It
  is intercepted and continued by `Input.dispatchDragEvent`. An unfinished drag swallows all later mouse
  events.
- A wheel event needs frames, and is acknowledged before the page has scrolled. At level EXACT frames are
  drawn for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from playwright.async_api import Page

from stillweb.browser.cdp.connection import CdpError
from stillweb.browser.cdp.session import FrameGone, PageProbe
from stillweb.browser.exact.context import ExactContext
from stillweb.browser.state import state_of

Button = Literal["left", "middle", "right"]
Point = tuple[float, float]

_BUTTONS = {"left": 1, "right": 2, "middle": 4}
# `modifiers` of CDP Input.dispatchMouseEvent. The supported browsers run on Linux.
_MODIFIERS = {"Alt": 1, "Control": 2, "ControlOrMeta": 2, "Meta": 4, "Shift": 8}
_DRAG_STEPS = 8
_WHEEL_SECONDS = 0.02  # real; between two frames until the browser has taken a wheel event
_WHEEL_FRAMES = 6  # afterwards, until the page has scrolled; constant whatever the machine's load
_DRAG_SECONDS = 1.0  # for an event of the browser that is under way

_TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
_WATCH_DRAG = """(() => {
  globalThis.dragBegun = null;
  addEventListener("dragstart", (event) => { globalThis.dragBegun = event; }, { capture: true, once: true });
})()"""
_DRAG_BEGUN = "Boolean(globalThis.dragBegun && !globalThis.dragBegun.defaultPrevented)"


@dataclass(slots=True)
class _HeldButtons:
    """Pressed mouse buttons of a page as a bit mask, and held modifier keys."""

    buttons: int = 0
    modifiers: int = 0


_held: WeakKeyDictionary[Page, _HeldButtons] = WeakKeyDictionary()


class Pointer:
    """The mouse of one page; buttons and modifiers stay held across calls."""

    def __init__(self, page: Page, probe: PageProbe, modifiers: str = "") -> None:
        self._page = page
        self._probe = probe
        self._held = _held.setdefault(page, _HeldButtons())
        self._modifiers = self._held.modifiers | modifier_mask(modifiers)

    @classmethod
    async def of(cls, page: Page, modifiers: str = "") -> Pointer:
        """Return a page's mouse with additional modifier keys, joined by `+`."""
        return cls(page, await PageProbe.of(page), modifiers)

    async def move(self, at: Point) -> None:
        await asyncio.gather(self._send("mouseMoved", at), self._probe.send("Page.bringToFront"))

    async def click(self, at: Point, button: Button = "left", count: int = 1) -> None:
        """Click `count` times, in one batch, so that no work of the page comes between."""
        presses = [
            self._send(kind, at, button=button, clickCount=number, buttons=buttons)
            for number in range(1, count + 1)
            for kind, buttons in (("mousePressed", _BUTTONS[button]), ("mouseReleased", 0))
        ]
        await asyncio.gather(self._send("mouseMoved", at), *presses)

    async def down(self, at: Point, button: Button = "left") -> None:
        await self.move(at)
        self._held.buttons |= _BUTTONS[button]
        await self._send("mousePressed", at, button=button, clickCount=1)

    async def up(self, at: Point, button: Button = "left") -> None:
        await self.move(at)
        self._held.buttons &= ~_BUTTONS[button]
        await self._send("mouseReleased", at, button=button, clickCount=1)

    async def wheel(self, at: Point, dx: float, dy: float) -> None:
        """Turn the wheel, and let the page scroll."""
        exact = state_of(self._page.context).exact
        if exact:
            await self._flag_own_layer(exact, at)
        turned = asyncio.ensure_future(self._send("mouseWheel", at, deltaX=dx, deltaY=dy))
        try:
            if exact:
                # The frame that takes the event acknowledges it. On a busy machine frames may come before the
                # event; the page is at rest, so they change nothing.
                while not turned.done():
                    await exact.frames.draw(self._probe.cdp)
                    await asyncio.wait([turned], timeout=_WHEEL_SECONDS)
            await turned
            if exact:
                for _ in range(_WHEEL_FRAMES):
                    await exact.frames.draw(self._probe.cdp)
                before = await self._changes()
                await exact.frames.repaint(self._probe.cdp)
                if await self._changes() != before:
                    exact.flag("a page changes in each frame while it scrolls")
            else:
                await self._probe.evaluate(_TWO_FRAMES)
        except (FrameGone, CdpError):
            return  # the page has navigated because of the event
        finally:
            turned.cancel()

    async def _changes(self) -> list[tuple[int, int] | None]:
        """Return the numbers of changes and scroll events of each frame."""
        looks = await self._probe.evaluate_all("eye.look()", await self._probe.frames())
        return [look and (look["changes"], look["scrolls"]) for look in looks]

    async def _flag_own_layer(self, exact: ExactContext, at: Point) -> None:
        with suppress(FrameGone):
            if await self._probe.evaluate(f"eye.ownLayer({at[0]}, {at[1]})"):
                exact.flag("a wheel over a part with will-change, which may be shown before it is painted")

    async def drag(self, start: Point, end: Point) -> None:
        """Press at a point, move to another one and release, as HTML drag and drop or plain mouse events."""
        probe = self._probe
        async with AsyncExitStack() as undo:
            intercepted = undo.enter_context(probe.expecting("Input.dragIntercepted"))
            await probe.send("Input.setInterceptDrags", enabled=True)
            undo.push_async_callback(probe.send, "Input.setInterceptDrags", enabled=False)
            frames = await probe.frames()
            await probe.evaluate_all(_WATCH_DRAG, frames)
            await self.down(start)
            # One step may begin HTML drag and drop; a page without it sees all steps.
            points = [_between(start, end, step / _DRAG_STEPS) for step in range(1, _DRAG_STEPS + 1)]
            for index, point in enumerate(points):
                await self.move(point)
                begun = intercepted.done() or any(await probe.evaluate_all(_DRAG_BEGUN, frames))
                if begun and (event := await _pending_event(intercepted)) is not None:
                    self._held.buttons = 0
                    await self._drop(points[index:], event["data"])
                    return
            await self.up(end)

    async def _drop(self, points: list[Point], data: dict[str, Any]) -> None:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._drag_event, "dragCancel", points[-1], data)
            await self._drag_event("dragEnter", points[0], data)
            for point in points:
                await self._drag_event("dragOver", point, data)
            await self._drag_event("drop", points[-1], data)
            undo.pop_all()

    async def _drag_event(self, kind: str, at: Point, data: dict[str, Any]) -> None:
        await self._probe.send(
            "Input.dispatchDragEvent", type=kind, x=at[0], y=at[1], data=data, modifiers=self._modifiers
        )

    async def _send(self, kind: str, at: Point, **more: Any) -> None:
        await self._probe.send(
            "Input.dispatchMouseEvent",
            **{
                "type": kind,
                "x": at[0],
                "y": at[1],
                "modifiers": self._modifiers,
                "buttons": self._held.buttons,
                **({"button": _first(self._held.buttons)} if kind == "mouseMoved" else {}),
                **more,
            },
        )


def modifier_mask(names: str) -> int:
    return sum({_MODIFIERS[name] for name in names.split("+") if name})


def hold_modifier(page: Page, key: str, *, down: bool) -> None:
    """Store a modifier key as held or released, for the mouse; ignore other keys."""
    held, bit = _held.setdefault(page, _HeldButtons()), _MODIFIERS.get(key, 0)
    held.modifiers = held.modifiers | bit if down else held.modifiers & ~bit


def holds_modifier(page: Page) -> bool:
    return page in _held and _held[page].modifiers != 0


async def _pending_event(future: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a pending event, or None if it does not arrive: not every `dragstart` begins a drag."""
    try:
        async with asyncio.timeout(_DRAG_SECONDS):
            return await asyncio.shield(future)
    except TimeoutError:
        return None


def _between(start: Point, end: Point, share: float) -> Point:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _first(buttons: int) -> str:
    return next((name for name, bit in _BUTTONS.items() if buttons & bit), "none")

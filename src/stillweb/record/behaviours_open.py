"""Scrolling a page to its end, and opening what it has closed: menus, disclosures and tabs.

Controls are clicked and pointed at by real input, as an agent's will be, one after the other: what
one of them shows may hold others. Menus are closed again, since an open one covers what is below.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from stillweb.browser.elements import ActionFailed, Element, place
from stillweb.browser.input import press
from stillweb.browser.pointer import Pointer
from stillweb.browser.probe import FrameGone
from stillweb.record.behaviours import Behaviour, Stage

OPENERS = (Behaviour.DETAILS, Behaviour.MENUS, Behaviour.TABS)
_HOVER = "hover"  # of menus, too, and counted beside those that are clicked

_IS_OPEN = "function () { return this.getAttribute('aria-expanded') === 'true'; }"


async def scroll(stage: Stage) -> None:
    """Scroll page and scrollable parts a screen at a time, until they grow no more, and back to the top."""
    screens = grown = 0
    rested = True
    while True:
        moved = sum(count for _, count in await stage.ask_all("behaviours.scrollOn()"))
        if moved:
            grown += rested and screens > 0
            rested = False
            screens += 1
            if screens >= stage.budget.screens or not stage.in_time():
                stage.deeds.cut_off("scroll")
                break
        elif rested:
            break
        else:
            await stage.settle()
            rested = True
    if screens:
        stage.deeds.count("scroll", "screens", screens)
        stage.deeds.count("scroll", "grown", grown)
        await stage.ask_all("behaviours.scrollBack()")
        await stage.settle()


class Opening:
    """The controls of a page, tried one after the other.

    Args:
        stage: the page.
        wanted: which kinds of controls.
    """

    def __init__(self, stage: Stage, wanted: Collection[Behaviour]) -> None:
        self._stage = stage
        kinds: list[str] = [kind for kind in OPENERS if kind in wanted]
        if Behaviour.MENUS in wanted:
            kinds.insert(kinds.index(Behaviour.MENUS), _HOVER)
        self._left = {kind: stage.budget.controls for kind in kinds}
        self._through: set[str] = set()

    async def run(self, stage: Stage) -> None:
        """Try what there is: all that a tab holds before the next tab."""
        href, index = await self._where() or ("", 0)
        while found := await self._next():
            await self._try(*found)
            now = await self._where()
            if now is None:
                return
            if now[0] != href and now[1] > index:  # a view of its own, without a request for a document
                stage.deeds.count("stopped", "moves")
                frames = await stage.probe.frames()
                await stage.ask("void history.back()", frames[0])  # of one frame: they share it
                await stage.settle()
                now = await self._where()
            if now is None:
                return
            href, index = now

    async def _where(self) -> tuple[str, int] | None:
        frames = await self._stage.probe.frames()
        told = await self._stage.ask("behaviours.place()", frames[0])
        return (str(told[0]), int(told[1])) if told else None

    async def _next(self) -> tuple[str, Element] | None:
        for kind, left in self._left.items():
            if kind in self._through:
                continue
            element = await self._find(kind)
            if element is None:
                continue  # what another one opens may hold more
            if left and self._stage.in_time():
                self._left[kind] -= 1
                return kind, element
            self._through.add(kind)
            self._stage.deeds.cut_off(_told_as(kind))
        return None

    async def _find(self, kind: str) -> Element | None:
        probe = self._stage.probe
        for frame in await probe.frames():
            with suppress(FrameGone, TimeoutError):
                text, nodes = await self._stage.ask_nodes(f"behaviours.next('{kind}')", frame)
                if nodes:
                    handle = await probe.handle(frame.id, nodes[0])
                    return Element(repr(text), probe, handle, nodes[0], frame.id)
        return None

    async def _try(self, kind: str, element: Element) -> None:
        stage = self._stage
        pointer = await Pointer.of(stage.page)
        try:
            at = await place(element)
            await (pointer.move(at) if kind == _HOVER else pointer.click(at))
            await stage.settle()
            if kind == Behaviour.MENUS:
                await self._close(element)
        except (ActionFailed, FrameGone):
            stage.deeds.count(_told_as(kind), "out of reach")
            await press(stage.page, "Escape")  # what lies over it may go by that
            return
        stage.deeds.count(_told_as(kind), "hovered" if kind == _HOVER else "opened")

    async def _close(self, element: Element) -> None:
        await press(self._stage.page, "Escape")
        told = await element.probe.send(
            "Runtime.callFunctionOn",
            functionDeclaration=_IS_OPEN,
            objectId=element.object_id,
            returnByValue=True,
        )
        if told["result"].get("value"):
            await (await Pointer.of(self._stage.page)).click(await place(element))
        await self._stage.settle()


def _told_as(kind: str) -> str:
    return Behaviour.MENUS if kind == _HOVER else kind

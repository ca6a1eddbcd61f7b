"""The behaviours in their order, on one page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.input.actions import press
from stillweb.browser.input.elements import ActionFailed, ActionTarget, place
from stillweb.browser.input.pointer import Pointer
from stillweb.errors import InfraError
from stillweb.record.behaviors.behaviors import Behavior, BehaviorReport, BehaviorTarget
from stillweb.urls import wire_url

__all__ = ["behave"]

_PIECE = 1 << 20
_PLAY_PATIENCE = 4.0
_WHOLE = 200


async def media(stage: BehaviorTarget) -> None:
    """Play what the page has for a moment, and fetch its sources whole."""
    found = [(frame, each) for frame, told in await stage.ask_all("behaviours.media()") for each in told]
    playing = await stage.ask_all("behaviours.play()", _PLAY_PATIENCE)
    stage.deeds.count("media", "played", sum(count for _, count in playing))
    if found or any(count for _, count in playing):
        await stage.settle()
    whole = {
        wire_url(each.url)
        for each in stage.activity.requests
        if each.ended and not each.failure and each.status == _WHOLE
    }
    for frame, each in found:
        url = wire_url(each["url"])
        if url in whole or url in stage.fetched:
            continue
        if not stage.in_time():
            stage.deeds.cut_off("media")
            break
        came = await _drain(stage, frame, each)
        stage.deeds.count("media", "fetched" if came else "failed")
        if came:
            stage.fetched.add(url)
            whole.add(url)


async def variants(stage: BehaviorTarget) -> None:
    """Fetch what srcset, picture and style sheets name and this screen does not show."""
    known = {wire_url(each.url) for each in stage.activity.requests} | stage.fetched
    found = await stage.ask_all("variants.find()")
    if any([await _tell_unread(stage, frame, told["unread"]) for frame, told in found]):
        found = await stage.ask_all("variants.find()")
    left = stage.budget.variants
    for frame, told in found:
        wanted = [each for each in told["found"] if wire_url(each["url"]) not in known]
        known |= {wire_url(each["url"]) for each in wanted}
        taken, left = wanted[:left], max(0, left - len(wanted))
        if len(taken) < len(wanted):
            stage.deeds.cut_off("variants")
        if taken:
            await _fetch(stage, frame, taken)


async def _fetch(stage: BehaviorTarget, frame: FrameInfo, wanted: list[dict[str, Any]]) -> None:
    seconds = stage.time_left
    call = f"variants.fetchAll({json.dumps(wanted)}, {1000 * seconds:.0f})"
    done = await stage.ask(call, frame, seconds + 5)
    if done is None:
        stage.deeds.cut_off("variants")
        return
    stage.fetched.update(wire_url(url) for url in done["came"])
    stage.deeds.count("variants", "fetched", len(done["came"]))
    stage.deeds.count("variants", "failed", len(wanted) - len(done["came"]) - done["left"])
    if done["left"]:
        stage.deeds.cut_off("variants")


async def _tell_unread(stage: BehaviorTarget, frame: FrameInfo, sheets: list[str]) -> bool:
    """Give a frame the text of sheets whose rules it may not read; return whether there are any."""
    told = False
    for url in sheets:
        with suppress(FrameGone, InfraError):  # of a sheet that has gone
            loaded = await stage.probe.send("Page.getResourceContent", frameId=frame.id, url=url)
            if not loaded["base64Encoded"]:
                await stage.ask(f"variants.tell({json.dumps(loaded['content'])}, {json.dumps(url)})", frame)
                told = True
    return told


async def _drain(stage: BehaviorTarget, frame: FrameInfo, source: dict[str, str]) -> bool:
    call = f"behaviours.drain({json.dumps(source['url'])}, {json.dumps(source['cors'])})"
    if await stage.ask(call, frame, max(1.0, stage.time_left)):
        return True
    return await _load(stage, frame, source["url"])


async def _load(stage: BehaviorTarget, frame: FrameInfo, url: str) -> bool:
    """Load what a frame may show but not fetch, with its cookies, and with the browser's own User-Agent."""
    with suppress(FrameGone, InfraError):
        told = await stage.probe.send(
            "Network.loadNetworkResource",
            frameId=frame.id,
            url=url,
            options={"disableCache": True, "includeCredentials": True},
        )
        resource = told["resource"]
        return bool(resource["success"]) and await _read(stage, resource["stream"])
    return False


async def _read(stage: BehaviorTarget, stream: str) -> bool:
    """Read a stream to its end; return whether there was time for that."""
    try:
        while stage.in_time():
            piece = await stage.probe.send("IO.read", handle=stream, size=_PIECE)
            if piece["eof"]:
                return True
    finally:
        await stage.probe.send("IO.close", handle=stream)
    stage.deeds.cut_off("media")
    return False


_DOCUMENTS = [{"urlPattern": "*", "resourceType": "Document", "requestStage": "Request"}]


@asynccontextmanager
async def staying(page: Page, probe: PageProbe, deeds: BehaviorReport) -> AsyncIterator[None]:
    """Keep a page where it is, and alone, while within."""
    main = (await probe.frames())[0].id
    tasks: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def decide(event: dict[str, Any]) -> None:
        with suppress(FrameGone, InfraError):  # the page has gone, and its request with it
            if event["frameId"] == main or event["request"]["method"] != "GET":
                deeds.count("stopped", "navigations")
                await probe.send("Fetch.failRequest", requestId=event["requestId"], errorReason="Aborted")
            else:
                await probe.send("Fetch.continueRequest", requestId=event["requestId"])

    async def shut(popup: Page) -> None:
        deeds.count("stopped", "popups")
        with suppress(PlaywrightError):
            await popup.close()

    def on_page(popup: Page) -> None:
        spawn(shut(popup))

    probe.hear("Fetch.requestPaused", lambda event: spawn(decide(event)))
    await probe.send("Fetch.enable", patterns=_DOCUMENTS)
    page.context.on("page", on_page)
    try:
        yield
    finally:
        page.context.remove_listener("page", on_page)
        while tasks:
            await asyncio.wait(list(tasks))
        with suppress(FrameGone, InfraError):  # closed by itself
            await probe.send("Fetch.disable")


OPENERS = (Behavior.DETAILS, Behavior.MENUS, Behavior.TABS)
_HOVER = "hover"  # of menus, too, and counted beside those that are clicked

_IS_OPEN = "function () { return this.getAttribute('aria-expanded') === 'true'; }"


async def scroll(stage: BehaviorTarget) -> None:
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

    def __init__(self, stage: BehaviorTarget, wanted: Collection[Behavior]) -> None:
        self._stage = stage
        kinds: list[str] = [kind for kind in OPENERS if kind in wanted]
        if Behavior.MENUS in wanted:
            kinds.insert(kinds.index(Behavior.MENUS), _HOVER)
        self._left = {kind: stage.budget.controls for kind in kinds}
        self._through: set[str] = set()

    async def run(self, stage: BehaviorTarget) -> None:
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

    async def _next(self) -> tuple[str, ActionTarget] | None:
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

    async def _find(self, kind: str) -> ActionTarget | None:
        probe = self._stage.probe
        for frame in await probe.frames():
            with suppress(FrameGone, TimeoutError):
                text, nodes = await self._stage.ask_nodes(f"behaviours.next('{kind}')", frame)
                if nodes:
                    handle = await probe.handle(frame.id, nodes[0])
                    return ActionTarget(repr(text), probe, handle, nodes[0], frame.id)
        return None

    async def _try(self, kind: str, element: ActionTarget) -> None:
        stage = self._stage
        pointer = await Pointer.of(stage.page)
        try:
            at = await place(element)
            await (pointer.move(at) if kind == _HOVER else pointer.click(at))
            await stage.settle()
            if kind == Behavior.MENUS:
                await self._close(element)
        except (ActionFailed, FrameGone):
            stage.deeds.count(_told_as(kind), "out of reach")
            await press(stage.page, "Escape")  # what lies over it may go by that
            return
        stage.deeds.count(_told_as(kind), "hovered" if kind == _HOVER else "opened")

    async def _close(self, element: ActionTarget) -> None:
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
    return Behavior.MENUS if kind == _HOVER else kind


async def behave(stage: BehaviorTarget) -> BehaviorReport:
    """Do with a page what is wanted; return what was done.

    Raises:
        InfraError: if browser or machine failed a request of the page.
    """
    wanted = stage.wanted
    if not wanted:
        return stage.deeds
    async with staying(stage.page, stage.probe, stage.deeds):
        if Behavior.SCROLL in wanted:
            await stage.go("scroll", scroll)
        if openers := [kind for kind in OPENERS if kind in wanted]:
            await stage.go("controls", Opening(stage, openers).run)
        if Behavior.MEDIA in wanted:
            await stage.go("media", media)
        if Behavior.VARIANTS in wanted:
            await stage.go("variants", variants)
        submits = sum(count for _, count in await stage.ask_all("behaviours.take()"))
        stage.deeds.count("stopped", "submits", submits)
    return stage.deeds

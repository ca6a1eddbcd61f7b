"""Behaviors of a recording: actions on a page after its baseline, so that an agent's clicks find responses.

They scroll growing lists, open menus, disclosures and tabs, play media, and fetch what the page would load on
another screen. Each behavior has a budget of counts first and of seconds second, so that the page rather than
the machine's load decides what is recorded. No behavior leaves the page or sends a form: `navigation_blocked`
prevents it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib import resources
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.activity import Activity
from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.input.actions import press
from stillweb.browser.input.elements import ActionFailed, ActionTarget, place
from stillweb.browser.input.pointer import Pointer
from stillweb.browser.settle import settle
from stillweb.clock import monotonic
from stillweb.errors import InfraError
from stillweb.record.behaviors.options import Behavior, BehaviorOptions
from stillweb.urls import wire_url

_CHUNK = 1 << 20  # bytes of a stream read at a time
_PLAY_TIMEOUT = 4.0
_OK = 200


async def media(target: BehaviorTarget) -> None:
    """Play the media of a page for a moment, and fetch their complete sources."""
    found = [
        (frame, each) for frame, result in await target.evaluate_all("behaviors.media()") for each in result
    ]
    playing = await target.evaluate_all("behaviors.play()", _PLAY_TIMEOUT)
    target.report.count("media", "played", sum(count for _, count in playing))
    if found or any(count for _, count in playing):
        await target.settle()
    complete = {
        wire_url(each.url)
        for each in target.activity.requests
        if each.ended and not each.failure and each.status == _OK
    }
    for frame, each in found:
        url = wire_url(each["url"])
        if url in complete or url in target.fetched:
            continue
        if not target.has_time():
            target.report.cut_off("media")
            break
        fetched = await _drain(target, frame, each)
        target.report.count("media", "fetched" if fetched else "failed")
        if fetched:
            target.fetched.add(url)
            complete.add(url)


async def variants(target: BehaviorTarget) -> None:
    """Fetch the variants in srcset, picture and style sheets that this screen does not show."""
    known = {wire_url(each.url) for each in target.activity.requests} | target.fetched
    found = await target.evaluate_all("variants.find()")
    if any([await _send_unread_sheets(target, frame, result["unread"]) for frame, result in found]):
        found = await target.evaluate_all("variants.find()")
    left = target.budget.variants
    for frame, result in found:
        wanted = [each for each in result["found"] if wire_url(each["url"]) not in known]
        known |= {wire_url(each["url"]) for each in wanted}
        taken, left = wanted[:left], max(0, left - len(wanted))
        if len(taken) < len(wanted):
            target.report.cut_off("variants")
        if taken:
            await _fetch(target, frame, taken)


async def _fetch(target: BehaviorTarget, frame: FrameInfo, wanted: list[dict[str, Any]]) -> None:
    seconds = target.time_left
    call = f"variants.fetchAll({json.dumps(wanted)}, {1000 * seconds:.0f})"
    done = await target.evaluate(call, frame, seconds + 5)
    if done is None:
        target.report.cut_off("variants")
        return
    target.fetched.update(wire_url(url) for url in done["came"])
    target.report.count("variants", "fetched", len(done["came"]))
    target.report.count("variants", "failed", len(wanted) - len(done["came"]) - done["left"])
    if done["left"]:
        target.report.cut_off("variants")


async def _send_unread_sheets(target: BehaviorTarget, frame: FrameInfo, sheets: list[str]) -> bool:
    """Give a frame the text of style sheets whose rules it may not read; return True if there are any."""
    sent = False
    for url in sheets:
        with suppress(FrameGone, InfraError):  # the style sheet no longer exists
            loaded = await target.probe.send("Page.getResourceContent", frameId=frame.id, url=url)
            if not loaded["base64Encoded"]:
                await target.evaluate(
                    f"variants.addSheet({json.dumps(loaded['content'])}, {json.dumps(url)})", frame
                )
                sent = True
    return sent


async def _drain(target: BehaviorTarget, frame: FrameInfo, source: dict[str, str]) -> bool:
    call = f"behaviors.drain({json.dumps(source['url'])}, {json.dumps(source['cors'])})"
    if await target.evaluate(call, frame, max(1.0, target.time_left)):
        return True
    return await _load(target, frame, source["url"])


async def _load(target: BehaviorTarget, frame: FrameInfo, url: str) -> bool:
    """Load a URL that a frame may show but not fetch, with its cookies and the browser's own User-Agent."""
    with suppress(FrameGone, InfraError):
        result = await target.probe.send(
            "Network.loadNetworkResource",
            frameId=frame.id,
            url=url,
            options={"disableCache": True, "includeCredentials": True},
        )
        resource = result["resource"]
        return bool(resource["success"]) and await _read(target, resource["stream"])
    return False


async def _read(target: BehaviorTarget, stream: str) -> bool:
    """Read a stream to its end; return False if time ran out."""
    try:
        while target.has_time():
            piece = await target.probe.send("IO.read", handle=stream, size=_CHUNK)
            if piece["eof"]:
                return True
    finally:
        await target.probe.send("IO.close", handle=stream)
    target.report.cut_off("media")
    return False


_DOCUMENTS = [{"urlPattern": "*", "resourceType": "Document", "requestStage": "Request"}]


@asynccontextmanager
async def navigation_blocked(page: Page, probe: PageProbe, report: BehaviorReport) -> AsyncIterator[None]:
    """Block navigations and pop-ups of a page within the context."""
    main = (await probe.frames())[0].id
    tasks: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def decide(event: dict[str, Any]) -> None:
        with suppress(FrameGone, InfraError):  # the page and its request no longer exist
            if event["frameId"] == main or event["request"]["method"] != "GET":
                report.count("stopped", "navigations")
                await probe.send("Fetch.failRequest", requestId=event["requestId"], errorReason="Aborted")
            else:
                await probe.send("Fetch.continueRequest", requestId=event["requestId"])

    async def close_popup(popup: Page) -> None:
        report.count("stopped", "popups")
        with suppress(PlaywrightError):
            await popup.close()

    def on_page(popup: Page) -> None:
        spawn(close_popup(popup))

    probe.hear("Fetch.requestPaused", lambda event: spawn(decide(event)))
    await probe.send("Fetch.enable", patterns=_DOCUMENTS)
    page.context.on("page", on_page)
    try:
        yield
    finally:
        page.context.remove_listener("page", on_page)
        while tasks:
            await asyncio.wait(list(tasks))
        with suppress(FrameGone, InfraError):  # the page closed itself
            await probe.send("Fetch.disable")


OPENERS = (Behavior.DETAILS, Behavior.MENUS, Behavior.TABS)
_HOVER = "hover"  # menus that open on hover; counted as menus

_IS_OPEN = "function () { return this.getAttribute('aria-expanded') === 'true'; }"


async def scroll(target: BehaviorTarget) -> None:
    """Scroll the page and its scrollable parts by screens until nothing grows, then back to the top."""
    screens = grown = 0
    rested = True
    while True:
        moved = sum(count for _, count in await target.evaluate_all("behaviors.scrollOn()"))
        if moved:
            grown += rested and screens > 0
            rested = False
            screens += 1
            if screens >= target.budget.screens or not target.has_time():
                target.report.cut_off("scroll")
                break
        elif rested:
            break
        else:
            await target.settle()
            rested = True
    if screens:
        target.report.count("scroll", "screens", screens)
        target.report.count("scroll", "grown", grown)
        await target.evaluate_all("behaviors.scrollBack()")
        await target.settle()


class ControlOpener:
    """The controls of a page, tried one after another."""

    def __init__(self, target: BehaviorTarget, wanted: Collection[Behavior]) -> None:
        self._target = target
        kinds: list[str] = [kind for kind in OPENERS if kind in wanted]
        if Behavior.MENUS in wanted:
            kinds.insert(kinds.index(Behavior.MENUS), _HOVER)
        self._left = {kind: target.budget.controls for kind in kinds}
        self._through: set[str] = set()

    async def run(self, target: BehaviorTarget) -> None:
        """Try the controls; all controls inside a tab come before the next tab."""
        href, index = await self._where() or ("", 0)
        while found := await self._next():
            await self._try(*found)
            now = await self._where()
            if now is None:
                return
            if now[0] != href and now[1] > index:  # the page pushed a URL without requesting a document
                target.report.count("stopped", "moves")
                frames = await target.probe.frames()
                await target.evaluate("void history.back()", frames[0])  # frames share one history
                await target.settle()
                now = await self._where()
            if now is None:
                return
            href, index = now

    async def _where(self) -> tuple[str, int] | None:
        frames = await self._target.probe.frames()
        result = await self._target.evaluate("behaviors.place()", frames[0])
        return (str(result[0]), int(result[1])) if result else None

    async def _next(self) -> tuple[str, ActionTarget] | None:
        for kind, left in self._left.items():
            if kind in self._through:
                continue
            element = await self._find(kind)
            if element is None:
                continue  # another control may reveal more
            if left and self._target.has_time():
                self._left[kind] -= 1
                return kind, element
            self._through.add(kind)
            self._target.report.cut_off(_reported_kind(kind))
        return None

    async def _find(self, kind: str) -> ActionTarget | None:
        probe = self._target.probe
        for frame in await probe.frames():
            with suppress(FrameGone, TimeoutError):
                text, nodes = await self._target.evaluate_nodes(f"behaviors.next('{kind}')", frame)
                if nodes:
                    handle = await probe.handle(frame.id, nodes[0])
                    return ActionTarget(repr(text), probe, handle, nodes[0], frame.id)
        return None

    async def _try(self, kind: str, element: ActionTarget) -> None:
        target = self._target
        pointer = await Pointer.of(target.page)
        try:
            at = await place(element)
            await (pointer.move(at) if kind == _HOVER else pointer.click(at))
            await target.settle()
            if kind == Behavior.MENUS:
                await self._close(element)
        except (ActionFailed, FrameGone):
            target.report.count(_reported_kind(kind), "out of reach")
            await press(target.page, "Escape")  # may close an element that covers it
            return
        target.report.count(_reported_kind(kind), "hovered" if kind == _HOVER else "opened")

    async def _close(self, element: ActionTarget) -> None:
        await press(self._target.page, "Escape")
        result = await element.probe.send(
            "Runtime.callFunctionOn",
            functionDeclaration=_IS_OPEN,
            objectId=element.object_id,
            returnByValue=True,
        )
        if result["result"].get("value"):
            await (await Pointer.of(self._target.page)).click(await place(element))
        await self._target.settle()


def _reported_kind(kind: str) -> str:
    return Behavior.MENUS if kind == _HOVER else kind


async def behave(target: BehaviorTarget) -> BehaviorReport:
    """Run the requested behaviors on a page; return their counts.

    Raises:
        InfraError: if browser or machine made a request of the page fail.
    """
    wanted = target.wanted
    if not wanted:
        return target.report
    async with navigation_blocked(target.page, target.probe, target.report):
        if Behavior.SCROLL in wanted:
            await target.run_behavior("scroll", scroll)
        if openers := [kind for kind in OPENERS if kind in wanted]:
            await target.run_behavior("controls", ControlOpener(target, openers).run)
        if Behavior.MEDIA in wanted:
            await target.run_behavior("media", media)
        if Behavior.VARIANTS in wanted:
            await target.run_behavior("variants", variants)
        submits = sum(count for _, count in await target.evaluate_all("behaviors.take()"))
        target.report.count("stopped", "submits", submits)
    return target.report


FRAME_TIMEOUT = 5.0
"""Seconds for one script in one frame, which may be busy."""

_SETTLE_CAP = 10.0  # real seconds for settling after one action
_GRACE = 5.0  # real seconds beyond its budget for a behavior that rarely checks the time


class BehaviorReport:
    """Counts of the behaviors on one page.

    Attributes:
        counts: by behavior and effect.
        cut: behaviors that the budget ended.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self.cut: list[str] = []

    def count(self, behavior: str, what: str, number: int = 1) -> None:
        if number:
            counted = self.counts.setdefault(behavior, {})
            counted[what] = counted.get(what, 0) + number

    def cut_off(self, behavior: str) -> None:
        """Note that the budget ended a behavior."""
        if behavior not in self.cut:
            self.cut.append(behavior)

    def to_dict(self) -> dict[str, Any]:
        """Return all counts; {} if nothing was done."""
        return {**self.counts, **({"cut": self.cut} if self.cut else {})}


def describe_actions(report: Mapping[str, Any]) -> str:
    """Return the counts as one line for the page list."""
    parts = []
    for behavior, counted in report.items():
        if isinstance(counted, Mapping):
            counted = [f"{number} {what}" for what, number in counted.items()]
        parts.append(f"{behavior}: {', '.join(counted)}")
    return "; ".join(parts)


def total(entries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the sums over several pages; `cut` counts the pages on which the budget ended each behavior."""
    report = BehaviorReport()
    for entry in entries:
        for behavior, counted in entry.items():
            for what in counted:
                report.count(behavior, what, counted[what] if isinstance(counted, dict) else 1)
    return report.counts


class BehaviorTarget:
    """A page with its probe, budget and counts.

    Args:
        page, activity: of a context opened by `open_context`.
        gather: called when the page may show new links.
        seconds: time for all behaviors.
    """

    def __init__(
        self,
        page: Page,
        probe: PageProbe,
        activity: Activity,
        options: BehaviorOptions,
        gather: Callable[[], Awaitable[None]],
        *,
        seconds: float,
    ) -> None:
        self.page = page
        self.probe = probe
        self.activity = activity
        self.wanted = options.wanted
        self.budget = options.budget
        self.fetched = options.fetched
        self.gather = gather
        self.report = BehaviorReport()
        self._end = monotonic() + seconds
        self._deadline = 0.0

    def has_time(self) -> bool:
        """Return True if the running behavior has time left."""
        return monotonic() < self._deadline

    @property
    def time_left(self) -> float:
        """Seconds that the running behavior has left."""
        return max(0.0, self._deadline - monotonic())

    async def settle(self) -> None:
        """Wait until the page settles, and collect its links."""
        await settle(self.page, self.activity, cap=_SETTLE_CAP)
        await self.gather()

    async def evaluate(self, expression: str, frame: FrameInfo, timeout: float = FRAME_TIMEOUT) -> Any:
        """Return the value of a `behaviors*.js` expression in a frame; None without a response."""
        with suppress(FrameGone, TimeoutError):
            async with asyncio.timeout(timeout):
                return await self.probe.evaluate(f"{_scripts()}{expression}", frame)
        return None

    async def evaluate_nodes(self, expression: str, frame: FrameInfo) -> tuple[str, list[int]]:
        """Return the text and the nodes that an expression finds in a frame.

        Raises:
            FrameGone: if the frame no longer exists.
            TimeoutError: if it does not respond.
        """
        async with asyncio.timeout(FRAME_TIMEOUT):
            return await self.probe.evaluate_nodes(f"{_scripts()}{expression}", frame)

    async def evaluate_all(
        self, expression: str, timeout: float = FRAME_TIMEOUT
    ) -> list[tuple[FrameInfo, Any]]:
        """Return the value of an expression in each frame that responds."""
        frames = await self.probe.frames()
        values = await asyncio.gather(*(self.evaluate(expression, frame, timeout) for frame in frames))
        return [(frame, each) for frame, each in zip(frames, values, strict=True) if each is not None]

    async def run_behavior(self, behavior: str, action: Callable[[BehaviorTarget], Awaitable[None]]) -> None:
        """Run one behavior within its time; a page that prevents it does not fail the visit.

        Raises:
            InfraError: if browser or machine made a request of the page fail.
        """
        self._deadline = min(self._end, monotonic() + self.budget.seconds)
        if not self.has_time():
            return self.report.cut_off(behavior)
        try:
            async with asyncio.timeout(self.time_left + _GRACE):
                await action(self)
        except TimeoutError:
            self.report.cut_off(behavior)
        except (FrameGone, ActionFailed):
            self.report.count(behavior, "broke off")
        except (InfraError, PlaywrightError):
            if self.activity.broken or self.page.is_closed():
                raise
            self.report.count(behavior, "broke off")
        return None


@cache
def _scripts() -> str:
    """Return the scripts that define `behaviors` and `variants` in an isolated world."""
    folder = resources.files("stillweb.browser").joinpath("js")
    return "".join(
        folder.joinpath(name).read_text("utf-8") for name in ("behaviors.js", "behaviors_variants.js")
    )

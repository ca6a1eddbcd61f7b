"""Elements and texts of a page as one list, from which all observations except the tree are made.

`survey(page, bids)` runs `js/survey.js` once in each visible frame, in one round trip each, and joins the
frames' lists. Boxes are in CSS pixels of the main viewport; scrolling and clipping containers are taken into
account. A survey of the viewport reads only what is in it and checks boxes of the rest: milliseconds on pages
whose accessibility tree takes seconds. Interactive elements have the same bids as in the tree.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import orjson
from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.observe.bids import Bids, listening
from stillweb.errors import InfraError
from stillweb.garbage import uncollected
from stillweb.urls import BlobNumbers

Box = tuple[float, float, float, float]
"""Left, top, width and height in CSS pixels of the main viewport."""

VISIBLE_FROM = 0.5  # visible share of an element's area, as in BrowserGym
_ATTEMPTS = 5
_NAVIGATION_SECONDS = 3.0  # seconds for a navigating document


@dataclass(slots=True)
class SurveyItem:
    """An element, or a text.

    Attributes:
        parent: index of the enclosing element, -1 for the root.
        depth: number of ancestors, through frames and shadow roots.
        tag: lower case; "" for a text.
        text: of a text; white space is collapsed where the page collapses it.
        role, name, value, states: as for assistive technology. With `only="nodes"` a role is set only where
            the accessibility tree is sure to agree, "" elsewhere.
        attributes: those that say what an element is or does, as in the page.
        url: absolute target of a link.
        box: of an element.
        part: visible part of the box, if not all of it.
        ratio: visible share of its area, 0 to 1.
        acts: whether it is interactive, and has a bid.
        hand: interactive for the pointer alone: a hand cursor, a listener, draggable.
        covered: whether another element is above it.
        inline: whether it flows with the surrounding text.
        backend_node_id, frame: CDP identifiers, if requested.
    """

    parent: int
    depth: int
    frame: str
    tag: str = ""
    text: str = ""
    role: str = ""
    name: str = ""
    value: str = ""
    states: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    url: str = ""
    box: Box = (0.0, 0.0, 0.0, 0.0)
    part: Box | None = None
    ratio: float = 0.0
    drawn: bool = True
    acts: bool = False
    hand: bool = False
    covered: bool = False
    inline: bool = False
    bid: str = ""
    backend_node_id: int = 0

    @property
    def visible(self) -> bool:
        return self.drawn and self.ratio >= VISIBLE_FROM

    @property
    def clickable(self) -> bool:
        """Whether a click would reach it."""
        return self.acts and self.drawn and not self.covered and "disabled" not in self.states


@dataclass(frozen=True, slots=True)
class Survey:
    """Elements and texts of a page in tree order, and the indices of each one's children."""

    items: tuple[SurveyItem, ...]
    children: tuple[tuple[int, ...], ...]

    def walk(self) -> Iterator[tuple[int, bool]]:
        """Yield the index of each item on entry (True) and exit (False), in tree order."""
        # A list, not recursion: scripts can nest deeper than Python's stack.
        todo = [(0, True)] if self.items else []
        while todo:
            index, entering = todo.pop()
            yield index, entering
            if entering:
                todo.append((index, False))
                todo.extend((child, True) for child in reversed(self.children[index]))

    def acting(self) -> Iterator[SurveyItem]:
        return (item for item in self.items if item.acts)


async def survey(
    page: Page,
    bids: Bids,
    *,
    viewport: bool = False,
    only: Literal["", "nodes", "acting"] = "",
    pointed: bool = True,
    after: asyncio.Future[Any] | None = None,
) -> Survey:
    """Return the survey of a page.

    Args:
        page: of a context opened by `open_context`.
        bids: of that context.
        viewport: leave out what is visible only after scrolling.
        only: "nodes" for callers with an accessibility tree: without roles, names, values and attributes,
            and without texts that only repeat names, but with backend node ids of all nodes that the tree may
            describe; "acting" for interactive elements, with positions alone of their surroundings.
        pointed: whether listeners, and cursors other than a hand, make an element interactive.
        after: task that assigns bids first; the page is read meanwhile.

    Raises:
        InfraError: if the page is closed, has crashed, or its frames keep changing.
    """
    probe = await PageProbe.of(page)
    options = {"viewport": viewport, "all": only == "nodes", "rough": only == "nodes"}
    options |= {"acting": only == "acting", "pointed": pointed}
    for _ in range(_ATTEMPTS):
        try:
            return await _Surveying(page, probe, bids, options).run(after)
        except FrameGone:
            await probe.arrived(_NAVIGATION_SECONDS)
    raise InfraError(f"{page.url}: frames came and went too fast for a survey")


class _Surveying:
    """One survey; each frame's list is inserted at its element."""

    def __init__(self, page: Page, probe: PageProbe, bids: Bids, options: dict[str, bool]) -> None:
        self.page = page
        self.probe = probe
        self.bids = bids
        self.options = options
        self.blobs = BlobNumbers()
        self.owners: dict[int, FrameInfo] = {}
        self.records: dict[str, tuple[list[dict[str, Any]], list[int]]] = {}  # by frame id
        self.items: list[SurveyItem] = []
        self.children: list[list[int]] = []

    async def run(self, after: asyncio.Future[Any] | None) -> Survey:
        frames = await self.probe.frames()
        owners = await asyncio.gather(
            *(self.probe.send("DOM.getFrameOwner", frameId=frame.id) for frame in frames[1:])
        )
        self.owners = {owner["backendNodeId"]: frame for owner, frame in zip(owners, frames[1:], strict=True)}
        await self._read_frame(frames[0], None)
        if after:
            await asyncio.wait([after])
            if [(f.id, f.loader) for f in await self.probe.frames()] != [(f.id, f.loader) for f in frames]:
                raise FrameGone(frames[0].id)  # the bids belong to other documents by now
        self.bids.begin(self.page, frames)
        with uncollected():
            self._enter(frames[0], -1, (0.0, 0.0))
            return Survey(tuple(self.items), tuple(map(tuple, self.children)))

    async def _read_frame(self, frame: FrameInfo, clip: list[float] | None) -> None:
        records, nodes = self.records[frame.id] = await self._look(frame, clip)
        for record in records:
            if "within" not in record or (inner := self.owners.get(nodes[record["n"]])) is None:
                continue
            left, top = record["origin"]
            x0, y0, x1, y1 = record["within"]
            if not self.options["viewport"] or (x1 > x0 and y1 > y0):
                await self._read_frame(inner, [x0 - left, y0 - top, x1 - left, y1 - top])

    def _enter(self, frame: FrameInfo, around: int, origin: tuple[float, float]) -> None:
        records, nodes = self.records[frame.id]
        indices: list[int] = []
        give = self.bids.giver(self.page, frame)
        for record in records:
            parent = indices[record["p"]] if record["p"] >= 0 else around
            item = self._item(record, frame, parent, origin)
            if "n" in record:
                item.backend_node_id = nodes[record["n"]]
            if item.acts:
                item.bid = give(item.backend_node_id)
            indices.append(len(self.items))
            if parent >= 0:
                self.children[parent].append(len(self.items))
            self.items.append(item)
            self.children.append([])
            inner = self.owners.get(item.backend_node_id) if "within" in record else None
            if inner is not None and inner.id in self.records:
                left, top = record["origin"]
                self._enter(inner, indices[-1], (origin[0] + left, origin[1] + top))

    def _item(
        self, record: dict[str, Any], frame: FrameInfo, parent: int, origin: tuple[float, float]
    ) -> SurveyItem:
        depth = self.items[parent].depth + 1 if parent >= 0 else 0
        if "t" in record:
            role = record.get("role", "")
            return SurveyItem(parent, depth, frame.id, text=record["t"], role=role)
        if "box" not in record:
            return SurveyItem(parent, depth, frame.id, tag=record["tag"])
        return SurveyItem(
            parent,
            depth,
            frame.id,
            tag=record["tag"],
            role=record.get("role", ""),
            name=record.get("name", ""),
            value=record.get("value", ""),
            states=record.get("states", {}),
            attributes=record.get("attrs", {}),
            url=record.get("url", ""),
            box=_moved(record["box"], origin),
            part=_moved(record["part"], origin) if "part" in record else None,
            ratio=record["ratio"],
            drawn=record["drawn"],
            acts="acts" in record,
            hand="hand" in record,
            covered="covered" in record,
            inline="inline" in record,
        )

    async def _look(
        self, frame: FrameInfo, clip: list[float] | None
    ) -> tuple[list[dict[str, Any]], list[int]]:
        await _prepare(self.probe, frame)
        listeners = await listening(self.probe, frame) if self.options["pointed"] else None
        options = json.dumps({**self.options, "clip": clip, "listening": listeners})
        text, nodes = await self.probe.evaluate_numbered(
            lambda known: f"survey({{...{options}, known: {known}}})", frame
        )
        with uncollected():
            return orjson.loads(self.blobs.write(text))["list"], nodes


async def pointed_at(probe: PageProbe, frame: FrameInfo) -> dict[int, list[int]]:
    """Return pointer targets of a frame that are not controls, and the texts in each, by backend node id.

    A text belongs to the innermost one.

    Raises:
        FrameGone: if the frame has gone, or navigates meanwhile.
    """
    await _prepare(probe, frame)
    listeners = await listening(probe, frame)
    text, nodes = await probe.evaluate_numbered(lambda known: f"pointed.all({listeners}, {known})", frame)
    numbers, places = orjson.loads(text)
    found: dict[int, list[int]] = {}
    for number, around in zip(numbers, places, strict=True):
        if around < 0:
            found[nodes[number]] = []
        else:
            found[nodes[numbers[around]]].append(nodes[number])
    return found


async def cache_listeners(probe: PageProbe) -> None:
    """Cache the listeners of a page's frames for this observation (`PageProbe.looking`)."""
    with suppress(FrameGone):  # the user of the cache retries
        for frame in await probe.frames():
            await _prepare(probe, frame)
            await listening(probe, frame)


async def _prepare(probe: PageProbe, frame: FrameInfo) -> None:
    world = probe.worlds(frame)[1]
    if world not in probe.known_nodes:
        await probe.evaluate(_script(), frame)
        probe.known_nodes[world] = set()


@functools.cache
def _script() -> str:
    folder = resources.files("stillweb.browser").joinpath("js")
    names = ("names.js", "pointed.js", "survey.js")
    return ";\n".join(folder.joinpath(name).read_text("utf-8") for name in names) + "; 0"


def _moved(box: list[float], origin: tuple[float, float]) -> Box:
    x, y, width, height = box
    return round(origin[0] + x, 2), round(origin[1] + y, 2), width, height

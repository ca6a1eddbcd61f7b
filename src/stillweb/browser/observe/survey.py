"""What a page shows, as one list of elements and texts: what all forms but the tree are made of.

`survey(page, bids)` runs `js/survey.js` once in each frame that can be seen, in one round trip each, and
puts the frames' lists together: boxes are in CSS pixels of the main viewport, what scrolls or hides
around an element is taken into account. Asked for the viewport only, it touches what is in it
and looks at the boxes of the rest, which is why it costs milliseconds on pages whose accessibility
tree costs seconds. Elements that can be acted on have their bids, the same as in the tree.
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

Box = tuple[float, float, float, float]
"""Left, top, width and height in CSS pixels of the main viewport."""

VISIBLE_FROM = 0.5  # part of an element's area, as BrowserGym counts what is visible
_ATTEMPTS = 5
_PATIENCE = 3.0  # seconds for a document on its way


@dataclass(slots=True)
class Item:
    """An element, or a text.

    Attributes:
        parent: index of the element that it is in, -1 for the first.
        depth: elements above it, through frames and shadow roots.
        tag: lower case; "" for a text.
        text: of a text; white space is collapsed unless `preformatted`.
        role, name, value, states: as assistive technology would be told. With `only="nodes"` a role is given
            where it is sure what the accessibility tree says of a node, and "" where it is not.
        attributes: those that say what an element is or does, as the page has them.
        url: where a link leads, absolute.
        box: of an element.
        part: what of the box can be seen, where that is not all of it.
        ratio: part of its area in the viewport and not cut off, 0 to 1.
        acts: whether it can be acted on, and has a bid.
        hand: whether that is so for the pointer alone: a hand under it, a listener, to be dragged.
        covered: whether something else lies over it.
        inline: whether it flows with the text around it.
        backend_node_id, frame: as CDP counts them, where they were asked for.
    """

    parent: int
    depth: int
    frame: str
    tag: str = ""
    text: str = ""
    preformatted: bool = False
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
        """Whether at least half of it is to be seen."""
        return self.drawn and self.ratio >= VISIBLE_FROM

    @property
    def clickable(self) -> bool:
        """Whether a click would reach it."""
        return self.acts and self.drawn and not self.covered and "disabled" not in self.states


@dataclass(frozen=True, slots=True)
class Survey:
    """Elements and texts of a page in tree order, and the indices of what is in each."""

    items: tuple[Item, ...]
    children: tuple[tuple[int, ...], ...]

    def walk(self) -> Iterator[tuple[int, bool]]:
        """Yield the index of each item as it is entered (True) and left (False), in tree order."""
        # On a list and not by recursion: scripts can nest deeper than Python's stack goes.
        todo = [(0, True)] if self.items else []
        while todo:
            index, entering = todo.pop()
            yield index, entering
            if entering:
                todo.append((index, False))
                todo.extend((child, True) for child in reversed(self.children[index]))

    def acting(self) -> Iterator[Item]:
        """Yield the elements that can be acted on, in tree order."""
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
    """Return what a page shows.

    Args:
        page: of a context opened by `open_context`.
        bids: of that context.
        viewport: leave out what cannot be seen without scrolling.
        only: "nodes" for who has roles, names, values and attributes from the accessibility tree: without
            them, and without texts that only say names, but with backend node ids of all that the tree may
            tell of; "acting" for what can be acted on, and of what is around that the place alone.
        pointed: whether listeners, and cursors other than a hand, count as something to act on.
        after: who gives bids before; the page is looked at meanwhile.

    Raises:
        InfraError: if the page is closed, has crashed, or never holds still for long enough.
    """
    probe = await PageProbe.of(page)
    options = {"viewport": viewport, "all": only == "nodes", "rough": only == "nodes"}
    options |= {"acting": only == "acting", "pointed": pointed}
    for _ in range(_ATTEMPTS):
        try:
            return await _Surveying(page, probe, bids, options).run(after)
        except FrameGone:
            await probe.arrived(_PATIENCE)
    raise InfraError(f"{page.url}: frames came and went too fast to be looked at")


class _Surveying:
    """One survey: frames are entered where their elements stand, by whoever is around them."""

    def __init__(self, page: Page, probe: PageProbe, bids: Bids, options: dict[str, bool]) -> None:
        self.page = page
        self.probe = probe
        self.bids = bids
        self.options = options
        self.owners: dict[int, FrameInfo] = {}
        self.looks: dict[str, tuple[list[dict[str, Any]], list[int]]] = {}  # by frame id
        self.items: list[Item] = []
        self.children: list[list[int]] = []

    async def run(self, after: asyncio.Future[Any] | None) -> Survey:
        frames = await self.probe.frames()
        owners = await asyncio.gather(
            *(self.probe.send("DOM.getFrameOwner", frameId=frame.id) for frame in frames[1:])
        )
        self.owners = {owner["backendNodeId"]: frame for owner, frame in zip(owners, frames[1:], strict=True)}
        await self._look_into(frames[0], None)
        if after:
            await asyncio.wait([after])
            if [(f.id, f.loader) for f in await self.probe.frames()] != [(f.id, f.loader) for f in frames]:
                raise FrameGone(frames[0].id)  # the bids are of other documents by now
        self.bids.begin(self.page, frames)
        with uncollected():
            self._enter(frames[0], -1, (0.0, 0.0))
            return Survey(tuple(self.items), tuple(map(tuple, self.children)))

    async def _look_into(self, frame: FrameInfo, clip: list[float] | None) -> None:
        """Have what a frame shows of its own `clip` told, and the frames in it."""
        records, nodes = self.looks[frame.id] = await self._look(frame, clip)
        for record in records:
            if "within" not in record or (inner := self.owners.get(nodes[record["n"]])) is None:
                continue
            left, top = record["origin"]
            x0, y0, x1, y1 = record["within"]
            if not self.options["viewport"] or (x1 > x0 and y1 > y0):
                await self._look_into(inner, [x0 - left, y0 - top, x1 - left, y1 - top])

    def _enter(self, frame: FrameInfo, around: int, origin: tuple[float, float]) -> None:
        """Append what a frame shows; it begins at `origin` in the main viewport."""
        records, nodes = self.looks[frame.id]
        indices: list[int] = []
        for record in records:
            parent = indices[record["p"]] if record["p"] >= 0 else around
            item = self._item(record, frame, parent, origin)
            if "n" in record:
                item.backend_node_id = nodes[record["n"]]
            if item.acts:
                item.bid = self.bids.give(self.page, frame, item.backend_node_id)
            indices.append(len(self.items))
            if parent >= 0:
                self.children[parent].append(len(self.items))
            self.items.append(item)
            self.children.append([])
            inner = self.owners.get(item.backend_node_id) if "within" in record else None
            if inner is not None and inner.id in self.looks:
                left, top = record["origin"]
                self._enter(inner, indices[-1], (origin[0] + left, origin[1] + top))

    def _item(
        self, record: dict[str, Any], frame: FrameInfo, parent: int, origin: tuple[float, float]
    ) -> Item:
        depth = self.items[parent].depth + 1 if parent >= 0 else 0
        if "t" in record:
            role = record.get("role", "")
            return Item(parent, depth, frame.id, text=record["t"], role=role, preformatted="pre" in record)
        if "box" not in record:
            return Item(parent, depth, frame.id, tag=record["tag"])
        return Item(
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
        heard = await listening(self.probe, frame) if self.options["pointed"] else None
        options = json.dumps({**self.options, "clip": clip, "listening": heard})
        told, nodes = await self.probe.evaluate_numbered(
            lambda known: f"survey({{...{options}, known: {known}}})", frame
        )
        with uncollected():
            return orjson.loads(told)["list"], nodes


async def pointed_at(probe: PageProbe, frame: FrameInfo) -> dict[int, list[int]]:
    """Return the elements of a frame that are there for the pointer, and are no controls; the texts in each.

    All by backend node id; a text is in the innermost.

    Raises:
        FrameGone: if the frame is, or navigates meanwhile.
    """
    await _prepare(probe, frame)
    heard = await listening(probe, frame)
    told, nodes = await probe.evaluate_numbered(lambda known: f"pointed.all({heard}, {known})", frame)
    numbers, places = orjson.loads(told)
    found: dict[int, list[int]] = {}
    for number, around in zip(numbers, places, strict=True):
        if around < 0:
            found[nodes[number]] = []
        else:
            found[nodes[numbers[around]]].append(nodes[number])
    return found


async def hear(probe: PageProbe) -> None:
    """Have what listens in a page's frames known in this one look (`Probe.looking`)."""
    with suppress(FrameGone):  # who needs it asks again
        for frame in await probe.frames():
            await _prepare(probe, frame)
            await listening(probe, frame)


async def _prepare(probe: PageProbe, frame: FrameInfo) -> None:
    """Have the scripts in a document."""
    world = probe.worlds(frame)[1]
    if world not in probe.learnt:
        await probe.evaluate(_script(), frame)
        probe.learnt[world] = set()


@functools.cache
def _script() -> str:
    folder = resources.files("stillweb.browser").joinpath("js")
    names = ("names.js", "pointed.js", "survey.js")
    return ";\n".join(folder.joinpath(name).read_text("utf-8") for name in names) + "; 0"


def _moved(box: list[float], origin: tuple[float, float]) -> Box:
    x, y, width, height = box
    return round(origin[0] + x, 2), round(origin[1] + y, 2), width, height

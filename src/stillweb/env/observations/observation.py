"""What an agent sees after a step.

Nothing is computed that was not asked for (`observe=` of an `Env`, or `Env.observe` for once):
a screenshot costs more than the step, a tree more than an address. What is asked for is computed at
the end of the step, from one look at the page, since a moment later the page may be another one. Everything
that was computed has its SHA-256 in `digests`, so that two episodes are compared by a few bytes and a
trajectory can refer to pictures it does not carry.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from playwright.async_api import Page

from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.context import state_of
from stillweb.browser.observe.axtree import AxNode, AxOptions, Bids, axtree, flatten, seen_by_node
from stillweb.browser.observe.compact import compact_text
from stillweb.browser.observe.dom import dom_text
from stillweb.browser.observe.markdown import markdown_text, plain_text
from stillweb.browser.observe.marks import draw_marks, markable
from stillweb.browser.observe.page import page_address, page_html, page_text, page_title, screenshot
from stillweb.browser.observe.survey import Box, Item, Survey, cache_listeners, survey
from stillweb.env.aio import both
from stillweb.errors import UsageError

__all__ = [
    "Observation",
    "ObservationForm",
    "Observe",
    "ObservedElement",
    "Tab",
    "observe_kinds",
    "take_observation",
]


class Observe(StrEnum):
    """What can be observed of the active page."""

    AXTREE = "axtree"  # the accessibility tree as text, with bids, and its nodes
    DOM = "dom"  # the distilled DOM, with bids
    COMPACT = "compact"  # few words, elements by names that mean something
    MARKDOWN = "markdown"  # to be read, with links
    TEXT = "text"  # what is visible, as text
    HTML = "html"  # the document as it is now
    ELEMENTS = "elements"  # what can be acted on: bid, role, name, box, visibility
    SCREENSHOT = "screenshot"  # a picture as PNG
    SOM = "som"  # the picture with numbered boxes, and the bid of each
    COORDS = "coords"  # the picture, its size, and where the elements are in it


_PICTURES = (Observe.SCREENSHOT, Observe.SOM, Observe.COORDS)
_WHOLE_ONLY = (Observe.HTML,)
_AX_OPTIONS = tuple(each.name for each in fields(AxOptions))


@dataclass(frozen=True, slots=True)
class ObservationForm:
    """A form as it was asked for.

    Attributes:
        kind: which.
        viewport: whether it shows only what can be seen without scrolling.
        ax: what the accessibility tree's lines say besides.
    """

    kind: Observe
    viewport: bool
    ax: AxOptions = field(default_factory=AxOptions)

    @property
    def value(self) -> str:
        """How it is asked for."""
        options = [name for name in _AX_OPTIONS if getattr(self.ax, name)]
        if self.viewport != (self.kind in _PICTURES):
            options.insert(0, "viewport" if self.viewport else "page")
        return f"{self.kind}:{','.join(options)}" if options else str(self.kind)


def observe_kinds(names: Collection[str]) -> tuple[ObservationForm, ...]:
    """Return the forms of these names, in the order in which they are computed.

    Raises:
        UsageError: naming those that there are not, or that were asked for twice.
    """
    asked: dict[Observe, ObservationForm] = {}
    unknown = sorted({name for name in names if name.partition(":")[0] not in set(Observe)})
    if unknown:
        raise UsageError(
            f"nothing called {', '.join(unknown)} can be observed",
            hint=f"observe any of: {', '.join(sorted(Observe))}",
        )
    for name in dict.fromkeys(names):
        form = _form(name)
        if form.kind in asked:
            raise UsageError(f"{form.kind} is asked for twice: {asked[form.kind].value} and {form.value}")
        asked[form.kind] = form
    return tuple(asked[kind] for kind in Observe if kind in asked)


def _form(name: str) -> ObservationForm:
    word, _, said = name.partition(":")
    kind = Observe(word)
    options = [option.strip() for option in said.split(",") if option.strip()]
    known = set(_known(kind))
    if unknown := [option for option in options if option not in known]:
        raise UsageError(
            f"{kind} has no option {', '.join(unknown)}",
            hint=f"it has: {', '.join(_known(kind))}" if known else "it has none",
        )
    if "viewport" in options and "page" in options:
        raise UsageError(f"{name}: either the viewport or the whole page")
    viewport = kind in _PICTURES
    if "viewport" in options or "page" in options:
        viewport = "viewport" in options
    return ObservationForm(
        kind, viewport, AxOptions(**{option: True for option in options if option in _AX_OPTIONS})
    )


def _known(kind: Observe) -> Iterator[str]:
    if kind not in _WHOLE_ONLY:
        yield from ("viewport", "page")
    if kind is Observe.AXTREE:
        yield from _AX_OPTIONS


# Those that are written of a survey of everything.
_SURVEYED = (Observe.DOM, Observe.COMPACT, Observe.MARKDOWN)
_PICTURE = ObservationForm(Observe.SCREENSHOT, viewport=True)
_TEXTS = ("axtree", "dom", "compact", "markdown", "text", "html")


@dataclass(frozen=True, slots=True)
class Tab:
    """An open tab."""

    index: int
    url: str
    title: str
    active: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"index": self.index, "url": self.url, "title": self.title, "active": self.active}


@dataclass(frozen=True, slots=True)
class ObservedElement:
    """An element that can be acted on, and where it is.

    Attributes:
        bid: by which actions address it.
        role, name: as assistive technology is told.
        box: left, top, width and height in CSS pixels of the viewport, whether or not it is in it.
        visible: whether at least half of it can be seen.
        clickable: whether a click would reach it: enabled, drawn, nothing over it.
    """

    bid: str
    role: str
    name: str
    box: Box
    visible: bool
    clickable: bool

    @classmethod
    def of(cls, item: Item) -> ObservedElement:
        """Return an element of a survey."""
        return cls(item.bid, item.role, item.name, item.box, item.visible, item.clickable)

    @property
    def center(self) -> tuple[float, float]:
        """The middle of its box."""
        x, y, width, height = self.box
        return round(x + width / 2, 2), round(y + height / 2, 2)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "bid": self.bid,
            "role": self.role,
            "name": self.name,
            "visible": self.visible,
            "clickable": self.clickable,
            "box": list(self.box),
            "center": list(self.center),
        }


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the active page, as far as it was asked for; what was not is None.

    Attributes:
        nodes: of the accessibility tree, in its order; empty where it was not asked for.
        elements: what can be acted on, where `elements`, `som` or `coords` was asked for; those of `som` and
            `coords` are the ones in the picture.
        marks: of `som`: the bid of each number.
        coords: size of the viewport and places of the elements in it, beside `screenshot`.
        digests: SHA-256 in hex of each part computed, by its name.
        last_action_error: "" if the last action went well.
    """

    url: str
    title: str
    tabs: tuple[Tab, ...]
    axtree: str | None = None
    nodes: tuple[AxNode, ...] = field(default=(), repr=False)
    dom: str | None = field(default=None, repr=False)
    compact: str | None = field(default=None, repr=False)
    markdown: str | None = field(default=None, repr=False)
    text: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    elements: tuple[ObservedElement, ...] | None = field(default=None, repr=False)
    screenshot: bytes | None = field(default=None, repr=False)
    som: bytes | None = field(default=None, repr=False)
    marks: Mapping[str, str] = field(default_factory=dict, repr=False)
    coords: Mapping[str, Any] | None = field(default=None, repr=False)
    digests: dict[str, str] = field(default_factory=dict)
    last_action_error: str = ""

    def body(self, kind: str) -> bytes | None:
        """Return the bytes that a digest is of; None for what was not asked for."""
        value = getattr(self, kind)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if kind == Observe.ELEMENTS:
            value = [element.to_dict() for element in value]
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    def to_dict(self) -> dict[str, Any]:
        """Return what is text of it as JSON, for models and trajectories."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        if self.elements is not None:
            parts["elements"] = [element.to_dict() for element in self.elements]
        if self.som is not None:
            parts["marks"] = dict(self.marks)
        if self.coords is not None:
            parts["coords"] = dict(self.coords)
        return {
            "url": self.url,
            "title": self.title,
            "tabs": [tab.to_dict() for tab in self.tabs],
            **{name: value for name, value in parts.items() if value is not None},
            "digests": self.digests,
            "last_action_error": self.last_action_error,
        }


async def take_observation(
    pages: Sequence[Page],
    active: Page,
    bids: Bids,
    kinds: Sequence[ObservationForm],
    error: str = "",
    *,
    still: bool = False,
) -> Observation:
    """Observe the active page.

    Args:
        pages: all of the context, in the order of its tabs.
        active: the one to be observed.
        bids: of the context.
        kinds: forms.
        error: of the last action.
        still: whether the page has settled: to draw it moves nothing then.
    """
    look = _Look(active, bids, still and state_of(active.context).exact is not None)
    titles, parts = await both(asyncio.gather(*map(page_title, pages)), look.parts(kinds))
    urls = [await page_address(page) for page in pages]
    tabs = [
        Tab(index, url, title, page is active)
        for index, (page, url, title) in enumerate(zip(pages, urls, titles, strict=True))
    ]
    observation = Observation(
        url=await page_address(active),
        title=next((tab.title for tab in tabs if tab.active), ""),
        tabs=tuple(tabs),
        last_action_error=error,
        **parts,
    )
    for form in kinds:
        observation.digests[form.kind.value] = hashlib.sha256(observation.body(form.kind) or b"").hexdigest()
    return observation


class _Look:
    """One look at a page: what several forms need is taken once.

    Args:
        page: which.
        bids: of its context.
        frozen: whether nothing moves, drawing its picture neither: settled, at level EXACT.
    """

    def __init__(self, page: Page, bids: Bids, frozen: bool) -> None:
        self._page = page
        self._bids = bids
        self._frozen = frozen
        self._surveys: dict[bool, Survey] = {}
        self._acts: dict[bool, Survey] = {}
        self._pictures: dict[bool, bytes] = {}

    async def parts(self, kinds: Sequence[ObservationForm]) -> dict[str, Any]:
        """Return the parts of an observation that forms are."""
        probe = await PageProbe.of(self._page)
        with probe.looking():
            tree = next((form for form in kinds if form.kind is Observe.AXTREE and not form.viewport), None)
            if tree is None or not any(form.kind in _SURVEYED and not form.viewport for form in kinds):
                return await self._in_turn(kinds)
            # Pictures are drawn and written by other threads of the browser: first, before it is busy.
            frozen = reversed(kinds) if self._frozen else ()
            beside = [each for each in frozen if each == _PICTURE or each.kind is Observe.HTML]
            rest = [each for each in kinds if each is not tree and each not in beside]
            parts, more = await both(self._read(probe, tree, rest), self._in_turn(beside))
            return parts | more

    async def _in_turn(self, forms: Iterable[ObservationForm]) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for form in forms:
            parts |= await self.part(form)
        return parts

    async def _read(
        self, probe: PageProbe, tree: ObservationForm, rest: Sequence[ObservationForm]
    ) -> dict[str, Any]:
        """Return a tree and the rest.

        The browser does one thing after the other: what it has told of is read meanwhile.
        """
        await cache_listeners(probe)
        first = asyncio.ensure_future(self._axtree(tree))
        parts, self._surveys[False] = await both(first, self._seen(False, after=first))
        return parts | await self._in_turn(rest)

    async def part(self, form: ObservationForm) -> dict[str, Any]:
        if form.kind is Observe.AXTREE:
            return await self._axtree(form)
        if form.kind is Observe.HTML:
            return {"html": await page_html(self._page)}
        if form.kind is Observe.TEXT and not form.viewport:
            return {"text": await page_text(self._page)}
        if form.kind is Observe.SCREENSHOT:
            return {"screenshot": await self._picture(form.viewport)}
        if form.kind is Observe.SOM:
            return await self._som(form.viewport)
        if form.kind is Observe.COORDS:
            return await self._coords(form.viewport)
        if form.kind is Observe.ELEMENTS:
            return self._elements((await self._acting(form.viewport)).acting())
        return self._written(form.kind, await self._survey(form.viewport))

    def _written(self, kind: Observe, seen: Survey) -> dict[str, Any]:
        if kind is Observe.COMPACT:
            return {"compact": compact_text(self._page, self._bids, seen)}
        write = {Observe.DOM: dom_text, Observe.MARKDOWN: markdown_text, Observe.TEXT: plain_text}[kind]
        return {kind.value: write(seen)}

    async def _axtree(self, form: ObservationForm) -> dict[str, Any]:
        tree = await axtree(self._page, self._bids, viewport=form.viewport, pointed=True)
        if not form.ax.look:
            return {"axtree": flatten(tree.nodes), "nodes": tree.nodes}
        seen = await survey(self._page, self._bids, viewport=form.viewport, only="nodes")
        return {"axtree": flatten(tree.nodes, form.ax, seen_by_node(seen)), "nodes": tree.nodes}

    async def _som(self, viewport: bool) -> dict[str, Any]:
        items = markable(await self._acting(viewport), page=not viewport)
        drawn = await self._places(items, viewport)
        picture = draw_marks(await self._picture(viewport), drawn, await self._width(viewport))
        marks = {str(number): item.bid for number, item in enumerate(items, 1)}
        self._bids.mark(self._page, marks)
        return {"som": picture, "marks": marks} | self._elements(items)

    async def _coords(self, viewport: bool) -> dict[str, Any]:
        size = self._page.viewport_size or {"width": 0, "height": 0}
        items = markable(await self._acting(viewport), page=not viewport)
        picture = await self._picture(viewport)
        coords = {
            "viewport": [size["width"], size["height"]],
            "screenshot": hashlib.sha256(picture).hexdigest(),
            "elements": [ObservedElement.of(item).to_dict() for item in items],
        }
        return {"coords": coords, "screenshot": picture} | self._elements(items)

    @staticmethod
    def _elements(items: Iterable[Item]) -> dict[str, Any]:
        return {"elements": tuple(map(ObservedElement.of, items))}

    async def _survey(self, viewport: bool) -> Survey:
        if viewport not in self._surveys:
            self._surveys[viewport] = await self._seen(viewport)
        return self._surveys[viewport]

    async def _seen(self, viewport: bool, after: asyncio.Future[Any] | None = None) -> Survey:
        return await survey(self._page, self._bids, viewport=viewport, after=after)

    async def _acting(self, viewport: bool) -> Survey:
        """Return what can be acted on; of a survey of everything, if there is one."""
        if viewport in self._surveys:
            return self._surveys[viewport]
        if viewport not in self._acts:
            self._acts[viewport] = await survey(self._page, self._bids, viewport=viewport, only="acting")
        return self._acts[viewport]

    async def _picture(self, viewport: bool) -> bytes:
        if viewport not in self._pictures:
            self._pictures[viewport] = await screenshot(self._page, full_page=not viewport)
        return self._pictures[viewport]

    async def _places(self, items: Sequence[Item], viewport: bool) -> list[Box]:
        """Return the boxes of elements in CSS pixels of the picture."""
        if viewport:
            return [item.part or item.box for item in items]
        metrics = (await (await PageProbe.of(self._page)).send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        left, top = metrics["pageX"], metrics["pageY"]
        return [(x + left, y + top, width, height) for x, y, width, height in (item.box for item in items)]

    async def _width(self, viewport: bool) -> float:
        """Return the width of the picture in CSS pixels."""
        if viewport and self._page.viewport_size:
            return self._page.viewport_size["width"]
        metrics = await (await PageProbe.of(self._page)).send("Page.getLayoutMetrics")
        return float(metrics["cssContentSize" if not viewport else "cssLayoutViewport"].get("width") or 0)

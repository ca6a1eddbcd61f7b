"""Observation of the active page after a step.

Only the requested forms are computed (`observe=` of an `Env`, or `Env.observe`): a screenshot costs more than
the step itself. All forms of an observation are computed at the end of the step and share their CDP
snapshots, so that they show the same state. `digests` has the SHA-256 of every form, for comparisons and for
references in trajectories.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import orjson
from playwright.async_api import Page

from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.observe.axtree import AxNode, AxOptions, axtree, flatten, seen_by_node
from stillweb.browser.observe.bids import Bids
from stillweb.browser.observe.compact import compact_text
from stillweb.browser.observe.dom import dom_text
from stillweb.browser.observe.markdown import markdown_text, plain_text
from stillweb.browser.observe.marks import draw_marks, markable
from stillweb.browser.observe.page import page_address, page_html, page_text, page_title, screenshot
from stillweb.browser.observe.survey import Box, Survey, SurveyItem, cache_listeners, survey
from stillweb.browser.state import state_of
from stillweb.env.aio import both
from stillweb.env.observations.forms import TEXT_FORMS
from stillweb.errors import UsageError
from stillweb.garbage import uncollected
from stillweb.urls import BlobNumbers


class Observe(StrEnum):
    """Forms of observation."""

    AXTREE = "axtree"  # the accessibility tree as text, with bids, and its nodes
    DOM = "dom"  # the simplified DOM, with bids
    COMPACT = "compact"  # short text, elements by their accessible names
    MARKDOWN = "markdown"  # text with headings and links
    TEXT = "text"  # visible text
    HTML = "html"  # the present document
    ELEMENTS = "elements"  # elements for actions: bid, role, name, box, visibility
    SCREENSHOT = "screenshot"  # PNG
    SOM = "som"  # screenshot with numbered boxes, and the bid of each
    COORDS = "coords"  # screenshot, its size, and the boxes of the elements


_PICTURES = (Observe.SCREENSHOT, Observe.SOM, Observe.COORDS)
_WHOLE_ONLY = (Observe.HTML,)
_AX_OPTIONS = tuple(each.name for each in fields(AxOptions))


@dataclass(frozen=True, slots=True)
class ObservationForm:
    """A form of observation with its options.

    Attributes:
        ax: options of the accessibility tree.
    """

    kind: Observe
    viewport: bool
    ax: AxOptions = field(default_factory=AxOptions)

    @property
    def value(self) -> str:
        """The name that `observe_kinds` reads as this form."""
        options = [name for name in _AX_OPTIONS if getattr(self.ax, name)]
        if self.viewport != (self.kind in _PICTURES):
            options.insert(0, "viewport" if self.viewport else "page")
        return f"{self.kind}:{','.join(options)}" if options else str(self.kind)


def observe_kinds(names: Collection[str]) -> tuple[ObservationForm, ...]:
    """Return the forms with these names, in the order of their computation.

    Raises:
        UsageError: for an unknown or repeated form.
    """
    forms: dict[Observe, ObservationForm] = {}
    unknown = sorted({name for name in names if name.partition(":")[0] not in set(Observe)})
    if unknown:
        raise UsageError(
            f"unknown form of observation: {', '.join(unknown)}",
            hint=f"use any of: {', '.join(sorted(Observe))}",
        )
    for name in dict.fromkeys(names):
        form = _form(name)
        if form.kind in forms:
            raise UsageError(f"{form.kind} is requested twice: {forms[form.kind].value} and {form.value}")
        forms[form.kind] = form
    return tuple(forms[kind] for kind in Observe if kind in forms)


def _form(name: str) -> ObservationForm:
    word, _, given = name.partition(":")
    kind = Observe(word)
    options = [option.strip() for option in given.split(",") if option.strip()]
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


# Forms that are generated from a survey of all nodes.
_SURVEYED = (Observe.DOM, Observe.COMPACT, Observe.MARKDOWN)
_PICTURE = ObservationForm(Observe.SCREENSHOT, viewport=True)


@dataclass(frozen=True, slots=True)
class Tab:
    """An open tab; `index` counts from 0, as in the action `switch_tab`."""

    index: int
    url: str
    title: str
    active: bool


@dataclass(frozen=True, slots=True)
class ObservedElement:
    """An element for actions.

    Attributes:
        box: left, top, width and height in CSS pixels, relative to the viewport.
        visible: whether at least half of it is visible.
        clickable: whether a click reaches it: it is enabled, drawn and not covered.
        unrecorded: whether it is a link to a document that the collection does not hold; known in off-path
            mode "mask" only.
    """

    bid: str
    role: str
    name: str
    box: Box
    visible: bool
    clickable: bool
    unrecorded: bool = False

    @classmethod
    def of(cls, item: SurveyItem, *, unrecorded: bool = False) -> ObservedElement:
        return cls(item.bid, item.role, item.name, item.box, item.visible, item.clickable, unrecorded)

    @property
    def center(self) -> tuple[float, float]:
        x, y, width, height = self.box
        return round(x + width / 2, 2), round(y + height / 2, 2)

    def to_dict(self) -> dict[str, Any]:
        return {
            "bid": self.bid,
            "role": self.role,
            "name": self.name,
            "visible": self.visible,
            "clickable": self.clickable,
            "box": list(self.box),
            "center": list(self.center),
            **({"unrecorded": True} if self.unrecorded else {}),
        }


@dataclass(frozen=True, slots=True)
class Observation:
    """State of the active page in the requested forms; other forms are None.

    Attributes:
        nodes: nodes of the accessibility tree in order; empty without `axtree`.
        elements: elements for actions, with `elements`, `som` or `coords`; the latter two have only those in
            the picture.
        marks: the bid of each number in `som`.
        coords: size of the viewport and boxes of the elements, beside `screenshot`.
        digests: SHA-256 in hex of each form, by name.
        last_action_error: "" if the last action succeeded.
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
        """Return the bytes of a form that its digest is computed from; None if it was not requested."""
        value = getattr(self, kind)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if kind == Observe.ELEMENTS:
            value = [element.to_dict() for element in value]
        return _canonical(value)

    def to_dict(self) -> dict[str, Any]:
        """Return the textual forms as JSON, for models and trajectories."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in TEXT_FORMS}
        if self.elements is not None:
            parts["elements"] = [element.to_dict() for element in self.elements]
        if self.som is not None:
            parts["marks"] = dict(self.marks)
        if self.coords is not None:
            parts["coords"] = dict(self.coords)
        return {
            "url": self.url,
            "title": self.title,
            "tabs": [asdict(tab) for tab in self.tabs],
            **{name: value for name, value in parts.items() if value is not None},
            "digests": self.digests,
            "last_action_error": self.last_action_error,
        }


def _canonical(value: Any) -> bytes:
    """Return JSON with sorted keys, the bytes that `json` writes."""
    with suppress(TypeError):  # lone surrogates
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if not any(sign in text for sign in _WRITTEN_OTHERWISE):
            return text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


# In texts of orjson that may differ from those of `json`: numbers from 1e16 on or below 1e-4, not-a-number.
_WRITTEN_OTHERWISE = (b"e1", b"e2", b"e3", b"e-", b"0.0000", b"null")

Mask = Callable[[Iterable[SurveyItem]], Awaitable[frozenset[str]]]


async def take_observation(  # noqa: PLR0913 - the state of an episode, by name
    pages: Sequence[Page],
    active: Page,
    bids: Bids,
    kinds: Sequence[ObservationForm],
    error: str = "",
    *,
    still: bool = False,
    mask: Mask | None = None,
) -> Observation:
    """Observe the active page.

    Args:
        pages: all pages of the context, in the order of the tabs.
        error: error of the last action.
        still: whether the page has settled, so that drawing it changes nothing.
        mask: returns the bids of those elements that are marked as `unrecorded`.
    """
    with uncollected():
        observer = _Observer(active, bids, still and state_of(active.context).exact is not None, mask)
        titles, parts = await both(asyncio.gather(*map(page_title, pages)), observer.parts(kinds))
        urls = [await page_address(page) for page in pages]
        blobs = BlobNumbers()
        tabs = [
            Tab(index, blobs.write(url), blobs.write(title), page is active)
            for index, (page, url, title) in enumerate(zip(pages, urls, titles, strict=True))
        ]
        observation = Observation(
            url=blobs.write(await page_address(active)),
            title=next((tab.title for tab in tabs if tab.active), ""),
            tabs=tuple(tabs),
            last_action_error=error,
            **parts,
        )
        for form in kinds:
            body = observation.body(form.kind) or b""
            observation.digests[form.kind.value] = hashlib.sha256(body).hexdigest()
    return observation


class _Observer:
    """One observation of a page: data that several forms need is taken once.

    Args:
        frozen: whether nothing changes, not even by drawing a picture: settled, at level EXACT.
    """

    def __init__(self, page: Page, bids: Bids, frozen: bool, mask: Mask | None = None) -> None:
        self._mask = mask
        self._masked: frozenset[str] = frozenset()
        self._page = page
        self._bids = bids
        self._frozen = frozen
        self._surveys: dict[bool, Survey] = {}
        self._acts: dict[bool, Survey] = {}
        self._pictures: dict[bool, bytes] = {}

    async def parts(self, kinds: Sequence[ObservationForm]) -> dict[str, Any]:
        """Return fields of the Observation for these forms."""
        probe = await PageProbe.of(self._page)
        with probe.looking():
            if self._mask:
                self._masked = await self._mask((await self._acting(False)).acting())
            tree = next((form for form in kinds if form.kind is Observe.AXTREE and not form.viewport), None)
            if tree is None or not any(form.kind in _SURVEYED and not form.viewport for form in kinds):
                return await self._in_turn(kinds)
            # Other threads of the browser draw and encode pictures; start them first.
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
        """Return a tree and the rest; responses are read while the browser computes the next one."""
        await cache_listeners(probe)
        first = asyncio.ensure_future(self._axtree(tree))
        parts, self._surveys[False] = await both(first, self._take_survey(False, after=first))
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
        options = {"urls": form.ax.with_urls, "viewport": form.viewport, "pointed": True}
        tree = await axtree(self._page, self._bids, **options)
        nodes = tuple(self._marked(node) for node in tree.nodes) if self._masked else tree.nodes
        if not form.ax.look:
            return {"axtree": flatten(nodes), "nodes": nodes}
        seen = await survey(self._page, self._bids, viewport=form.viewport, only="nodes")
        return {"axtree": flatten(nodes, form.ax, seen_by_node(seen)), "nodes": nodes}

    def _marked(self, node: AxNode) -> AxNode:
        if not node.bid or node.bid not in self._masked:
            return node
        return replace(node, properties=(*node.properties, ("unrecorded", True)))

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
            "elements": [self._element(item).to_dict() for item in items],
        }
        return {"coords": coords, "screenshot": picture} | self._elements(items)

    def _element(self, item: SurveyItem) -> ObservedElement:
        return ObservedElement.of(item, unrecorded=item.bid in self._masked)

    def _elements(self, items: Iterable[SurveyItem]) -> dict[str, Any]:
        return {"elements": tuple(map(self._element, items))}

    async def _survey(self, viewport: bool) -> Survey:
        if viewport not in self._surveys:
            self._surveys[viewport] = await self._take_survey(viewport)
        return self._surveys[viewport]

    async def _take_survey(self, viewport: bool, after: asyncio.Future[Any] | None = None) -> Survey:
        return await survey(self._page, self._bids, viewport=viewport, after=after)

    async def _acting(self, viewport: bool) -> Survey:
        """Return a survey of the elements for actions; a full survey is reused."""
        if viewport in self._surveys:
            return self._surveys[viewport]
        if viewport not in self._acts:
            self._acts[viewport] = await survey(self._page, self._bids, viewport=viewport, only="acting")
        return self._acts[viewport]

    async def _picture(self, viewport: bool) -> bytes:
        if viewport not in self._pictures:
            self._pictures[viewport] = await screenshot(self._page, full_page=not viewport)
        return self._pictures[viewport]

    async def _places(self, items: Sequence[SurveyItem], viewport: bool) -> list[Box]:
        """Return the elements' boxes in CSS pixels of the picture."""
        if viewport:
            return [item.part or item.box for item in items]
        metrics = (await (await PageProbe.of(self._page)).send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        left, top = metrics["pageX"], metrics["pageY"]
        return [(x + left, y + top, width, height) for x, y, width, height in (item.box for item in items)]

    async def _width(self, viewport: bool) -> float:
        """Return the picture's width in CSS pixels."""
        if viewport and self._page.viewport_size:
            return self._page.viewport_size["width"]
        metrics = await (await PageProbe.of(self._page)).send("Page.getLayoutMetrics")
        return float(metrics["cssContentSize" if not viewport else "cssLayoutViewport"].get("width") or 0)

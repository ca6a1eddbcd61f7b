"""The accessibility tree as text for agents, in the format of BrowserGym's `flatten_axtree_to_str`.

    RootWebArea 'Shop', focused
        heading 'Basket'
        [a3] textbox 'Coupon' value='SPRING', required
        [a4] checkbox 'Gift', box="(8,60,21,73)", center="(14,66)", clickable, visible, checked='false'

Option names and their output are BrowserGym's. The choice of nodes is stillweb's (`axtree`);
docs/reference/observations.md lists the differences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from playwright.async_api import Page

from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.observe.bids import Bids, file_names
from stillweb.browser.observe.survey import Survey, SurveyItem, pointed_at, survey
from stillweb.errors import InfraError
from stillweb.garbage import uncollected
from stillweb.text import well_formed
from stillweb.urls import BlobNumbers

INTERACTIVE = frozenset(
    (
        *("button", "checkbox", "combobox", "ComboBoxMenuButton", "ColorWell", "Date", "DateTime"),
        *("InputTime",),
        *("DisclosureTriangle", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox"),
        *("menuitemradio", "option", "popUpButton", "radio", "scrollbar", "searchbox", "slider"),
        *("spinbutton", "switch", "tab", "textbox", "treeitem", "togglebutton"),
        *("MenuListOption", "PdfActionableHighlight"),
    )
)
"""Roles whose nodes always have a bid; other nodes have one if they take focus or clicks."""

_DROPPED = frozenset(("InlineTextBox", "LineBreak", "ListMarker", "LayoutTableCell"))
# Left out if they have no name and no action; their children move up.
_WRAPPERS = frozenset(
    (
        *("generic", "none", "presentation", "LayoutTable", "LayoutTableRow", "LabelText", "paragraph"),
        *("strong", "emphasis", "code", "mark", "superscript", "subscript", "time", "Abbr", "insertion"),
        *("deletion", "MenuListPopup", "Pre"),
    )
)
# Named by their content (ARIA 1.2 §5.2.8.4), so that the text inside need not be repeated.
_NAMED_BY_CONTENT = frozenset(
    (
        *("button", "cell", "checkbox", "columnheader", "gridcell", "heading", "link", "menuitem"),
        *("menuitemcheckbox", "menuitemradio", "option", "radio", "row", "rowheader", "switch", "tab"),
        *("tooltip", "treeitem", "DisclosureTriangle", "MenuListOption", "generic", "togglebutton"),
    )
)
# Their content belongs to the browser.
_WHOLE = frozenset(("Date", "DateTime", "InputTime", "ColorWell"))
_FLAGS = ("focused", "disabled", "required", "selected", "modal", "readonly", "multiselectable")
_STATES = ("checked", "pressed", "expanded", "hasPopup", "invalid", "level")
_DEFAULTS = {"hasPopup": ("false", ""), "invalid": ("false",), "checked": (), "pressed": (), "expanded": ()}
_LEVELLED = frozenset(("heading", "treeitem"))
_SPELLED = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class AxNode:
    """A node of the flattened tree.

    Attributes:
        bid: name for actions, "" if it is not interactive.
        role, name, value: as the browser computes them (ARIA 1.2).
        properties: such as ("focused", True), ("level", 2), in a fixed order.
        depth: levels below the root.
        backend_node_id: CDP identifier of the DOM node.
        frame: CDP identifier of the frame.
    """

    bid: str
    role: str
    name: str
    value: str
    properties: tuple[tuple[str, Any], ...]
    depth: int
    backend_node_id: int
    frame: str

    def line(self) -> str:
        """Return the node's text, without indentation."""
        text = f"[{self.bid}] {self.role}" if self.bid else self.role
        if self.name or self.role == "StaticText":
            text += f" {self.name!r}"
        if self.value:
            text += f" value={self.value!r}"
        for name, value in self.properties:
            if name == "hasPopup":  # not in baselines
                continue
            if name == "level":
                text += f" level={value}"
            else:
                text += f", {name}" if value is True else f", {name}={_spelled(value)}"
        return text


@dataclass(frozen=True, slots=True)
class AxTree:
    """Flattened accessibility tree of a page and its frames, in document order."""

    nodes: tuple[AxNode, ...]

    @property
    def text(self) -> str:
        """The tree in the format of baselines; `flatten` writes the format for agents."""
        return "\n".join("\t" * node.depth + node.line() for node in self.nodes)

    def find(self, bid: str) -> AxNode | None:
        """Return the node with a bid, None if the tree has none."""
        return next((node for node in self.nodes if node.bid == bid), None)


_Place = tuple[dict[str, Any], FrameInfo, int, str]  # a node, its frame, its depth, the name above it


async def axtree(
    page: Page, bids: Bids, *, urls: bool = False, viewport: bool = False, pointed: bool = False
) -> AxTree:
    """Return the flattened accessibility tree of a page.

    Args:
        page: of a context opened by `open_context`.
        bids: of that context.
        urls: whether links show their targets.
        viewport: leave out what is visible only after scrolling. The cost depends on what is visible, not on
            the length of the page.
        pointed: whether elements with pointer listeners or cursors count as interactive, even those that
            the browser's tree lacks. Without it the tree has the format of baselines.

    Raises:
        InfraError: if the page is closed, has crashed, or its frames keep changing.
    """
    probe = await PageProbe.of(page)
    for _ in range(5):
        try:
            return await _TreeReader(page, probe, bids, urls, pointed).read(viewport)
        except FrameGone:
            await probe.arrived(3.0)
    raise InfraError(f"{page.url}: frames came and went too fast to read the accessibility tree")


class _TreeReader:
    def __init__(self, page: Page, probe: PageProbe, bids: Bids, urls: bool, pointed: bool) -> None:
        self.page = page
        self.probe = probe
        self.bids = bids
        self.pointed = pointed
        self.blobs = BlobNumbers()
        self.shown = (*_STATES, "url") if urls else _STATES
        self.listed = frozenset((*_FLAGS, *self.shown))
        self.owners: dict[int, FrameInfo] = {}
        self.trees: dict[str, dict[str, dict[str, Any]]] = {}
        self.roots: dict[str, list[dict[str, Any]]] = {}
        self.clickable: set[int] = set()
        self.clickable_texts: dict[int, int] = {}  # text -> the clickable element that contains it
        self.lifted: dict[int, int] = {}  # such an element that the tree lacks -> its depth
        self.given: set[int] = set()  # nodes with bids
        self.givers: dict[str, Callable[[int], str]] = {}  # by frame id, see `Bids.giver`
        self.nodes: list[AxNode] = []

    async def read(self, viewport: bool) -> AxTree:
        frames = await self.probe.frames()
        self.bids.begin(self.page, frames)
        self.owners = await self._owners(frames[1:])
        await (self._fetch_seen(frames) if viewport else self._fetch_all(frames))
        with uncollected():
            # A list, not recursion: scripts can nest deeper than Python's stack.
            todo = [(root, frames[0], 0, "") for root in reversed(self.roots[frames[0].id])]
            while todo:
                todo.extend(reversed(self._walk(*todo.pop())))
        if self.pointed:
            await self._name_images()
        return AxTree(tuple(self.nodes))

    async def _name_images(self) -> None:
        bare = [i for i, node in enumerate(self.nodes) if node.bid and node.role == "image" and not node.name]
        names = await file_names(self.probe, [self.nodes[i].backend_node_id for i in bare])
        for index, name in zip(bare, names, strict=True):
            self.nodes[index] = replace(self.nodes[index], name=name)

    async def _owners(self, frames: list[FrameInfo]) -> dict[int, FrameInfo]:
        owners = await asyncio.gather(*(self.probe.send("DOM.getFrameOwner", frameId=f.id) for f in frames))
        return {owner["backendNodeId"]: frame for owner, frame in zip(owners, frames, strict=True)}

    async def _fetch_all(self, frames: list[FrameInfo]) -> None:
        look = partial(pointed_at, self.probe) if self.pointed else self.probe.clickable
        trees, clickable = await asyncio.gather(
            asyncio.gather(*(self._tree(frame) for frame in frames)),
            asyncio.gather(*(look(frame) for frame in frames)),
        )
        self.trees = dict(trees)
        self.roots = {frame: _roots(tree) for frame, tree in self.trees.items()}
        for found in clickable:
            self.clickable.update(found)
            self.clickable_texts |= {text: element for element, texts in found.items() for text in texts}

    async def _tree(self, frame: FrameInfo) -> tuple[str, dict[str, dict[str, Any]]]:
        answer = await self.probe.send("Accessibility.getFullAXTree", frameId=frame.id)
        return frame.id, {node["nodeId"]: node for node in answer["nodes"]}

    async def _fetch_seen(self, frames: list[FrameInfo]) -> None:
        seen = await survey(self.page, self.bids, viewport=True, only="nodes", pointed=self.pointed)
        entered = list(dict.fromkeys(item.frame for item in seen.items))
        values = [i for i, item in enumerate(seen.items) if item.backend_node_id and not item.role]
        roots, nodes = await asyncio.gather(
            asyncio.gather(
                *(self.probe.send("Accessibility.getFullAXTree", frameId=f, depth=0) for f in entered)
            ),
            asyncio.gather(*(self._partial(seen.items[index].backend_node_id) for index in values)),
        )
        found = dict(zip(values, nodes, strict=True))
        self.trees = {frame: {} for frame in entered}
        tops: dict[str, list[str]] = {frame: [] for frame in entered}
        for index, item in enumerate(seen.items):
            self.trees[item.frame][str(index)] = {
                **found.get(index, _known_node(item)),
                "nodeId": str(index),
                "backendDOMNodeId": item.backend_node_id,
                "parentId": str(item.parent),
                "childIds": [str(i) for i in seen.children[index] if seen.items[i].frame == item.frame],
            }
            if item.parent < 0 or seen.items[item.parent].frame != item.frame:
                tops[item.frame].append(str(index))
        for frame, answer in zip(entered, roots, strict=True):
            self.roots[frame] = [{**answer["nodes"][0], "childIds": tops[frame]}]
        self._find_clickable(seen)

    async def _partial(self, backend_node_id: int) -> dict[str, Any]:
        answer = await self.probe.send(
            "Accessibility.getPartialAXTree", backendNodeId=backend_node_id, fetchRelatives=False
        )
        node: dict[str, Any] = answer["nodes"][0]
        return node

    def _find_clickable(self, seen: Survey) -> None:
        self.clickable = {item.backend_node_id for item in seen.items if item.hand}
        inside: list[int] = []  # for each item, the enclosing element with a hand cursor, 0 if none
        for item in seen.items:
            around = inside[item.parent] if item.parent >= 0 else 0
            inside.append(item.backend_node_id if item.hand else around)
            if inside[-1] and not item.tag:
                self.clickable_texts[item.backend_node_id] = inside[-1]

    def _walk(self, node: dict[str, Any], frame: FrameInfo, depth: int, above: str) -> list[_Place]:
        """Append a node, and return its children; `above` is the name of the nearest listed ancestor."""
        made = self._node(node, frame, depth, above)
        text = not node["ignored"] and node["role"]["value"] == "StaticText"
        if made is not None and text:
            made = self._below_clickable(made, node, frame)
        if made is not None and not self._merged(made):
            self.nodes.append(made)
        if text:
            return []  # it contains the boxes of its lines, 40 % of the nodes of a page of text
        if made is not None:
            if made.role in _WHOLE or _properties_of(node).get("editable") == "plaintext":
                return []
            named = made.name if made.role in _NAMED_BY_CONTENT else ""
            depth, above = depth + 1, f"{named} {made.value}"
        return [(child, of, depth, above) for child, of in self._children(node, frame)]

    def _children(self, node: dict[str, Any], frame: FrameInfo) -> Iterator[tuple[dict[str, Any], FrameInfo]]:
        tree = self.trees[frame.id]
        inner = self.owners.get(node.get("backendDOMNodeId", 0))
        if inner is not None and not node["ignored"]:
            for root in self.roots.get(inner.id, ()):
                yield root, inner
            return
        for identifier in node.get("childIds", ()):
            if child := tree.get(identifier):
                yield child, frame

    def _node(self, node: dict[str, Any], frame: FrameInfo, depth: int, above: str) -> AxNode | None:
        if node["ignored"]:
            return self._clickable_only(node, frame, depth)
        role = node["role"]["value"]
        if role in _DROPPED:
            return None
        name = self._plain(node.get("name", {}))
        if role == "StaticText" and (not name or name in above):
            return None
        values = _properties_of(node)
        backend = node.get("backendDOMNodeId", 0)
        clickable = backend in self.clickable
        acts = (
            backend
            and role not in ("StaticText", "RootWebArea")
            and (role in INTERACTIVE or clickable or values.get("focusable") or values.get("editable"))
        )
        if role in _WRAPPERS and not name and not acts:
            return None
        if acts:
            self.given.add(backend)
        return AxNode(
            bid=self._give(frame, backend) if acts else "",
            role=role,
            name=name,
            value=self._plain(node.get("value", {})),
            properties=tuple(self._properties(role, values, clickable and role not in INTERACTIVE)),
            depth=depth,
            backend_node_id=backend,
            frame=frame.id,
        )

    def _clickable_only(self, node: dict[str, Any], frame: FrameInfo, depth: int) -> AxNode | None:
        backend = node.get("backendDOMNodeId", 0)
        if not self.pointed or backend not in self.clickable or backend in self.given:
            return None
        self.given.add(backend)
        bid = self._give(frame, backend)
        return AxNode(bid, "generic", "", "", (("clickable", True),), depth, backend, frame.id)

    def _give(self, frame: FrameInfo, backend_node_id: int) -> str:
        if frame.id not in self.givers:
            self.givers[frame.id] = self.bids.giver(self.page, frame)
        return self.givers[frame.id](backend_node_id)

    def _below_clickable(self, text: AxNode, node: dict[str, Any], frame: FrameInfo) -> AxNode:
        around = self.trees[frame.id].get(node.get("parentId", ""), {}).get("backendDOMNodeId", 0)
        element = self.clickable_texts.get(text.backend_node_id, self.clickable_texts.get(around))
        if element is None or element in self.given:
            return text
        if element not in self.lifted:
            bid = self._give(frame, element)
            clickable = (("clickable", True),)
            self.nodes.append(AxNode(bid, "generic", "", "", clickable, text.depth, element, frame.id))
            self.lifted[element] = text.depth
        return replace(text, depth=self.lifted[element] + 1)

    def _properties(self, role: str, values: dict[str, Any], clickable: bool) -> Iterator[tuple[str, Any]]:
        if clickable:
            yield "clickable", True
        present = self.listed.intersection(values)
        if not present:
            return
        for name in _FLAGS:
            if name in present and values[name] is True and role != "RootWebArea":
                yield name, True
        for name in self.shown:
            if name not in present or (name == "level" and role not in _LEVELLED):
                continue
            if values[name] not in _DEFAULTS.get(name, ("",)):
                value = _SPELLED.get(values[name], values[name])
                yield name, self.blobs.write(value) if name == "url" else value

    def _plain(self, values: dict[str, Any]) -> str:
        return self.blobs.write(" ".join(well_formed(str(values.get("value", ""))).split()))

    def _merged(self, node: AxNode) -> bool:
        last = self.nodes[-1] if self.nodes else None
        if last is None or node.role != "StaticText" or last.role != "StaticText" or last.depth != node.depth:
            return False
        joined = f"{last.name} {node.name}"
        self.nodes[-1] = AxNode(
            "", "StaticText", joined, "", (), last.depth, last.backend_node_id, last.frame
        )
        return True


def _known_node(item: SurveyItem) -> dict[str, Any]:
    if not item.role:
        return {"ignored": True}
    return {"ignored": False, "role": {"value": item.role}, "name": {"value": item.text}}


def _properties_of(node: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry["value"].get("value") for entry in node.get("properties", ())}


def _roots(tree: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for node in tree.values() if node.get("parentId") not in tree]


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


# BrowserGym leaves these out; the tree itself has them.
_OMITTED = frozenset(("level", "readonly", "invalid"))
_BARE = frozenset(("focused", "required", "clickable"))
_FIRST = frozenset(("clickable", "focused", "hasPopup", "required"))  # CDP lists them before the others
_TRISTATE = frozenset(("checked", "pressed"))  # tokens in CDP, since they may be "mixed"


@dataclass(frozen=True, slots=True)
class AxOptions:
    """Additional output; names as in BrowserGym.

    Attributes:
        with_visible: `visible`, if at least half of the element is in the viewport.
        with_clickable: `clickable`, if a click would reach it.
        with_center_coords: `center="(x,y)"`, in CSS pixels of the viewport.
        with_bounding_box_coords: `box="(left,top,right,bottom)"`.
        filter_visible_only: leave out elements that are not visible, and texts in them.
        with_urls: `url`, the target of a link.
    """

    with_visible: bool = False
    with_clickable: bool = False
    with_center_coords: bool = False
    with_bounding_box_coords: bool = False
    filter_visible_only: bool = False
    with_urls: bool = False

    @property
    def look(self) -> bool:
        """Whether element boxes are needed."""
        return replace(self, with_urls=False) != AxOptions()


def seen_by_node(survey: Survey) -> dict[tuple[str, int], SurveyItem]:
    """Return the elements of a survey by frame and backend node id."""
    return {(item.frame, item.backend_node_id): item for item in survey.items if item.tag}


def flatten(
    nodes: Sequence[AxNode],
    options: AxOptions | None = None,
    seen: Mapping[tuple[str, int], SurveyItem] | None = None,
) -> str:
    """Return nodes as text.

    Args:
        nodes: of an `AxTree`, in its order.
        options: additional output; needs `seen`.
        seen: the page's elements, from `seen_by_node`; other elements are not visible.
    """
    options = options or AxOptions()
    elements = seen or {}
    lines = []
    above: list[tuple[int, int, bool]] = []  # depth in the tree, depth in the text, left out
    for node in nodes:
        while above and above[-1][0] >= node.depth:
            above.pop()
        depth = above[-1][1] if above else 0
        item = elements.get((node.frame, node.backend_node_id))
        left_out = bool(above) and above[-1][2]
        if node.role != "StaticText":
            left_out = options.filter_visible_only and _hidden(node, item)
        if not left_out:
            lines.append("\t" * depth + _line(node, options, item))
        above.append((node.depth, depth if left_out else depth + 1, left_out))
    return "\n".join(lines)


def _hidden(node: AxNode, item: SurveyItem | None) -> bool:
    return node.role != "RootWebArea" and not (item is not None and item.visible)


def _line(node: AxNode, options: AxOptions, item: SurveyItem | None) -> str:
    text = node.role if node.role == "generic" and not node.name else f"{node.role} {node.name!r}"
    if node.bid:
        text = f"[{node.bid}] {text}"
    if node.value:
        text += f" value={node.value!r}"
    seen = _seen(options, item) if item and node.role != "StaticText" else ()
    parts = [*seen, *_properties(node)]
    return ", ".join([text, *dict.fromkeys(parts)])


def _seen(options: AxOptions, item: SurveyItem) -> Iterator[str]:
    x, y, width, height = item.box
    if options.with_bounding_box_coords:
        yield f'box="({x:.0f},{y:.0f},{x + width:.0f},{y + height:.0f})"'
    if options.with_center_coords:
        yield f'center="({x + width / 2:.0f},{y + height / 2:.0f})"'
    if options.with_clickable and item.clickable:
        yield "clickable"
    if options.with_visible and item.visible:
        yield "visible"


def _properties(node: AxNode) -> Iterator[str]:
    for name, value in sorted(node.properties, key=lambda parts: parts[0] not in _FIRST):
        if name in _OMITTED:
            continue
        if name in _BARE:
            yield name
        else:
            yield f"{name}={_value(name, value)}"


def _value(name: str, value: Any) -> str:
    return repr(str(value).lower() if name in _TRISTATE else value)

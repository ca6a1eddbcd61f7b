"""The accessibility tree as agents read it, line by line as BrowserGym's `flatten_axtree_to_str` has it.

    RootWebArea 'Shop', focused
        heading 'Basket'
        [a3] textbox 'Coupon' value='SPRING', required
        [a4] checkbox 'Gift', box="(8,60,21,73)", center="(14,66)", clickable, visible, checked='false'

The names of the options and what they print are BrowserGym's. Which nodes there are is ours (`axtree`);
where that differs is in docs/observations.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stillweb.browser.axtree import AxNode
from stillweb.browser.survey import Item, Survey

# BrowserGym leaves these out; the tree itself has them.
_UNSAID = frozenset(("level", "readonly", "invalid"))
_BARE = frozenset(("focused", "required", "clickable"))
_FIRST = frozenset(("clickable", "focused", "hasPopup", "required"))  # CDP tells them before the others
_TRISTATE = frozenset(("checked", "pressed"))  # tokens in CDP, since they may be "mixed"


@dataclass(frozen=True, slots=True)
class AxOptions:
    """What lines say besides; names as in BrowserGym.

    Attributes:
        with_visible: `visible`, where at least half of the element is in the viewport.
        with_clickable: `clickable`, where a click would reach it.
        with_center_coords: `center="(x,y)"`, in CSS pixels of the viewport.
        with_bounding_box_coords: `box="(left,top,right,bottom)"`.
        filter_visible_only: leave out elements that are not visible, and texts in them.
    """

    with_visible: bool = False
    with_clickable: bool = False
    with_center_coords: bool = False
    with_bounding_box_coords: bool = False
    filter_visible_only: bool = False

    @property
    def look(self) -> bool:
        """Whether boxes have to be known."""
        return self != AxOptions()


def seen_by_node(survey: Survey) -> dict[tuple[str, int], Item]:
    """Return the elements of a survey by frame and backend node id."""
    return {(item.frame, item.backend_node_id): item for item in survey.items if item.tag}


def flatten(
    nodes: Sequence[AxNode],
    options: AxOptions | None = None,
    seen: Mapping[tuple[str, int], Item] | None = None,
) -> str:
    """Return nodes as text.

    Args:
        nodes: of an `AxTree`, in its order.
        options: what to say besides; needs
        seen: the page's elements, from `seen_by_node`. What is not among them is not visible.
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


def _hidden(node: AxNode, item: Item | None) -> bool:
    return node.role != "RootWebArea" and not (item is not None and item.visible)


def _line(node: AxNode, options: AxOptions, item: Item | None) -> str:
    text = node.role if node.role == "generic" and not node.name else f"{node.role} {node.name!r}"
    if node.bid:
        text = f"[{node.bid}] {text}"
    if node.value:
        text += f" value={node.value!r}"
    seen = _seen(options, item) if item and node.role != "StaticText" else ()
    said = [*seen, *_properties(node)]
    return ", ".join([text, *dict.fromkeys(said)])


def _seen(options: AxOptions, item: Item) -> Iterator[str]:
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
    for name, value in sorted(node.properties, key=lambda said: said[0] not in _FIRST):
        if name in _UNSAID:
            continue
        if name in _BARE:
            yield name
        else:
            yield f"{name}={_value(name, value)}"


def _value(name: str, value: Any) -> str:
    return repr(str(value).lower() if name in _TRISTATE else value)

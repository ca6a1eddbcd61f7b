"""Element names for actions.

A **bid** stays with a node for the life of its document. Bids are assigned in tree order on first sight, so
equal traces give equal bids. Each frame has its own letter, in order of appearance, and keeps it across
documents. An element may also have a **semantic name** (`compact.py`), which lasts as long as its components.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from playwright.async_api import Page

from stillweb import clock

if TYPE_CHECKING:
    from stillweb.browser.cdp.session import FrameInfo, PageProbe


# Not touch: a click does not reach elements with touch listeners only.
_POINTER = frozenset(
    ("click", "dblclick", "mousedown", "mouseup", "pointerdown", "pointerup", "contextmenu", "dragstart")
)
_MOST = 3000  # elements with listeners per document, in tree order
_FILE = re.compile(r"(?!data:|blob:)(?:[^?#]*/)?([^/?#]*?)(?:\.\w+)?(?:[?#]|$)")
_LEARN = "function (...given) { return pointed.learn(...given); }"


async def listening(probe: PageProbe, frame: FrameInfo) -> list[int]:
    """Return the backend node ids of a document's elements with pointer listeners, in tree order.

    The frame's isolated world knows the elements by these numbers; survey.js must be loaded.

    Raises:
        FrameGone: if the frame has gone, or navigates meanwhile.
    """
    own, ours = probe.worlds(frame)
    if not own:
        return []
    if probe.known_listeners is not None and ours in probe.known_listeners:
        return probe.known_listeners[ours]
    # A group per call: frames are queried concurrently, and the first one finished would release the objects
    # of the others.
    group = f"listening-{clock.new_id()}"
    try:
        document = await probe.send(
            "Runtime.evaluate", expression="document", contextId=own, objectGroup=group
        )
        listed = await probe.send(
            "DOMDebugger.getEventListeners", objectId=document["result"]["objectId"], depth=-1, pierce=True
        )
        found = [each["backendNodeId"] for each in listed["listeners"] if each["type"] in _POINTER]
        numbers = list(dict.fromkeys(found))[:_MOST]
        known = probe.known_nodes[ours]
        new = [number for number in numbers if number not in known]
        if new:
            await _register(probe, ours, new, group)
            known.update(new)
    finally:
        # Otherwise the page's elements would live as long as the page.
        await probe.send("Runtime.releaseObjectGroup", objectGroup=group)
    if probe.known_listeners is not None:
        probe.known_listeners[ours] = numbers
    return numbers


async def file_names(probe: PageProbe, numbers: Sequence[int]) -> list[str]:
    """Return names of images from their file names, "" for those without one.

    Raises:
        FrameGone: if a node has gone.
    """
    nodes = await asyncio.gather(*(probe.send("DOM.describeNode", backendNodeId=each) for each in numbers))
    return [_file_name(node["node"]) for node in nodes]


def _file_name(node: dict[str, Any]) -> str:
    attributes = node.get("attributes", [])
    values = dict(zip(attributes[0::2], attributes[1::2], strict=True))
    found = _FILE.match(values.get("src", "")) if node["localName"] == "img" else None
    return found[1] if found else ""


async def _register(probe: PageProbe, world: int, numbers: list[int], group: str) -> None:
    answers = await asyncio.gather(
        *(
            probe.send("DOM.resolveNode", backendNodeId=number, executionContextId=world, objectGroup=group)
            for number in numbers
        )
    )
    # Listeners of a frame's document are listed with its parent's; an object of another origin cannot be
    # resolved here.
    found = zip(numbers, (answer["object"].get("objectId") for answer in answers), strict=True)
    known = {number: {"objectId": node} for number, node in found if node}
    await probe.send(
        "Runtime.callFunctionOn",
        functionDeclaration=_LEARN,
        executionContextId=world,
        arguments=[{"value": list(known)}, *known.values()],
    )


@dataclass(slots=True)
class _Document:
    letter: str
    numbers: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _PageBids:
    main: str = ""
    documents: dict[str, _Document] = field(default_factory=dict)  # by loader id
    letters: dict[str, str] = field(default_factory=dict)  # by frame id
    names: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> base, bid
    named: dict[str, str] = field(default_factory=dict)  # bid -> name
    counts: dict[str, int] = field(default_factory=dict)  # base -> number of names made from it
    nodes: dict[str, tuple[str, int]] = field(default_factory=dict)  # bid -> frame id, backend node id
    marks: dict[str, str] = field(default_factory=dict)  # number in the last picture with marks -> bid

    def forget(self, frame_id: str) -> None:
        """Drop the elements of a frame that has another document."""
        gone = {bid for bid, node in self.nodes.items() if node[0] == frame_id}
        for bid in gone:
            del self.nodes[bid]
            self.names.pop(self.named.pop(bid, ""), None)


class Bids:
    """Element names of a context.

    A new main document restarts at `a1`, so that a page has the same bids whatever path led to it.
    """

    def __init__(self) -> None:
        self._pages: WeakKeyDictionary[Page, _PageBids] = WeakKeyDictionary()

    def begin(self, page: Page, frames: list[FrameInfo]) -> None:
        """Drop the bids of documents that have gone."""
        known = self._pages.setdefault(page, _PageBids())
        if known.main != frames[0].loader:
            known = self._pages[page] = _PageBids(main=frames[0].loader)
        for frame in frames:
            if frame.loader not in known.documents:
                # A frame keeps its letter across documents; its numbers restart.
                letter = known.letters.setdefault(frame.id, _letters(len(known.letters)))
                known.forget(frame.id)
                known.documents[frame.loader] = _Document(letter)

    def give(self, page: Page, frame: FrameInfo, backend_node_id: int) -> str:
        """Return the bid of a node, new on first sight."""
        return self.giver(page, frame)(backend_node_id)

    def giver(self, page: Page, frame: FrameInfo) -> Callable[[int], str]:
        """Return `give` of one frame's document, for many nodes."""
        known = self._pages[page]
        document = known.documents[frame.loader]
        numbers, letter, nodes = document.numbers, document.letter, known.nodes

        def give(backend_node_id: int) -> str:
            bid = f"{letter}{numbers.setdefault(backend_node_id, len(numbers) + 1)}"
            nodes[bid] = (frame.id, backend_node_id)
            return bid

        return give

    def name(self, page: Page, bid: str, base: str) -> str:
        """Return the semantic name of an element: its current one, or a new one made from `base`.

        Names are unique: the second is `base_2`, and stays so after the first has gone.
        """
        known = self._pages[page]
        name = known.named.get(bid, "")
        if name and known.names[name][0] == base:
            return name
        name = base
        while known.names.get(name, ("", bid))[1] != bid:
            known.counts[base] = known.counts.get(base, 1) + 1
            name = f"{base}_{known.counts[base]}"
        known.names[name] = (base, bid)
        known.named[bid] = name
        return name

    def mark(self, page: Page, marks: Mapping[str, str]) -> None:
        """Set the elements that mark numbers of the last screenshot refer to."""
        self._pages[page].marks = dict(marks)

    def find(self, page: Page, bid: str) -> tuple[str, int] | None:
        """Return frame and backend node id of a bid, semantic name or mark; None if it never existed."""
        known = self._pages.get(page)
        if known is None:
            return None
        if bid in known.names:
            bid = known.names[bid][1]
        bid = known.marks.get(bid, bid)
        return known.nodes.get(bid)


def _letters(index: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters

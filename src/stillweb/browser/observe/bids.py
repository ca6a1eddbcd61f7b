"""Names of elements, by which actions address them.

A **bid** stays with a node as long as its document lives, and is given in tree order on first sight:
equal traces give equal bids. Each frame has its own letter, in the order in which frames were first
seen, and keeps it from document to document. An element may have a **semantic name** as well
(`compact.py`), which stays with it as long as what it is made from does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from playwright.async_api import Page

from stillweb import clock
from stillweb.browser.cdp.session import FrameInfo, PageProbe

# Not touch: who has only that is not reached by a click.
_POINTER = frozenset(
    ("click", "dblclick", "mousedown", "mouseup", "pointerdown", "pointerup", "contextmenu", "dragstart")
)
_MOST = 3000  # elements with listeners in a document, the first in tree order
_FILE = re.compile(r"(?!data:|blob:)(?:[^?#]*/)?([^/?#]*?)(?:\.\w+)?(?:[?#]|$)")
_LEARN = "function (...told) { return pointed.learn(...told); }"


async def listening(probe: PageProbe, frame: FrameInfo) -> list[int]:
    """Return the backend node ids of a document's elements that listen for the pointer, in tree order.

    The isolated world of the frame knows them by these numbers; survey.js has to be there.

    Raises:
        FrameGone: if the frame is, or navigates meanwhile.
    """
    own, ours = probe.worlds(frame)
    if not own:
        return []
    if probe.heard is not None and ours in probe.heard:
        return probe.heard[ours]
    # Of this call alone: frames are asked at once, and the first ready would let go what others still hold.
    group = f"listening-{clock.new_id()}"
    try:
        document = await probe.send(
            "Runtime.evaluate", expression="document", contextId=own, objectGroup=group
        )
        told = await probe.send(
            "DOMDebugger.getEventListeners", objectId=document["result"]["objectId"], depth=-1, pierce=True
        )
        found = [each["backendNodeId"] for each in told["listeners"] if each["type"] in _POINTER]
        numbers = list(dict.fromkeys(found))[:_MOST]
        known = probe.learnt[ours]
        new = [number for number in numbers if number not in known]
        if new:
            await _learn(probe, ours, new, group)
            known.update(new)
    finally:
        # Or the page's elements would live as long as the page does.
        await probe.send("Runtime.releaseObjectGroup", objectGroup=group)
    if probe.heard is not None:
        probe.heard[ours] = numbers
    return numbers


async def file_names(probe: PageProbe, numbers: Sequence[int]) -> list[str]:
    """Return what images are called by their files, "" for those that have none.

    Args:
        probe: of the page.
        numbers: their backend node ids.

    Raises:
        FrameGone: if one of them is.
    """
    nodes = await asyncio.gather(*(probe.send("DOM.describeNode", backendNodeId=each) for each in numbers))
    return [_file_name(node["node"]) for node in nodes]


def _file_name(node: dict[str, Any]) -> str:
    attributes = node.get("attributes", [])
    said = dict(zip(attributes[0::2], attributes[1::2], strict=True))
    found = _FILE.match(said.get("src", "")) if node["localName"] == "img" else None
    return found[1] if found else ""


async def _learn(probe: PageProbe, world: int, numbers: list[int], group: str) -> None:
    answers = await asyncio.gather(
        *(
            probe.send("DOM.resolveNode", backendNodeId=number, executionContextId=world, objectGroup=group)
            for number in numbers
        )
    )
    # What a frame's document listens for is told with its parent's; of another origin it is no object there.
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
    """The bids of one document, and the letter of its frame."""

    letter: str
    numbers: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _PageBids:
    main: str = ""
    documents: dict[str, _Document] = field(default_factory=dict)  # by loader id
    letters: dict[str, str] = field(default_factory=dict)  # by frame id
    names: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> what it is made from, bid
    named: dict[str, str] = field(default_factory=dict)  # bid -> name
    counts: dict[str, int] = field(default_factory=dict)  # what names are made from -> how many there were
    nodes: dict[str, tuple[str, int]] = field(default_factory=dict)  # bid -> frame id, backend node id
    marks: dict[str, str] = field(default_factory=dict)  # number in the last picture with marks -> bid

    def forget(self, frame_id: str) -> None:
        """Forget the elements of a frame, whose document is another one."""
        gone = {bid for bid, node in self.nodes.items() if node[0] == frame_id}
        for bid in gone:
            del self.nodes[bid]
            self.names.pop(self.named.pop(bid, ""), None)


class Bids:
    """Element names of a context: they stay with a node as long as its document lives.

    A new main document begins anew at `a1`, so that a page has the same bids however it was reached.
    """

    def __init__(self) -> None:
        self._pages: WeakKeyDictionary[Page, _PageBids] = WeakKeyDictionary()

    def begin(self, page: Page, frames: list[FrameInfo]) -> None:
        """Forget the bids of documents that are no longer there."""
        known = self._pages.setdefault(page, _PageBids())
        if known.main != frames[0].loader:
            known = self._pages[page] = _PageBids(main=frames[0].loader)
        for frame in frames:
            if frame.loader not in known.documents:
                # A frame keeps its letter from document to document, and counts anew.
                letter = known.letters.setdefault(frame.id, _letters(len(known.letters)))
                known.forget(frame.id)
                known.documents[frame.loader] = _Document(letter)

    def give(self, page: Page, frame: FrameInfo, backend_node_id: int) -> str:
        """Return the bid of a node, new on first sight."""
        known = self._pages[page]
        document = known.documents[frame.loader]
        number = document.numbers.setdefault(backend_node_id, len(document.numbers) + 1)
        bid = f"{document.letter}{number}"
        known.nodes[bid] = (frame.id, backend_node_id)
        return bid

    def name(self, page: Page, bid: str, base: str) -> str:
        """Return the semantic name of an element: the one that it has, or a new one made from `base`.

        Two elements never have one name: the second is called `base_2`, and keeps that when the first goes.
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
        """Have elements found by the numbers of their marks, from the last picture alone."""
        self._pages[page].marks = dict(marks)

    def find(self, page: Page, bid: str) -> tuple[str, int] | None:
        """Return frame and backend node id of a bid, semantic name or mark; None if there was never one."""
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

"""Names of elements, by which actions address them.

A **bid** stays with a node as long as its document lives, and is given in tree order on first sight:
equal traces give equal bids. Each frame has its own letter, in the order in which frames were first
seen, and keeps it from document to document. An element may have a **semantic name** as well
(`compact.py`), which stays with it as long as what it is made from does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from playwright.async_api import Page

from stillweb.browser.probe import FrameInfo


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

"""Why two runs of one trace differ: which node, which request, which pixels, and what it looks like.

Explained is the first step at which they differ; what differs later mostly follows from it. Nodes are told
by the lines of the flattened trees and the path of roles above the first one; requests by the first
step up to there at which the two ledgers differ, in what was asked or only in its order; pixels by
the boxes and elements that the page named when it happened (`watch.Place`). `looks_like` is a guess
for the reader, from the form of what changed, and nothing hangs on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stillweb.diff.certify.watch import ContentStore, PixelRegion, SeenStep, differing_boxes
from stillweb.diff.compare.metrics import DiffLine, line_diff

_TEXTS = ("axtree", "dom", "text", "html")  # in the order in which they explain best
_LISTED = 8  # requests told; the ledgers have all
_EPOCH = re.compile(r"\b1[4-9]\d{8}(?:\d{3})?\b")  # seconds or ms since 1970, years 2014 to 2033
_DATE = re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b|\b\d{4}-\d{2}-\d{2}\b|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b")
_SHARE = re.compile(r"\b0\.\d{5,}")
_HEX = re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[a-z])[0-9a-z]{8,}(?:-[0-9a-z]+)*\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class TraceDivergence:
    """The first difference of a trace's runs.

    Attributes:
        trace: its name.
        step: 0 is the reset.
        action: as JSON text; "" for the reset.
        forms: that differ at this step.
        runs: how many runs are unlike the reference, over all.
        streams: how many different streams of observations there were, the reference's among them.
        node: path of the first differing node, "" if no text differs.
        lines: of the diff, reference first.
        requests: what differs in the requests, up to this step; () if nothing.
        places: boxes of pixels, with elements.
        looks_like: a guess at the cause, "" if there is none.
    """

    trace: str
    step: int
    action: str
    url: str
    forms: tuple[str, ...]
    runs: int
    streams: int
    node: str = ""
    lines: tuple[DiffLine, ...] = ()
    requests: tuple[str, ...] = ()
    places: tuple[PixelRegion, ...] = ()
    looks_like: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "lines": [line.kind + line.text for line in self.lines]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TraceDivergence:
        """Read what `to_dict` made."""
        return cls(
            **{
                **stored,
                "forms": tuple(stored["forms"]),
                "lines": tuple(DiffLine(line[0], line[1:]) for line in stored["lines"]),
                "requests": tuple(stored["requests"]),
                "places": tuple(
                    PixelRegion(tuple(each["box"]), each["element"]) for each in stored["places"]
                ),
            }
        )


def first_difference(one: Sequence[SeenStep], other: Sequence[SeenStep]) -> int | None:
    """Return the first step at which two runs differ in what was observed or how the action went.

    A run that has fewer steps differs where it ends.
    """
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if (a.digests, a.status, a.url) != (b.digests, b.status, b.url):
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def explain(
    trace: str,
    reference: Sequence[SeenStep],
    other: Sequence[SeenStep],
    kept: ContentStore,
    *,
    runs: int,
    streams: int,
) -> TraceDivergence:
    """Explain the first difference of two runs that differ."""
    index = first_difference(reference, other)
    assert index is not None
    requests = _requests(reference[: index + 1], other[: index + 1], kept)
    if index >= min(len(reference), len(other)):
        last = (reference if index < len(reference) else other)[index]
        return TraceDivergence(
            trace, index, last.action, last.url, ("length",), runs, streams, requests=requests
        )
    a, b = reference[index], other[index]
    forms = tuple(form for form in a.digests if a.digests[form] != b.digests.get(form))
    node, lines = _lines(a, b, forms, kept)
    if not forms:  # what is seen is the same; how the action went, or where it led, is not
        lines = (DiffLine("-", f"{a.status} at {a.url}"), DiffLine("+", f"{b.status} at {b.url}"))
    places = _places(a, b, kept) if "screenshot" in forms else ()
    return TraceDivergence(
        trace,
        index,
        b.action,
        b.url,
        forms or ("status" if a.status != b.status else "url",),
        runs,
        streams,
        node,
        lines,
        requests,
        places,
        looks_like(lines, requests, places),
    )


def looks_like(lines: Sequence[DiffLine], requests: Sequence[str], places: Sequence[PixelRegion]) -> str:
    """Return what a difference looks like, in a few words."""
    minus = [line.text for line in lines if line.kind == "-"]
    plus = [line.text for line in lines if line.kind == "+"]
    if minus and Counter(map(str.strip, minus)) == Counter(map(str.strip, plus)):
        return "the same lines in another order: answers or timers that race"
    if requests and all(line.startswith("order") for line in requests):
        return "the same requests in another order: answers that race"
    before, after = "\n".join(minus), "\n".join(plus)
    for sign, told in (
        (_EPOCH, "a clock: Date.now() or a time stamp"),
        (_SHARE, "randomness: Math.random()"),
        (_DATE, "a clock: a date or a time of day"),
        (_HEX, "a random id"),
    ):
        if set(sign.findall(before)) != set(sign.findall(after)) and sign.search(after or before):
            return told
    if _NUMBER.sub("#", before) == _NUMBER.sub("#", after) and before:
        return "a number that is measured or drawn: performance.now(), a size, a count"
    if places and not minus and not plus:
        return "pixels alone: an animation, a canvas, a font or picture that came late"
    return ""


def _lines(
    a: SeenStep, b: SeenStep, forms: Sequence[str], kept: ContentStore
) -> tuple[str, tuple[DiffLine, ...]]:
    form = next((form for form in _TEXTS if form in forms), "")
    if not form:
        return "", ()
    one, two = (kept.get(step.digests.get(form, "")).decode("utf-8", "replace") for step in (a, b))
    lines = line_diff(one, two, limit=40)
    return _path(two if any(line.kind == "+" for line in lines) else one, lines), lines


def _path(tree: str, lines: Sequence[DiffLine]) -> str:
    """Return the lines above the first one that differs, by their indentation, outermost first."""
    wanted = next((line for line in lines if line.kind == "+"), None)
    wanted = wanted or next((line for line in lines if line.kind == "-"), None)
    if wanted is None:
        return ""
    rows = tree.splitlines()
    if wanted.text not in rows:
        return wanted.text.strip()
    path, depth = [wanted.text.strip()], _depth(wanted.text)
    for row in reversed(rows[: rows.index(wanted.text)]):
        if row.strip() and _depth(row) < depth:
            path.append(row.strip())
            depth = _depth(row)
    return " > ".join(reversed([_shortened(each) for each in path]))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def _requests(one: Sequence[SeenStep], other: Sequence[SeenStep], kept: ContentStore) -> tuple[str, ...]:
    """Return what differs in the requests of the first step at which they do."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a.requests == b.requests:
            continue
        mine, theirs = (kept.get(step.requests).decode().split("\n") for step in (a, b))
        where = f"step {index}: "
        only = [
            f"only in one, {where}{line}" for line in sorted((Counter(mine) - Counter(theirs)).elements())
        ]
        new = [
            f"only in the other, {where}{line}"
            for line in sorted((Counter(theirs) - Counter(mine)).elements())
        ]
        if only or new:
            return tuple((only + new)[:_LISTED])
        at = next(i for i, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1])
        return (f"order, {where}number {at + 1} is {mine[at]} in one and {theirs[at]} in the other",)
    return ()


def _places(a: SeenStep, b: SeenStep, kept: ContentStore) -> tuple[PixelRegion, ...]:
    """Return the boxes between two runs, each with the element that either run's page named for it."""
    known = {place.box: place.element for step in (a, b) for place in step.places}
    boxes = differing_boxes(*(kept.get(step.digests["screenshot"]) for step in (a, b)))[:4]
    named = []
    for box in boxes:
        near = [element for other, element in known.items() if element and _touch(box, other)]
        named.append(PixelRegion(box, known.get(box) or (near[0] if near else "")))
    return tuple(named)


def _touch(one: Sequence[int], other: Sequence[int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

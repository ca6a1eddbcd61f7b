"""Explain why two runs of one trace differ: node, request, pixels and probable cause.

Only the first step that differs is explained; later differences mostly follow from it. Nodes are given as a
line diff of the flattened trees and the path of roles above the first difference. Requests are taken from the
first step up to there at which the ledgers differ, in the set of requests or only in their order. Pixels are
given as boxes with the elements that the page reported during the run (`watch.PixelRegion`). `looks_like`
guesses the cause from the text of the difference; no verdict depends on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator

from stillweb.diff.certify.watch import ContentStore, PixelRegion, SeenStep, differing_boxes
from stillweb.diff.compare.metrics import DiffLine, line_diff

_TEXTS = ("axtree", "dom", "text", "html")  # most informative first
_LISTED = 8  # requests listed; the ledgers have all
_EPOCH = re.compile(r"\b1[4-9]\d{8}(?:\d{3})?\b")  # seconds or ms since 1970, years 2014 to 2033
_DATE = re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b|\b\d{4}-\d{2}-\d{2}\b|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b")
_SHARE = re.compile(r"\b0\.\d{5,}")
_HEX = re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[a-z])[0-9a-z]{8,}(?:-[0-9a-z]+)*\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


_StoredLine = Annotated[
    DiffLine,
    PlainValidator(lambda stored: DiffLine(stored[0], stored[1:])),
    PlainSerializer(lambda line: line.kind + line.text),
]


@dataclass(frozen=True, slots=True)
class TraceDivergence:
    """The first difference between the runs of a trace.

    Attributes:
        step: index of the step; 0 is the reset.
        action: JSON text; "" for the reset.
        forms: forms that differ at this step.
        runs: number of runs that differ from the reference.
        streams: number of different observation streams, including the reference.
        node: path of the first differing node, "" if no text differs.
        lines: line diff, reference first.
        requests: differences in the requests up to this step.
        regions: boxes of differing pixels, with elements.
        looks_like: guess at the cause, "" if there is none.
    """

    trace: str
    step: int
    action: str
    url: str
    forms: tuple[str, ...]
    runs: int
    streams: int
    node: str = ""
    lines: tuple[_StoredLine, ...] = ()
    requests: tuple[str, ...] = ()
    regions: Annotated[tuple[PixelRegion, ...], Field(alias="places")] = ()
    looks_like: str = ""


def first_difference(one: Sequence[SeenStep], other: Sequence[SeenStep]) -> int | None:
    """Return the index of the first step with another observation, status or URL; None if all are equal.

    A run with fewer steps differs at its end.
    """
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if (a.digests, a.status, a.url) != (b.digests, b.status, b.url):
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def explain(
    trace: str,
    reference: Sequence[SeenStep],
    other: Sequence[SeenStep],
    store: ContentStore,
    *,
    runs: int,
    streams: int,
) -> TraceDivergence:
    index = first_difference(reference, other)
    assert index is not None
    requests = _requests(reference[: index + 1], other[: index + 1], store)
    if index >= min(len(reference), len(other)):
        last = (reference if index < len(reference) else other)[index]
        return TraceDivergence(
            trace, index, last.action, last.url, ("length",), runs, streams, requests=requests
        )
    a, b = reference[index], other[index]
    forms = tuple(form for form in a.digests if a.digests[form] != b.digests.get(form))
    node, lines = _lines(a, b, forms, store)
    if not forms:  # equal observations, but another status or URL
        lines = (DiffLine("-", f"{a.status} at {a.url}"), DiffLine("+", f"{b.status} at {b.url}"))
    regions = _regions(a, b, store) if "screenshot" in forms else ()
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
        regions,
        looks_like(lines, requests, regions),
    )


def looks_like(lines: Sequence[DiffLine], requests: Sequence[str], regions: Sequence[PixelRegion]) -> str:
    """Return a guess at the cause of a difference, "" if there is none."""
    minus = [line.text for line in lines if line.kind == "-"]
    plus = [line.text for line in lines if line.kind == "+"]
    if minus and Counter(map(str.strip, minus)) == Counter(map(str.strip, plus)):
        return "the same lines in another order: a race between responses or timers"
    if requests and all(line.startswith("order") for line in requests):
        return "the same requests in another order: a race between responses"
    before, after = "\n".join(minus), "\n".join(plus)
    for pattern, guess in (
        (_EPOCH, "a clock: Date.now() or a timestamp"),
        (_SHARE, "randomness: Math.random()"),
        (_DATE, "a clock: a date or a time of day"),
        (_HEX, "a random id"),
    ):
        if set(pattern.findall(before)) != set(pattern.findall(after)) and pattern.search(after or before):
            return guess
    if _NUMBER.sub("#", before) == _NUMBER.sub("#", after) and before:
        return "a measured or random number: performance.now(), a size, a count"
    if regions and not minus and not plus:
        return "only pixels: an animation, a canvas, a late font or picture"
    return ""


def _lines(
    a: SeenStep, b: SeenStep, forms: Sequence[str], store: ContentStore
) -> tuple[str, tuple[DiffLine, ...]]:
    form = next((form for form in _TEXTS if form in forms), "")
    if not form:
        return "", ()
    one, two = (store.get(step.digests.get(form, "")).decode("utf-8", "replace") for step in (a, b))
    lines = line_diff(one, two, limit=40)
    return _path(two if any(line.kind == "+" for line in lines) else one, lines), lines


def _path(tree: str, lines: Sequence[DiffLine]) -> str:
    """Return the ancestors of the first differing line by indentation, outermost first."""
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


def _requests(one: Sequence[SeenStep], other: Sequence[SeenStep], store: ContentStore) -> tuple[str, ...]:
    """Return the differences of the first step at which the requests differ."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a.requests == b.requests:
            continue
        mine, theirs = (store.get(step.requests).decode().split("\n") for step in (a, b))
        where = f"step {index}: "
        only = [
            f"only in the reference, {where}{line}"
            for line in sorted((Counter(mine) - Counter(theirs)).elements())
        ]
        new = [
            f"only in the other run, {where}{line}"
            for line in sorted((Counter(theirs) - Counter(mine)).elements())
        ]
        if only or new:
            return tuple((only + new)[:_LISTED])
        at = next(i for i, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1])
        return (f"order, {where}request {at + 1}: reference {mine[at]}, other run {theirs[at]}",)
    return ()


def _regions(a: SeenStep, b: SeenStep, store: ContentStore) -> tuple[PixelRegion, ...]:
    """Return the differing boxes, each with the element that the page of either run reported for it."""
    known = {region.box: region.element for step in (a, b) for region in step.regions}
    boxes = differing_boxes(*(store.get(step.digests["screenshot"]) for step in (a, b)))[:4]
    named = []
    for box in boxes:
        near = [element for other, element in known.items() if element and _overlap(box, other)]
        named.append(PixelRegion(box, known.get(box) or (near[0] if near else "")))
    return tuple(named)


def _overlap(one: Sequence[int], other: Sequence[int]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

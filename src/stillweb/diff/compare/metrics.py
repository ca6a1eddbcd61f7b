"""Similarity of two states of a page: pure functions that return numbers in 0..1.

1.0 means that the measure sees no difference; two empty inputs score 1.0. Text and accessibility trees are
compared as multisets (F1, ignores order) and as sequences (2·LCS / (m+n), never above F1). The tree
comparison ignores element ids because they number the nodes of one run. Resources are paired by method and
URL. A URL that was requested twice has two rows.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, takewhile

from rapidfuzz.distance import Indel

from stillweb.collections.baselines import explains
from stillweb.model import GUESSES, Tier

# Scripts written without spaces: each character is a token, otherwise a page would have a handful of tokens.
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
# A number is one token (with sign, point and percent): a changed price is one changed token.
_TOKEN = re.compile(rf"[{_UNSPACED}]|[+-]?\d+(?:[.,:]\d+)*%?|[^\W\d{_UNSPACED}]+|[^\w\s]")
# A line of a flattened tree: `[a12] button 'Save', focused`. Only interactive nodes have an id. The name is a
# Python literal; values and states follow.
_AX_LINE = re.compile(
    r"""\s*(?P<id>\[[^\]\s]+\]\s+)?(?P<role>[A-Za-z][\w-]*)(?:\s+(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?"""
)
_AX_ID = re.compile(r"^(\s*)\[[^\]\s]+\]\s+")
# Cost of a missing resource. Without its code or its API responses a page is not the recorded page.
_WEIGHTS = {
    "document": 1.0, "script": 1.0, "xhr": 1.0, "fetch": 1.0, "stylesheet": 1.0, "eventsource": 1.0,
    "websocket": 1.0, "image": 0.3, "font": 0.3, "media": 0.3, "manifest": 0.3, "texttrack": 0.3,
}  # fmt: skip
_UNKNOWN_WEIGHT = 0.3
_MOST_LINES = 400_000_000  # product of the line counts: the matrix of an edit script takes one bit per pair
_COARSE = 40
_NO_WEIGHT = frozenset({"ping", "beacon", "preflight", "cspviolationreport"})


class ResourceAgreement(StrEnum):
    """Relation of a recorded resource to its replay."""

    AGREE = "agree"
    DIFFERS = "differs"  # requested on both sides, with different statuses
    MISSING = "missing"  # recorded, not requested in the replay
    EXTRA = "extra"  # requested only in the replay


class BodyAgreement(StrEnum):
    """Relation of the body of a recorded response to that of its replay."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = ""  # one side has no body or no digest of it


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request of a page, as the browser or the baseline lists it.

    Attributes:
        status: HTTP status; 0 if there was no response.
        body: SHA-256 of the body without content encoding, hex; "" if unknown.
        start, duration: milliseconds; `start` counts from the page's first request; 0 if unknown.
        tier: how replay matched it; "" if unknown (a baseline, or a back end without a ledger).
        reason: why replay chose this tier.
    """

    url: str
    method: str = "GET"
    type: str = "other"
    status: int = 0
    tier: str = ""
    reason: str = ""
    body: str = ""
    start: float = 0.0
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One resource with its status on both sides; None for the side that did not request it.

    Attributes:
        tier, reason: how replay matched it, and why.
        body: whether both sides got the same bytes.
        start, duration: milliseconds in the replay, or in the recording if the replay has no such request.
        weightless: True for tracking URLs and for URLs that the collection's `diff.yaml` ignores.
    """

    url: str
    method: str
    type: str
    agreement: ResourceAgreement
    recorded: int | None = None
    replayed: int | None = None
    tier: str = ""
    reason: str = ""
    body: BodyAgreement = BodyAgreement.UNKNOWN
    start: float = 0.0
    duration: float = 0.0
    weightless: bool = False

    @property
    def weight(self) -> float:
        """Weight in scores, from 1 (code, documents, API) to 0 (beacons, tracking, noise)."""
        if self.weightless or self.type in _NO_WEIGHT or self.tier == "noise":
            return 0.0
        return _WEIGHTS.get(self.type, _UNKNOWN_WEIGHT)

    @property
    def missed(self) -> bool:
        return self.tier == "miss"

    @property
    def unexplained(self) -> bool:
        """True for a miss that did not fail in the recording as well."""
        return self.missed and not self.weightless and not explains(self.recorded)

    @property
    def strict(self) -> bool:
        """True if replay answered from the archive without a guess, or with an unknown tier."""
        return self.replayed is not None and not self.missed and self.tier not in (Tier.DERIVED, *GUESSES)


def tokens(text: str) -> list[str]:
    """Split a text into words, numbers and punctuation characters."""
    return _TOKEN.findall(text)


def multiset_f1(left: Iterable[object], right: Iterable[object]) -> float:
    """Return the F1 of two multisets: 2·|common| / (|left| + |right|); 1.0 if both are empty."""
    a, b = Counter(left), Counter(right)
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0


def text_scores(recorded: str, replayed: str) -> tuple[float, float]:
    """Return (token-multiset F1, ordered similarity) of two texts."""
    if recorded == replayed:
        return 1.0, 1.0
    a, b = tokens(recorded), tokens(replayed)
    return multiset_f1(a, b), float(Indel.normalized_similarity(a, b))


def ax_nodes(tree: str, *, acting: bool = False) -> list[tuple[str, str]]:
    """Return (role, name) of each line of a flattened tree; only of interactive nodes if `acting`."""
    found = (_AX_LINE.match(line) for line in tree.splitlines() if line.strip())
    return [(m["role"], (m["name"] or "")[1:-1]) for m in found if m and (m["id"] or not acting)]


def axtree_scores(recorded: str, replayed: str) -> tuple[float, float]:
    """Return the role+name F1 of two flattened trees: (over all nodes, over interactive nodes)."""
    if recorded == replayed:
        return 1.0, 1.0
    return (
        multiset_f1(ax_nodes(recorded), ax_nodes(replayed)),
        multiset_f1(ax_nodes(recorded, acting=True), ax_nodes(replayed, acting=True)),
    )


def without_ids(tree: str) -> str:
    """Return a flattened tree without its element ids, for a line diff."""
    return "\n".join(_AX_ID.sub(r"\1", line) for line in tree.splitlines())


def match_resources(recorded: Sequence[Fetch], replayed: Sequence[Fetch]) -> list[ResourceRow]:
    """Pair the resources of two visits by method and URL, in recorded order, then add the extra ones.

    If a URL was requested several times, requests with equal status and body are paired first, then those
    with equal status. A different order of arrival therefore makes no difference.
    """
    pool: dict[tuple[str, str], list[Fetch]] = defaultdict(list)
    for fetch in replayed:
        pool[fetch.method, fetch.url].append(fetch)
    partner: dict[int, Fetch] = {}
    for alike in (_same_answer, _same_status, lambda one, other: True):
        for index, fetch in enumerate(recorded):
            others = pool.get((fetch.method, fetch.url))
            if index in partner or not others:
                continue
            chosen = next((o for o in others if alike(o, fetch)), None)
            if chosen is not None:
                partner[index] = chosen
                others.remove(chosen)
    rows = [_row(fetch, partner.get(index)) for index, fetch in enumerate(recorded)]
    left_over = {id(fetch) for others in pool.values() for fetch in others}
    return rows + [_row(None, fetch) for fetch in replayed if id(fetch) in left_over]


def _same_status(one: Fetch, other: Fetch) -> bool:
    return one.status == other.status


def _same_answer(one: Fetch, other: Fetch) -> bool:
    return one.status == other.status and one.body == other.body


def _row(recorded: Fetch | None, replayed: Fetch | None) -> ResourceRow:
    known = recorded or replayed
    assert known is not None
    if replayed is None:
        agreement = ResourceAgreement.MISSING
    elif recorded is None:
        agreement = ResourceAgreement.EXTRA
    else:
        agreement = (
            ResourceAgreement.AGREE if recorded.status == replayed.status else ResourceAgreement.DIFFERS
        )
    return ResourceRow(
        url=known.url,
        method=known.method,
        type=known.type,
        agreement=agreement,
        recorded=recorded.status if recorded else None,
        replayed=replayed.status if replayed else None,
        tier=replayed.tier if replayed else "",
        reason=replayed.reason if replayed else "",
        body=_bodies(recorded, replayed),
        start=(replayed or known).start,
        duration=(replayed or known).duration,
    )


def _bodies(recorded: Fetch | None, replayed: Fetch | None) -> BodyAgreement:
    if recorded is None or replayed is None or not (recorded.body and replayed.body):
        return BodyAgreement.UNKNOWN
    return BodyAgreement.SAME if recorded.body == replayed.body else BodyAgreement.DIFFERS


def resource_score(rows: Iterable[ResourceRow]) -> float:
    """Return the weighted share of resources that agree; 1.0 if none has weight.

    Requests without a response on either side are excluded.
    """
    rows = [row for row in rows if row.unexplained or not row.missed]
    total = sum(row.weight for row in rows)
    agreed = sum(row.weight for row in rows if row.agreement is ResourceAgreement.AGREE)
    return agreed / total if total else 1.0


def request_recall(rows: Iterable[ResourceRow]) -> float:
    """Return the weighted share of the replay's requests that were answered strictly.

    Misses that the recording explains (it had no response either) are excluded.
    """
    requested = [r for r in rows if r.replayed is not None and not (r.missed and not r.unexplained)]
    total = sum(row.weight for row in requested)
    return sum(row.weight for row in requested if row.strict) / total if total else 1.0


def body_score(rows: Iterable[ResourceRow]) -> float | None:
    """Return the share of responses with the recorded body; None if no body is known."""
    known = [row.body for row in rows if row.body is not BodyAgreement.UNKNOWN and not row.weightless]
    return known.count(BodyAgreement.SAME) / len(known) if known else None


def redirects(fetches: Sequence[Fetch]) -> list[str]:
    """Return the hops to a page's document as "STATUS URL".

    They come first in the list, because a page requests nothing else before its document arrives.
    """
    hops = []
    for fetch in fetches:
        if fetch.type != "document":
            break
        hops.append(f"{fetch.status} {fetch.url}")
        if not 300 <= fetch.status < 400:
            break
    return hops


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff: `kind` is " " (both), "-" (recorded only), "+" (replayed only) or "@" (a gap)."""

    kind: str
    text: str


def line_diff(recorded: str, replayed: str, *, context: int = 2, limit: int = 400) -> tuple[DiffLine, ...]:
    """Return the line diff of two texts; empty if they are equal.

    Args:
        context: number of unchanged lines shown around a change.
        limit: maximum number of lines; a last line gives the number of omitted lines.
    """
    if recorded == replayed:
        return ()
    a, b = recorded.splitlines(), replayed.splitlines()
    if len(a) * len(b) > _MOST_LINES:
        return _coarse(a, b)
    every: list[DiffLine] = []
    for op in Indel.opcodes(a, b):
        if op.tag == "equal":
            every += [DiffLine(" ", line) for line in a[op.src_start : op.src_end]]
        else:
            every += [DiffLine("-", line) for line in a[op.src_start : op.src_end]]
            every += [DiffLine("+", line) for line in b[op.dest_start : op.dest_end]]
    lines = _near_changes(_recorded_first(every), context)
    if len(lines) > limit:
        lines[limit:] = [DiffLine("@", f"{len(lines) - limit} more lines")]
    return tuple(lines)


def _coarse(a: list[str], b: list[str]) -> tuple[DiffLine, ...]:
    """Return the lines between the common prefix and the common suffix of two long texts, truncated."""
    pairs = list(zip(a, b, strict=False))
    start = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    tail = zip(reversed(a[start:]), reversed(b[start:]), strict=False)
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], tail))
    sides = (("-", a[start : len(a) - end]), ("+", b[start : len(b) - end]))
    lines = [DiffLine("@", f"{start} equal lines")] if start else []
    for kind, side in sides:
        lines += [DiffLine(kind, line) for line in side[:_COARSE]]
        if len(side) > _COARSE:
            lines.append(DiffLine("@", f"{len(side) - _COARSE} lines, too many to compare one by one"))
    return tuple(lines)


def _recorded_first(every: list[DiffLine]) -> list[DiffLine]:
    """Sort the recorded lines of each change before the replayed ones; the edit script mixes them."""
    return [
        line
        for _, block in groupby(every, key=lambda line: line.kind == " ")
        for line in sorted(block, key=lambda line: line.kind == "+")
    ]


def _near_changes(every: list[DiffLine], context: int) -> list[DiffLine]:
    """Return the lines within `context` of a change; each gap becomes one "@" line."""
    changed = [index for index, line in enumerate(every) if line.kind != " "]
    shown = sorted(
        {i for at in changed for i in range(max(0, at - context), min(len(every), at + context + 1))}
    )
    lines: list[DiffLine] = []
    for before, index in zip([-1, *shown], shown, strict=False):
        if index > before + 1:
            lines.append(DiffLine("@", f"{index - before - 1} equal lines"))
        lines.append(every[index])
    return lines

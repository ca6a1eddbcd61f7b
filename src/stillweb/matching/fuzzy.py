"""How like a recorded request is: the score of the fuzzy tier, which is off unless a floor is given.

Compared are queries only. Site, path and method must be the same, and a body must have the same structural
key, since a pack keeps no request bodies to compare leaf by leaf; a mutation without a body is like no other.
The score is 1 for the path plus the likeness of each parameter's values, over 1 plus their number: a
parameter that only one of the two has counts as 0, one that both have by the edit distance of its values. So
another cursor or page scores high as well, and that is why nobody should train on this tier unawares. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from stillweb.matching.captures import Candidate, Rows, usable
from stillweb.matching.keys import request_key
from stillweb.model import MUTATIONS, Request, header
from stillweb.urls import wire_url

__all__ = ["Like", "LikeRows", "closest", "likeness"]

_READS = frozenset({"GET", "HEAD"})
_LONGEST = 1000  # characters of values that are compared by edit distance, whose cost is their product
_MOST = 100  # parameters of a query that is compared at all
_NAMED = 4  # differing parameters that a reason names


class LikeRows(Rows, Protocol):
    """What is asked of a pack here."""

    def urls_like(self, url: str) -> Collection[str]:
        """Return recorded URLs of the same host and path, the queries aside."""


@dataclass(frozen=True, slots=True)
class Like:
    """The recorded request that is most like another.

    Attributes:
        why: which parameters differ, as the end of a clause; "" if none does.
        candidates: its captures that may answer, in recorded order.
    """

    score: float
    url: str
    why: str
    candidates: list[Candidate]


def closest(request: Request, index: LikeRows, counts: Callable[[str], bool]) -> Like | None:
    """Return the recorded request most like one that was not recorded; of equals, the first recorded.

    None if no other has its site, path, method and body.
    """
    if request.method not in _READS and not (request.method in MUTATIONS and request.raw_body):
        return None
    asked = wire_url(request.url)
    content_type = header(request.headers, "content-type")
    method = "GET" if request.method == "HEAD" else request.method
    best: Like | None = None
    for url in index.urls_like(request.url):
        rows = index.lookup(request_key(method, url, content_type, request.raw_body))
        candidates, _ = usable(request, rows, index, counts)
        if not candidates:
            continue
        score, why = likeness(asked, wire_url(url))
        found = Like(score, url, why, candidates)
        if best is None or _rank(found) > _rank(best):
            best = found
    return best


def _rank(like: Like) -> tuple[float, int]:
    return like.score, -like.candidates[0].entry.order


def likeness(one: str, other: str) -> tuple[float, str]:
    """Return how like the queries of two URLs are, from 0 to 1, and where they differ."""
    ours, theirs = _parameters(one), _parameters(other)
    names = sorted(ours.keys() | theirs.keys())
    if len(names) > _MOST:
        return 0.0, f" (more than {_MOST} parameters)"
    scores = {name: _alike(ours.get(name), theirs.get(name)) for name in names}
    score = (1 + sum(scores.values())) / (1 + len(names))
    differing = [f"{name} {scores[name]:.2f}" for name in names if ours.get(name) != theirs.get(name)]
    more = ["..."] if len(differing) > _NAMED else []
    return score, f" ({', '.join(differing[:_NAMED] + more)})" if differing else ""


def _parameters(url: str) -> dict[str, list[str]]:
    parameters: dict[str, list[str]] = {}
    for name, value in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        parameters.setdefault(name, []).append(value)
    return parameters


def _alike(ours: list[str] | None, theirs: list[str] | None) -> float:
    if ours is None or theirs is None:
        return 0.0
    if ours == theirs:
        return 1.0
    one, other = "&".join(ours), "&".join(theirs)
    if max(len(one), len(other)) > _LONGEST:
        return 0.0
    from rapidfuzz.distance import Indel  # 0.1 s of each start, for a tier that is off

    return Indel.normalized_similarity(one, other)

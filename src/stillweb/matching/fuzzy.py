"""Similarity of recorded requests: the score of the fuzzy tier, which is off unless a minimum is set.

Only queries are compared. Site, path and method must be equal. A body must have the same structural key,
since a pack keeps no request bodies to compare leaf by leaf. A mutation without a body has no similar
request. The score is (1 + the sum of the similarities of all parameters) / (1 + their number). A parameter
that only one URL has counts as 0; otherwise the edit distance of the values counts. Another cursor or page
number therefore scores high as well: use this tier in training only if you accept wrong responses. Pure.
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

_READS = frozenset({"GET", "HEAD"})
_LONGEST = 1000  # characters; the cost of the edit distance is the product of both lengths
_MOST = 100  # parameters of a query; longer ones are not compared
_NAMED = 4  # differing parameters named in a reason


class SimilarRows(Rows, Protocol):
    """The part of a pack that this module uses."""

    def urls_like(self, url: str) -> Collection[str]:
        """Return recorded URLs of the same host and path, with any query."""


@dataclass(frozen=True, slots=True)
class SimilarRequest:
    """The recorded request most similar to another request.

    Attributes:
        why: the differing parameters, as the end of a clause; "" if none differs.
        candidates: its captures that may answer, in recorded order.
    """

    score: float
    url: str
    why: str
    candidates: list[Candidate]


def closest(request: Request, index: SimilarRows, counts: Callable[[str], bool]) -> SimilarRequest | None:
    """Return the recorded request most similar to an unrecorded one; of equals, the first recorded.

    None if no recorded request has its site, path, method and body.
    """
    if request.method not in _READS and not (request.method in MUTATIONS and request.raw_body):
        return None
    wanted = wire_url(request.url)
    content_type = header(request.headers, "content-type")
    method = "GET" if request.method == "HEAD" else request.method
    best: SimilarRequest | None = None
    for url in index.urls_like(request.url):
        rows = index.lookup(request_key(method, url, content_type, request.raw_body))
        candidates, _ = usable(request, rows, index, counts)
        if not candidates:
            continue
        score, why = likeness(wanted, wire_url(url))
        found = SimilarRequest(score, url, why, candidates)
        if best is None or _rank(found) > _rank(best):
            best = found
    return best


def _rank(like: SimilarRequest) -> tuple[float, int]:
    return like.score, -like.candidates[0].entry.order


def likeness(one: str, other: str) -> tuple[float, str]:
    """Return the similarity of the queries of two URLs, from 0 to 1, and where they differ."""
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
    from rapidfuzz.distance import Indel  # costs 0.1 s at import, for a tier that is off by default

    return Indel.normalized_similarity(one, other)

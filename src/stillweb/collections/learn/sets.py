"""Rules for parameters that are sets: `modules=a|b|c`, whose elements have another order at another visit.

Two recordings prove it. Both have a request that differs only in the order of the elements of one parameter.
Their bodies consist of the same bytes, possibly in another order, as the parts of a bundle are. One pair of
bodies that differ otherwise is a counterexample. An alias then contains the sorted elements instead of the
value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from stillweb.collections.layout import Collection
from stillweb.http.codec import decode
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rule, RuleOrigin
from stillweb.matching.values import SET, elements, fits
from stillweb.model import Capture, header
from stillweb.urls import wire_url

__all__ = ["set_rules"]

# Host, path, the other fields of the query with their positions, the parameter, its elements.
_Request = tuple[str, str, tuple[str, ...], str, tuple[str, ...]]


def set_rules(first: Collection, second: Collection) -> list[Rule]:
    """Return the rules for query parameters that two recordings prove to be sets."""
    ones, others = _requests(first), _requests(second)
    proofs: Counter[tuple[str, str, str]] = Counter()
    refuted: set[tuple[str, str, str]] = set()
    for request in ones.keys() & others.keys():
        host, path, _, name, _ = request
        for value, one in ones[request].items():
            for other_value, other in others[request].items():
                if value == other_value or (host, path, name) in refuted:
                    continue
                if _body(first, one) == _body(second, other):
                    proofs[host, path, name] += 1
                else:
                    refuted.add((host, path, name))
    return [
        Rule(
            Where.QUERY, name, SET, host, path, "GET", RuleOrigin.LEARNED,
            f"two recordings: {count} pairs differ in the order of the elements",
        )
        for (host, path, name), count in sorted(proofs.items())
        if (host, path, name) not in refuted
    ]  # fmt: skip


def _requests(collection: Collection) -> dict[_Request, dict[str, Capture]]:
    found: dict[_Request, dict[str, Capture]] = defaultdict(dict)
    for capture in collection.captures():
        if capture.method == "GET" and "?" in capture.url:
            for request, value in _sets(capture.url):
                found[request].setdefault(value, capture)
    return found


def _sets(url: str) -> Iterator[tuple[_Request, str]]:
    parts = urlsplit(wire_url(url))
    fields = parts.query.split("&")
    for number, field in enumerate(fields):
        name, _, raw = field.partition("=")
        value = unquote(raw)
        if fits(SET, value):
            others = tuple("" if at == number else each for at, each in enumerate(fields))
            yield (parts.hostname or "", parts.path, others, unquote(name), elements(value)), value


def _body(collection: Collection, capture: Capture) -> tuple[int, Counter[int] | None]:
    """Return the status of a capture, and how often each byte occurs in its decoded body."""
    response = collection.read_capture(capture).response
    body = decode(response.raw_body, header(response.headers, "content-encoding"))
    return response.status, None if body is None else Counter(body)

"""Combinations of parameters that no visit has sent: a sort order with a filter, a filter with a next page.

A view adds a parameter for each of its controls. A visitor who sorts and then filters sends a combination.
Requests show that two parameters are independent: the same filter with two sort orders, and one of these
orders with another filter. Then the other filter with the other order is a request of the view, too. Values
that belong together, such as an identifier and its name, are not combined: no name has two identifiers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations, islice

from stillweb.record.harvest.misses import PlainRequest

_MOST = 200  # combinations of one URL and its parameters
_LONGEST = 200  # characters of a value

_Row = tuple[str, ...]


def combined_requests(requests: Iterable[PlainRequest]) -> Iterator[PlainRequest]:
    """Yield requests that combine values of two parameters, of which the three other corners were sent."""
    alike: dict[tuple[object, ...], dict[_Row, PlainRequest]] = defaultdict(dict)
    for request in requests:
        pairs = request.pairs
        names = tuple(name for name, _ in pairs)
        if len(pairs) > 1 and all(len(value) <= _LONGEST for _, value in pairs):
            rows = alike[request.method, request.place, names]
            rows.setdefault(tuple(value for _, value in pairs), request)
    for rows in alike.values():
        for row, like in islice(_missing(rows), _MOST):
            yield like.with_pairs([(name, value) for (name, _), value in zip(like.pairs, row, strict=True)])


def _missing(rows: dict[_Row, PlainRequest]) -> Iterator[tuple[_Row, PlainRequest]]:
    """Yield the fourth corners, each with a request that it differs from in one value."""
    yielded = set(rows)
    columns = list(zip(*rows, strict=True))
    varying = [at for at, values in enumerate(columns) if len(set(values)) > 1]
    for first, second in combinations(varying, 2):
        at_rest: dict[_Row, dict[str, dict[str, PlainRequest]]] = defaultdict(lambda: defaultdict(dict))
        for row, request in rows.items():
            rest = tuple(value for at, value in enumerate(row) if at not in (first, second))
            at_rest[rest][row[first]][row[second]] = request
        for by_first in at_rest.values():
            for own, other in combinations(by_first.values(), 2):
                if own.keys() & other.keys():
                    for have, lack in ((own, other), (other, own)):
                        like = next(iter(lack.values()))
                        for value in sorted(have.keys() - lack.keys()):
                            row = _with(tuple(each for _, each in like.pairs), second, value)
                            if row not in yielded:
                                yielded.add(row)
                                yield row, like


def _with(row: _Row, at: int, value: str) -> _Row:
    return (*row[:at], value, *row[at + 1 :])

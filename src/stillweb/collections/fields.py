"""Header fields that vary by themselves between two recordings of the same requests.

Of requests they become rules where they never agree and look random or like a time, such as a CSRF header:
replay then compares the field no more where an answer was recorded to depend on it by `Vary`
(`Rules.ignores`). Of answers they are only counted, for people: no key depends on them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from stillweb.collections.observed import Observed
from stillweb.collections.parts import Where
from stillweb.collections.rules import Origin, Rule
from stillweb.collections.shapes import shape_of
from stillweb.collections.values import kind_of
from stillweb.model import Headers

__all__ = ["differing_fields", "header_rules"]

# Fields that browsers and HTTP itself set; cookies, which replay sets as recorded; and who is asking.
_COMMON = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length"),
        *(
            "content-type",
            "cookie",
            "date",
            "host",
            "if-match",
            "if-modified-since",
            "if-none-match",
            "range",
            "referer",
        ),
        *("te", "upgrade-insecure-requests", "user-agent"),
    }
)

_Twins = Iterable[tuple[Observed, Observed]]


def header_rules(twins: _Twins) -> list[Rule]:
    """Return rules for the request fields of a host whose values never agree.

    Args:
        twins: the same request in two recordings.
    """
    sights: dict[tuple[str, str], list[tuple[str, str] | None]] = defaultdict(list)
    for one, other in twins:
        theirs = {name.lower(): value for name, value in other.request.headers}
        for name, value in one.request.headers:
            twin = theirs.get(name.lower())
            if name.lower() not in _COMMON and twin is not None:
                varies = value != twin and kind_of(value, one.near) and kind_of(twin, other.near)
                sights[one.parts.host, name.lower()].append((value, twin) if varies else None)
    rules = []
    for (host, name), found in sorted(sights.items()):
        pairs = [pair for pair in found if pair is not None]
        if len(pairs) < len(found) or {one for one, _ in pairs} & {other for _, other in pairs}:
            continue
        shape = shape_of([text for pair in pairs for text in pair])
        evidence = f"two recordings: {len(pairs)} of {len(pairs)} pairs differ"
        rules.append(Rule(Where.HEADER, name, shape, host, origin=Origin.LEARNED, evidence=evidence))
    return rules


def differing_fields(twins: _Twins) -> tuple[tuple[str, int], ...]:
    """Return the names of answer fields that differ between twins, and how often."""
    differing: Counter[str] = Counter()
    for one, other in twins:
        heads = _by_name(one.response_headers), _by_name(other.response_headers)
        differing.update(
            name for name in heads[0].keys() & heads[1].keys() if heads[0][name] != heads[1][name]
        )
    return tuple(sorted(differing.items()))


def _by_name(headers: Headers) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = defaultdict(list)
    for name, value in headers:
        fields[name.lower()].append(value)
    return fields

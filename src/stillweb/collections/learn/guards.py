"""Guards of `learn`: reasons why a location whose value varied is not volatile.

A value that a response gave to the page needs no rule, because replay repeats the response byte for byte. It
may also be an opaque cursor (`?before=`), and a rule would then return another page of the list. Only CSRF
tokens of forms come from a response *and* are volatile: the session's history selects the recorded form.

A value that the page made from clock and randomness needs a rule. But a value that may name a thing must have
had equal responses, and may not select among the responses of one recording.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stillweb.collections.learn.observed import Observed
from stillweb.matching.parts import Where
from stillweb.matching.values import ValueKind, fits

GIVEN = "a response contained that value, so replay repeats it"
_ENOUGH_NUMBERS = 3  # pairs, for numbers of eight digits and more, which name many things
_SAFE = frozenset({"GET", "HEAD"})
# Names of CSRF tokens in Django, Rails, ASP.NET, Magento, Drupal, WordPress, DokuWiki.
_CSRF = re.compile(
    r"csrf|xsrf|sectok|nonce|authenticity_token|requestverificationtoken|form_(key|token|build_id)|^_?token$",
    re.IGNORECASE,
)
_CORE = re.compile(r"[A-Za-z0-9]+")
# An escape before a run is not part of it: %2F, \u003d, &#61;
_RUN = re.compile(rb"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|&#[0-9]+;)?([A-Za-z0-9]{4,})")


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """One location in requests to a path."""

    where: Where
    name: str
    host: str
    path: str
    method: str


@dataclass(frozen=True, slots=True)
class PlaceSighting:
    """Two requests that differ in one location; one request twice if its value is evidence alone."""

    one: Observed
    other: Observed
    texts: tuple[str, str]
    kinds: tuple[ValueKind, ValueKind]


Sights = dict[RequestPlace, list[PlaceSighting]]


def by_likeness(seen: Iterable[Observed]) -> dict[bytes, list[Observed]]:
    """Group requests that differ in possibly volatile values only."""
    groups: dict[bytes, list[Observed]] = defaultdict(list)
    for each in seen:
        groups[each.likeness].append(each)
    return groups


def objection(
    place: RequestPlace,
    sights: list[PlaceSighting],
    given: frozenset[str],
    alike: Mapping[bytes, list[Observed]],
) -> str:
    """Return why the values of a location may be intended; "" if they are volatile.

    Args:
        place: subject of the rule.
        sights: pairs in which it differs.
        given: values that responses gave to their pages.
        alike: the requests of one recording by likeness.
    """
    texts = [text for sight in sights for text in sight.texts]
    random = any(kind is ValueKind.RANDOM for sight in sights for kind in sight.kinds)
    was_given = bool(given.intersection(texts))
    if was_given and not is_csrf(place.where, place.name, place.method):
        return GIVEN
    if not was_given and not random:
        return ""
    if all(text.isdigit() for text in texts) and len(sights) < _ENOUGH_NUMBERS:
        return f"numbers that may name a thing, and only {len(sights)} of them"
    for sight in sights:
        if sight.one.answer != sight.other.answer:
            return "may name a thing: the responses differ"
        if any(twin.answer != sight.one.answer for twin in alike.get(sight.one.likeness, ())):
            return "may name a thing: it selects among the responses of one recording"
        if not was_given and _said_back(sight):
            return "may name a thing: the response repeats it"
    return ""


def is_csrf(where: Where, name: str, method: str) -> bool:
    """Return True if the name of a location is that of a form's CSRF token in a known framework."""
    in_form = where in (Where.FORM, Where.MULTIPART)
    return in_form and method not in _SAFE and _CSRF.search(name) is not None


def _said_back(sight: PlaceSighting) -> bool:
    for seen, text in ((sight.one, sight.texts[0]), (sight.other, sight.texts[1])):
        made_by_page = fits("uuid", text)  # users do not type UUIDs
        if not made_by_page and text.encode("utf-8", "surrogateescape") in seen.body:
            return True
    return False


def given_values(seen: Iterable[Observed], sights: Sights, side: int) -> frozenset[str]:
    """Return the values seen in one recording that a response gave to the page, in its body or a field.

    Their longest runs of letters and digits are compared, so that escapes do not hide a value.

    Args:
        seen: the recording's requests.
        sights: pairs in which values differ.
        side: 0 for the first recording, 1 for the second.
    """
    texts = {sight.texts[side] for found in sights.values() for sight in found}
    wanted: dict[bytes, set[str]] = defaultdict(set)
    for text in texts:
        core = max(_CORE.findall(text), key=len, default=text)
        wanted[core.encode("utf-8", "surrogateescape")].add(text)
    given: set[str] = set()
    for each in seen if wanted else ():
        heads = "\n".join(value for _, value in each.response_headers).encode("latin-1", "replace")
        runs = wanted.keys() & set(_RUN.findall(heads + b"\n" + each.body))
        found = {text for run in runs for text in wanted[run]}
        # A response that repeats a value of its own request gave the page nothing new.
        given.update(found.difference(leaf.text for leaf in each.leaves) if found else ())
    return frozenset(given)

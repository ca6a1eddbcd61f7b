"""Why a place that varied is not volatile: the guards between what was seen to differ and a rule.

What an answer told the page replay tells again, byte for byte, so such a value needs no rule; and it may be
where a list goes on (`?before=`, an opaque cursor), which a rule would turn into another page's answer. Only
CSRF tokens of forms are told *and* volatile: which of two recorded forms a session sees is up to its history.

What the page made itself from clock and randomness needs a rule; but a value that may name a thing must have
been answered alike, and may not choose among the answers of one recording.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stillweb.collections.learn.observed import Observed
from stillweb.matching.parts import Where
from stillweb.matching.values import ValueKind, fits

__all__ = [
    "TOLD",
    "PlaceSighting",
    "RequestPlace",
    "Sights",
    "by_likeness",
    "doubt",
    "is_csrf",
    "told_values",
]

TOLD = "an answer told the page that value, so replay tells it again"
_ENOUGH_NUMBERS = 3  # pairs, for numbers of eight digits and more: many things are numbered so
_SAFE = frozenset({"GET", "HEAD"})
# What frameworks call the CSRF tokens of forms: Django, Rails, ASP.NET, Magento, Drupal, WordPress, DokuWiki.
_CSRF = re.compile(
    r"csrf|xsrf|sectok|nonce|authenticity_token|requestverificationtoken|form_(key|token|build_id)|^_?token$",
    re.IGNORECASE,
)
_CORE = re.compile(r"[A-Za-z0-9]+")
# Escapes before a run belong to it no more than a blank: %2F, \u003d, &#61;
_RUN = re.compile(rb"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|&#[0-9]+;)?([A-Za-z0-9]{4,})")


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """One place of requests to a path."""

    where: Where
    name: str
    host: str
    path: str
    method: str


@dataclass(frozen=True, slots=True)
class PlaceSighting:
    """One place seen to differ between two requests; or one request twice, where it speaks for itself."""

    one: Observed
    other: Observed
    texts: tuple[str, str]
    kinds: tuple[ValueKind, ValueKind]


Sights = dict[RequestPlace, list[PlaceSighting]]


def by_likeness(seen: Iterable[Observed]) -> dict[bytes, list[Observed]]:
    """Return requests in groups that differ in possibly volatile values only."""
    groups: dict[bytes, list[Observed]] = defaultdict(list)
    for each in seen:
        groups[each.likeness].append(each)
    return groups


def doubt(
    place: RequestPlace,
    sights: list[PlaceSighting],
    told: frozenset[str],
    alike: Mapping[bytes, list[Observed]],
) -> str:
    """Return why the values of a place may be meant; "" if they vary by themselves.

    Args:
        place: what the rule would be about.
        sights: where it was seen to differ.
        told: values that answers told their pages.
        alike: the requests of one recording by likeness.
    """
    texts = [text for sight in sights for text in sight.texts]
    random = any(kind is ValueKind.RANDOM for sight in sights for kind in sight.kinds)
    was_told = bool(told.intersection(texts))
    if was_told and not is_csrf(place.where, place.name, place.method):
        return TOLD
    if not was_told and not random:
        return ""
    if all(text.isdigit() for text in texts) and len(sights) < _ENOUGH_NUMBERS:
        return f"numbers that may name a thing, and only {len(sights)} of them"
    for sight in sights:
        if sight.one.answer != sight.other.answer:
            return "may name a thing: the answers differ"
        if any(twin.answer != sight.one.answer for twin in alike.get(sight.one.likeness, ())):
            return "may name a thing: it chooses among the answers of one recording"
        if not was_told and _said_back(sight):
            return "may name a thing: the answer says it back"
    return ""


def is_csrf(where: Where, name: str, method: str) -> bool:
    """Return whether a place is called as frameworks call the CSRF token of a form."""
    in_form = where in (Where.FORM, Where.MULTIPART)
    return in_form and method not in _SAFE and _CSRF.search(name) is not None


def _said_back(sight: PlaceSighting) -> bool:
    for seen, text in ((sight.one, sight.texts[0]), (sight.other, sight.texts[1])):
        made_by_page = fits("uuid", text)  # nobody types such
        if not made_by_page and text.encode("utf-8", "surrogateescape") in seen.body:
            return True
    return False


def told_values(seen: Iterable[Observed], sights: Sights, side: int) -> frozenset[str]:
    """Return which of the values seen in one recording an answer told the page, in its body or a field.

    Compared are their longest runs of letters and digits, so that no escape hides one.

    Args:
        seen: the recording's requests.
        sights: what was seen to differ.
        side: 0 for the first recording, 1 for the second.
    """
    texts = {sight.texts[side] for found in sights.values() for sight in found}
    wanted: dict[bytes, set[str]] = defaultdict(set)
    for text in texts:
        core = max(_CORE.findall(text), key=len, default=text)
        wanted[core.encode("utf-8", "surrogateescape")].add(text)
    told: set[str] = set()
    for each in seen if wanted else ():
        heads = "\n".join(value for _, value in each.response_headers).encode("latin-1", "replace")
        runs = wanted.keys() & set(_RUN.findall(heads + b"\n" + each.body))
        found = {text for run in runs for text in wanted[run]}
        # An answer that says back what it was asked with told the page nothing new.
        told.update(found.difference(leaf.text for leaf in each.leaves) if found else ())
    return frozenset(told)

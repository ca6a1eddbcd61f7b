"""Rules for times of requests that follow the page's clock, from two walks or recordings. Pure.

The second walk repeats the first one on the same recording; only the page's clock starts at another time
(`clock_shift`). A time that the site gave to the page, or that a user picked, is the same in both. All times
that follow the clock move by the same amount. Requests that differ otherwise are no evidence. Two recordings
are compared likewise, by the starts of their clocks.

A page hands its times on: "since yesterday" is in the link of a list, and then in the request of that list.
If the list was recorded by its address, its time does not move with the clock. It is the same text as the
time of the page that made the link (`equal_time_rules`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from stillweb.matching.pagetimes import Instant, TimedText, microseconds
from stillweb.matching.parts import Leaf, Parts, Where
from stillweb.matching.rules import ANY_PATH, Rule, RuleOrigin, Rules, only_defaults
from stillweb.matching.values import CLOCK, ValueKind, kind_of
from stillweb.model import Request

_APART = timedelta(minutes=13, seconds=13)  # longer than `RECORDED`: no recorded time fits both walks

_SLACK = timedelta(seconds=30)  # by which the second walk may be slower, since its requests are misses
_PLACES = frozenset({Where.QUERY, Where.FORM, Where.JSON, Where.MULTIPART})
"""A time in a path names a thing, such as a note by the time of its making."""
_SECOND = 10**6  # microseconds
_GENERAL = 3  # paths of a host with the same rule make it a rule of the host


@dataclass(frozen=True, slots=True)
class _Timed:
    """A request, its texts with times, and its values that rules drop already, such as a cache-buster."""

    parts: Parts
    texts: dict[Leaf, TimedText]
    dropped: tuple[Leaf, ...]

    @property
    def times(self) -> list[tuple[Leaf, Instant]]:
        """All times in order, each with its place."""
        return [(leaf, time) for leaf, text in self.texts.items() for time in text.times]


def clock_shift(start: datetime) -> timedelta:
    """Return the difference of the second walk's clock, earlier or later, so that both are in one hour.

    Pages round times to hours and days. Such a time is then equal in both walks, and the others are compared.
    """
    return _APART if start.minute < 30 else -_APART


Walks = Iterable[tuple[Iterable[Request], Iterable[Request]]]


def clock_rules(
    walks: Walks, start: datetime, later: timedelta | None = None, known: Rules | None = None
) -> list[Rule]:
    """Return rules for the times that moved with the page's clock.

    Args:
        walks: requests of each walk whose clock began at `start`, and those of the same walk, later.
        start: start of the page clock of the recording.
        later: difference of the clocks; None for `clock_shift`.
        known: rules that hold already; the defaults if None.
    """
    known = known or only_defaults()
    later = clock_shift(start) if later is None else later
    proofs: dict[Rule, set[str]] = defaultdict(set)
    for first, second in walks:
        waiting: dict[bytes, list[_Timed]] = defaultdict(list)
        for other in filter(None, (_timed(request, known) for request in second)):
            waiting[_likeness(other)].append(other)
        for one in filter(None, (_timed(request, known) for request in first)):
            for other in waiting[_likeness(one)]:
                for leaf in _moved(one, other, start, later):
                    proofs[_rule(one.parts, leaf)].add(one.parts.path)
    return _general(proofs, "at two times: moved with the page's clock")


def equal_time_rules(requests: Iterable[Request], start: datetime, known: Rules) -> list[Rule]:
    """Return rules for times that are, as texts, those of other requests whose rules prove them.

    A whole minute may have been picked, and a time without seconds is of many pages. Both are no evidence.

    Args:
        requests: recorded ones.
        start: start of the page clock of the recording.
        known: rules of the collection, clock rules among them.
    """
    proved: set[str] = set()
    others: list[_Timed] = []
    for timed in filter(None, (_timed(request, known) for request in requests)):
        places = _clock_places(known, timed.parts)
        for leaf, time in timed.times:
            if (leaf.where, leaf.name) in places and time.present(microseconds(start)) is not None:
                proved.add(leaf.text)
        others.append(timed)
    proofs: dict[Rule, set[str]] = defaultdict(set)
    for timed in others:
        places = _clock_places(known, timed.parts)
        for leaf, time in timed.times:
            is_exact = time.step <= _SECOND and time.at % (60 * _SECOND)
            if is_exact and leaf.text in proved and (leaf.where, leaf.name) not in places:
                proofs[_rule(timed.parts, leaf)].add(timed.parts.path)
    return _general(proofs, "equal to a time that moved with the page's clock")


def _clock_places(rules: Rules, parts: Parts) -> frozenset[tuple[Where, str]]:
    """Return where the times of a request follow the page's clock."""
    clock = (rule for rule in rules.volatile if rule.shape == CLOCK and rule.applies(parts))
    return frozenset((rule.where, rule.name) for rule in clock)


def _timed(request: Request, known: Rules) -> _Timed | None:
    parts = Parts.of(request)
    names = known.dropped(request)
    leaves = list(parts.leaves(_PLACES))
    dropped = tuple(leaf for leaf in leaves if f"{leaf.where}:{leaf.name}" in names)
    texts = {
        leaf: text for leaf in leaves if leaf not in dropped and (text := TimedText.of(leaf.text)) is not None
    }
    return _Timed(parts, texts, dropped) if texts else None


def _likeness(timed: _Timed) -> bytes:
    texts = {leaf: text.written(CLOCK for _ in text.times) for leaf, text in timed.texts.items()}
    return timed.parts.without(dict.fromkeys(timed.dropped, CLOCK) | texts)


def _moved(one: _Timed, other: _Timed, start: datetime, later: timedelta) -> list[Leaf]:
    """Return the times that differ, if they moved together, by the clock's difference, near its time."""
    pairs = [
        (leaf, before, after)
        for (leaf, before), (_, after) in zip(one.times, other.times, strict=True)
        if before != after
    ]
    if not pairs or any(before.notation != after.notation for _, before, after in pairs):
        return []
    step = max(before.step for _, before, _ in pairs)
    moves = {after.at // step - before.at // step for _, before, after in pairs}
    move = timedelta(microseconds=next(iter(moves)) * step)
    if len(moves) > 1 or abs(move - later) > _SLACK:
        return []
    begun = microseconds(start), microseconds(start + later)
    near = any(
        all(each.present(at) is not None for each, at in zip(pair[1:], begun, strict=True)) for pair in pairs
    )
    return list(dict.fromkeys(leaf for leaf, _, _ in pairs)) if near else []


def _rule(parts: Parts, leaf: Leaf) -> Rule:
    path = "/".join("*" if _is_name(each) else each for each in parts.path.split("/"))
    return Rule(leaf.where, leaf.name, CLOCK, parts.host, path, parts.method, RuleOrigin.LEARNED)


def _is_name(segment: str) -> bool:
    """Return True for a segment that names one thing of many, such as a UUID."""
    return kind_of(segment, ()) is ValueKind.RANDOM or bool(re.fullmatch(r"[0-9]+", segment))


def _general(proofs: dict[Rule, set[str]], why: str) -> list[Rule]:
    """Return the rules; one rule of the host for places that are proved on several of its paths."""
    groups: dict[Rule, list[Rule]] = defaultdict(list)
    for rule in proofs:
        whole = Rule(rule.where, rule.name, CLOCK, rule.host, ANY_PATH, rule.method, rule.origin)
        groups[whole].append(rule)
    found = []
    for whole, group in groups.items():
        for rule in [whole] if len(group) >= _GENERAL else group:
            paths = len(set().union(*(proofs[each] for each in (group if rule is whole else [rule]))))
            evidence = f"{why} on {paths} paths"
            found.append(
                Rule(rule.where, rule.name, CLOCK, rule.host, rule.path, rule.method, rule.origin, evidence)
            )
    return sorted(found, key=repr)

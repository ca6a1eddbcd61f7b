"""Times of requests that follow the page's clock, compared by their distance from the page's present.

A dashboard requests "the last week until now". Such a request differs at each visit, but the distances
between its times do not. A key of shape `clock` therefore holds, for each such time, its notation and its
distance from one of them, the *anchor*. Size and direction of a range, and a time that does not move with the
others, stay part of the key.

The anchor must be the page's present, or the same time of an earlier day: when recorded, within `RECORDED` of
the start of the recording's page clock; when requested, within `AHEAD` of the page's clock as the environment
last reported it (docs/decisions/0034-times-of-the-page.md). Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from stillweb.matching.values import CLOCK, TIMES_IN_TEXT, fits

T = TypeVar("T", bound=Hashable)

RECORDED = timedelta(minutes=10)
AHEAD = timedelta(seconds=10)
"""Longest time that the page's clock advances between two reports."""
BEHIND = timedelta(seconds=3)
"""Longest time for which a page keeps what it has read from its clock. A range in the past is longer ago."""

_DAY = 86400
_ROUNDED = ((7 * _DAY - 600, 600), (_DAY - 60, 60))
"""Distances in seconds, and the unit to which such a distance is rounded; the longest first."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 10**6
_NUMBERS = {"seconds": _SECOND, "milliseconds": 1000, "microseconds": 1}
_ISO = re.compile(
    r"(?P<date>[0-9-]+[T ][0-9]+:[0-9]+)(?P<second>:[0-9]+(\.(?P<fraction>[0-9]+))?)?(?P<zone>.*)"
)


@dataclass(frozen=True, slots=True)
class Instant:
    """A time as a request spells it.

    Attributes:
        at: microseconds since 1970.
        step: the smallest difference of its notation, in microseconds.
        notation: unit, or format with precision and zone.
    """

    at: int
    step: int
    notation: str

    def is_within(self, start: int, length: timedelta) -> bool:
        """Return True if it may be a time of an interval that begins at `start`, in microseconds."""
        return start - self.step < self.at <= start + length // _MICROSECOND

    def present(self, start: int) -> Instant | None:
        """Return the page's present that a time shows, None if it shows none.

        It is the time, or the same time of a later day: "since a day ago" names no other time. A whole
        minute may have been picked in a calendar.
        """
        if self.step > _SECOND or self.is_within(start, RECORDED):
            return self if self.step <= _SECOND else None
        days = -((self.at - start - RECORDED // _MICROSECOND) // (_DAY * _SECOND)) - 1
        later = replace(self, at=self.at + max(0, days) * _DAY * _SECOND)
        is_picked = self.at % (60 * _SECOND) == 0
        return None if is_picked or not later.is_within(start, RECORDED) else later

    def is_present(self, page_time: int) -> bool:
        """Return True if it may be the present of a page whose clock was last at `page_time`, in ms."""
        return self.is_within(page_time * 1000 - BEHIND // _MICROSECOND, BEHIND + AHEAD)


def microseconds(when: datetime) -> int:
    """Return the microseconds since 1970."""
    return (when - _EPOCH) // _MICROSECOND


def instant_of(text: str) -> Instant | None:
    """Return the time that a text spells; None if it has no shape of times.

    A time without milliseconds is exact to a second, whatever its notation: pages round the present.
    """
    found = _spelled(text)
    if found is None or found.step >= _SECOND or found.at % _SECOND:
        return found
    return replace(found, step=_SECOND)


def _spelled(text: str) -> Instant | None:
    for name, unit in _NUMBERS.items():
        if fits(name, text):
            whole, point, fraction = text.partition(".")
            if not point:
                return Instant(int(whole) * unit, unit, name)
            # Numbers are written without trailing zeros, so that a fraction, or none, says nothing.
            at = int(whole) * unit + int(fraction[:6].ljust(6, "0"))
            return Instant(at, 1000 if len(fraction) <= 3 else 1, name)
    return _iso(text) if fits("datetime", text) else None


@dataclass(frozen=True, slots=True)
class TimedText:
    """A text and its times; `around` are the texts before, between and after them."""

    around: tuple[str, ...]
    times: tuple[Instant, ...]

    @property
    def is_whole(self) -> bool:
        """True for a time and nothing else."""
        return self.around == ("", "")

    @classmethod
    def of(cls, text: str) -> TimedText | None:
        """Return a text that is a time or holds times, such as a filter expression; None for another."""
        if (whole := instant_of(text)) is not None:
            return cls(("", ""), (whole,))
        found = [match for match in TIMES_IN_TEXT.finditer(text) if _spelled(match[0]) is not None]
        if not found:
            return None
        ends = [0, *(match.end() for match in found)]
        starts = [*(match.start() for match in found), len(text)]
        around = tuple(text[end:start] for end, start in zip(ends, starts, strict=True))
        return cls(around, tuple(filter(None, (instant_of(match[0]) for match in found))))

    def written(self, times: Iterable[str]) -> str:
        """Return the form of the text with other forms of its times."""
        forms = list(times)
        return forms[0] if self.is_whole else f"{CLOCK} {json.dumps([self.around, forms])}"


def distances(
    times: Mapping[T, Instant], start: int, inside: AbstractSet[T] = frozenset()
) -> tuple[Instant, dict[T, str]] | None:
    """Return the anchor, and for each time its notation and distance from the anchor.

    Args:
        times: of one request, by location.
        start: of the recording's page clock, in microseconds.
        inside: those inside of longer texts. Their distances are not rounded: a number there may be another.

    Returns:
        None if no time is near the start, or whole days before it, or none is exact to a second.
    """
    shown = [(each, present) for each in times.values() if (present := each.present(start)) is not None]
    if not shown:
        return None
    # A time that is the present itself, if there is one; the most exact of these, and the latest.
    _, anchor = min(shown, key=lambda each: (each[0] is not each[1], each[1].step, -each[1].at))
    return anchor, {
        place: f"{CLOCK} {each.notation} {_distance(each, anchor, rounded=place not in inside)}"
        for place, each in times.items()
    }


def _distance(one: Instant, anchor: Instant, *, rounded: bool) -> str:
    """Return how long a time is before the anchor, in microseconds.

    The finer of the two is rounded down to the other's unit, as pages do. A page may compute the start of
    "the last day" once, while its end moves on: the distance then grows by the seconds since. It is rounded
    down to about a thousandth (`_ROUNDED`), except for a time on a whole minute, which a user may have
    picked.
    """
    step = max(one.step, anchor.step)
    distance = (anchor.at // step - one.at // step) * step
    for least, unit in _ROUNDED if rounded and one.at % (60 * _SECOND) else ():
        if abs(distance) >= least * _SECOND:
            return f"{distance // (unit * _SECOND)} of {unit} s"
    return f"{distance}"


def _iso(text: str) -> Instant | None:
    found = _ISO.fullmatch(text)
    assert found is not None  # the shape is narrower
    digits = found["fraction"] or ""
    plain = found["date"].replace(" ", "T") + (found["second"] or "").partition(".")[0]
    try:
        when = datetime.fromisoformat(plain + found["zone"])
    except ValueError:  # such as 30 February
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    step = _SECOND * 60 if not found["second"] else 10 ** (6 - min(len(digits), 6))
    notation = f"{text[10]} {'s' if found['second'] else 'min'} {len(digits)} {found['zone']}"
    return Instant(microseconds(when) + int(digits[:6].ljust(6, "0")), step, notation)

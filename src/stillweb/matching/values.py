"""Kinds of values in requests: the time of the visit, a random number, a random name, or none of them.

`SHAPES` describe the form of a value; `kind_of` decides whether it could be *intended*. Numbers of one to
seven digits and words are always intended: no number of recordings distinguishes `page=3` from a counter. A
time is volatile only near the visit, and not on a full minute, since calendars request days and hours.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import re2

SET = "set"
"""Shape of a list whose order does not matter; its elements stay part of a request's identity."""
CLOCK = "clock"
"""Shape of a time that follows the page's clock; its distance from the present stays in the identity."""
COUNTER = "counter"
"""Shape of a number that the answer repeats in a member of the same name (`matching.counters`)."""

_DATE = r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"
_TIME = r"[0-2][0-9]:[0-5][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"

TIMES_IN_TEXT = re.compile(
    rf"(?<![\w.:+-])(?:1[0-9]{{12}}|{_DATE}[T ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](?:\.[0-9]{{1,9}})?"
    r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?)(?![\w.:+-])"
)
"""Times inside of a longer text. Numbers of seconds are left out: identifiers have ten digits, too."""

_DRAWN = r"0?\.[0-9]{12,24}|[0-9]\.[0-9]{9,20}e-[0-9]{1,3}"  # Math.random(), and no number that anyone types

SHAPES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "milliseconds": r"1[0-9]{12}",  # 2001 to 2033, as in Date.now()
        "seconds": r"1[0-9]{9}(\.[0-9]{1,9})?",
        "microseconds": r"1[0-9]{15}",
        "datetime": f"{_DATE}[T ]{_TIME}",
        "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "decimal": r"0?\.[0-9]{6,24}|[0-9](\.[0-9]{1,20})?e-[0-9]{1,3}",  # as Math.random() is written
        "jwt": r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*",
        "digits": r"[0-9]{6,24}",
        "hex": r"[0-9a-f]{8,128}|[0-9A-F]{8,128}",
        "token": r"[A-Za-z0-9_.~+/=:|-]{8,4096}",
        "any": r"(?s:.*)",
        # `shape_of` never returns these, since `any` fits too.
        "draw": _DRAWN,
        SET: r"[^|,]+(\|[^|]+)+|[^|,]+(,[^|,]+)+",
        COUNTER: r"[0-9]{1,9}",
        CLOCK: rf"1[0-9]{{9}}(\.[0-9]{{1,9}})?|1[0-9]{{12}}|1[0-9]{{15}}|{_DATE}[T ]{_TIME}",
    }.items()
}


def fits(shape: str, value: str) -> bool:
    """Return True if a value has a named shape."""
    if shape == CLOCK and TIMES_IN_TEXT.search(value):
        return True
    return SHAPES[shape].fullmatch(value) is not None


def elements(text: str) -> tuple[str, ...]:
    """Return the elements of a set, separated by `|` or by commas, in sorted order after the separator."""
    separator = "|" if "|" in text else ","
    return (separator, *sorted(text.split(separator)))


def shape_of(values: list[str]) -> str:
    """Return the narrowest shape that all values have."""
    return next(name for name in SHAPES if all(SHAPES[name].fullmatch(value) for value in values))


def linear_regex(pattern: str | bytes, *, ignore_case: bool = False) -> Any:
    """Compile a pattern with RE2, which takes linear time; a pattern of bytes matches single bytes.

    Raises:
        re2.error: if RE2 does not accept it.
    """
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    if isinstance(pattern, bytes):
        options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(pattern, options)


DAY = 86400.0
_MINUTE = 60
_PER_SECOND = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}
# Runs that may differ between two responses to the same request: times, digests, tokens.
_RUN = re.compile(rb"[A-Za-z0-9+/_=-]{8,}")
_WHEN = re.compile(
    rb"[0-9]{1,4}(\\?[/-])[0-9]{1,2}\1[0-9]{1,4}|[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}|[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?"
)
_DIGIT = re.compile(rb"[0-9]")
_LETTER = re.compile(rb"[A-Za-z]")


class ValueKind(StrEnum):
    """Reason why a value may be volatile."""

    TIME = "time"  # near the visit
    DRAW = "draw"  # as Math.random() is written: users do not type sixteen digits
    RANDOM = "random"  # an identifier, token or digest, which may also name a thing


def kind_of(text: str, near: tuple[float, ...], within: float = DAY) -> ValueKind | None:
    """Return the kind of volatile value that a text may be; None if it may be intended.

    Args:
        text: the value, unescaped.
        near: times of the visit, in seconds since 1970.
        within: maximum distance of a time from one of them, in seconds.
    """
    when = _time(text)
    if when is not None:
        return ValueKind.TIME if when % _MINUTE and any(abs(when - each) <= within for each in near) else None
    if fits("draw", text):
        return ValueKind.DRAW
    if fits("uuid", text) or fits("jwt", text):
        return ValueKind.RANDOM
    if fits("digits", text):
        return ValueKind.RANDOM if len(text) >= 8 else None
    return ValueKind.RANDOM if fits("token", text) and _is_random(text) else None


def masked(body: bytes) -> bytes:
    """Return a body without the runs that may differ between two responses to the same request."""
    return _WHEN.sub(b"#", _RUN.sub(_mask, body))


def _time(text: str) -> float | None:
    for shape, per_second in _PER_SECOND.items():
        if fits(shape, text):
            return float(text) / per_second
    if fits("datetime", text):
        try:
            when = datetime.fromisoformat(text.replace(" ", "T", 1))
        except ValueError:
            return None
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return None


def _is_random(text: str) -> bool:
    """Return True if a token is unlike a word or a number: letters among digits, or mixed case."""
    digits = sum(char.isdigit() for char in text)
    letters = {char.islower() for char in text if char.isalpha()}
    wordless = fits("hex", text) or not re.search(r"[A-Za-z]{6}", text)
    if digits >= 2 and letters and wordless:
        return True
    return len(letters) == 2 and digits >= 1 and len(text) >= 12


def _mask(found: re.Match[bytes]) -> bytes:
    run = found[0]
    if run.isdigit() or (_DIGIT.search(run) and _LETTER.search(run)):
        return b"#"
    return run

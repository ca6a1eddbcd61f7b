"""Named shapes of values that vary by themselves: times, random numbers, identifiers, tokens.

A rule names the shape that a value must have, when recorded and when asked for, to count as volatile. A
shape is no proof: `hex` fits many words of a catalogue too; which field varies is the rule's business.
The order is from narrow to wide.
"""

from __future__ import annotations

import re

__all__ = ["SHAPES", "fits", "shape_of"]

_DATE = r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"
_TIME = r"[0-2][0-9]:[0-5][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"

SHAPES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "milliseconds": r"1[0-9]{12}",  # 2001 to 2033, as Date.now() has them
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
    }.items()
}


def fits(shape: str, value: str) -> bool:
    """Return whether a value has a named shape."""
    return SHAPES[shape].fullmatch(value) is not None


def shape_of(values: list[str]) -> str:
    """Return the narrowest shape that all values have."""
    return next(name for name in SHAPES if all(fits(name, value) for value in values))

"""Command-line form of options dataclasses: one definition of each option's name, help, bounds and spelling.

A dataclass that configures a function describes its fields with `Annotated[type, Option("Help text.")]`. The
command line (`stillweb.cli.options`) generates its options from that; the default is the field's default.
Fields without an `Option` have no command-line form. Parsers here read values that several dataclasses share.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MAX_SESSIONS = 256


@dataclass(frozen=True, slots=True)
class Option:
    """The command-line form of one field.

    A `bool` becomes a flag, `Literal` and `StrEnum` a choice, `tuple[X, ...]` and `Mapping` a repeatable
    option.

    Attributes:
        help: help text; it names the unit.
        flag: spelling if it is not `--field-name`, such as "-c --collection" or "--files/--no-files". Without
            a "/", the flag of a field whose default is True sets it to False.
        metavar: placeholder for the value in the help text; N for integers if None.
        min, max: inclusive bounds.
        above: exclusive lower bound.
        unit: units of the field in one unit of the option, such as 1048576 for an option in MiB.
        choices: the permitted values, where the type does not say.
        path: kind of path that a `Path` must be.
        parse: converts the text (a tuple of texts if repeatable) into the field's value. Raises `ValueError`.
        format: inverse of `parse`, for the default value.
        default: text that the help shows instead of the default value.
        envvar: environment variable with the value; with several values, separated by blanks, if repeatable.
        bare: value if the option is given without a value, which is possible then.
        repeat: whether the option is repeatable, if not according to the type: False for a `tuple` that is
            written as one text, which `parse` splits; True for another type that `parse` makes of many texts.
    """

    help: str
    flag: str = ""
    metavar: str | None = None
    min: int | None = None
    max: int | None = None
    above: float | None = None
    unit: int = 1
    choices: tuple[str, ...] = ()
    path: Literal["file", "folder", "existing file"] | None = None
    parse: Callable[[Any], Any] | None = None
    format: Callable[[Any], str] | None = None
    default: str = ""
    envvar: str | None = None
    bare: str | None = None
    repeat: bool | None = None


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90`, `30m` or `2h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a duration such as 90, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `500M` or `2G` (powers of 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a size such as 500M or 2G")
    return round(float(match[1]) * _SIZES[match[2]])


def parse_share(text: str) -> float:
    """Return a share such as `1%` or `0.01` as a number from 0 to 1."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not a percentage such as 1%")
    return share


def parse_list(text: str) -> tuple[str, ...]:
    """Return the parts of a list that is separated by commas, without empty ones."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the names and values of texts such as `model=qwen3-4b`."""
    if not all("=" in each and each.partition("=")[0] for each in texts):
        raise ValueError("expected KEY=VALUE, such as model=qwen3-4b")
    return dict(each.partition("=")[::2] for each in texts)


def parse_counts(text: str) -> tuple[int, ...]:
    """Return the distinct session counts of a list such as `1,8,32`."""
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = (0,)
    if min(counts) < 1 or max(counts) > _MAX_SESSIONS:
        raise ValueError(f"numbers from 1 to {_MAX_SESSIONS}, separated by commas, such as 1,8,32")
    return counts


def format_counts(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))

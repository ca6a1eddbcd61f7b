"""Values that describe a browser context: what sites see of it, and what is pinned.

A collection's manifest stores the `Profile`, so that replay requests pages exactly as the recording did. A
`Pinning` names the level, the seed and the start time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stillweb.options import Option

_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")  # RFC 5646, in shape


class Level(StrEnum):
    """Determinism level: the parts of a page that are pinned. Recordings and trajectories store it."""

    LIVE = "live"
    """Nothing is changed."""
    NETWORK = "network"
    """Seeded randomness, and constants in place of machine properties."""
    CLOCK = "clock"
    """NETWORK, and a clock that only `settle` moves; animations end immediately."""
    EXACT = "exact"
    """CLOCK in every realm; `settle` admits frames and responses one at a time."""

    @property
    def keeps_clock(self) -> bool:
        return self in (Level.CLOCK, Level.EXACT)


def _parse_viewport(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ValueError(f"{text!r} is not WIDTHxHEIGHT, such as 1280x720")
    return int(width), int(height)


def _check_timezone(text: str) -> str:
    # The browser would complain too, but once for each page.
    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{text!r} is not a time zone such as Europe/Berlin") from None


def _check_locale(text: str) -> str:
    # The browser accepts any text; pages throw where they use it.
    if not _LANGUAGE_TAG.fullmatch(text):
        raise ValueError(f"{text!r} is not a language tag such as en-US")
    return text


@dataclass(frozen=True, slots=True)
class Profile:
    """Properties of a browser that sites can read.

    Attributes:
        user_agent: "" keeps the browser's own, without the word Headless.
        color_scheme: value of `prefers-color-scheme`.
        device_scale_factor: device pixels per CSS pixel.
        is_mobile: whether the meta viewport applies.
        has_touch: whether touch events exist.
    """

    viewport: Annotated[
        tuple[int, int],
        Option(
            "Width and height of the viewport in CSS pixels.",
            metavar="WxH",
            repeat=False,
            parse=_parse_viewport,
            format="{0[0]}x{0[1]}".format,
        ),
    ] = (1280, 720)
    user_agent: str = ""
    locale: Annotated[
        str,
        Option(
            "BCP 47 language tag that pages see; it also sets Accept-Language.",
            metavar="TAG",
            parse=_check_locale,
        ),
    ] = "en-US"
    timezone: Annotated[
        str, Option("IANA time zone that pages see.", metavar="ZONE", parse=_check_timezone)
    ] = "UTC"
    color_scheme: Literal["light", "dark"] = "light"
    device_scale_factor: float = 1.0
    is_mobile: bool = False
    has_touch: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"viewport": list(self.viewport)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Profile:
        """Read a manifest's profile; unknown names are ignored, missing ones take their defaults."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        if "viewport" in values:
            width, height = values["viewport"]
            values["viewport"] = (int(width), int(height))
        return cls(**values)


BEST_LEVEL = "auto"
"""Name for the strictest level that a browser keeps."""

LEVEL = Option(
    "Determinism level (docs/explanation/determinism.md); auto: exact with chromium-headless-shell, "
    "otherwise clock.",
    choices=(BEST_LEVEL, "network", "clock", "exact"),
)
"""The option of a field that names a level for replay."""


@dataclass(frozen=True, slots=True)
class Pinning:
    """Level, seed of all randomness (from NETWORK on) and first time of the page's clock (from CLOCK on)."""

    level: Level
    seed: int
    start: datetime

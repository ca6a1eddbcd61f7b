"""Values that describe a browser context: what sites see of it, and what is pinned.

A collection's manifest stores the `Profile`, so that replay requests pages exactly as the recording did. A
`Pinning`
names the level, the seed and the start time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal


class Level(StrEnum):
    """How much of a page is pinned. Recordings and trajectories store it."""

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


@dataclass(frozen=True, slots=True)
class Profile:
    """What a site can see of a browser.

    Attributes:
        viewport: width and height in CSS pixels.
        user_agent: "" keeps the browser's own, without the word Headless.
        locale: BCP 47 tag; also sets Accept-Language.
        timezone: IANA name.
        color_scheme: value of `prefers-color-scheme`.
        device_scale_factor: device pixels per CSS pixel.
        is_mobile: whether the meta viewport applies.
        has_touch: whether touch events exist.
    """

    viewport: tuple[int, int] = (1280, 720)
    user_agent: str = ""
    locale: str = "en-US"
    timezone: str = "UTC"
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


@dataclass(frozen=True, slots=True)
class Pinning:
    """Level, seed of all randomness (from NETWORK on) and first time of the page's clock (from CLOCK on)."""

    level: Level
    seed: int
    start: datetime

"""What a browser context is told to be, and how far it is pinned.

A `Profile` is what a site can see of a browser (screen, locale, user agent); it is stored in a
collection's manifest, so that replay asks for the pages exactly as the recording did. A
`Pinning` is what is taken away from chance: at which level, from which seed, from which time.
Both are values; nothing here opens a browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal


class Level(StrEnum):
    """How much of a page is pinned. Stamped on what is recorded and on every trajectory."""

    LIVE = "live"
    """Nothing is touched."""
    NETWORK = "network"
    """Seeded randomness, and constants in place of what the machine would tell."""
    CLOCK = "clock"
    """NETWORK, and a clock that moves only when `settle` moves it; animations end at once."""
    EXACT = "exact"
    """CLOCK in every realm, and frames and answers that come only when `settle` lets them, one by one."""

    @property
    def keeps_clock(self) -> bool:
        """Whether time moves only when it is moved."""
        return self in (Level.CLOCK, Level.EXACT)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a site can see of a browser.

    Attributes:
        viewport: width and height in CSS pixels.
        user_agent: "" leaves the browser's own, without the word Headless.
        locale: BCP 47 tag; also decides Accept-Language.
        timezone: IANA name.
        color_scheme: what `prefers-color-scheme` answers.
        device_scale_factor: device pixels per CSS pixel.
        is_mobile: whether the meta viewport counts.
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
        """Return the profile as a manifest stores it."""
        return asdict(self) | {"viewport": list(self.viewport)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Profile:
        """Return the profile that a manifest stores; unknown names are ignored, absent ones default."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        if "viewport" in values:
            width, height = values["viewport"]
            values["viewport"] = (int(width), int(height))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Pinning:
    """What a context is pinned to.

    Attributes:
        level: how much is pinned.
        seed: of all randomness, from level NETWORK on.
        start: what the page's clock says first, at level CLOCK.
    """

    level: Level
    seed: int
    start: datetime

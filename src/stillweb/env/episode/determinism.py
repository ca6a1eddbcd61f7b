"""What is promised of an episode's sameness, probed and stamped.

A level is a promise of the browser room; whether this browser keeps it is asked once per
browser, on empty pages, before the first episode. A level that is not kept is an error, never
a lower level. The stamp goes into `info["determinism"]` and from there on every trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from playwright.async_api import Browser

from stillweb.browser.context import open_context
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.errors import InfraError, UsageError

__all__ = ["Determinism", "level_of", "probe_level"]

_PROBE_START = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_NO_PROXY = "http://127.0.0.1:9"  # discard; an empty page asks for nothing
_DRAWS = "[Date.now(), Math.random(), crypto.getRandomValues(new Uint32Array(4)).join()]"

_kept: WeakKeyDictionary[Browser, set[Level]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Determinism:
    """What an episode was pinned to. Equal stamps and equal actions, equal observations."""

    level: Level
    seed: int
    start: datetime
    browser: str
    profile: Profile

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON for `info` and trajectories."""
        return {
            "level": self.level.value,
            "seed": self.seed,
            "start": self.start.isoformat(),
            "browser": self.browser,
            "profile": self.profile.to_dict(),
        }


def level_of(name: str) -> Level:
    """Return the level of a name.

    Raises:
        UsageError: if there is none.
    """
    try:
        return Level(name)
    except ValueError:
        names = ", ".join(level.value for level in Level)
        raise UsageError(f"no level {name!r}", hint=f"levels are: {names}") from None


async def probe_level(browser: Browser, level: Level) -> None:
    """Check that a browser keeps a level: equal seeds draw alike, others do not, time stands.

    Raises:
        InfraError: if it does not.
    """
    if level is Level.LIVE or level in _kept.setdefault(browser, set()):
        return
    one, same, other = [await _draw(browser, Pinning(level, seed, _PROBE_START)) for seed in (1, 1, 2)]
    if one[1:] != same[1:] or one[1] == other[1] or one[2] == other[2]:
        raise InfraError(f"this browser ({browser.version}) does not keep the seed of level {level}")
    if level.keeps_clock and {one[0], same[0], other[0]} != {int(_PROBE_START.timestamp() * 1000)}:
        raise InfraError(f"this browser ({browser.version}) does not keep the clock of level {level}")
    _kept[browser].add(level)


async def _draw(browser: Browser, pinning: Pinning) -> list[Any]:
    context = await open_context(browser, proxy=_NO_PROXY, profile=Profile(), pinning=pinning)
    try:
        page = await context.new_page()
        drawn: list[Any] = await page.evaluate(_DRAWS)
    finally:
        await context.close()
    return drawn

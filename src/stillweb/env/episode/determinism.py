"""Probe of a browser's determinism level, and the stamp for `info` and trajectories.

The `browser` package implements the levels. Before the first episode on a browser, a probe on empty pages
checks that the browser keeps the level. If it does not, that is an error; the level is never lowered. The
stamp is `info["determinism"]` and part of every trajectory.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from playwright.async_api import Browser

from stillweb.browser.cdp.connection import has_connection
from stillweb.browser.context import open_context
from stillweb.browser.launch import draws_on_demand
from stillweb.browser.profile import BEST_LEVEL, Level, Pinning, Profile
from stillweb.errors import InfraError, ProgramNotFound, UsageError

_PROBE_START = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_NO_PROXY = "http://127.0.0.1:9"  # the discard port; an empty page sends no request
_DRAWS = "[Date.now(), Math.random(), crypto.getRandomValues(new Uint32Array(4)).join()]"

logger = logging.getLogger(__name__)

_probed: WeakKeyDictionary[Browser, set[Level]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Determinism:
    """Inputs of an episode: equal stamps and equal actions give equal observations."""

    level: Level
    seed: int
    start: datetime
    browser: str
    profile: Profile

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level.value,
            "seed": self.seed,
            "start": self.start.isoformat(),
            "browser": self.browser,
            "profile": self.profile.to_dict(),
        }


def level_of(
    name: str, *, browser: Browser | None = None, executable: Path | None = None, headless: bool = True
) -> Level:
    """Return the level with this name; "auto" is EXACT if the browser can keep it, otherwise CLOCK.

    Args:
        browser: the browser in use; otherwise the one that `launch` would start with the other arguments.

    Raises:
        UsageError: if there is no such level.
    """
    if name == BEST_LEVEL:
        return _best_level(browser, executable, headless)
    try:
        return Level(name)
    except ValueError:
        names = ", ".join([BEST_LEVEL, *(level.value for level in Level)])
        raise UsageError(f"no level {name!r}", hint=f"levels are: {names}") from None


def _best_level(browser: Browser | None, executable: Path | None, headless: bool) -> Level:
    if browser is not None:
        exact, why = has_connection(browser), "the browser was not launched for level 'exact'"
    else:
        why = "the browser is not chromium-headless-shell"
        try:
            exact = draws_on_demand(executable, headless=headless)
        except ProgramNotFound:  # the start of the browser raises it
            return Level.EXACT
    if exact:
        return Level.EXACT
    _log_fallback(why)
    return Level.CLOCK


@cache  # one line for each reason
def _log_fallback(why: str) -> None:
    logger.warning("level 'clock' is used: %s", why)


async def probe_level(browser: Browser, level: Level) -> None:
    """Check that a browser keeps a level: randomness depends on the seed only, and the clock stands still.

    Raises:
        InfraError: if it does not.
    """
    if level is Level.LIVE or level in _probed.setdefault(browser, set()):
        return
    one, same, other = [await _draw(browser, Pinning(level, seed, _PROBE_START)) for seed in (1, 1, 2)]
    if one[1:] != same[1:] or one[1] == other[1] or one[2] == other[2]:
        raise InfraError(f"this browser ({browser.version}) does not keep the seed of level {level}")
    if level.keeps_clock and {one[0], same[0], other[0]} != {int(_PROBE_START.timestamp() * 1000)}:
        raise InfraError(f"this browser ({browser.version}) does not keep the clock of level {level}")
    _probed[browser].add(level)


async def _draw(browser: Browser, pinning: Pinning) -> list[Any]:
    context = await open_context(browser, proxy=_NO_PROXY, profile=Profile(), pinning=pinning)
    try:
        page = await context.new_page()
        drawn: list[Any] = await page.evaluate(_DRAWS)
    finally:
        await context.close()
    return drawn

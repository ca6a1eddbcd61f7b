"""Perturbed episodes: other layouts and interruptions; the archive's bytes stay as they are.

    Env(url, perturb="layout=0.5,interruptions=1", perturb_seed=3)

- `layout`: size of the viewport, zoom, font and colour scheme. The profile and a style sheet of the episode
  change; the document does not.
- `interruptions`: cookie notice, newsletter, survey, chat, session notice. Each is in a shadow root beside
  the page's body, and belongs to one of the first pages of the episode. Its button removes it.

A variant is a function of kinds, strengths, seed and start page: equal arguments give equal bytes of every
observation. Its digest is in `info["perturbation"]` and in the trajectory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from stillweb import clock
from stillweb.browser.profile import Profile
from stillweb.errors import UsageError
from stillweb.options import Option, parse_list

__all__ = [
    "KINDS",
    "PERTURB",
    "EpisodeVariant",
    "Perturbation",
    "is_dismissal",
    "parse_perturbation",
    "perturbation_of",
]

KINDS = ("layout", "interruptions")
_ZOOM = 0.35  # at most, at strength 1
_RESIZED = 0.3
_FONTS = ("", "Georgia, serif", "Verdana, sans-serif", "'Courier New', monospace")
_LAST_PAGE = 3  # interruptions belong to one of the first pages of an episode

_LIBRARY: tuple[Mapping[str, Any], ...] = (
    {
        "kind": "cookies",
        "modal": False,
        "title": ("We value your privacy", "Cookies on this site"),
        "text": "This site stores cookies to remember your choices.",
        "button": ("Accept all cookies", "Reject all cookies"),
    },
    {
        "kind": "newsletter",
        "modal": True,
        "title": ("Stay in touch", "Ten per cent off your first order"),
        "text": "Leave your e-mail address and get our monthly letter.",
        "button": ("No thanks, no newsletter", "Close newsletter"),
    },
    {
        "kind": "survey",
        "modal": True,
        "title": ("How do you like this site?", "One minute for a survey?"),
        "text": "Your opinion helps to improve it.",
        "button": ("Skip survey", "Close survey"),
    },
    {
        "kind": "chat",
        "modal": False,
        "title": ("Chat with us", "Any questions?"),
        "text": "We usually reply within a minute.",
        "button": ("Close chat", "Hide chat"),
    },
    {
        "kind": "session",
        "modal": True,
        "title": ("Your session is about to end", "Are you still here?"),
        "text": "For your security you will be signed out soon.",
        "button": ("Keep session open", "Continue session"),
    },
)
_BUTTONS = frozenset(button for each in _LIBRARY for button in each["button"])


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Kinds of perturbation with their strengths, 0 to 1; 0 changes nothing."""

    layout: float = 0.0
    interruptions: float = 0.0

    def __post_init__(self) -> None:
        """Raise UsageError for a strength out of range."""
        for kind in KINDS:
            if not 0 <= getattr(self, kind) <= 1:
                raise UsageError(f"the strength of {kind} must be 0 to 1, not {getattr(self, kind)}")

    def variant(self, seed: int, start_url: str) -> EpisodeVariant:
        """Return what happens in the episodes of a seed that begin at a page."""
        rng = clock.seeded("perturb", seed, start_url)
        zoom = width = height = 0.0
        font = scheme = ""
        if self.layout:
            zoom = round(rng.uniform(-_ZOOM, _ZOOM) * self.layout, 3)
            width, height = (round(rng.uniform(-_RESIZED, _RESIZED) * self.layout, 3) for _ in range(2))
            font = rng.choice(_FONTS[1:]) if rng.random() < self.layout else ""
            scheme = "dark" if rng.random() < self.layout / 2 else ""
        shown = []
        if self.interruptions:
            count = max(1, round(self.interruptions * len(_LIBRARY)))
            for each in rng.sample(_LIBRARY, count):
                drawn = {part: rng.choice(each[part]) for part in ("title", "button")}
                shown.append({**each, **drawn, "page": rng.randint(1, _LAST_PAGE)})
        return EpisodeVariant(zoom, width, height, font, scheme, tuple(shown))


@dataclass(frozen=True, slots=True)
class EpisodeVariant:
    """A perturbation with everything drawn.

    Attributes:
        zoom, width, height: relative change of the page's zoom and of the viewport.
        interruptions: what is shown, and on which page of the episode.
    """

    zoom: float = 0.0
    width: float = 0.0
    height: float = 0.0
    font: str = ""
    color_scheme: str = ""
    interruptions: tuple[Mapping[str, Any], ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the variant, in hex."""
        return hashlib.sha256(self._json().encode()).hexdigest()

    def _json(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    def profile(self, profile: Profile) -> Profile:
        """Return a profile with the variant's viewport and colour scheme."""
        width, height = profile.viewport
        viewport = (round(width * (1 + self.width)), round(height * (1 + self.height)))
        scheme: Any = self.color_scheme or profile.color_scheme
        return replace(profile, viewport=viewport, color_scheme=scheme)

    @property
    def script(self) -> str:
        """Script that runs first in every document of the episode; "" if it has nothing to do."""
        if not (self.zoom or self.font or self.interruptions):
            return ""
        return f"({_source()})({self._json()});"


@cache
def _source() -> str:
    return resources.files(__package__).joinpath("perturbation.js").read_text("utf-8").strip()


def is_dismissal(role: str, name: str) -> bool:
    """Return whether a control is the button of an interruption."""
    return role == "button" and name in _BUTTONS


def parse_perturbation(text: str) -> Perturbation:
    """Read kinds with strengths, such as `layout=0.5,interruptions`; without a strength it is 1."""
    found: dict[str, float] = {}
    for part in parse_list(text):
        kind, _, strength = part.partition("=")
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of perturbation: {', '.join(KINDS)}")
        try:
            found[kind] = float(strength or 1)
        except ValueError:
            raise ValueError(f"{part!r}: the strength is a number from 0 to 1") from None
        if not 0 <= found[kind] <= 1:
            raise ValueError(f"{part!r}: the strength is a number from 0 to 1")
    return Perturbation(**found)


def perturbation_of(text: str) -> Perturbation:
    """Read a perturbation from code.

    Raises:
        UsageError: for an unknown kind, or a strength out of range.
    """
    try:
        return parse_perturbation(text)
    except ValueError as error:
        raise UsageError(str(error), hint='such as perturb="layout=0.5,interruptions"') from error


PERTURB = Option(
    "Perturb episodes: layout, interruptions, each with a strength from 0 to 1 (docs/how-to/perturb.md).",
    metavar="KIND=STRENGTH,...",
    parse=parse_perturbation,
)
"""The option of a field that holds a `Perturbation`."""

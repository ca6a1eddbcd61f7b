"""What Gymnasium is told of observations and actions: texts of any characters, and pictures as pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from stillweb.env.vector import VectorOptions
from stillweb.errors import ExtraNotInstalled, UsageError

try:
    import numpy as np
    from gymnasium import spaces
except ImportError as missing:
    raise ExtraNotInstalled("Gymnasium is not installed", hint="pip install 'stillweb[gym]'") from missing

__all__ = ["ALWAYS", "PICTURES", "AnyText", "GymOptions", "blank", "observation_space", "pixels"]

ALWAYS = ("goal", "url", "title", "last_action_error")
PICTURES = ("screenshot", "som")

_TEXT_LENGTH = 100_000_000
_PRINTABLE = frozenset(map(chr, range(32, 127)))


class AnyText(spaces.Text):
    """Texts of any characters, as web pages have them; samples are drawn from printable ASCII."""

    def __init__(self, max_length: int = _TEXT_LENGTH, *, seed: Any = None) -> None:
        super().__init__(max_length, min_length=0, charset=_PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether it is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, *args: Any, **named: Any) -> str:
        """Return a short text: those of the greatest length are megabytes."""
        length = int(self.np_random.integers(0, min(self.max_length, 64) + 1))
        return (
            super().sample(mask=(length, None)) if not args and not named else super().sample(*args, **named)
        )

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


@dataclass(frozen=True, slots=True)
class GymOptions:
    """What seldom needs saying.

    Attributes:
        collection: see `VectorEnv`.
        level: see `VectorEnv`.
        observe: what observations hold beside goal, address, title and the last action's error.
        viewport: width and height of pictures, in pixels; those of the collection's profile.
        infra: what an infra failure does, see above.
        attempts: of a reset before it fails.
        vector: see `VectorEnv`.
    """

    collection: str | None = None
    level: str = "clock"
    observe: tuple[str, ...] = ("axtree",)
    viewport: tuple[int, int] = (1280, 720)
    infra: Literal["raise", "flag"] = "raise"
    attempts: int = 3
    vector: VectorOptions = field(default_factory=VectorOptions)


def observation_space(options: GymOptions) -> spaces.Dict:
    """Return the space of one session's observations."""
    width, height = options.viewport
    picture = spaces.Box(0, 255, (height, width, 3), np.uint8)
    return spaces.Dict(
        {name: AnyText() for name in ALWAYS}
        | {kind: picture if kind in PICTURES else AnyText() for kind in options.observe}
    )


def blank(options: GymOptions) -> dict[str, Any]:
    """Return the observation of a session that has shown nothing yet."""
    width, height = options.viewport
    picture = np.zeros((height, width, 3), np.uint8)
    return dict.fromkeys(ALWAYS, "") | {kind: picture if kind in PICTURES else "" for kind in options.observe}


def pixels(body: bytes, options: GymOptions) -> Any:
    """Return a PNG as an array of height, width and 3 colours.

    Raises:
        UsageError: if it is not of the size that the space says.
    """
    pixels = np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))
    width, height = options.viewport
    if pixels.shape != (height, width, 3):
        raise UsageError(
            f"a picture is {pixels.shape[1]}x{pixels.shape[0]}, the space has {width}x{height}",
            hint="GymOptions(viewport=...)",
        )
    return pixels.copy()

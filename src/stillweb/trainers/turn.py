"""What a reset or step gave, as adapters to trainers read it: wherever the browser runs.

A model is shown it as text, the most important first, so that a trainer that cuts texts (verl cuts at 256
characters unless told otherwise) takes from the page and not from what went wrong.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

__all__ = ["Turn", "cut", "pixels_of"]

_TEXTS = ("axtree", "dom", "compact", "markdown", "text", "html")
_CUT = "\n[... {} more characters]"


@dataclass(frozen=True, slots=True)
class Turn:
    """What a reset or step gave.

    Attributes:
        observation: as `Observation.to_dict` has it; `pictures` in it are references by SHA-256.
        reward: None after a reset.
        info: as of `Env`.
    """

    observation: Mapping[str, Any]
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Turn:
        """Return what the rollout server told."""
        names = ("observation", "reward", "terminated", "truncated", "info")
        return cls(**{name: told[name] for name in names})

    @property
    def over(self) -> bool:
        """Whether the episode has ended with it."""
        return self.terminated or self.truncated

    @property
    def goal(self) -> str:
        """What is to be achieved; a reset tells it."""
        return str(self.info.get("goal", ""))

    @property
    def pictures(self) -> tuple[str, ...]:
        """SHA-256 of the pictures in it."""
        return tuple(each["sha256"] for each in self.observation.get("pictures", {}).values())

    def text(self, *, first: Sequence[str] = (), limit: int = 0) -> str:
        """Return it as a model is shown it.

        Args:
            first: lines to begin with.
            limit: of characters; 0 for any number.
        """
        seen = self.observation
        lines = [*first]
        if error := seen.get("last_action_error"):
            lines.append(f"Error: {error}")
        if self.over:
            lines.append("The episode is over.")
        lines.append(f"Page: {seen.get('title', '')} {seen.get('url', '')}".rstrip())
        if len(seen.get("tabs", ())) > 1:
            lines += [_tab(tab) for tab in seen["tabs"]]
        pages = [seen[form] for form in _TEXTS if isinstance(seen.get(form), str)]
        return cut("\n\n".join(["\n".join(lines), *pages]), limit)


def _tab(tab: Mapping[str, Any]) -> str:
    return f"Tab {tab['index']}{' (current)' if tab['active'] else ''}: {tab['title']} {tab['url']}"


def cut(text: str, limit: int) -> str:
    """Return a text of so many characters at the most, and say in it what is missing; 0 for any number."""
    if not limit or len(text) <= limit:
        return text
    kept = max(0, limit - len(_CUT.format(len(text))))
    return (text[:kept] + _CUT.format(len(text) - kept))[:limit]


def pixels_of(picture: bytes) -> Image.Image:
    """Return a PNG as a picture of three colours."""
    return Image.open(io.BytesIO(picture)).convert("RGB")

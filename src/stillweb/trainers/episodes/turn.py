"""The result of a reset or step as adapters read it, independent of where the browser runs.

`Turn.text` puts the most important parts first: trainers that cut texts (verl cuts at 256 characters by
default) then lose a part of the page, not the error message.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from stillweb.env.observations.forms import TEXT_FORMS

_CUT = "\n[... {} more characters]"


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a reset or step.

    Attributes:
        observation: see `Observation.to_dict`; its `pictures` are references by SHA-256.
        reward: None after a reset.
        info: see `Env`.
    """

    observation: Mapping[str, Any]
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> Turn:
        """Return a response of the rollout server as a turn."""
        names = ("observation", "reward", "terminated", "truncated", "info")
        return cls(**{name: response[name] for name in names})

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    @property
    def goal(self) -> str:
        """Goal of the task; only a reset reports it."""
        return str(self.info.get("goal", ""))

    @property
    def pictures(self) -> tuple[str, ...]:
        """SHA-256 of each picture."""
        return tuple(each["sha256"] for each in self.observation.get("pictures", {}).values())

    def text(self, *, first: Sequence[str] = (), limit: int = 0) -> str:
        """Return the text that a model gets.

        Args:
            first: lines at the beginning.
            limit: maximum number of characters; 0 for no limit.
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
        pages = [seen[form] for form in TEXT_FORMS if isinstance(seen.get(form), str)]
        return cut("\n\n".join(["\n".join(lines), *pages]), limit)


def _tab(tab: Mapping[str, Any]) -> str:
    return f"Tab {tab['index']}{' (current)' if tab['active'] else ''}: {tab['title']} {tab['url']}"


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters and a note of how many are missing; 0 for no limit."""
    if not limit or len(text) <= limit:
        return text
    size = max(0, limit - len(_CUT.format(len(text))))
    return (text[:size] + _CUT.format(len(text) - size))[:limit]


def pixels_of(picture: bytes) -> Image.Image:
    return Image.open(io.BytesIO(picture)).convert("RGB")

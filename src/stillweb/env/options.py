"""What seldom needs saying about an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from stillweb.browser.profile import Profile
from stillweb.env.episode.tabs import DialogAnswers
from stillweb.env.tasks.evidence import Judge
from stillweb.errors import UsageError
from stillweb.options import Option

__all__ = ["EnvOptions"]


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """What seldom needs saying.

    Attributes:
        profile: what sites see of the browser, instead of what the collection's manifest says.
        storage_state: cookies and local storage of every episode (Playwright's format), instead of what the
            collection's manifest says; {} for none.
        executable: the browser to start; `stillweb.browser.find_browser` otherwise.
        headless: whether it has no window.
        action_seconds: an action that takes longer has failed.
        step_seconds: a reset or step that takes longer is an `InfraError`.
        har: what of the traffic is written with them: "headers", "bodies" too, or "" for nothing.
        judge: who tells whether an answer means what a reference says, for tasks that need it.
        uploads: files and folders that the action `upload` may give to pages; nothing else is.
        downloads: folder that keeps what pages offer for download, each file under its SHA-256.
        dialogs: how dialogs of pages are answered.
        ahead: how many starts are kept prepared for the next resets, at level "exact" only; each takes the
            memory of a session (docs/vector.md).
    """

    max_steps: Annotated[
        int, Option("Truncate an episode after N steps, unless its task sets a limit.", min=1)
    ] = 30
    profile: Profile | None = None
    storage_state: Mapping[str, Any] | None = None
    executable: Path | None = None
    headless: bool = True
    action_seconds: float = 10.0
    step_seconds: float = 90.0
    trajectories: Annotated[
        Path | None, Option("Folder for the trajectories, with their screenshots.", path="folder")
    ] = None
    har: Literal["", "headers", "bodies"] = "headers"
    judge: Judge | None = None
    uploads: tuple[Path, ...] = ()
    downloads: Path | None = None
    dialogs: DialogAnswers = field(default_factory=DialogAnswers)
    ahead: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: if one of them is too small, or there is no such `har`.
        """
        if self.max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {self.max_steps}")
        if min(self.action_seconds, self.step_seconds) <= 0:
            raise UsageError("action_seconds and step_seconds must be more than 0")
        if self.har not in ("", "headers", "bodies"):
            raise UsageError(f"no har {self.har!r}", hint="har is one of: headers, bodies, or empty for none")

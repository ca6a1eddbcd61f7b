"""Further options of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from stillweb.browser.profile import Profile
from stillweb.env.episode.offpath import OFF_PATH, OffPathMode
from stillweb.env.episode.perturbation import PERTURB, Perturbation
from stillweb.env.episode.tabs import DialogAnswers
from stillweb.env.tasks.evidence import Judge
from stillweb.errors import UsageError
from stillweb.matching.resolver import UnrecordedAnswers
from stillweb.options import Option


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """Further options of an `Env`.

    Attributes:
        profile: browser properties that sites see, instead of those in the collection's manifest.
        storage_state: initial cookies and local storage (Playwright's format), instead of those in the
            collection's manifest; {} for none. Its cookies do not end.
        executable: browser to start; the default is `stillweb.browser.find_browser`.
        headless: run the browser without a window.
        action_seconds: timeout of an action; after it an `InfraError` is raised.
        step_seconds: timeout of a reset or step; after it an `InfraError` is raised.
        har: traffic in the HAR beside a trajectory: "headers", "bodies" (and headers), or "" for no HAR.
        judge: function that decides whether an answer means what a reference says, for tasks that need it.
        uploads: files and folders that the action `upload` may use.
        downloads: folder for copies of downloaded files, named by their SHA-256.
        off_path: what happens when an action leads to a document that the collection does not hold
            (docs/decisions/0022-off-path.md). "stay": the navigation is cancelled, and the action has the
            status `not_recorded`. "mask": as "stay", and links to such documents are marked. "terminate": as
            "stay", and the episode is truncated. "follow": the tab shows an empty error page. None: "stay" on
            a server that supports it, otherwise "follow".
        unrecorded: answers to unrecorded requests besides misses, and those that the server allows already.
        prefetch: number of starts to prefetch for the next resets, at level "exact" only; each takes the
            memory of a session (docs/how-to/vector.md).
        perturb: changes of layout, and interruptions; None for none (docs/how-to/perturb.md).
        perturb_seed: seed of the perturbation; a variant depends on it and on the start page.
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
    off_path: Annotated[OffPathMode | None, OFF_PATH] = None
    unrecorded: UnrecordedAnswers = field(default_factory=UnrecordedAnswers)
    prefetch: int = 0
    perturb: Annotated[Perturbation | None, PERTURB] = None
    perturb_seed: Annotated[int, Option("Seed of the perturbation.")] = 0

    def __post_init__(self) -> None:
        """Raise UsageError for values out of range."""
        if self.max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {self.max_steps}")
        if min(self.action_seconds, self.step_seconds) <= 0:
            raise UsageError("action_seconds and step_seconds must be more than 0")
        if self.har not in ("", "headers", "bodies"):
            raise UsageError(f"no har {self.har!r}", hint="har is one of: headers, bodies, or empty for none")
        if self.off_path not in (None, *get_args(OffPathMode)):
            modes = ", ".join(get_args(OffPathMode))
            raise UsageError(f"no off_path {self.off_path!r}", hint=f"off_path is one of: {modes}")

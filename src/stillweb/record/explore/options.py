"""Options, progress and reports of explorations and walks, and their browser contexts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from playwright.async_api import Browser

from stillweb.browser.input.walker import Walker, walking
from stillweb.browser.profile import Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.options import Option
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import FormValues, Values
from stillweb.record.login.renewed import knowing_login
from stillweb.record.login.run import LoginSession, log_in_separately
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions
from stillweb.record.reset import SiteReset

if TYPE_CHECKING:
    from stillweb.record.proxy.running import RecordingProxy


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """How far an exploration goes, and how.

    Attributes:
        links: None for as many as `budget`.
        seconds: real time; None for no limit.
        avoid: controls that the explorer must not use.
        login: None to explore without a login.
        storage_state: cookies and local storage of every context; a login's take precedence.
        browser: the browser's executable; None to search for one.
    """

    budget: Annotated[int, Option("Take at most N actions; entering a state is one.", min=1)]
    links: Annotated[
        int | None,
        Option(
            "Record at most N more linked pages without exploring them.",
            "--explore-links",
            min=0,
            default="the budget",
        ),
    ] = None
    seconds: Annotated[
        float | None, Option("Explore for at most this many seconds.", "--explore-time", "SECONDS", min=1)
    ] = None
    values: FormValues = field(default_factory=Values)
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    alike: Annotated[
        int,
        Option(
            "Try at most N controls of one kind, such as the rows of a table, in each state.",
            "--explore-alike",
            min=1,
        ),
    ] = 3
    accept: Annotated[
        bool,
        Option("Also try controls that log out, delete, order or pay, and accept dialogs.", "--destructive"),
    ] = False
    mutations: Annotated[bool, Option("Send no form by POST.", "--read-only")] = True
    reset: SiteReset = field(default_factory=SiteReset)
    login: Login | None = None
    storage_state: Mapping[str, Any] | None = None
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(frozen=True, slots=True)
class ExploreEvent:
    """Progress of an exploration after one action."""

    description: str
    acts: int
    states: int
    waiting: int
    body_bytes: int


@dataclass(slots=True)
class ExploreReport:
    """Outcome of an exploration; the field names are those of `--json`.

    Attributes:
        acts, seconds: actions performed and duration.
        opened: links that were opened without being explored.
        exchanges, body_bytes: written by this run.
        waiting: states that were not entered.
        resets: how often the site was put back after an action that changed it.
        uncertain: browser contexts that began after another one had changed the site, and no reset.
        faults: browser failures, one line each.
        repaired: repairs after a killed recording, one line each.
    """

    acts: int = 0
    opened: int = 0
    seconds: float = 0.0
    exchanges: int = 0
    body_bytes: int = 0
    waiting: int = 0
    resets: int = 0
    uncertain: int = 0
    faults: list[str] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)
    repaired: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExplorationContext:
    """Browser, proxy and settings of an exploration."""

    browser: Browser
    recording: RecordingProxy
    profile: Profile
    pinning: Pinning
    scope: Scope
    options: ExploreOptions

    def walking(self) -> AbstractAsyncContextManager[Walker]:
        """Return a walker in a fresh browser context."""
        return walking(
            self.browser,
            proxy=self.recording.url,
            profile=self.profile,
            pinning=self.pinning,
            accept=self.options.accept,
            storage_state=self.options.storage_state,
        )


@dataclass(frozen=True, slots=True)
class WalkOptions:
    """How walks are recorded.

    Attributes:
        seconds: time limit.
        mutations: whether forms are sent by POST.
    """

    seconds: float
    jobs: int = 3
    seed: int = 0
    mutations: bool = True
    values: Values = field(default_factory=Values)
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    login: Login | None = None
    storage_state: Mapping[str, Any] | None = None
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(slots=True)
class WalkReport:
    """Totals of walks: their number, steps, and captures that were added."""

    walks: int = 0
    steps: int = 0
    exchanges: int = 0
    faults: list[str] = field(default_factory=list)


T = TypeVar("T", ExploreOptions, WalkOptions)


async def logged_in(
    collection: Collection, ca: CertAuthority, options: T, pinned: tuple[Profile, Pinning], start: str
) -> T:
    """Return the options with the storage state of their login.

    Args:
        start: page to check a storage state with, if its indicator names none.

    Raises:
        RecordError: if the login fails.
    """
    login: Login | None = options.login
    if login is None:
        return options
    session: LoginSession = await log_in_separately(
        ca, login, pinned, start, options.record, executable=options.browser
    )
    record: RecordOptions = knowing_login(options.record, collection, session)
    return replace(options, storage_state=session.state, record=record)

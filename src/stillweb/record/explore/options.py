"""Where an exploration goes, and how: the browser, the recording proxy, and the contexts between them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from stillweb.browser.input.walker import Walker, walking
from stillweb.browser.profile import Pinning, Profile
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import Values
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import RecordingProxy

__all__ = ["ExplorationContext", "ExploreEvent", "ExploreOptions", "ExploreReport"]


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """How far and how an exploration goes.

    Attributes:
        budget: acts at most; entering a state is one.
        links: addresses at most that are opened only, beside the acts; None for as many as acts.
        seconds: real time at most; None for no limit.
        values: what forms are filled with.
        avoid: controls to be left alone.
        alike: of controls of one kind that are tried in one state.
        accept: whether dialogs are accepted.
        mutations: whether to try what changes the site at all.
        login: who explores; None for nobody.
        storage_state: cookies and local storage of every context; those of the login, if there is one.
        browser: the browser's executable; None to look for one.
        record: how the sites are reached.
    """

    budget: int
    links: int | None = None
    seconds: float | None = None
    values: Values = field(default_factory=Values)
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    alike: int = 3
    accept: bool = False
    mutations: bool = True
    login: Login | None = None
    storage_state: Mapping[str, Any] | None = None
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(frozen=True, slots=True)
class ExploreEvent:
    """How far an exploration is; told after each act."""

    told: str
    acts: int
    states: int
    waiting: int
    body_bytes: int


@dataclass(slots=True)
class ExploreReport:
    """What came of an exploration.

    Attributes:
        acts, seconds: spent.
        opened: links that were opened beside, without being explored.
        exchanges, body_bytes: written by this run.
        waiting: states that it did not come to.
        faults: what the browser did not stand, one line each.
        summary: of the map.
        repaired: what a kill had left broken, one line each.
    """

    acts: int = 0
    opened: int = 0
    seconds: float = 0.0
    exchanges: int = 0
    body_bytes: int = 0
    waiting: int = 0
    faults: list[str] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)
    repaired: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExplorationContext:
    """Where an exploration goes, and how."""

    browser: Browser
    recording: RecordingProxy
    profile: Profile
    pinning: Pinning
    scope: Scope
    options: ExploreOptions

    def walking(self) -> AbstractAsyncContextManager[Walker]:
        """Return a fresh context to walk in."""
        return walking(
            self.browser,
            proxy=self.recording.url,
            profile=self.profile,
            pinning=self.pinning,
            accept=self.options.accept,
            storage_state=self.options.storage_state,
        )

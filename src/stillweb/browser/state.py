"""State of the contexts that `open_context` opened; modules of every level read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from playwright.async_api import BrowserContext

from stillweb.browser.profile import Pinning
from stillweb.errors import UsageError

if TYPE_CHECKING:
    from stillweb.browser.exact.context import ExactContext
    from stillweb.browser.shared_workers import SharedWorkers


@dataclass(slots=True)
class PinnedState:
    """State of a context that `open_context` pinned.

    Attributes:
        control: name of the event that moves the pinned clock.
        now: virtual time, in milliseconds since 1970.
        mark: name of the member that shows that a window is pinned.
        exact: controller of a context at level EXACT.
        hints: client hints of the profile's user agent (`client_hints`).
        shared_workers: of the browser, below level EXACT.
        script: runs in every document after the pinning and before the page's own scripts.
        clipboard: text that its pages copied last.
    """

    pinning: Pinning
    control: str
    now: int
    mark: str = ""
    exact: ExactContext | None = None
    hints: Mapping[str, Any] | None = None
    shared_workers: SharedWorkers | None = None
    script: str = ""
    clipboard: str = ""


states: WeakKeyDictionary[BrowserContext, PinnedState] = WeakKeyDictionary()


def state_of(context: BrowserContext) -> PinnedState:
    """Return pinning, clock and level-specific parts of a context that `open_context` opened.

    Raises:
        UsageError: if `open_context` did not open it.
    """
    try:
        return states[context]
    except KeyError:
        raise UsageError("this browser context was not opened by stillweb.browser.open_context") from None

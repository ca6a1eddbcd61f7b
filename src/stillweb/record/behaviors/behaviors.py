"""Behaviors of a recording: actions on a page after its baseline, so that an agent's clicks find responses.

They scroll growing lists, open menus, disclosures and tabs, play media, and fetch what the page would load on
another screen. Each behavior has a budget of counts first and of seconds second, so that the page rather than
the machine's load decides what is recorded. No behavior leaves the page or sends a form: `navigation_blocked`
prevents it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.activity import Activity
from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.input.elements import ActionFailed
from stillweb.browser.settle import settle
from stillweb.clock import monotonic
from stillweb.errors import InfraError
from stillweb.record.behaviors.options import BehaviorOptions

FRAME_TIMEOUT = 5.0
"""Seconds for one script in one frame, which may be busy."""

_SETTLE_CAP = 10.0  # real seconds for settling after one action
_GRACE = 5.0  # real seconds beyond its budget for a behavior that rarely checks the time


class BehaviorReport:
    """Counts of the behaviors on one page.

    Attributes:
        counts: by behavior and effect.
        cut: behaviors that the budget ended.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self.cut: list[str] = []

    def count(self, behavior: str, what: str, number: int = 1) -> None:
        if number:
            counted = self.counts.setdefault(behavior, {})
            counted[what] = counted.get(what, 0) + number

    def cut_off(self, behavior: str) -> None:
        """Note that the budget ended a behavior."""
        if behavior not in self.cut:
            self.cut.append(behavior)

    def to_dict(self) -> dict[str, Any]:
        """Return all counts; {} if nothing was done."""
        return {**self.counts, **({"cut": self.cut} if self.cut else {})}


def describe_actions(report: Mapping[str, Any]) -> str:
    """Return the counts as one line for the page list."""
    parts = []
    for behavior, counted in report.items():
        if isinstance(counted, Mapping):
            counted = [f"{number} {what}" for what, number in counted.items()]
        parts.append(f"{behavior}: {', '.join(counted)}")
    return "; ".join(parts)


def total(entries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the sums over several pages; `cut` counts the pages on which the budget ended each behavior."""
    report = BehaviorReport()
    for entry in entries:
        for behavior, counted in entry.items():
            for what in counted:
                report.count(behavior, what, counted[what] if isinstance(counted, dict) else 1)
    return report.counts


class BehaviorTarget:
    """A page with its probe, budget and counts.

    Args:
        page, activity: of a context opened by `open_context`.
        probe: probe of the page.
        options: behaviors and budget.
        gather: called when the page may show new links.
        seconds: time for all behaviors.
    """

    def __init__(
        self,
        page: Page,
        probe: PageProbe,
        activity: Activity,
        options: BehaviorOptions,
        gather: Callable[[], Awaitable[None]],
        *,
        seconds: float,
    ) -> None:
        self.page = page
        self.probe = probe
        self.activity = activity
        self.wanted = options.wanted
        self.budget = options.budget
        self.fetched = options.fetched
        self.gather = gather
        self.report = BehaviorReport()
        self._end = monotonic() + seconds
        self._deadline = 0.0

    def has_time(self) -> bool:
        """Return True if the running behavior has time left."""
        return monotonic() < self._deadline

    @property
    def time_left(self) -> float:
        """Seconds that the running behavior has left."""
        return max(0.0, self._deadline - monotonic())

    async def settle(self) -> None:
        """Wait until the page settles, and collect its links."""
        await settle(self.page, self.activity, cap=_SETTLE_CAP)
        await self.gather()

    async def evaluate(self, expression: str, frame: FrameInfo, timeout: float = FRAME_TIMEOUT) -> Any:
        """Return the value of a `behaviours*.js` expression in a frame; None without a response."""
        with suppress(FrameGone, TimeoutError):
            async with asyncio.timeout(timeout):
                return await self.probe.evaluate(f"{_scripts()}{expression}", frame)
        return None

    async def evaluate_nodes(self, expression: str, frame: FrameInfo) -> tuple[str, list[int]]:
        """Return the text and the nodes that an expression finds in a frame.

        Raises:
            FrameGone: if the frame no longer exists.
            TimeoutError: if it does not respond.
        """
        async with asyncio.timeout(FRAME_TIMEOUT):
            return await self.probe.evaluate_nodes(f"{_scripts()}{expression}", frame)

    async def evaluate_all(
        self, expression: str, timeout: float = FRAME_TIMEOUT
    ) -> list[tuple[FrameInfo, Any]]:
        """Return the value of an expression in each frame that responds."""
        frames = await self.probe.frames()
        values = await asyncio.gather(*(self.evaluate(expression, frame, timeout) for frame in frames))
        return [(frame, each) for frame, each in zip(frames, values, strict=True) if each is not None]

    async def run_behavior(self, behavior: str, action: Callable[[BehaviorTarget], Awaitable[None]]) -> None:
        """Run one behavior within its time; a page that prevents it does not fail the visit.

        Raises:
            InfraError: if browser or machine made a request of the page fail.
        """
        self._deadline = min(self._end, monotonic() + self.budget.seconds)
        if not self.has_time():
            return self.report.cut_off(behavior)
        try:
            async with asyncio.timeout(self.time_left + _GRACE):
                await action(self)
        except TimeoutError:
            self.report.cut_off(behavior)
        except (FrameGone, ActionFailed):
            self.report.count(behavior, "broke off")
        except (InfraError, PlaywrightError):
            if self.activity.broken or self.page.is_closed():
                raise
            self.report.count(behavior, "broke off")
        return None


@cache
def _scripts() -> str:
    """Return the scripts that define `behaviours` and `variants` in an isolated world."""
    folder = resources.files("stillweb.browser").joinpath("js")
    return "".join(
        folder.joinpath(name).read_text("utf-8") for name in ("behaviours.js", "behaviours_variants.js")
    )

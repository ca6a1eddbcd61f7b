"""What a recording does with a page after its baseline was taken, so that a visitor's clicks find answers.

Scrolling through lists that grow, opening menus, disclosures and tabs, playing media, and fetching
what the page would load on another screen. Each behaviour has a budget, counted first and timed second,
so that as a rule not the machine's load but the page decides what is recorded. None of them leaves
the page or sends a form: `behaviours_guard` stops what would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Annotated, Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.activity import Activity
from stillweb.browser.cdp.session import FrameGone, FrameInfo, PageProbe
from stillweb.browser.input.elements import ActionFailed
from stillweb.browser.settle import settle
from stillweb.clock import monotonic
from stillweb.errors import InfraError, UsageError
from stillweb.options import Option

FRAME_PATIENCE = 5.0
"""Seconds for one script in one frame, which may be busy."""

_CAP = 10.0  # real seconds for settling after one deed
_GRACE = 5.0  # real seconds beyond its own for a behaviour that looks at the clock too seldom


class Behavior(StrEnum):
    """What may be done with a page."""

    SCROLL = "scroll"
    MENUS = "menus"
    DETAILS = "details"
    TABS = "tabs"
    MEDIA = "media"
    VARIANTS = "variants"


ALL = frozenset(Behavior)


def parse_behaviours(text: str) -> frozenset[Behavior]:
    """Return the behaviours that a list with commas names; `all` and `none` are words for the ends.

    Raises:
        UsageError: if there is no such behaviour.
    """
    if text.strip() in ("all", "none"):
        return ALL if text.strip() == "all" else frozenset()
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in set(Behavior)]
    if unknown:
        raise UsageError(
            f"there is no behaviour {unknown[0]!r}",
            hint=f"--behaviours takes all, none, or some of {','.join(Behavior)}",
        )
    return frozenset(Behavior(name) for name in names)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be done with one page.

    Attributes:
        controls: of each kind opened at most.
        variants: of images, fonts and sheets fetched at most.
    """

    screens: Annotated[int, Option("Scroll at most N screens of one page.", "--scroll-screens", min=1)] = 50
    controls: int = 30
    variants: int = 200
    seconds: Annotated[
        float,
        Option("Real seconds for each behaviour on one page.", "--behaviour-seconds", "SECONDS", min=1),
    ] = 30.0


@dataclass(frozen=True, slots=True)
class BehaviorOptions:
    """What a crawl does with all its pages.

    Attributes:
        wanted: which behaviours.
        budget: of each page.
        fetched: variants that were fetched on earlier pages, in wire spelling: once a crawl is enough.
    """

    wanted: frozenset[Behavior] = ALL
    budget: Budget = Budget()
    fetched: set[str] = field(default_factory=set)


class BehaviorReport:
    """What was done with a page.

    Attributes:
        counts: by behaviour, and by what it did.
        cut: behaviours that the budget ended.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self.cut: list[str] = []

    def count(self, behaviour: str, what: str, number: int = 1) -> None:
        """Count something that was done."""
        if number:
            counted = self.counts.setdefault(behaviour, {})
            counted[what] = counted.get(what, 0) + number

    def cut_off(self, behaviour: str) -> None:
        """Remember that a behaviour was not through when its budget was used up."""
        if behaviour not in self.cut:
            self.cut.append(behaviour)

    def to_dict(self) -> dict[str, Any]:
        """Return all that was counted; {} if nothing was done."""
        return {**self.counts, **({"cut": self.cut} if self.cut else {})}


def in_words(deeds: Mapping[str, Any]) -> str:
    """Return what was done with a page in one line, as its entry in the list of pages says it."""
    said = []
    for behaviour, counted in deeds.items():
        if isinstance(counted, Mapping):
            counted = [f"{number} {what}" for what, number in counted.items()]
        said.append(f"{behaviour}: {', '.join(counted)}")
    return "; ".join(said)


def total(entries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the sums over the entries of several pages; under `cut`, on how many each behaviour was."""
    deeds = BehaviorReport()
    for entry in entries:
        for behaviour, counted in entry.items():
            for what in counted:
                deeds.count(behaviour, what, counted[what] if isinstance(counted, dict) else 1)
    return deeds.counts


class BehaviorTarget:
    """A page on which something is done.

    Args:
        page, activity: of a context opened by `open_context`.
        probe: of the page.
        conduct: what is wanted.
        gather: called when the page may show something new, for its links.
        seconds: that all of it may take.
    """

    def __init__(
        self,
        page: Page,
        probe: PageProbe,
        activity: Activity,
        conduct: BehaviorOptions,
        gather: Callable[[], Awaitable[None]],
        *,
        seconds: float,
    ) -> None:
        self.page = page
        self.probe = probe
        self.activity = activity
        self.wanted = conduct.wanted
        self.budget = conduct.budget
        self.fetched = conduct.fetched
        self.gather = gather
        self.deeds = BehaviorReport()
        self._end = monotonic() + seconds
        self._deadline = 0.0

    def in_time(self) -> bool:
        """Whether the behaviour under way has time left."""
        return monotonic() < self._deadline

    @property
    def time_left(self) -> float:
        """Seconds that the behaviour under way has left."""
        return max(0.0, self._deadline - monotonic())

    async def settle(self) -> None:
        """Let the page come to rest, and look for links."""
        await settle(self.page, self.activity, cap=_CAP)
        await self.gather()

    async def ask(self, expression: str, frame: FrameInfo, patience: float = FRAME_PATIENCE) -> Any:
        """Return what a script of `behaviours*.js` says in a frame; None if that does not answer."""
        with suppress(FrameGone, TimeoutError):
            async with asyncio.timeout(patience):
                return await self.probe.evaluate(f"{_scripts()}{expression}", frame)
        return None

    async def ask_nodes(self, expression: str, frame: FrameInfo) -> tuple[str, list[int]]:
        """Return the text and the nodes that a script finds in a frame.

        Raises:
            FrameGone: if the frame is.
            TimeoutError: if it does not answer.
        """
        async with asyncio.timeout(FRAME_PATIENCE):
            return await self.probe.evaluate_nodes(f"{_scripts()}{expression}", frame)

    async def ask_all(self, expression: str, patience: float = FRAME_PATIENCE) -> list[tuple[FrameInfo, Any]]:
        """Return what a script says in each frame that answers."""
        frames = await self.probe.frames()
        told = await asyncio.gather(*(self.ask(expression, frame, patience) for frame in frames))
        return [(frame, each) for frame, each in zip(frames, told, strict=True) if each is not None]

    async def go(self, behaviour: str, deed: Callable[[BehaviorTarget], Awaitable[None]]) -> None:
        """Do one thing, within its time. A page that does not let it happen is no failure of the visit.

        Raises:
            InfraError: if browser or machine failed a request of the page.
        """
        self._deadline = min(self._end, monotonic() + self.budget.seconds)
        if not self.in_time():
            return self.deeds.cut_off(behaviour)
        try:
            async with asyncio.timeout(self.time_left + _GRACE):
                await deed(self)
        except TimeoutError:
            self.deeds.cut_off(behaviour)
        except (FrameGone, ActionFailed):
            self.deeds.count(behaviour, "broke off")
        except (InfraError, PlaywrightError):
            if self.activity.broken or self.page.is_closed():
                raise
            self.deeds.count(behaviour, "broke off")
        return None


@cache
def _scripts() -> str:
    """Return what makes `behaviours` and `variants` known in a world where they are not."""
    folder = resources.files("stillweb.browser").joinpath("js")
    return "".join(
        folder.joinpath(name).read_text("utf-8") for name in ("behaviours.js", "behaviours_variants.js")
    )

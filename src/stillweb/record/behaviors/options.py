"""Kinds and bounds of the behaviors of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from stillweb.errors import UsageError
from stillweb.options import Option


class Behavior(StrEnum):
    """A kind of action on a page."""

    SCROLL = "scroll"
    MENUS = "menus"
    DETAILS = "details"
    TABS = "tabs"
    MEDIA = "media"
    VARIANTS = "variants"


ALL = frozenset(Behavior)


def parse_behaviors(text: str) -> frozenset[Behavior]:
    """Parse a comma-separated list of behaviors, `all` or `none`.

    Raises:
        UsageError: if a name is unknown.
    """
    if text.strip() in ("all", "none"):
        return ALL if text.strip() == "all" else frozenset()
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in set(Behavior)]
    if unknown:
        raise UsageError(
            f"unknown behavior {unknown[0]!r}",
            hint=f"--behaviors takes all, none, or some of {','.join(Behavior)}",
        )
    return frozenset(Behavior(name) for name in names)


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of the behaviors on one page.

    Attributes:
        variants: maximum number of images, fonts and style sheets fetched.
    """

    screens: Annotated[int, Option("Scroll at most N screens of one page.", "--scroll-screens", min=1)] = 50
    controls: int = 30
    variants: int = 200
    seconds: Annotated[
        float,
        Option("Real seconds for each behavior on one page.", "--behavior-seconds", "SECONDS", min=1),
    ] = 30.0


@dataclass(frozen=True, slots=True)
class BehaviorOptions:
    """Behaviors of a crawl.

    Attributes:
        budget: bounds for each page.
        fetched: variants fetched on earlier pages, in wire spelling; each is fetched once per crawl.
    """

    wanted: frozenset[Behavior] = ALL
    budget: Budget = Budget()
    fetched: set[str] = field(default_factory=set)

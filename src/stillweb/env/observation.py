"""What an agent sees after a step.

Nothing is computed that was not asked for (`observe=`): a screenshot costs more than the
step, a tree more than an address. Everything that was computed has its SHA-256 in `digests`,
so that two episodes are compared by a few bytes and a trajectory can refer to pictures it
does not carry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from playwright.async_api import Page

from stillweb.browser.axtree import AxNode, Bids, axtree
from stillweb.browser.observe import page_html, page_text, screenshot
from stillweb.browser.probe import well_formed
from stillweb.errors import UsageError

__all__ = ["Observation", "Observe", "Tab", "observe_kinds", "take_observation"]


class Observe(StrEnum):
    """What can be observed of the active page."""

    AXTREE = "axtree"  # the accessibility tree as text, with bids, and its nodes
    TEXT = "text"  # what is visible, as text
    HTML = "html"  # the document as it is now
    SCREENSHOT = "screenshot"  # the viewport as PNG


@dataclass(frozen=True, slots=True)
class Tab:
    """An open tab."""

    index: int
    url: str
    title: str
    active: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"index": self.index, "url": self.url, "title": self.title, "active": self.active}


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the active page, as far as it was asked for; what was not is None.

    Attributes:
        nodes: of the accessibility tree, in its order; empty where it was not asked for.
        digests: SHA-256 in hex of each part computed, by its name.
        last_action_error: "" if the last action went well.
    """

    url: str
    title: str
    tabs: tuple[Tab, ...]
    axtree: str | None = None
    nodes: tuple[AxNode, ...] = field(default=(), repr=False)
    text: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    screenshot: bytes | None = field(default=None, repr=False)
    digests: dict[str, str] = field(default_factory=dict)
    last_action_error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what is text of it as JSON, for models and trajectories."""
        return {
            "url": self.url,
            "title": self.title,
            "tabs": [
                {"index": tab.index, "url": tab.url, "title": tab.title, "active": tab.active}
                for tab in self.tabs
            ],
            **{
                kind: value
                for kind, value in (("axtree", self.axtree), ("text", self.text), ("html", self.html))
                if value is not None
            },
            "digests": self.digests,
            "last_action_error": self.last_action_error,
        }


def observe_kinds(names: Collection[str]) -> tuple[Observe, ...]:
    """Return the kinds of these names, in the order in which they are computed.

    Raises:
        UsageError: naming those that there are not.
    """
    known = {kind.value for kind in Observe}
    if unknown := sorted(set(names) - known):
        raise UsageError(
            f"nothing called {', '.join(unknown)} can be observed",
            hint=f"observe any of: {', '.join(sorted(known))}",
        )
    return tuple(kind for kind in Observe if kind in set(names))


async def take_observation(
    pages: Sequence[Page], active: Page, bids: Bids, kinds: Sequence[Observe], error: str = ""
) -> Observation:
    """Observe the active page."""
    tabs = [
        Tab(index, page.url, well_formed(await page.title()), page is active)
        for index, page in enumerate(pages)
    ]
    parts: dict[str, Any] = {}
    bodies: dict[str, bytes] = {}
    for kind in kinds:
        if kind is Observe.AXTREE:
            tree = await axtree(active, bids)
            parts |= {"axtree": tree.text, "nodes": tree.nodes}
            bodies[kind] = tree.text.encode()
        elif kind is Observe.SCREENSHOT:
            parts["screenshot"] = bodies[kind] = await screenshot(active)
        else:
            parts[kind] = await (page_text if kind is Observe.TEXT else page_html)(active)
            bodies[kind] = parts[kind].encode()
    return Observation(
        url=active.url,
        title=next((tab.title for tab in tabs if tab.active), ""),
        tabs=tuple(tabs),
        digests={str(kind): hashlib.sha256(body).hexdigest() for kind, body in bodies.items()},
        last_action_error=error,
        **{str(name): value for name, value in parts.items()},
    )

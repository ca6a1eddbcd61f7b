"""Which forms of a page can be observed, and how they are asked for.

A form is asked for by its name, with options behind a colon: `axtree`, `axtree:viewport,with_visible`,
`screenshot:page`. Unless said otherwise texts are of the whole page and pictures of the viewport, as in
BrowserGym. How each looks and what it costs is in docs/observations.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum

from stillweb.browser.axtext import AxOptions
from stillweb.errors import UsageError

__all__ = ["Form", "Observe", "observe_kinds"]


class Observe(StrEnum):
    """What can be observed of the active page."""

    AXTREE = "axtree"  # the accessibility tree as text, with bids, and its nodes
    DOM = "dom"  # the distilled DOM, with bids
    COMPACT = "compact"  # few words, elements by names that mean something
    MARKDOWN = "markdown"  # to be read, with links
    TEXT = "text"  # what is visible, as text
    HTML = "html"  # the document as it is now
    ELEMENTS = "elements"  # what can be acted on: bid, role, name, box, visibility
    SCREENSHOT = "screenshot"  # a picture as PNG
    SOM = "som"  # the picture with numbered boxes, and the bid of each
    COORDS = "coords"  # the picture, its size, and where the elements are in it


_PICTURES = (Observe.SCREENSHOT, Observe.SOM, Observe.COORDS)
_WHOLE_ONLY = (Observe.HTML,)
_AX_OPTIONS = tuple(each.name for each in fields(AxOptions))


@dataclass(frozen=True, slots=True)
class Form:
    """A form as it was asked for.

    Attributes:
        kind: which.
        viewport: whether it shows only what can be seen without scrolling.
        ax: what the accessibility tree's lines say besides.
    """

    kind: Observe
    viewport: bool
    ax: AxOptions = field(default_factory=AxOptions)

    @property
    def value(self) -> str:
        """How it is asked for."""
        options = [name for name in _AX_OPTIONS if getattr(self.ax, name)]
        if self.viewport != (self.kind in _PICTURES):
            options.insert(0, "viewport" if self.viewport else "page")
        return f"{self.kind}:{','.join(options)}" if options else str(self.kind)


def observe_kinds(names: Collection[str]) -> tuple[Form, ...]:
    """Return the forms of these names, in the order in which they are computed.

    Raises:
        UsageError: naming those that there are not, or that were asked for twice.
    """
    asked: dict[Observe, Form] = {}
    unknown = sorted({name for name in names if name.partition(":")[0] not in set(Observe)})
    if unknown:
        raise UsageError(
            f"nothing called {', '.join(unknown)} can be observed",
            hint=f"observe any of: {', '.join(sorted(Observe))}",
        )
    for name in dict.fromkeys(names):
        form = _form(name)
        if form.kind in asked:
            raise UsageError(f"{form.kind} is asked for twice: {asked[form.kind].value} and {form.value}")
        asked[form.kind] = form
    return tuple(asked[kind] for kind in Observe if kind in asked)


def _form(name: str) -> Form:
    word, _, said = name.partition(":")
    kind = Observe(word)
    options = [option.strip() for option in said.split(",") if option.strip()]
    known = set(_known(kind))
    if unknown := [option for option in options if option not in known]:
        raise UsageError(
            f"{kind} has no option {', '.join(unknown)}",
            hint=f"it has: {', '.join(_known(kind))}" if known else "it has none",
        )
    if "viewport" in options and "page" in options:
        raise UsageError(f"{name}: either the viewport or the whole page")
    viewport = kind in _PICTURES
    if "viewport" in options or "page" in options:
        viewport = "viewport" in options
    return Form(kind, viewport, AxOptions(**{option: True for option in options if option in _AX_OPTIONS}))


def _known(kind: Observe) -> Iterator[str]:
    if kind not in _WHOLE_ONLY:
        yield from ("viewport", "page")
    if kind is Observe.AXTREE:
        yield from _AX_OPTIONS

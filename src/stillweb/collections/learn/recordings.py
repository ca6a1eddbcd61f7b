"""Recordings of one form with several values: the input of its proof (`proof`)."""

from __future__ import annotations

from dataclasses import dataclass

from stillweb.matching.derived.domain import Kind
from stillweb.model import Exchange
from stillweb.urls import from_timestamp

WRITE, SHOWN, AGAIN, REDIRECT, AFTER = "write", "shown", "again", "redirect", "after"
"""Labels of a form's own request, of the page that its redirects lead to, its reload, redirects, and of what
its page requests afterwards without being loaded again."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One exchange of a branch; steps of equal labels correspond in all recordings of a form."""

    label: str
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class RecordedBranch:
    """One recording of a form: the values sent, and what the site answered from then on.

    Attributes:
        opened: exchanges before the write, if a script sent it.
    """

    values: tuple[str, ...]
    steps: tuple[RecordedStep, ...]
    opened: tuple[Exchange, ...] = ()

    @property
    def written(self) -> float:
        """When the form was sent, in seconds since 1970."""
        return from_timestamp(self.steps[0].exchange.timestamp).timestamp()


@dataclass(frozen=True, slots=True)
class FormRecordings:
    """The recordings of one form.

    Attributes:
        name: identifies the form in a collection.
        fields: names and kinds of its free fields.
        searches: whether it is sent by GET.
        branches: the first; the same values again, recorded last; then others.
        untouched: two recordings of the same pages without the write, by label.
        after: names of the forms that each recording sent before this one.
        own: number of the first field of this form; those before, and their values, belong to `after`.
        opened: GET requests of the first recording before the form was sent.
        wandered: the pages behind the form once more, after all of them were visited.
    """

    name: str
    page: str
    fields: tuple[tuple[str, Kind], ...]
    searches: bool
    branches: tuple[RecordedBranch, ...]
    untouched: tuple[tuple[RecordedStep, ...], tuple[RecordedStep, ...]] = ((), ())
    after: tuple[str, ...] = ()
    own: int = 0
    opened: tuple[Exchange, ...] = ()
    wandered: tuple[RecordedStep, ...] = ()

"""A command with more options than a reader takes in at once: its help shows them by what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

__all__ = ["Sectioned"]


class Sectioned(click.Command):
    """A command whose options stand in sections.

    Args:
        sections: by title the names of its parameters, in order; what none names comes first, as "Options".
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with a heading of its own."""
        told = {
            each.name: each.get_help_record(ctx)
            for each in self.get_params(ctx)
            if isinstance(each, click.Option)
        }
        named = {name for names in self.sections.values() for name in names}
        rest = [name for name in told if name not in named]
        for title, names in {"Options": rest, **self.sections}.items():
            if lines := [line for name in names if (line := told[name])]:
                with formatter.section(title):
                    formatter.write_dl(lines)

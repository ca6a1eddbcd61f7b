"""CSRF tokens of forms, as an exploration learns them: every fresh context is given another. Pure.

A form that is posted in replay carries the token of whichever recording of its page was shown, seldom the one
that was posted when it was recorded. That it varies by itself is seen where one page, entered twice in fresh
contexts, holds two values under a name that frameworks give such tokens; nobody can have meant that value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stillweb.browser.controls import State
from stillweb.collections.doubts import is_csrf
from stillweb.collections.parts import Where
from stillweb.collections.rules import Origin, Rule
from stillweb.collections.shapes import fits, shape_of

__all__ = ["Tokens"]

_POST = "POST"


@dataclass(slots=True)
class Tokens:
    """Hidden values of forms, by host and name."""

    _seen: dict[tuple[str, str], dict[str, set[str]]] = field(default_factory=dict)

    def see(self, state: State) -> None:
        """Look at the forms of a state that was entered in a fresh context."""
        for control in state.controls:
            form = control.field.form if control.field else None
            if form is None or form.method != _POST.lower():
                continue
            for name, value in form.hidden:
                if is_csrf(Where.FORM, name, _POST) and fits("token", value):
                    pages = self._seen.setdefault((urlsplit(form.action).hostname or "", name), {})
                    pages.setdefault(state.url, set()).add(value)

    def rules(self) -> tuple[Rule, ...]:
        """Return a rule for each token that was another in another context of the same page."""
        found = []
        for (host, name), pages in sorted(self._seen.items()):
            values = sorted({value for told in pages.values() for value in told})
            page = next((url for url, told in pages.items() if len(told) > 1), "")
            if page and host:
                evidence = f"explored: {len(values)} values, of them several on {page}"
                shape = shape_of(values)
                found += [
                    Rule(where, name, shape, host, method=_POST, origin=Origin.LEARNED, evidence=evidence)
                    for where in (Where.FORM, Where.MULTIPART)
                ]
        return tuple(found)

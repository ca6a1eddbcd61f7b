"""CSRF tokens of forms: hidden values that differ between two visits of the same page."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stillweb.browser.input.controls import PageState
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.matching.parts import Where, is_csrf
from stillweb.matching.rules import Rule, RuleOrigin
from stillweb.matching.values import fits, shape_of
from stillweb.model import Response

_POST = "POST"


_ISSUED = re.compile(r"csrf|xsrf|token|nonce|session", re.IGNORECASE)
_NOT_ISSUED = frozenset(("set-cookie", "authorization"))
ISSUING = (400, 401, 403, 409, 419)
"""Statuses of a refusal that may have the token of the next attempt in a field of its own."""


def is_issued(name: str) -> bool:
    """Return whether a field of an answer is named like a token."""
    return bool(_ISSUED.search(name)) and name.lower() not in _NOT_ISSUED


def issues_token(response: Response) -> bool:
    """Return whether a refusal has the token of the next attempt: it is not the answer to the request."""
    return response.status in ISSUING and any(is_issued(name) for name, _ in response.headers)


@dataclass(slots=True)
class CsrfTokens:
    """Hidden values of POST forms, by host and name."""

    _seen: dict[tuple[str, str], dict[str, set[str]]] = field(default_factory=dict)

    def observe(self, state: PageState) -> None:
        """Collect the hidden values of a state that was entered in a fresh context."""
        for control in state.controls:
            form = control.field.form if control.field else None
            if form is None or form.method != _POST.lower():
                continue
            for name, value in form.hidden:
                self.add(state.url, form.action, name, value)

    def add(self, page: str, action: str, name: str, value: str) -> None:
        """Collect a hidden field of a POST form, as a page had it in a fresh visit."""
        if is_csrf(Where.FORM, name, _POST) and fits("token", value):
            pages = self._seen.setdefault((urlsplit(action).hostname or "", name), {})
            pages.setdefault(page, set()).add(value)

    def rules(self) -> tuple[Rule, ...]:
        """Return a rule for each token that differed between two contexts of the same page."""
        found = []
        for (host, name), pages in sorted(self._seen.items()):
            values = sorted({value for seen in pages.values() for value in seen})
            page = next((url for url, seen in pages.items() if len(seen) > 1), "")
            if page and host:
                evidence = f"explored: {len(values)} values, several of them on {page}"
                shape = shape_of(values)
                found += [
                    Rule(where, name, shape, host, method=_POST, origin=RuleOrigin.LEARNED, evidence=evidence)
                    for where in (Where.FORM, Where.MULTIPART)
                ]
        return tuple(found)

    def write_rules(self, collection: Collection) -> None:
        """Add the rules to those of a collection."""
        if found := self.rules():
            write_rules(collection, merge(read_rules(collection), LearnResult(rules=found)))

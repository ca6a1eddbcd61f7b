"""Tokens of forms, as the site gives them out now: what a replayed page sends is the recording's.

A site refuses a token that it gave to another session. What is missed with such a token is sent with that of
the page that it came from, loaded anew: from the hidden fields of its forms, its `meta` elements, and its
cookies. Which places hold tokens is said by the collection's rules, and by the names that frameworks give
them. Replay finds the answer by a rule; where there is none, the two values of one page are evidence for it,
as they are for an exploration (`exploretokens`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from stillweb.collections.doubts import is_csrf
from stillweb.collections.parts import Parts, Where
from stillweb.collections.rules import Origin, Rule, Rules
from stillweb.collections.secretfields import exchange_fields
from stillweb.collections.shapes import fits, shape_of
from stillweb.model import MUTATIONS, Headers, Request, header
from stillweb.urls import host_of, wire_url

__all__ = ["LivePage", "renewed", "rules_for", "token_places"]

Place = tuple[Where, str]

# Fields by which scripts send them, and where frameworks have their scripts find them. Ledgers do not keep
# these fields, and replay does not look at them (`collections.meaning`).
_BY_COOKIE = {"XSRF-TOKEN": "x-xsrf-token", "csrftoken": "x-csrftoken"}
_BY_META = {"csrf-token": "x-csrf-token", "_csrf": "x-csrf-token"}
_FIELDS = frozenset((*_BY_COOKIE.values(), *_BY_META.values()))


@dataclass(frozen=True, slots=True)
class LivePage:
    """What a page says now.

    Attributes:
        forms: where each is sent, and its hidden fields.
        metas: contents of `meta` elements by name.
        cookies: by name.
    """

    forms: Sequence[tuple[str, Mapping[str, str]]] = ()
    metas: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)

    def hidden(self, name: str, url: str) -> str:
        """Return a hidden field's value, of the form that is sent there, else of any; "" if none has it."""
        target = wire_url(url).partition("?")[0]
        own = [held for action, held in self.forms if wire_url(action).partition("?")[0] == target]
        found = (held[name] for held in (*own, *(held for _, held in self.forms)) if held.get(name))
        return next(found, "")

    def meta(self) -> str:
        """Return a token that a script finds in the page; "" if there is none."""
        found = (text for name, text in self.metas.items() if is_csrf(Where.FORM, name, "POST"))
        return next((text for text in found if fits("token", text)), "")

    def fields(self) -> Headers:
        """Return the request fields that scripts of the page send with what changes the site."""
        cookies = {
            field: unquote(self.cookies[name]) for name, field in _BY_COOKIE.items() if name in self.cookies
        }
        metas = {field: self.metas[name] for name, field in _BY_META.items() if name in self.metas}
        return tuple((cookies | metas).items())


def token_places(request: Request, rules: Rules) -> set[Place]:
    """Return where a request holds tokens that its page was given."""
    if request.method not in MUTATIONS:
        return set()
    parts = Parts.of(request)
    found = {
        (leaf.where, leaf.name)
        for leaf in parts.leaves(frozenset({Where.QUERY, Where.FORM, Where.MULTIPART}))
        if fits("token", leaf.text)
        and (is_csrf(leaf.where, leaf.name, request.method) or _ruled(rules, parts, leaf.where, leaf.name))
    }
    return found


def renewed(request: Request, places: set[Place], page: LivePage) -> Request:
    """Return a request with the tokens of a page as it is now; those that it does not have stay."""

    def exchange(where: Where, name: str, value: str) -> str:
        if (where, name) not in places:
            return value
        return page.hidden(name, request.url) or page.meta() or value

    made = exchange_fields(request, exchange)
    if header(request.headers, "sec-fetch-dest") == "document":
        return made
    own = tuple(field for field in made.headers if field[0].lower() not in _FIELDS)
    return replace(made, headers=(*own, *page.fields()))


def rules_for(before: Request, after: Request, page: str, rules: Rules) -> tuple[Rule, ...]:
    """Return the rules by which replay finds an answer to a request whose tokens were renewed.

    Args:
        before: as it was missed.
        after: as it was sent.
        page: that gave out both values.
        rules: that there are; what they cover needs no other.
    """
    parts = Parts.of(before)
    wheres = frozenset({Where.FORM, Where.MULTIPART})
    pairs = zip(parts.leaves(wheres), Parts.of(after).leaves(wheres), strict=True)
    return tuple(
        Rule(
            old.where,
            old.name,
            shape_of([old.text, new.text]),
            host_of(before.url),
            method=before.method,
            origin=Origin.LEARNED,
            evidence=f"amended: {page} held another value than when it was recorded",
        )
        for old, new in pairs
        if old.text != new.text
        and is_csrf(old.where, old.name, before.method)
        and not _ruled(rules, parts, old.where, old.name)
    )


def _ruled(rules: Rules, parts: Parts, where: Where, name: str) -> bool:
    return any(
        (rule.where, rule.name) == (where, name) and rule.origin is not Origin.GUESSED and rule.applies(parts)
        for rule in rules.volatile
    )

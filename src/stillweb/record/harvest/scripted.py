"""Requests that scripts send instead of following a link or sending a form. Pure.

A script may load a part of a page instead of following a link. Its request repeats the query of the link, or
the fields of a GET form, and adds parameters of its own. Recorded requests and the pages that sent them show
such a kind of request. Other pages of the same kind then send it for their links too.

Kinds are generalised from examples. A parameter may have any value if the examples have several. It may have
that of the page's own URL if all examples have theirs. Otherwise it has the one value of the examples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stillweb.record.harvest.misses import PlainRequest

__all__ = ["ScriptedKind", "learn_kinds"]

_LEAST = 2  # parameters of a link that its script repeats
_EXAMPLES = 40  # requests that are compared with the links of their pages, of each URL and parameters

_Pairs = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Values:
    """Values of some parameters in several examples, without parameters that an example lacks."""

    seen: dict[str, set[str]] | None = None

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        own = dict(pairs)
        known = self.seen
        if known is None:
            self.seen = {name: {value} for name, value in own.items()}
        else:
            self.seen = {name: known[name] | {own[name]} for name in known if name in own}

    @property
    def names(self) -> set[str]:
        """Names of the parameters."""
        return set(self.seen or {})

    def admit(self, pairs: Iterable[tuple[str, str]], like: dict[str, str]) -> bool:
        """Return whether other pairs may stand for the examples; values of `like` are accepted too."""
        own = dict(pairs)
        return all(
            name in own and (len(seen) > 1 or own[name] in seen or own[name] == like.get(name))
            for name, seen in (self.seen or {}).items()
        )


@dataclass(slots=True)
class ScriptedKind:
    """Requests of one script that repeat the query of a link.

    Attributes:
        request: an example.
        before, after: pairs that the script adds around those of the link.
        page_path, link_path: scheme, host and path of pages and links.
        names: parameters of the link.
    """

    request: PlainRequest
    before: _Pairs
    after: _Pairs
    page_path: str
    link_path: str
    names: frozenset[str]
    pages: set[str] = field(default_factory=set)
    _on_pages: _Values = field(default_factory=_Values)
    _in_links: _Values = field(default_factory=_Values)
    _as_page: set[str] = field(default_factory=set)

    def add(self, page: str, link: _Pairs) -> None:
        """Take an example."""
        own = dict(_query_of(page))
        same = {name for name, value in link if own.get(name) == value}
        self._as_page = same & self._as_page if self.pages else same
        self.pages.add(page)
        self._on_pages.add(own.items())
        self._in_links.add(link)

    def is_on(self, page: str) -> bool:
        """Return whether a page is like those of the examples.

        One example does not show which parameters vary; then pages with the same parameters are alike.
        """
        if _path_of(page) != self.page_path:
            return False
        query = _query_of(page)
        if len(self.pages) > 1:
            return self._on_pages.admit(query, {})
        return page in self.pages or (bool(query) and {name for name, _ in query} == self._on_pages.names)

    def request_for(self, page: str, url: str) -> PlainRequest | None:
        """Return the request that a page's script sends for a link, None if it is unlike the examples."""
        link = _query_of(url)
        if _path_of(url) != self.link_path or {name for name, _ in link} != self.names:
            return None
        own = dict(_query_of(page))
        if not self._in_links.admit(link, {name: own[name] for name in self._as_page if name in own}):
            return None
        found = self.request.with_pairs([*self.before, *link, *self.after])
        return replace(found, referer=page)


def learn_kinds(
    requests: Iterable[PlainRequest], links_of: Callable[[str], Iterable[str]]
) -> list[ScriptedKind]:
    """Return the kinds of requests that repeat links of their pages.

    Args:
        requests: of scripts.
        links_of: URLs that the links and GET forms of a page lead to; empty for an unknown page.
    """
    alike: dict[tuple[Any, ...], list[PlainRequest]] = defaultdict(list)
    for request in requests:
        if request.referer:
            names = tuple(name for name, _ in request.pairs)
            alike[request.method, request.url.partition("?")[0], names].append(request)
    kinds: dict[tuple[Any, ...], ScriptedKind] = {}
    for group in alike.values():
        for request in group[:_EXAMPLES]:
            page = request.referer.partition("#")[0]
            for key, link in _repeated(request, links_of(page)):
                before, after, link_path = key
                whole = (request.method, _path_of(request.url), _path_of(page), frozenset(dict(link)), *key)
                kind = kinds.setdefault(
                    whole,
                    ScriptedKind(request, before, after, _path_of(page), link_path, frozenset(dict(link))),
                )
                kind.add(page, link)
    return list(kinds.values())


def _repeated(
    request: PlainRequest, links: Iterable[str]
) -> Iterator[tuple[tuple[_Pairs, _Pairs, str], _Pairs]]:
    """Yield the longest query of a page's links that a request repeats, with the pairs around it."""
    pairs = tuple(request.pairs)
    best: tuple[tuple[_Pairs, _Pairs, str], _Pairs] | None = None
    for url in links:
        link, path = _query_of(url), _path_of(url)
        shorter = len(link) < len(pairs) or path != _path_of(request.url) or request.body is not None
        if len(link) < _LEAST or not shorter or (best is not None and len(link) <= len(best[1])):
            continue
        at = next((n for n in range(len(pairs) - len(link) + 1) if pairs[n : n + len(link)] == link), None)
        if at is not None:
            best = (pairs[:at], pairs[at + len(link) :], path), link
    if best is not None:
        yield best


def _query_of(url: str) -> _Pairs:
    return tuple(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _path_of(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]

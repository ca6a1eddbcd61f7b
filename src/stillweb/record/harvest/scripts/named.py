"""Requests of scripts whose URL the text of their page names. Pure.

A page names the URL of its data in an inline script, in JSON or in an attribute (`url: "/list/eyJx"`,
`data-url="/items/5/notes"`). A recorded request and the page that sent it show by which name. Another page
that has the name before another URL of the same form sends a request to that one when it opens. Its controls
(order, filter) then send what those of the first page sent.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import unescape
from os.path import commonpath
from typing import NamedTuple
from urllib.parse import parse_qsl, urljoin, urlsplit

from stillweb.matching.counters import NUMBERS
from stillweb.matching.rules import only_defaults
from stillweb.model import Request
from stillweb.record.harvest.misses import PlainRequest
from stillweb.urls import wire_url

_QUOTED = re.compile(r"""([:=(])\s{0,9}(["'])((?:https?:)?\\?/[^"'<>\s]{1,2000})\2""")
_IN_JSON = re.compile(r"""\"([\w$-]{1,40})\"\s{0,9}:\s{0,9}\"(/(?!/)[^\"'<>\s\\]{1,500})\"""")
_BEFORE = re.compile(r"""(?<![\w-])([\w$-]{1,40})["']?\s{0,9}$""")
_BEHIND = 80  # characters before a sign that hold its name
_FOLLOWED = frozenset(("href", "action"))  # what visitors follow
_MOST = 8  # requests of one page when it opens
_VARIATIONS = 24  # requests of controls for one URL


class _Name(NamedTuple):
    """A name before a URL, and the sign between them."""

    name: str
    sign: str


def named_urls(url: str, html: str, names: Container[_Name] | None = None) -> Iterator[tuple[_Name, str]]:
    """Yield the URLs that a document names, in wire spelling, by some names or all."""
    for match in _QUOTED.finditer(html):
        before = _BEFORE.search(html[max(0, match.start() - _BEHIND) : match.start()])
        if before is None or before[1].lower() in _FOLLOWED:
            continue
        name = _Name(before[1], match[1])
        if names is not None and name not in names:
            continue
        try:
            named = wire_url(urljoin(url, unescape(match[3]).replace("\\/", "/")))
        except ValueError:
            continue
        yield name, named


def listed_urls(url: str, script: str) -> Iterator[list[str]]:
    """Yield the URLs that JSON in a script has under one name, if it has several, all of one folder.

    Visitors choose from such data: the definitions that the documentation of an API shows. The URLs that the
    code itself requests are in no JSON.
    """
    by_name: dict[str, dict[str, None]] = defaultdict(dict)
    for match in _IN_JSON.finditer(script):
        by_name[match[1]][wire_url(urljoin(url, match[2]))] = None
    for found in by_name.values():
        folder = commonpath([urlsplit(each).path for each in found])
        if len(found) > 1 and folder.count("/") > 1:
            yield list(found)


@dataclass(slots=True)
class _Form:
    """A named URL that was requested, and the requests for it that differ in what scripts added."""

    named: str
    requests: list[PlainRequest] = field(default_factory=list)

    def add(self, request: PlainRequest, named: str) -> None:
        """Add a request unless an equal one, apart from its number and cache-busters, is known."""
        if len(self.requests) <= _VARIATIONS and all(
            _meaning(each.url) != _meaning(self._moved(request, named, self.named).url)
            for each in self.requests
        ):
            self.requests.append(self._moved(request, named, self.named))

    def requests_for(self, page: str, named: str) -> list[PlainRequest]:
        """Return the requests of a page that names another URL, that of its opening first."""
        moved = (self._moved(each, self.named, named) for each in self.requests)
        return [replace(each, referer=page, count=1) for each in moved]

    @staticmethod
    def _moved(request: PlainRequest, before: str, after: str) -> PlainRequest:
        return replace(request, url=after + request.url[len(before) :])


@dataclass(slots=True)
class NamedRequests:
    """Names before URLs that scripts requested, with examples.

    Attributes:
        known: names that an earlier harvest had, so that its pages have their requests.
    """

    known: frozenset[tuple[str, str]] = frozenset()
    _forms: dict[_Name, list[_Form]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """All names."""
        return self.known | self._forms.keys()

    def learn(self, requests: Iterable[PlainRequest], pages: Mapping[str, str]) -> None:
        """Take the names of requested URLs.

        Args:
            requests: GET requests of scripts, the first ones of each page first.
            pages: text of recorded documents by URL.
        """
        named_on: dict[str, dict[str, list[_Name]]] = {}
        for request in requests:
            page = request.referer.partition("#")[0]
            if request.body is not None or page not in pages:
                continue
            if page not in named_on:
                found = named_on[page] = {}
                for name, url in named_urls(page, pages[page]):
                    found.setdefault(url, []).append(name)
            bare = request.url.partition("?")[0]
            for named in dict.fromkeys((request.url, bare)):
                for name in named_on[page].get(named, ()):
                    self._form_of(name, named).add(request, named)

    def _form_of(self, name: _Name, named: str) -> _Form:
        forms = self._forms.setdefault(name, [])
        form = next((each for each in forms if _is_alike(each.named, named)), None)
        if form is None:
            forms.append(form := _Form(named))
        return form

    def requests_for(self, page: str, html: str) -> tuple[list[PlainRequest], list[PlainRequest]]:
        """Return the requests that a document sends when it opens, and those of its controls."""
        opening: dict[str, PlainRequest] = {}
        others: dict[str, PlainRequest] = {}
        for name, named in named_urls(page, html, self._forms) if self._forms else ():
            for form in self._forms.get(name, ()):
                if _is_alike(form.named, named) and len(opening) < _MOST:
                    first, *rest = form.requests_for(page, named)
                    opening.setdefault(first.key, first)
                    others |= {each.key: each for each in rest}
        return list(opening.values()), list(others.values())


def _meaning(url: str) -> list[tuple[str, str]]:
    """Return the query of a URL without the number of its request and cache-busters."""
    dropped = only_defaults().dropped(Request("GET", url))
    pairs = parse_qsl(urlsplit(url).query, True)
    return [pair for pair in pairs if pair[0] not in NUMBERS and f"query:{pair[0]}" not in dropped]


def _is_alike(first: str, second: str) -> bool:
    """Return whether two URLs differ in one segment of the path at most, and in values of parameters."""
    a, b = urlsplit(first), urlsplit(second)
    own, other = a.path.split("/"), b.path.split("/")
    if (a.scheme, a.netloc, len(own)) != (b.scheme, b.netloc, len(other)):
        return False
    names, others = ([name for name, _ in parse_qsl(each.query, True)] for each in (a, b))
    return names == others and sum(x != y for x, y in zip(own, other, strict=True)) <= 1

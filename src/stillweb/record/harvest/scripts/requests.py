"""Requests that scripts of recorded pages are likely to send, and that were not recorded.

A script may load a part of a page instead of following a link. Its request repeats the query of the link, or
the fields of a GET form, and adds parameters of its own. Recorded requests and the pages that sent them show
such a kind of request. Other pages of the same kind then send it for their links too.

Kinds are generalised from examples. A parameter may have any value if the examples have several. It may have
that of the page's own URL if all examples have theirs. Otherwise it has the one value of the examples. A
parameter that the script adds has that of the page's own URL if the example's was that of its page.

The answer of such a request may have links of its own, which the script treats as those of the page.

A view adds a parameter for each of its controls. A visitor who sorts and then filters sends a combination.
Requests show that two parameters are independent: the same filter with two sort orders, and one of these
orders with another filter. Then the other filter with the other order is a request of the view, too. Values
that belong together, such as an identifier and its name, are not combined: no name has two identifiers.
A parameter that is true or false belongs to a checkbox: each has both values, with any values of the others.

`ScriptRequests` reads the collection; all else is pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stillweb.collections.layout import Collection
from stillweb.http.codec import decoded_body
from stillweb.model import HTML_TYPES, Capture, Request, header
from stillweb.record.harvest.fetch import opening_requests, recorded_data
from stillweb.record.harvest.misses import DRY_RUN, SWITCHED, PlainRequest
from stillweb.record.harvest.page import HtmlPage, parse_page
from stillweb.record.harvest.proofs import NumberedRequests
from stillweb.record.harvest.scripts.bundles import bundled_urls, destination_of
from stillweb.record.harvest.scripts.entries import (
    ListedValues,
    in_turn,
    other_orders,
    requests_for_entries,
)
from stillweb.record.harvest.scripts.loaded import LoadedLinks
from stillweb.record.harvest.scripts.named import NamedRequests, listed_urls
from stillweb.record.harvest.scripts.rows import attribute_texts, requests_for_rows
from stillweb.urls import host_of

_PAGES, _LINKS = 300, 600  # pages whose links scripts may follow; requests for these links
_PARTS = 8  # of a page, whose links scripts may follow
_FILES = 1_000  # files that scripts name
_ENTRIES = 600  # requests for entries of lists, and for URLs in data
_ROW_PAGES = 60  # pages whose rows are read
_SHOWN = 500  # requests that are compared with the rows of their pages
_LEAST = 2  # parameters of a link that its script repeats
_EXAMPLES = 40  # requests that are compared with the links of their pages, of each URL and parameters

_COMBINATIONS = 500  # of parameters of one URL
_LONGEST_VALUE = 200  # characters of a value that is combined

_JAVASCRIPT = frozenset({"text/javascript", "application/javascript", "application/x-javascript"})

_Pairs = tuple[tuple[str, str], ...]
_Added = tuple[tuple[str, str | None], ...]  # None: the value of the page's own URL
_Row = tuple[str, ...]


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
        before, after: pairs that the script adds around those of the link; None is the page's own value.
        page_path, link_path: scheme, host and path of pages and links.
    """

    request: PlainRequest
    before: _Added
    after: _Added
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
        if any(value is None and name not in own for name, value in (*self.before, *self.after)):
            return None
        before, after = (
            [(name, own[name] if value is None else value) for name, value in added]
            for added in (self.before, self.after)
        )
        pairs = [*before, *link, *after]
        return replace(self.request.with_pairs(pairs), referer=page)


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
            alike[request.method, request.place, names].append(request)
    kinds: dict[tuple[Any, ...], ScriptedKind] = {}
    for group in alike.values():
        for request in group[:_EXAMPLES]:
            page = request.referer.partition("#")[0]
            for around, link in _repeated(request, links_of(page)):
                own = dict(_query_of(page))
                before, after = (_without_own(added, own) for added in around[:2])
                key = (before, after, link_path := around[2])
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


def _without_own(added: _Pairs, own: dict[str, str]) -> _Added:
    return tuple((name, None if value and own.get(name) == value else value) for name, value in added)


def _query_of(url: str) -> _Pairs:
    return tuple(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def _path_of(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def combined_requests(requests: Iterable[PlainRequest]) -> Iterator[PlainRequest]:
    """Yield requests with other combinations of values, those of all URLs in turn, each once.

    They combine values of two parameters, of which the three other corners were sent, or have the other value
    of a checkbox.
    """
    alike: dict[tuple[object, ...], dict[_Row, PlainRequest]] = defaultdict(dict)
    for request in requests:
        pairs = request.pairs
        names = tuple(name for name, _ in pairs)
        if len(pairs) > 1 and all(len(value) <= _LONGEST_VALUE for _, value in pairs):
            rows = alike[request.method, request.place, names]
            rows.setdefault(tuple(value for _, value in pairs), request)
    for row, like in in_turn(islice(_others(rows), _COMBINATIONS) for rows in alike.values()):
        yield like.with_pairs([(name, value) for (name, _), value in zip(like.pairs, row, strict=True)])


def _others(rows: dict[_Row, PlainRequest]) -> Iterator[tuple[_Row, PlainRequest]]:
    """Yield the combinations that were not sent, each with a request that it is like."""
    yielded = set(rows)
    yield from _missing(rows, yielded)
    yield from _switched(rows, yielded)


def _switched(rows: dict[_Row, PlainRequest], yielded: set[_Row]) -> Iterator[tuple[_Row, PlainRequest]]:
    """Yield the rows with other values of checkboxes, those that differ in one first."""
    names = [name for name, _ in next(iter(rows.values())).pairs]
    places = [
        at
        for at, values in enumerate(zip(*rows, strict=True))
        if SWITCHED.keys() >= set(values) and not DRY_RUN.search(names[at])
    ]
    level = list(rows.items())
    while level and places:
        following: list[tuple[_Row, PlainRequest]] = []
        for row, like in level:
            for at in places:
                other = _with_value(row, at, SWITCHED[row[at]])
                if other not in yielded:
                    yielded.add(other)
                    following.append((other, like))
                    yield other, like
        level = following


def _missing(rows: dict[_Row, PlainRequest], yielded: set[_Row]) -> Iterator[tuple[_Row, PlainRequest]]:
    """Yield the fourth corners, each with a request that it differs from in one value."""
    columns = list(zip(*rows, strict=True))
    counts = [len(set(values)) for values in columns]
    # Controls with few values come before typed words: a visitor chooses each of their combinations sooner.
    varying = sorted((at for at, count in enumerate(counts) if count > 1), key=counts.__getitem__)
    for first, second in combinations(varying, 2):
        at_rest: dict[_Row, dict[str, dict[str, PlainRequest]]] = defaultdict(lambda: defaultdict(dict))
        for row, request in rows.items():
            rest = tuple(value for at, value in enumerate(row) if at not in (first, second))
            at_rest[rest][row[first]][row[second]] = request
        for by_first in at_rest.values():
            for own, other in combinations(by_first.values(), 2):
                if own.keys() & other.keys():
                    for have, lack in ((own, other), (other, own)):
                        like = next(iter(lack.values()))
                        for value in sorted(have.keys() - lack.keys()):
                            row = _with_value(tuple(each for _, each in like.pairs), second, value)
                            if row not in yielded:
                                yielded.add(row)
                                yield row, like


def _with_value(row: _Row, at: int, value: str) -> _Row:
    return (*row[:at], value, *row[at + 1 :])


class ScriptRequests:
    """Requests that scripts of recorded pages are likely to send, and that were not recorded.

    Args:
        documents: recorded documents by URL.
        recorded: keys and URLs of recorded requests; what is found in recorded data is added.
        refused: keys of requests that the site has refused.
        links_of: returns where a document with a URL leads.
        is_over: returns whether the time is over.

    Attributes:
        listed: values of the recorded lists that were read.
        numbered: recorded requests whose answer repeats their number.
    """

    def __init__(
        self,
        collection: Collection,
        documents: dict[str, Capture],
        recorded: set[str],
        refused: AbstractSet[str],
        links_of: Callable[[bytes, str], list[str]],
        is_over: Callable[[], bool],
    ) -> None:
        self._collection = collection
        self._documents = documents
        self._recorded = recorded
        self._refused = refused
        self._links_of = links_of
        self._is_over = is_over
        self.listed = ListedValues()
        self.numbered = NumberedRequests()
        self._ordered: dict[tuple[str, str], list[Iterator[PlainRequest]]] = defaultdict(list)

    def for_links(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        """Return what scripts request for links and forms of their pages, as some requests have shown."""
        leads: dict[str, list[str]] = {}

        def links_of(url: str) -> list[str]:
            if url not in leads:
                capture = self._documents.get(url)
                body = (
                    decoded_body(self._collection.read_capture(capture).response) or b"" if capture else b""
                )
                leads[url] = self._links_of(body, url) if body else []
            return leads[url]

        kinds = learn_kinds(requests, links_of)
        pages = [url for url in self._documents if any(kind.is_on(url) for kind in kinds)][:_PAGES]
        parts = self._parts_of(set(pages), {_path_of(kind.request.url) for kind in kinds})
        found: dict[str, PlainRequest] = {}
        for page in pages:
            if self._is_over():
                break
            on_page = [kind for kind in kinds if kind.is_on(page)]
            links = [*links_of(page), *parts.get(page, ())]
            for each in (kind.request_for(page, link) for link in links for kind in on_page):
                if each is not None and each.key not in self._recorded:
                    found.setdefault(each.key, each)
        return list(found.values())[:_LINKS]

    def _parts_of(self, pages: AbstractSet[str], places: AbstractSet[str]) -> dict[str, set[str]]:
        """Return the links in parts of pages that scripts have loaded from some URLs, by page."""
        parts: dict[str, set[str]] = defaultdict(set)
        seen: Counter[str] = Counter()
        for capture in self._collection.captures() if pages else ():
            if self._is_over():
                break
            if (
                capture.mime not in HTML_TYPES
                or capture.request_offset < 0
                or _path_of(capture.url) not in places
            ):
                continue
            page = header(self._collection.read_request(capture).headers, "referer").partition("#")[0]
            seen[page] += 1
            if page in pages and seen[page] <= _PARTS:
                body = decoded_body(self._collection.read_capture(capture).response) or b""
                parts[page].update(self._links_of(body, page))
        return parts

    def for_loaded(self, loaded: LoadedLinks, missed: Iterable[PlainRequest]) -> list[tuple[str, HtmlPage]]:
        """Learn which links scripts load into the page; return the recorded pages if some are."""
        shown = [request for request in missed if request.meaning]
        pages: list[tuple[str, HtmlPage]] = []
        if not (shown or loaded.examples):
            return pages
        for url, capture in islice(self._documents.items(), _PAGES):
            if self._is_over():
                break
            body = decoded_body(self._collection.read_capture(capture).response) or b""
            pages.append((url, parse_page(url, body)))
        loaded.learn(shown, [link for _, page in pages for link in page.links])
        return pages

    def for_files(self) -> list[PlainRequest]:
        """Return the files that recorded scripts name beside recorded ones, and the data that they list."""
        scripts: dict[str, str] = {}
        hosts: dict[str, set[str]] = {}
        for capture in self._collection.captures():
            if capture.method != "GET" or capture.status != 200:
                continue
            url = capture.url.partition("?")[0]
            hosts.setdefault(host_of(url), set()).add(url)
            if capture.mime in _JAVASCRIPT and url not in scripts and not self._is_over():
                body = decoded_body(self._collection.read_capture(capture).response) or b""
                scripts[url] = body.decode("utf-8", "replace")
        found: dict[str, str] = {}
        for page in dict.fromkeys(map(host_of, self._documents)):
            texts = (text for url, text in scripts.items() if host_of(url) == page)
            for url in bundled_urls(texts, hosts.get(page, set())):
                found.setdefault(url, page)
        referers = {host_of(url): url for url in reversed(self._documents)}
        for url, text in scripts.items():
            for listed in listed_urls(url, text) if host_of(url) in referers else ():
                if not self._recorded.isdisjoint(listed):
                    found.update({each: host_of(each) for each in listed if host_of(each) in referers})
        return [
            PlainRequest("GET", url, destination_of(url), referers[host])
            for url, host in list(found.items())[:_FILES]
            if url not in self._recorded
        ]

    def for_data(
        self, missed: Iterable[PlainRequest], is_plain: Callable[[Request], bool], *, unsafe: bool
    ) -> tuple[list[PlainRequest], list[PlainRequest]]:
        """Return the requests for entries of recorded lists that no visitor chose, and for URLs in JSON.

        A script may also make links of the entries. Recorded documents whose URLs name some of them show
        the documents of the others.

        Args:
            missed: requests that a replay missed.
            is_plain: returns whether a POST may be sent without its page.
            unsafe: whether recorded POST requests count.
        """
        listed = self.listed
        requests = list(missed)
        for request, answer in recorded_data(self._collection, unsafe=unsafe, is_plain=is_plain):
            if self._is_over():
                break
            self._recorded.add(request.key)
            requests.append(request)
            if answer is not None:
                listed.add(request.url, answer)
                self._ordered[request.method, request.place].append(other_orders(request, answer))
                self.numbered.note(request, answer)
        shown = islice(self._documents, _SHOWN)
        documents = (PlainRequest("GET", url, "document", "") for url in shown)
        entries = requests_for_entries([*requests, *documents], listed, self._is_known)
        requested = self._recorded | {each.url for each in requests}
        linked = self._on_hosts(listed.linked(requested))
        named = {each.key for each in linked}  # their error pages count too
        found = [*entries, *self._on_hosts(listed.images(requested))]
        return self._unrecorded(each for each in found if each.key not in named), self._unrecorded(linked)

    def _on_hosts(self, urls: Iterable[str]) -> list[PlainRequest]:
        """Return requests for the URLs that are on hosts of recorded documents."""
        pages = {host_of(url): url for url in reversed(self._documents)}
        return [
            PlainRequest("GET", url, destination_of(url), pages[host_of(url)])
            for url in urls
            if host_of(url) in pages
        ]

    def for_named(self, named: NamedRequests, missed: Iterable[PlainRequest]) -> list[PlainRequest]:
        """Learn which URLs of their text pages request; return those of recorded pages by new names."""
        shown = [*opening_requests(self._collection), *missed]
        sources = dict.fromkeys(each.referer.partition("#")[0] for each in shown)
        texts = {url: self._text_of(url) for url in islice(sources, _PAGES) if url in self._documents}
        named.learn(shown, texts)
        found: dict[str, PlainRequest] = {}
        for url in islice(self._documents if named.names > named.known else (), _PAGES):
            if self._is_over():
                break
            text = texts[url] if url in texts else self._text_of(url)
            found.update((each.key, each) for each in named.requests_for(url, text)[0])
        return self._unrecorded(found.values())

    def _text_of(self, url: str) -> str:
        body = decoded_body(self._collection.read_capture(self._documents[url]).response) or b""
        return body.decode("utf-8", "replace")

    def for_rows(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        """Return the GET requests for rows of recorded pages that no request named, as some have shown."""
        reads = (each for each in requests if each.body is None)
        shown = [each for each in reads if each.referer.partition("#")[0] in self._documents][:_SHOWN]
        if not shown:
            return []
        texts = {}
        sources = {each.referer.partition("#")[0] for each in shown}
        for url in islice(dict.fromkeys([*sorted(sources), *self._documents]), _ROW_PAGES):
            if self._is_over():
                break
            texts[url] = attribute_texts(self._text_of(url))
        return self._unrecorded(requests_for_rows(shown, texts))

    def for_orders(self) -> list[PlainRequest]:
        """Return the requests for the lists that `for_data` has read in other orders, of all URLs in turn."""
        return self._unrecorded(in_turn(in_turn(lists) for lists in self._ordered.values()))

    def for_combinations(
        self, requests: Iterable[PlainRequest], is_plain: Callable[[Request], bool]
    ) -> list[PlainRequest]:
        """Return the requests with combinations of parameters that no visitor chose.

        Args:
            is_plain: returns whether a POST may be sent without its page: with other values, too.
        """

        def is_sent(request: PlainRequest) -> bool:
            body = request.body
            return body is None or is_plain(Request(request.method, request.url, request.fields, body))

        return self._unrecorded(filter(is_sent, combined_requests(requests)))

    def _unrecorded(self, requests: Iterable[PlainRequest]) -> list[PlainRequest]:
        return list(islice((each for each in requests if not self._is_known(each)), _ENTRIES))

    def _is_known(self, request: PlainRequest) -> bool:
        return request.key in self._recorded or request.key in self._refused

"""Requests that scripts send for one row of a page, repeated for its other rows. Pure.

Each row of a list has controls: mark as read, vote, add a star, preview. Their script takes the identifier
of the row from an attribute (`id="entry_17"`, `href="?a=star&id=17"`). A request and the page that sent it
show which attribute that is, and which text is around the identifier. Elements of the same name whose
attribute has the same text around have the identifiers of the other rows.

Short values (1, open) are in attributes by chance. Two requests for different rows show that their values
come from the attribute. One is enough for a long identifier, and if the attribute is the request's URL.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urljoin, urlsplit

from stillweb.errors import LimitExceeded
from stillweb.record.harvest.misses import TOKEN, UNIQUE, PlainRequest
from stillweb.record.harvest.tree import parse_tree
from stillweb.urls import wire_url

_VALUE = re.compile(r"[\w.~:-]{1,80}")
_LONGEST = 2_000  # characters of an attribute; longer ones hold data, and not one identifier
_MOST = 200  # rows of one kind
_PROOFS = 2  # rows that show that their values come from an attribute


@dataclass(frozen=True, slots=True)
class RowAttribute:
    """An attribute that holds the identifier of its row between two texts."""

    tag: str
    name: str
    before: str
    after: str

    def value_in(self, text: str) -> str:
        """Return the identifier in the text of an attribute, "" if it has none."""
        if not (text.startswith(self.before) and text.endswith(self.after)):
            return ""
        inner = text[len(self.before) : len(text) - len(self.after)]
        return inner if _VALUE.fullmatch(inner) else ""


_Texts = dict[tuple[str, str], dict[str, None]]
"""Texts of the attributes of a page, by element name and attribute, in document order."""


def attribute_texts(html: str) -> _Texts:
    """Return the texts of the attributes of a document; none if it would take too long to parse."""
    tree = parse_tree(html)
    found: _Texts = defaultdict(dict)
    for node in tree.css("*") if tree else ():
        for name, text in node.attributes.items():
            if text and len(text) <= _LONGEST:
                found[str(node.tag), name][text] = None
    return found


def pairs_of(request: PlainRequest) -> list[tuple[str, str]]:
    """Return the names and values of a request's query and body."""
    query = parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
    return [*query, *request.pairs] if request.body else query


def is_bound(name: str, value: str) -> bool:
    """Return whether a value belongs to one visit, as its name says."""
    return bool(value and not value.isdigit() and TOKEN.search(name))


def with_values(request: PlainRequest, new: Mapping[str, str]) -> PlainRequest:
    """Return a request with other values wherever its path, query or body has the given ones."""

    def other(raw: str, plain: str) -> str:
        return quote(new[plain], safe="~:") if plain in new else raw

    parts = urlsplit(request.url)
    path = "/".join(other(each, unquote(each)) for each in parts.path.split("/"))
    named = (each.partition("=") for each in parts.query.split("&"))
    query = "&".join(
        name + equals + other(raw, unquote_plus(raw)) if equals else other(name, unquote_plus(name))
        for name, equals, raw in named
    )
    moved = PlainRequest(
        request.method,
        parts._replace(path=path, query=query).geturl(),
        request.destination,
        request.referer,
        request.fields,
        request.body,
    )
    if not moved.body:
        return moved
    return moved.with_pairs([(name, new.get(value, value)) for name, value in moved.pairs])


def likeness(request: PlainRequest, row: str = "") -> tuple[object, ...]:
    """Return what requests share that differ in the tokens of their visits, or also in the given value."""

    def masked(name: str, value: str) -> str:
        return "" if is_bound(name, value) else "{}" if row and value == row else value

    pairs = tuple((name, masked(name, value)) for name, value in pairs_of(request))
    path = tuple(masked("", unquote(each)) for each in urlsplit(request.url).path.split("/"))
    return request.method, urlsplit(request.url).netloc, path, request.meaning, pairs


@dataclass(slots=True)
class _RowKind:
    """Requests that differ in the value of one row; `attributes` has the values found in each."""

    values: dict[str, PlainRequest] = field(default_factory=dict)
    attributes: dict[RowAttribute, set[str]] = field(default_factory=lambda: defaultdict(set))
    addressed: set[RowAttribute] = field(default_factory=set)  # those that are the URL of the request

    def others(self, pages: Iterable[_Texts]) -> Iterator[PlainRequest]:
        """Yield the requests for the rows of some pages that no example names."""
        most = max(map(len, self.attributes.values()), default=0)
        proved = [each for each, found in self.attributes.items() if len(found) == most]
        if most < _PROOFS and not any(map(UNIQUE.fullmatch, self.values)):
            proved = [each for each in proved if each in self.addressed]
        listed = [self._listed(each, pages) for each in proved]
        value, example = next(iter(self.values.items()))
        # Many attributes of a page hold 1, 2, 3.
        for other in min((each for each in listed if len(each) > 1), key=len, default=[]):
            if other not in self.values:
                yield with_values(example, {value: other})

    def _listed(self, attribute: RowAttribute, pages: Iterable[_Texts]) -> list[str]:
        found: dict[str, None] = {}
        for texts in pages:
            for text in texts.get((attribute.tag, attribute.name), ()):
                if value := attribute.value_in(text):
                    found[value] = None
        return list(found)[:_MOST]


def requests_for_rows(requests: Iterable[PlainRequest], pages: Mapping[str, _Texts]) -> list[PlainRequest]:
    """Return the requests for rows that no request named, of all kinds in turn, each once.

    Args:
        requests: of scripts.
        pages: recorded documents that they may have been sent from, by URL.
    """
    kinds: dict[tuple[object, ...], _RowKind] = defaultdict(_RowKind)
    known = set()
    for request in requests:
        texts = pages.get(request.referer.partition("#")[0])
        if texts is None or not is_readable(request):
            continue
        known.add(likeness(request))
        for value in _values(request):
            kind = kinds[likeness(request, value)]
            kind.values.setdefault(value, request)
            for attribute, text in _holding(texts, value):
                kind.attributes[attribute].add(value)
                if wire_url(urljoin(request.referer, text)) == request.url:
                    kind.addressed.add(attribute)
    found: dict[tuple[object, ...], PlainRequest] = {}
    waiting = [kind.others(pages.values()) for kind in kinds.values()]
    while waiting:
        for each in list(waiting):
            if (other := next(each, None)) is None:
                waiting.remove(each)
            elif (like := likeness(other)) not in known:
                found.setdefault(like, other)
    return list(found.values())


def is_readable(request: PlainRequest) -> bool:
    """Return whether the values of a request's body can be read, or it has none."""
    try:
        return bool(request.pairs) or not request.body
    except (ValueError, LimitExceeded):
        return False


def _values(request: PlainRequest) -> list[str]:
    """Return the values of a request that may name a row."""
    segments = map(unquote, urlsplit(request.url).path.split("/"))
    values = (value for name, value in pairs_of(request) if not is_bound(name, value))
    return [each for each in dict.fromkeys([*segments, *values]) if _VALUE.fullmatch(each)]


def _holding(pages: _Texts, value: str) -> Iterator[tuple[RowAttribute, str]]:
    """Yield the attributes that hold a value as a whole word, each with its text."""
    word = re.compile(rf"(?<![^\W_]){re.escape(value)}(?![^\W_])")
    for (tag, name), texts in pages.items():
        for text in texts:
            for match in word.finditer(text) if value in text else ():
                yield RowAttribute(tag, name, text[: match.start()], text[match.end() :]), text

"""Requests that a replay missed, to send again by plain HTTP, also with other words of the site. Pure.

A miss can be sent again without its page if nothing in it belongs to one visit: no CSRF token, and no body
that was too large for the ledger. Search and type-ahead requests carry a word that an agent typed. Other
agents type other words, so each such request becomes a template for the site's whole vocabulary.

Requests of one URL and the same parameters are compared to find the typed one. It holds words of the site and
differs between them, or has the name of a search. Other values (a language, a view) may be words by chance.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from stillweb.collections.limits import load_json
from stillweb.collections.misses import Missed
from stillweb.errors import LimitExceeded
from stillweb.matching.captures import MEANT
from stillweb.matching.parts import names_csrf
from stillweb.matching.transports import is_live
from stillweb.matching.values import ValueKind, kind_of
from stillweb.model import MUTATIONS, Headers, Request, header
from stillweb.urls import origin_of

_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_DOCUMENTS = ("document", "iframe", "frame")
_LONGEST_WORD = 60
_PART = re.compile(r"[^\W_]{3,}")
_COMBINATIONS = 12  # of the other parameters of one search, the most frequent first
_BEGUN = 2  # beginnings of other texts that show that each key sends a request
_SEARCHED = re.compile(
    r"^(?:q|s|kw|st|text|word|words|value)$|query|search|term|keyword|prefix|filter|find|needle|suggest",
    re.IGNORECASE,
)
"""Names of parameters that hold what a visitor types."""
_SEARCH_PATH = re.compile(
    r"(?P<place>[^?#]*/(?P<name>search|query|find|lookup|suggest|autocomplete)/)(?P<word>[^/?#]+)",
    re.IGNORECASE,
)
"""URLs of which the last segment is what a visitor types."""
_READS = re.compile(
    r"(?:^|[/_.-])(?:search|query|find|filter|list|get|suggest|autocomplete|lookup|count)(?:$|[/_.A-Z-])"
    r"|(?:[a-z](?:Search|Query|List|Filter|Count)|[/_.-](?:paginate|aggregate))$"
)
"""Paths of requests that read although they are sent by POST."""
DRY_RUN = re.compile(r"(?:^|\.)(?:dry_?run|validate_?only)$", re.IGNORECASE)
"""Members by which a request asks what a write would do (AIP-163)."""
SWITCHED = {"true": "false", "asc": "desc", "ASC": "DESC", "ascending": "descending"}
SWITCHED |= {other: value for value, other in SWITCHED.items()}
"""The other value of a checkbox, and of the direction of an order."""
_GRAPHQL_QUERY = re.compile(r"\s*(?:query\b|\{)(?![\s\S]*\bmutation\b)")
TOKEN = re.compile(r"csrf|xsrf|token|nonce|sectok|verif", re.IGNORECASE)
"""Names of values that may belong to one visit. Wider than `is_csrf`: a wrong guess loses one request."""
OF_VISIT = re.compile(rf"{TOKEN.pattern}|session|auth", re.IGNORECASE)
"""Names of values by which a site knows a visitor."""


UNIQUE = re.compile(r"(?=.*[0-9])(?:[\w-]{8,}|[\w.:@+-]{16,})")
"""A long identifier, such as a time or a run named after one, which is in no attribute or list by chance."""
_VARIABLE = re.compile(r"[0-9]|^.{25,}$")


def path_form(path: str, mark: str) -> str:
    """Return a path with a mark in place of each segment that varies: those with digits, and long ones."""
    return "/".join(mark if _VARIABLE.search(each) else each for each in path.split("/"))


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A request to send without a browser.

    Attributes:
        destination: as `Sec-Fetch-Dest` has it.
        fields: request fields beyond those of every request of the destination.
        body: None for a request without a body.
        count: number of equal misses.
        by_key: whether a script sent the beginnings of a word while it was typed.
        around: texts before and after the word in the parameter that holds it, as in a filter expression.
    """

    method: str
    url: str
    destination: str
    referer: str
    fields: Headers = ()
    body: bytes | None = None
    count: int = 1
    by_key: bool = False
    around: tuple[str, str] = ("", "")

    @property
    def key(self) -> str:
        """The URL of a GET request and its meaning; of others method, URL and body.

        Form data has one spelling.
        """
        if self.body is None:
            return f"{self.url} {self.meaning}".rstrip()
        is_form = header(self.fields, "content-type").startswith(_FORM)
        return f"{self.method} {self.url} {urlencode(self.pairs) if is_form else repr(self.body)}"

    @property
    def meaning(self) -> str:
        """Fields with which the same URL has another answer, such as a part of the page; "" without any."""
        return meaning_of(self.fields)

    @property
    def place(self) -> str:
        """The URL without its query, or without a typed last segment."""
        typed = self._typed_segment
        return typed["place"] if typed else self.url.partition("?")[0]

    @property
    def _typed_segment(self) -> re.Match[str] | None:
        return _SEARCH_PATH.fullmatch(self.url) if self.body is None else None

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return self.body is not None and header(self.fields, "content-type").startswith(_JSON)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The form data of the body, or of the query without a body; of JSON each value with its path.

        The last segment of a path such as `/search/tea` is the value of `search`.
        """
        if typed := self._typed_segment:
            return [(typed["name"], unquote(typed["word"]))]
        if self.is_json:
            return [
                (path, value if isinstance(value, str) else json.dumps(value)) for path, value in self._leaves
            ]
        text = self.body.decode("utf-8", "replace") if self.body is not None else urlsplit(self.url).query
        return parse_qsl(text, keep_blank_values=True)

    @property
    def _leaves(self) -> list[tuple[str, Any]]:
        assert self.body is not None
        return list(_json_leaves("", load_json(self.body)))

    def with_pairs(self, pairs: list[tuple[str, str]]) -> PlainRequest:
        """Return the request with other form data, or other texts of JSON, in the same place."""
        url, body = self.url, self.body
        if self._typed_segment:
            url = self.place + quote(pairs[0][1], safe="")
        elif body is None:
            url = f"{self.url.partition('?')[0]}?{urlencode(pairs)}"
        elif self.is_json:
            texts = iter(pairs)
            content = _with_texts(load_json(body), texts)
            body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "surrogatepass"
            )
        else:
            body = urlencode(pairs).encode("ascii")
        return PlainRequest(self.method, url, self.destination, self.referer, self.fields, body)


def meaning_of(fields: Headers) -> str:
    """Return the request fields that replay compares whatever a response says, "" without any."""
    named = sorted((name.lower(), value.strip()) for name, value in fields if name.lower() in MEANT)
    return ", ".join(f"{name}: {value}" for name, value in named)


def plain_requests(
    misses: Iterable[Missed], *, unsafe: bool, is_plain: Callable[[Request], bool] | None = None
) -> Iterator[PlainRequest]:
    """Yield the misses that can be sent again without their page; documents are left to the crawl of links.

    Args:
        misses: as the ledger has them.
        unsafe: whether requests by POST are included, if a script sent them and they are plain.
        is_plain: None for `is_plain_post`.
    """
    is_plain = is_plain or is_plain_post
    for miss in misses:
        if is_live(miss.url):
            continue
        by_script = miss.resource == "empty"
        if miss.method == "GET" and miss.resource not in _DOCUMENTS:
            yield _plain(miss, None)
        elif unsafe and by_script and miss.whole and is_plain(request := miss.request()):
            yield _plain(miss, request.raw_body)


def is_plain_post(request: Request) -> bool:
    """Return whether a POST may be sent without its page: it holds no CSRF token or the like.

    Form data counts, and JSON if URL or body say that the request only reads.
    """
    kind = header(request.headers, "content-type")
    if request.method != "POST" or not kind.startswith((_FORM, _JSON)):
        return False
    text = request.raw_body.decode("utf-8", "replace")
    if kind.startswith(_FORM):
        return not any(_is_token(*pair) for pair in parse_qsl(text, keep_blank_values=True))
    return only_reads(request)


def script_writes(misses: Iterable[Missed]) -> Iterator[PlainRequest]:
    """Yield the missed writes of scripts that are whole."""
    for miss in misses:
        if miss.method in MUTATIONS and miss.resource == "empty" and miss.whole and not is_live(miss.url):
            yield replace(_plain(miss, miss.request().raw_body), referer=_sender(miss))


def _sender(miss: Missed) -> str:
    """Return the page that sent a miss by its Referer, unless a policy reduces that to the origin.

    The last document may be one that the session has requested since then.
    """
    referer, page = miss.last.referer, miss.last.page
    is_reduced = referer == f"{origin_of(referer)}/" and page.startswith(referer)
    return referer if referer and not is_reduced else page or referer


def only_reads(request: Request) -> bool:
    """Return whether a POST of JSON only reads, by its URL, GraphQL query or dry run, without CSRF token."""
    values = json_values(request)
    return values is not None and _asks(request.url, values)


def json_values(request: Request) -> list[tuple[str, Any]] | None:
    """Return the values of a JSON body, each with the names that lead to it.

    None is returned for another body, and for one that may belong to one visit.
    """
    if not header(request.headers, "content-type").startswith(_JSON):
        return None
    try:
        values = list(_json_leaves("", load_json(request.raw_body)))
    except (ValueError, LimitExceeded):
        return None
    texts = ((path, text) for path, text in values if isinstance(text, str))
    # Identifiers of entries are random too: only the names say what belongs to one visit.
    is_bound = any(text and not text.isdigit() and OF_VISIT.search(path) for path, text in texts)
    return None if is_bound else values


def writes_by_link(url: str) -> bool:
    """Return whether a link has a CSRF token in its query: it changes the site, and belongs to one visit."""
    return any(value and names_csrf(name) for name, value in parse_qsl(urlsplit(url).query))


def _asks(url: str, values: list[tuple[str, Any]]) -> bool:
    query = next((value for path, value in values if path == "query"), None)
    if isinstance(query, str) and "{" in query:
        return _GRAPHQL_QUERY.match(query) is not None
    if any(value is True and DRY_RUN.search(path) for path, value in values):
        return True
    # JSON-RPC names the operation in the body (JSON-RPC 2.0 §4; Transmission's RPC).
    names = [urlsplit(url).path, *(str(value) for path, value in values if path == "method")]
    return any(map(_READS.search, names))


def _json_leaves(path: str, content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of JSON that hold no others, each with the names that lead to it."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from _json_leaves(f"{path}.{key}" if path else key, value)
    elif isinstance(content, list) and content:
        for value in content:
            yield from _json_leaves(path, value)
    else:
        yield path, content


def _with_texts(content: Any, pairs: Iterator[tuple[str, str]]) -> Any:
    """Return JSON with the texts of its leaves replaced, in the order of `_json_leaves`."""
    if isinstance(content, dict) and content:
        return {key: _with_texts(value, pairs) for key, value in content.items()}
    if isinstance(content, list) and content:
        return [_with_texts(value, pairs) for value in content]
    _, text = next(pairs)
    if type(content) is int and text.isascii() and text.removeprefix("-").isdecimal():
        return int(text)
    if isinstance(content, bool) and text in ("true", "false"):
        return text == "true"
    return text if isinstance(content, str) else content


def _last_name(name: str) -> str:
    """Return the last name of a path into JSON; form data has no paths."""
    return name.rpartition(".")[2]


def _is_token(name: str, value: str) -> bool:
    """Return whether a value may belong to one visit; a long word is none."""
    if value.isdigit():
        return False
    return bool(value and TOKEN.search(name)) or kind_of(value, ()) is ValueKind.RANDOM


def word_templates(
    requests: Iterable[PlainRequest], words: Collection[str], *, named: bool = False
) -> Iterator[tuple[PlainRequest, int]]:
    """Yield one request for each search, with the position of the typed value.

    `count` is that of all its requests.

    Args:
        requests: misses, or requests of scripts that were recorded.
        words: of the site.
        named: whether the parameter must have the name of a search: pages send other words on their own.
    """
    beginnings = sorted(words)
    searches: dict[tuple[object, ...], list[PlainRequest]] = defaultdict(list)
    for request in requests:
        if (
            request.body is None
            or request.is_json
            or header(request.fields, "content-type").startswith(_FORM)
        ):
            names = tuple(name for name, _ in request.pairs)
            searches[request.method, request.place, names].append(request)
    for similar in searches.values():
        at = _typed_place([request.pairs for request in similar], words, beginnings)
        if at is not None and (not named or _SEARCHED.search(_last_name(similar[0].pairs[at][0]))):
            yield from ((request, at) for request in _combined(similar, at, words))
        else:
            yield from _embedded(similar, words)


def _embedded(requests: list[PlainRequest], words: Collection[str]) -> Iterator[tuple[PlainRequest, int]]:
    """Yield requests whose parameter has a word inside of a text that is the same around other words."""
    found: dict[tuple[int, str, str], dict[str, PlainRequest]] = defaultdict(dict)
    for request in requests:
        for at, (name, value) in enumerate(request.pairs):
            for part in _PART.finditer(value) if _SEARCHED.search(_last_name(name)) else ():
                if part[0] in words and part[0] != value:
                    found[at, value[: part.start()], value[part.end() :]].setdefault(part[0], request)
    alike = sorted((each for each in found.items() if len(each[1]) > 1), key=lambda each: -len(each[1]))
    for (at, *around), by_word in alike[:_COMBINATIONS]:
        count = sum(request.count for request in by_word.values())
        first = next(iter(by_word.values()))
        yield replace(first, count=count, around=(around[0], around[1])), at


def _combined(requests: list[PlainRequest], at: int, words: Collection[str]) -> list[PlainRequest]:
    """Return one request for each combination of the other parameters."""
    by_others: dict[tuple[tuple[str, str], ...], list[PlainRequest]] = defaultdict(list)
    for request in requests:
        pairs = request.pairs
        by_others[tuple(pairs[:at] + pairs[at + 1 :])].append(request)
    values = sorted({request.pairs[at][1] for request in requests})
    # One text that no page has may also be a word of a page that was not parsed, sent whole.
    begun = [a for a, b in pairwise(values) if b.startswith(a) and a not in words and not a.isdecimal()]
    by_key = len(begun) >= _BEGUN
    combined = [
        replace(same[0], count=sum(request.count for request in same), by_key=by_key)
        for same in by_others.values()
    ]
    return sorted(combined, key=lambda request: -request.count)[:_COMBINATIONS]


def _typed_place(
    rows: list[list[tuple[str, str]]], words: Collection[str], beginnings: list[str]
) -> int | None:
    """Return the position of the one parameter that visitors type, None if it is not certain."""

    def is_typed(at: int) -> bool:
        name, values = rows[0][at][0], {row[at][1] for row in rows}
        if any(len(value) > _LONGEST_WORD for value in values):
            return False
        if _SEARCHED.search(_last_name(name)):
            return any(value in words or _begins(value, beginnings) for value in values)
        return len(values) > 1 and all(value in words and not value.isdecimal() for value in values)

    found = [at for at in range(len(rows[0])) if is_typed(at)]
    if len(found) > 1:
        found = [at for at in found if _SEARCHED.search(_last_name(rows[0][at][0]))]
    if len(found) != 1:
        return None
    (at,) = found
    # A value that is sent twice cannot be replaced in one place.
    others = {value for row in rows for number, (_, value) in enumerate(row) if number != at}
    return None if any(row[at][1] in others for row in rows) else at


def _begins(text: str, beginnings: list[str]) -> bool:
    """Return whether a text is the beginning of a word; `beginnings` are the words, sorted."""
    at = bisect_left(beginnings, text)
    return bool(text) and at < len(beginnings) and beginnings[at].startswith(text)


def _plain(miss: Missed, body: bytes | None) -> PlainRequest:
    page = miss.last.page or miss.last.referer
    return PlainRequest(miss.method, miss.url, miss.resource or "empty", page, miss.fields, body, miss.count)

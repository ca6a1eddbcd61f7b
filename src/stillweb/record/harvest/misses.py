"""Requests that a replay missed, to send again by plain HTTP, also with other words of the site. Pure.

A miss can be sent again without its page if nothing in it belongs to one visit: no CSRF token, and no body
that was too large for the ledger. Search and type-ahead requests carry a word that an agent typed. Other
agents type other words, so each such request becomes a template for the site's whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from stillweb.collections.misses import Missed
from stillweb.matching.values import fits
from stillweb.model import Headers, header

__all__ = ["PlainRequest", "plain_requests", "word_templates"]

_FORM = "application/x-www-form-urlencoded"
_DOCUMENTS = ("document", "iframe", "frame")
_LONGEST_WORD = 60


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A request to send without a browser.

    Attributes:
        destination: as `Sec-Fetch-Dest` has it.
        fields: request fields beyond those of every request of the destination.
        body: None for a request without a body.
        count: number of equal misses.
    """

    method: str
    url: str
    destination: str
    referer: str
    fields: Headers = ()
    body: bytes | None = None
    count: int = 1

    @property
    def key(self) -> str:
        """The URL of a GET request; for others also method and body."""
        return self.url if self.body is None else f"{self.method} {self.url} {self.body!r}"

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The form data of the body, or of the query if there is no body."""
        text = self.body.decode("utf-8", "replace") if self.body is not None else urlsplit(self.url).query
        return parse_qsl(text, keep_blank_values=True)

    def with_pairs(self, pairs: list[tuple[str, str]]) -> PlainRequest:
        """Return the request with other form data in the same place."""
        url, body = self.url, self.body
        if body is None:
            url = f"{self.url.partition('?')[0]}?{urlencode(pairs)}"
        else:
            body = urlencode(pairs).encode("ascii")
        return PlainRequest(self.method, url, self.destination, self.referer, self.fields, body)


def plain_requests(misses: Iterable[Missed], *, unsafe: bool) -> Iterator[PlainRequest]:
    """Yield the misses that can be sent again without their page; documents are left to the crawl of links.

    Args:
        misses: as the ledger has them.
        unsafe: whether requests by POST are included, if a script sent them as form data.
    """
    for miss in misses:
        by_script = miss.resource == "empty"
        is_form = header(miss.fields, "content-type").startswith(_FORM)
        if miss.method == "GET" and miss.resource not in _DOCUMENTS:
            yield _plain(miss, None)
        elif miss.method == "POST" and unsafe and by_script and is_form and miss.whole:
            request = _plain(miss, miss.request().raw_body)
            if not any(fits("token", value) for _, value in request.pairs):
                yield request


def word_templates(
    requests: Iterable[PlainRequest], words: Collection[str]
) -> Iterator[tuple[PlainRequest, int]]:
    """Yield requests of which exactly one value is a word of the site, with the position of that value."""
    seen: set[tuple[object, ...]] = set()
    for request in requests:
        if request.body is not None and not header(request.fields, "content-type").startswith(_FORM):
            continue
        pairs = request.pairs
        places = [at for at, (_, value) in enumerate(pairs) if value in words and len(value) <= _LONGEST_WORD]
        if len(places) != 1:
            continue
        others = tuple(pair for at, pair in enumerate(pairs) if at != places[0])
        key = (request.method, request.url.partition("?")[0], pairs[places[0]][0], others)
        if key not in seen:
            seen.add(key)
            yield request, places[0]


def _plain(miss: Missed, body: bytes | None) -> PlainRequest:
    page = miss.last.page or miss.last.referer
    return PlainRequest(miss.method, miss.url, miss.resource or "empty", page, miss.fields, body, miss.count)

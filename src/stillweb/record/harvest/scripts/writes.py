"""Send writes of scripts, each with the current tokens of the page that sends it, and those of other rows.

A button sends JSON, form data, or nothing beside its URL, often with a token of its page. A visit opens the
page, for its cookies and tokens. Tokens are hidden fields, `meta` elements and cookies of known frameworks.
Others are found by their place: the text before the token in the recorded page is before the current one,
too. If a write names a row of a page or an entry of a list, those for the others are sent as well.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.errors import UpstreamUnreachable
from stillweb.http.codec import decoded_body
from stillweb.matching.rules import Rule, Rules
from stillweb.matching.transports import is_live
from stillweb.model import MUTATIONS, Capture, Exchange, Request, destination, header
from stillweb.record.amend.origin import LivePage, rules_for
from stillweb.record.crawl.scope import location_of
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.harvest.connections import TooLarge
from stillweb.record.harvest.fetch import WITHOUT_PAGE, PageFetcher, visitor_fields
from stillweb.record.harvest.misses import PlainRequest
from stillweb.record.harvest.page import parse_page
from stillweb.record.harvest.scripts.rows import (
    attribute_texts,
    is_bound,
    is_readable,
    likeness,
    pairs_of,
    requests_for_rows,
    with_values,
)
from stillweb.record.harvest.tree import parse_tree
from stillweb.urls import host_of

_PAGES = 60  # recorded documents whose rows are read
_BEFORE = 40  # characters before a token that show its place
_TOKEN = re.compile(r"[\w.~+/=:|-]{8,}")
_REFUSED = 2  # writes in turn that are refused with fresh tokens, after which a page's others are not sent


class ScriptWrites:
    """The writes of scripts that a recording lacks, by the page that sends them.

    Args:
        documents: recorded documents by URL.
        entries_of: returns the requests for other entries of recorded lists than given requests name.
        avoid: addresses and values that are not sent.
    """

    def __init__(
        self,
        collection: Collection,
        documents: Mapping[str, Capture],
        entries_of: Callable[[Iterable[PlainRequest]], list[PlainRequest]],
        avoid: AvoidRules,
    ) -> None:
        self._collection = collection
        self._documents = documents
        self._entries_of = entries_of
        self._avoid = avoid
        self._learned: list[Rule] = []

    def planned(self, missed: Iterable[PlainRequest]) -> dict[str, list[PlainRequest]]:
        """Return the missed writes that are not recorded, and those of other rows, by their page."""
        recorded = list(self._recorded())
        examples = [each for each in missed if is_readable(each)]
        known = [*recorded, *examples]
        sources = dict.fromkeys([each.referer.partition("#")[0] for each in known])
        pages = [url for url in (*sources, *self._documents) if url in self._documents]
        texts = {url: attribute_texts(self.html_of(url)) for url in islice(dict.fromkeys(pages), _PAGES)}
        others = [*requests_for_rows(known, texts), *self._entries_of(known)]
        found: dict[str, list[PlainRequest]] = {}
        sent = set(map(likeness, recorded))
        for each in (*examples, *others):
            if likeness(each) not in sent and not self._is_avoided(each):
                sent.add(likeness(each))
                found.setdefault(self._page_of(each), []).append(each)
        found.pop("", None)
        return found

    def _page_of(self, request: PlainRequest) -> str:
        """Return the page that sends a request; sites that forbid the Referer get any page of theirs."""
        host = host_of(request.url)
        same = (url for url in self._documents if host_of(url) == host)
        return request.referer.partition("#")[0] or next(same, "")

    def _recorded(self) -> Iterator[PlainRequest]:
        """Yield the recorded writes of scripts."""
        for capture in self._collection.captures():
            if capture.method in MUTATIONS and capture.request_offset >= 0 and not is_live(capture.url):
                request = self._collection.read_request(capture)
                fields = visitor_fields(request.headers)
                page = header(request.headers, "referer")
                found = PlainRequest(
                    request.method, request.url, "empty", page, fields, request.raw_body
                )  # fmt: skip
                if destination(request.headers) == "empty" and is_readable(found):
                    yield found

    def _is_avoided(self, request: PlainRequest) -> bool:
        texts = [value for _, value in pairs_of(request)]
        if request.method == "DELETE":
            texts.append("delete")
        return self._avoid.forbids("", request.url) or any(map(self._avoid.forbids, texts))

    def html_of(self, page: str) -> str:
        """Return the recorded document of a page, "" without one."""
        if page not in self._documents:
            return ""
        body = decoded_body(self._collection.read_capture(self._documents[page]).response) or b""
        return body.decode("utf-8", "replace")

    def note(self, request: PlainRequest, written: Exchange) -> None:
        """Take a write as its page would send it, and as it was sent and written with other tokens."""
        fields = tuple(each for each in request.fields if each[0].lower() == "content-type")
        missed = Request(request.method, request.url, fields, request.body or b"")
        self._learned += rules_for(missed, written.request, request.referer, Rules(tuple(self._learned)))

    def write_rules(self) -> None:
        """Write the rules by which replay matches the writes with the tokens of recorded pages."""
        if self._learned:
            rules = read_rules(self._collection)
            write_rules(self._collection, merge(rules, LearnResult(rules=tuple(self._learned))))


@dataclass(frozen=True, slots=True)
class SentWrite:
    """A write as its recorded page sends it, and the exchange with current tokens."""

    request: PlainRequest
    exchange: Exchange


async def send_writes(
    visit: PageFetcher, page: str, recorded: str, requests: Iterable[PlainRequest]
) -> AsyncIterator[SentWrite]:
    """Send writes from one page in turn; yield those that the site accepts.

    Args:
        visit: a fresh visit, which keeps the cookies.
        page: URL of the page.
        recorded: the recorded document, whose tokens the requests hold; "" if there is none.

    Raises:
        UpstreamUnreachable, TooLarge: if the page gives no answer.
    """
    opened, refused = await _open(visit, page), 0
    for request in requests:
        if refused == _REFUSED:
            break
        exchange = await _send(visit, request, opened, recorded)
        has_token = bool(opened[0].fields()) or any(is_bound(*pair) for pair in pairs_of(request))
        if has_token and exchange is not None and _is_refused(exchange, has_token=True):
            opened = await _open(visit, page)  # a token may serve one request only
            exchange = await _send(visit, request, opened, recorded)
        if exchange is None or _is_refused(exchange, has_token=has_token):
            refused += 1
        elif exchange.response.status < 400:
            refused = 0
            yield SentWrite(request, exchange)


def _is_refused(exchange: Exchange, *, has_token: bool) -> bool:
    """Return whether the site refuses a write; some redirect one with a wrong token to an error page."""
    status = exchange.response.status
    return status in WITHOUT_PAGE or (has_token and bool(location_of(exchange)))


async def _open(visit: PageFetcher, page: str) -> tuple[LivePage, str]:
    exchange = await visit.fetch(page)
    visit.keep_cookies(exchange)
    body = decoded_body(exchange.response) or b""
    html = body.decode("utf-8", "replace")
    tree = parse_tree(html)
    metas = {
        str(each.attributes["name"]): str(each.attributes["content"] or "")
        for each in (tree.css("meta[name][content]") if tree else ())
    }
    forms = [
        (form.action, {each.name: each.value for each in form.fields if each.type == "hidden"})
        for form in parse_page(page, body).posts
    ]
    cookies = {each.name: each.value or "" for each in visit.cookies.jar}
    return LivePage(forms, metas, cookies), html


async def _send(
    visit: PageFetcher, request: PlainRequest, opened: tuple[LivePage, str], recorded: str
) -> Exchange | None:
    """Return the exchange of a write; None if a token is missing, or the site gives no answer."""
    live, html = opened
    new: dict[str, str] = {}
    for name, value in pairs_of(request):
        if is_bound(name, value):
            fresh = (
                live.hidden(name, request.url) or token_at_same_place(recorded, html, value) or live.meta()
            )
            if not fresh:
                return None
            new[value] = fresh
    sent = with_values(request, new)
    try:
        return await visit.fetch_plain(replace(sent, fields=(*sent.fields, *live.fields())))
    except (UpstreamUnreachable, TooLarge):
        return None


def token_at_same_place(recorded: str, live: str, value: str) -> str:
    """Return the token of a page where the recorded page has another one, "" if the place is not clear."""
    at = recorded.find(value)
    while at >= 0:
        before = recorded[max(0, at - _BEFORE) : at]
        if before and live.count(before) == 1:
            found = _TOKEN.match(live, live.index(before) + len(before))
            return found[0] if found else ""
        at = recorded.find(value, at + 1)
    return ""

"""Links, forms and words of the recorded pages of a collection, which wait to be requested.

Pages wait in the order in which a random visitor is likely to reach them. The end of a harvest stores those
that still wait in the collection, so that the next one parses only what was recorded since.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from stillweb.collections.layout import Collection
from stillweb.errors import CollectionError
from stillweb.files import write_atomically
from stillweb.http.codec import decoded_body
from stillweb.model import HTML_TYPES, Capture, Exchange
from stillweb.record.crawl.scope import Scope, location_of
from stillweb.record.harvest.frontier import HarvestFrontier, Pending
from stillweb.record.harvest.misses import PlainRequest, meaning_of, writes_by_link
from stillweb.record.harvest.options import (
    MISSES_SHARE,
    HarvestBudget,
    HarvestOptions,
    HarvestReport,
)
from stillweb.record.harvest.page import HtmlPage, parse_page
from stillweb.record.harvest.posts import PostForm, PostForms
from stillweb.record.harvest.scripts.loaded import LoadedLinks
from stillweb.record.harvest.scripts.named import NamedRequests
from stillweb.record.harvest.typed import TypedText
from stillweb.record.harvest.words import typed_form
from stillweb.record.htmlforms import form_requests
from stillweb.urls import wire_url

STATE_FILE = "harvest.json"
"""In the collection's folder: what waits, so that the next harvest parses only what was recorded since."""

_STATE_VERSION = 4
_BEHIND_MOST = 4  # links of the page behind a form that are fetched because no other page has them
_SEEDS_SHARE, _OTHERS_SHARE = 0.7, 0.3  # weights of the pages where walks start, and of the others recorded
_LISTED, _LISTED_SHARE = 200, 0.2  # documents of entries of lists, and their weight
_TYPED, _CHANGED = 0.6, 0.2  # likelihoods that a visitor sends a form after typing, or after another change
_UNADDRESSED = 0.1  # likelihood that a form without an action is sent by the browser, and not by a script
_OPENED_TOO = 0.1  # likelihood that a link which a script loads is opened as a document
_WORDS_EVERY = 20  # pages between two choices of words
_AGAIN = 0.5  # of its weight has a page without an answer in the next harvest
_PAGE_AGAIN = 5_000  # recorded documents that are parsed for their links before anything is fetched


class LinkedPages:
    """The pages that are recorded, and the requests that they lead to.

    Attributes:
        recorded: keys of the requests that are recorded, or were sent in this harvest.
        documents: latest capture of each recorded document.
        versions: captures of all documents, the oldest first.
        frontier: what waits, by the likelihood that a visitor reaches it.
        typed: GET forms and their words.
        post_forms: POST forms of the pages.
        loaded: links whose documents scripts load.
        named: requests whose URLs the text of a page names for its scripts.
        unanswered: pages that gave no answer.
        refused: keys of requests that the site refused, and that no page was seen to send.
    """

    def __init__(
        self,
        collection: Collection,
        scope: Scope,
        options: HarvestOptions,
        budget: HarvestBudget,
        report: HarvestReport,
    ) -> None:
        self._collection = collection
        self._scope = scope
        self._options = options
        self._budget = budget
        self._report = report
        self.recorded: set[str] = set()
        self.documents: dict[str, Capture] = {}
        self.versions: list[Capture] = []
        self.frontier = HarvestFrontier()
        self.typed = TypedText(collection, self.frontier, self.recorded, options.words)
        self.post_forms = PostForms()
        self.loaded = LoadedLinks()
        self.named = NamedRequests()
        self.unanswered: list[Pending] = []
        self.refused: set[str] = set()
        self._captures: dict[str, list[Capture]] = {}
        self._followed: dict[tuple[str, str], bool] = {}
        self._parsed: set[str] = set()
        self._until_words = _WORDS_EVERY

    def read_recorded(self) -> str:
        """Take the links of what is recorded; return the URL to start a visit from."""
        state = self._read_state()
        self.typed.read_rules()
        documents = []
        for capture in self._collection.captures():
            if capture.method != "GET":
                continue
            self.recorded.add(capture.url)
            self._captures.setdefault(capture.url, []).append(capture)
            if capture.mime in HTML_TYPES and capture.status == 200 and self._scope.contains(capture.url):
                documents.append(capture)
        self.documents = {capture.url: capture for capture in documents}
        self.versions = documents.copy()
        seeds = [page.url for page in self._collection.page_list() if page.seed]
        order = {url: number for number, url in enumerate(seeds)}
        documents.sort(key=lambda each: (order.get(each.url, len(order)), each.timestamp))
        parsed = set(state["parsed"])
        fresh = [each for each in documents if each.url not in parsed][:_PAGE_AGAIN]
        latest = {each.url: each for each in reversed(fresh)}
        for url in latest:
            at_start = url in order and url not in parsed
            self.frontier.add(url, "", _SEEDS_SHARE / len(seeds) if at_start else _OTHERS_SHARE / len(fresh))
        for capture in sorted(latest.values(), key=lambda each: order.get(each.url, len(order))):
            if self._budget.is_late(-MISSES_SHARE * (self._options.seconds or 0.0)):
                break  # the next harvest parses the others
            pending = self.frontier.mark_taken(capture.url)
            self.take_page(pending, self._collection.read_capture(capture))
        return documents[0].url if documents else ""

    def _read_state(self) -> dict[str, Any]:
        """Take up what the harvest before left, and return it; a state of another version counts as none."""
        path = self._collection.path / STATE_FILE
        try:
            state = json.loads(path.read_bytes()) if path.is_file() else {}
            if state.get("version") != _STATE_VERSION:
                return {"parsed": []}
            for url, referer, weight in state["waiting"]:
                self.frontier.add(str(url), str(referer), float(weight))
            self.typed.read_state(state)
            shown = TypeAdapter(dict[str, PlainRequest]).validate_python(state.get("loaded", {}))
            self.loaded.examples.update(shown)
            self._parsed = set(state["parsed"])
            self.refused.update(map(str, state.get("refused", ())))
            self.named.known = frozenset((str(name), str(sign)) for name, sign in state.get("named", ()))
            for post, weight in TypeAdapter(list[tuple[PostForm, float]]).validate_python(state["posts"]):
                self.post_forms.waiting.append(post)
                self.frontier.add_other(post.key, weight)
            self.post_forms.sent = {(key[0], *map(tuple, key[1:])) for key in state["sent"]}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"not the state of a harvest ({error!r})",
                path=path,
                hint=f"rm {path}, to parse all pages anew",
            ) from error
        return dict(state)

    def write_state(self) -> None:
        again = [(each.url, each.referer, _AGAIN * each.weight) for each in self.unanswered]
        state = {
            "version": _STATE_VERSION,
            "waiting": [*self.frontier.waiting_urls(), *again],
            **self.typed.state(),
            "parsed": sorted(self._parsed),
            "named": sorted(self.named.names),
            "refused": sorted(self.refused),
            "posts": [(asdict(post), self.frontier.weight_of(post.key)) for post in self.post_forms.waiting],
            "sent": sorted(self.post_forms.sent),
            "loaded": TypeAdapter(dict[str, PlainRequest]).dump_python(self.loaded.examples, mode="json"),
        }
        write_atomically(self._collection.path / STATE_FILE, json.dumps(state, ensure_ascii=False).encode())

    def take_misses(self, start: str) -> None:
        """Queue missed documents, and take how scripts sent forms."""
        self.post_forms.learn(self._options.misses)
        self.queue_listed(list(self._options.addresses))
        for miss in self._options.misses:
            if miss.method == "GET" and miss.resource == "document" and self.is_followed(miss.url, ""):
                self.frontier.add(wire_url(miss.url), start, 1.0)

    def queue_listed(self, urls: list[str]) -> None:
        """Queue documents of entries of lists, and of views: links that scripts make are in no HTML."""
        new = [url for url in map(wire_url, urls) if url not in self.recorded and self.is_followed(url, "")]
        for url in new[:_LISTED]:
            self.frontier.add(url, "", _LISTED_SHARE / min(len(new), _LISTED))

    def next(self) -> Pending | None:
        """Return the likeliest page that waits, None if none does; choose words every few pages."""
        self._until_words -= 1
        if self._options.words and (self._until_words <= 0 or not self.frontier.waiting):
            self._until_words = _WORDS_EVERY
            self._add_words()
        while (pending := self.frontier.take()) is not None:
            if pending.url in self.recorded:
                continue
            if pending.request is None:
                self.recorded.add(pending.url)
            return pending
        return None

    def take_page(self, pending: Pending, exchange: Exchange) -> HtmlPage | None:
        """Note where a document leads; return what it refers to, None if it is not HTML."""
        if location := location_of(exchange):
            self.frontier.lead(pending, [location] if self.is_followed(location, "") else [])
            return None
        if exchange.response.mime not in HTML_TYPES:
            return None
        at = exchange.request.url
        page = parse_page(at, decoded_body(exchange.response) or b"")
        if page.unread:
            self._report.failed[at] = "nests too deeply to be parsed: its links were not followed"
        self._parsed.add(at)
        self.typed.add_page(at, page, pending.weight)
        found = self.post_forms.of(at, page, meaning_of(exchange.request.headers))
        posts = [post for post in found if self.is_followed(post.form.action, post.label)]
        self.post_forms.waiting += posts
        urls, others = self._shares(page)
        others |= {post.key: 1 / max(1, page.elements) for post in posts}
        self.frontier.lead(pending, urls, others)
        self.add_loaded(at, page, pending.weight)
        return page

    def _shares(self, page: HtmlPage) -> tuple[dict[str, float], dict[Hashable, float]]:
        """Return where a page leads, with the share of its visitors that go there next.

        A visitor acts on any element of the page alike. A changed form needs two actions: the change, by one
        of several values, and the button.
        """
        each = 1 / max(1, page.elements)
        urls: dict[str, float] = {}
        others: dict[Hashable, float] = {}
        for link in page.links:
            if self.is_followed(link.url, f'link "{link.text}"'):
                is_loaded = self.loaded.request_for(link, "") is not None
                share = each * (_OPENED_TOO if is_loaded else 1.0)
                urls[link.url] = urls.get(link.url, 0.0) + share
        for form in page.forms:
            sent = each * (_UNADDRESSED if form.unaddressed else 1.0)
            typed = typed_form(form)
            others[typed] = others.get(typed, 0.0) + _TYPED * sent
            for lead in form_requests(form, self._options.values):
                if lead.typed and not self._options.values.by_name:
                    continue  # no visitor types it; words of the site have their own requests
                changed = (_TYPED if lead.typed else _CHANGED) / lead.choices if lead.choices else 1.0
                share = sent * changed
                if self.is_followed(lead.url, lead.description):
                    urls[lead.url] = urls.get(lead.url, 0.0) + share
        return urls, others

    def links_of(self, document: bytes, url: str) -> list[str]:
        return list(self._shares(parse_page(url, document))[0])

    def links_behind(self, shown: HtmlPage) -> list[str]:
        """Return links that no page has which is shown before a write."""
        return [
            link.url
            for link in shown.links
            if link.url not in self.recorded
            and not self.frontier.knows(link.url)
            and self.is_followed(link.url, f'link "{link.text}"')
        ][:_BEHIND_MOST]

    def add_loaded(self, url: str, page: HtmlPage, weight: float) -> None:
        """Queue the requests of a page's script for links, with the weight of the page."""
        for link in page.links:
            request = self.loaded.request_for(link, url)
            if request and self.is_followed(link.url, f'link "{link.text}"'):
                self.frontier.add(request.key, url, weight / max(1, page.elements), request)

    def _add_words(self) -> None:
        """Queue GET forms with the site's own words, if they are likelier than what waits."""
        for each in self.typed.requests():
            if each.plain is not None or self.is_followed(each.url, each.description):
                self.frontier.add(each.url, each.page, each.weight, each.plain)

    def is_followed(self, url: str, description: str) -> bool:
        # Pages repeat most of their links, and each check is some twenty patterns.
        known = self._followed.get((url, description))
        if known is None:
            known = self._scope.contains(url) and not self._options.avoid.forbids(description, url)
            known = known and not (description.startswith("link") and writes_by_link(url))
            self._followed[url, description] = known
        return known

    def is_recorded(self, request: PlainRequest) -> bool:
        """Return whether a request is recorded, with its meaning."""
        if request.key in self.recorded or not request.meaning:
            return request.key in self.recorded
        captures = self._captures.get(request.url, ())
        return any(
            meaning_of(self._collection.read_request(each).headers) == request.meaning
            for each in captures
            if each.request_offset >= 0
        )

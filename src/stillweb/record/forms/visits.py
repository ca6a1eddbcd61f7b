"""Visits that send forms: each with cookies of its own, after the site was put back.

A visit opens the page of a form, sends the form, and requests the pages behind it. With a login by steps,
each visit logs in anew if plain requests can do so: a site may store the pages that its visitor has seen, and
a reset may end a login.

Two visits request the pages without sending a form, the second one in reverse order. If the pages then differ
in more than words, the site shows what its visitor has seen before. From then on, all visits request all
pages, one after the other, so that each recording has seen the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx

from stillweb.collections.learn.proof import differs_in_structure
from stillweb.collections.learn.recordings import AGAIN, REDIRECT, SHOWN, WRITE, RecordedBranch, RecordedStep
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.http.codec import decoded_body
from stillweb.model import Exchange
from stillweb.record.crawl.scope import location_of
from stillweb.record.explore.values import Values
from stillweb.record.forms.plan import FormVariant
from stillweb.record.harvest.fetch import PageFetcher
from stillweb.record.harvest.page import parse_page
from stillweb.record.harvest.tree import parse_tree
from stillweb.record.htmlforms import FormData, HtmlForm, encode_form
from stillweb.record.login.steps import Login, LoginIndicator
from stillweb.record.redaction.redactor import Secrets, write_redacted
from stillweb.record.reset import SiteReset

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_REDIRECTS = 5

Variants = tuple[FormVariant, ...]


@dataclass(slots=True)
class Walk:
    """Pages that the first recording of a form visits before and after it (`FormRecordings`)."""

    opened: list[Exchange] = field(default_factory=list)
    wandered: list[RecordedStep] = field(default_factory=list)


@dataclass(slots=True)
class FormVisits:
    """Sends the forms of one collection, and stores the exchanges.

    Attributes:
        fetcher: with the cookies of the login.
        secrets: to redact; None to store exchanges as they are.
        in_order: whether pages show which ones the visitor has seen, so that all are requested in order.
    """

    writer: CollectionWriter
    fetcher: PageFetcher
    secrets: Secrets | None
    reset: SiteReset
    login: Login | None
    values: Values
    in_order: bool = False
    _plain: _PlainLogin | None = None
    _untouched: dict[str, tuple[RecordedStep, RecordedStep]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plain = _PlainLogin.of(self.login) if self.login else None

    def untouched(self, url: str) -> tuple[RecordedStep, RecordedStep]:
        """Return a page of two visits that did not send a form; see `visit_untouched`."""
        return self._untouched[url]

    async def visit_untouched(self, variant: FormVariant, urls: Sequence[str]) -> None:
        """Request pages in two visits that do not send the form; each page once for all forms."""
        missing = list(urls) if self.in_order else [url for url in urls if url not in self._untouched]
        if not missing:
            return
        one = await self._request_untouched(variant, missing)
        other = await self._request_untouched(variant, missing[:: 1 if self.in_order else -1])
        if not self.in_order:
            self.in_order = any(differs_in_structure(one[url], other[url]) for url in missing)
            if self.in_order:
                other = await self._request_untouched(variant, missing)
        self._untouched |= {url: (one[url], other[url]) for url in missing}

    async def _request_untouched(self, variant: FormVariant, urls: Sequence[str]) -> dict[str, RecordedStep]:
        visit = await self._begin()
        self._redacted(await self._fetch(visit, variant.page))
        steps = [await self._step(visit, url) for url in urls]
        return {step.label: RecordedStep(step.label, self._redacted(step.exchange)) for step in steps}

    async def record(
        self, path: Variants, values: Sequence[str], pages: Sequence[str] = (), walk: Walk | None = None
    ) -> RecordedBranch | str:
        """Send the forms of a path in one visit, and request the pages behind the last one.

        With a walk, all of them are then visited in turn, and requested once more.

        Returns:
            The recording, or why the forms were not sent.
        """
        visit = await self._begin()
        left = list(values)
        sent: list[RecordedStep] = []
        for number, variant in enumerate(path, start=1):
            typed, left = left[: len(variant.free)], left[len(variant.free) :]
            self._store(sent)  # of the form before
            found = await self._open_and_send(visit, variant, typed)
            if isinstance(found, str):
                return found
            opened, sent = found
            if walk is not None:
                earlier = sent[1:] if number < len(path) else []
                walk.opened += [self._redacted(each) for each in (opened, *(s.exchange for s in earlier))]
        variant = path[-1]
        shown = sent[-1].exchange.request.url
        if variant.posts:
            if len(sent) > 1:
                sent[-1] = RecordedStep(SHOWN, sent[-1].exchange)
                sent.append(RecordedStep(AGAIN, await self._fetch(visit, shown)))
            own = {step.exchange.request.url for step in sent[1:]}
            sent += await self._probe(visit, [url for url in pages if url not in own])
        self._redacted(opened)  # learns the visit's secrets
        if walk is not None:
            led_to = [step.exchange.request.url for step in sent if step.label == AGAIN]
            walk.wandered = await self._wander(visit, list(dict.fromkeys((*led_to, *pages))))
        return RecordedBranch(tuple(values), self._store(sent))

    async def _begin(self) -> PageFetcher:
        """Put the site back, and return a visitor with the login."""
        await self.reset.run(self.fetcher)
        if self._plain is not None:
            visit = replace(self.fetcher, cookies=httpx.Cookies())
            if exchanges := await self._plain.log_in(visit):
                for each in exchanges:
                    self._redacted(each)  # learns its cookies
                return visit
            self._plain = None
        return replace(self.fetcher, cookies=httpx.Cookies(self.fetcher.cookies))

    async def _wander(self, visit: PageFetcher, urls: Sequence[str]) -> list[RecordedStep]:
        """Visit pages one after the other as one visitor, then return all of them as they are then."""
        for url in urls:
            await self._fetch(visit, url)
        steps = await self._probe(visit, urls)
        return [RecordedStep(step.label, self._redacted(step.exchange)) for step in steps]

    async def _open_and_send(
        self, visit: PageFetcher, variant: FormVariant, values: Sequence[str]
    ) -> tuple[Exchange, list[RecordedStep]] | str:
        """Open the page of a form and send the form; return the page and the steps."""
        opened = await self._fetch(visit, variant.page)
        page = parse_page(variant.page, decoded_body(opened.response) or b"")
        forms = page.posts if variant.posts else page.forms
        form = next((each for each in forms if _same(each, variant.form)), None)
        if form is None:
            return self._without_form(opened)
        pairs = variant.pairs(form, values, self.values)
        return opened, await self._send(visit, variant, form, pairs)

    def _without_form(self, opened: Exchange) -> str:
        """Return why the page of a form does not have it."""
        location = location_of(opened)
        found = f"the page leads to {location} now" if location else "the page has no such form any more"
        if self.login and self.reset:
            found += "; the reset may end the login: store the first state after it, and use --storage-state"
        return found

    async def _send(
        self, visit: PageFetcher, variant: FormVariant, form: HtmlForm, pairs: FormData
    ) -> list[RecordedStep]:
        """Send a form and follow its redirects."""
        body, kind = encode_form(pairs, multipart=form.multipart and variant.posts)
        if variant.posts:
            fields = (("Content-Type", kind),)
            sent = await visit.fetch(form.action, referer=variant.page, body=body, fields=fields)
            visit.keep_cookies(sent)
        else:
            url = f"{form.action.partition('?')[0]}?{body.decode('ascii')}"
            sent = await self._fetch(visit, url, variant.page)
        steps = [RecordedStep(WRITE, sent)]
        while (location := location_of(steps[-1].exchange)) and len(steps) <= _REDIRECTS:
            exchange = await self._fetch(visit, location, variant.page)
            steps.append(RecordedStep(f"{REDIRECT} {len(steps)}", exchange))
        return steps

    async def _probe(self, visit: PageFetcher, urls: Sequence[str]) -> list[RecordedStep]:
        """Request pages as next ones of a visit; cookies that one of them sets are not sent for another."""
        if self.in_order:
            return [await self._step(visit, url) for url in urls]
        return list(await asyncio.gather(*(self._step(visit, url) for url in urls)))

    async def _step(self, visit: PageFetcher, url: str) -> RecordedStep:
        return RecordedStep(url, await visit.fetch(url))

    async def _fetch(self, visit: PageFetcher, url: str, referer: str = "") -> Exchange:
        exchange = await visit.fetch(url, referer=referer)
        visit.keep_cookies(exchange)
        return exchange

    def _store(self, steps: Sequence[RecordedStep]) -> tuple[RecordedStep, ...]:
        return tuple(RecordedStep(step.label, self.stored(step.exchange)) for step in steps)

    def _redacted(self, exchange: Exchange) -> Exchange:
        return exchange if self.secrets is None else self.secrets.redact(exchange, None)[0]

    def stored(self, exchange: Exchange) -> Exchange:
        """Write an exchange; return it as it was written."""
        return write_redacted(self.writer, self.secrets, exchange)


def _same(one: HtmlForm, other: HtmlForm) -> bool:
    names = [each.name for each in one.fields]
    return one.action == other.action and names == [each.name for each in other.fields]


@dataclass(frozen=True, slots=True)
class _PlainLogin:
    """Login steps that fill and send one HTML form, as plain requests: a browser takes seconds.

    Attributes:
        page: URL of the form's page.
        fills: values by CSS selector.
        indicator: sign that it worked.
    """

    page: str
    fills: Mapping[str, str]
    indicator: LoginIndicator

    @classmethod
    def of(cls, login: Login) -> _PlainLogin | None:
        """Return the login of some steps: one page, fields, and what sends them; None for any others."""
        pages = [step.goto for step in login.steps if step.goto]
        fills = {step.fill.selector: step.fill.value for step in login.steps if step.fill}
        sends = [step for step in login.steps if step.click or step.press]
        ticks = any(step.check for step in login.steps)
        if len(pages) != 1 or not fills or len(sends) != 1 or ticks or login.indicator is None:
            return None
        return cls(pages[0], fills, login.indicator)

    async def log_in(self, visit: PageFetcher) -> list[Exchange]:
        """Log a visitor in; return the exchanges, none if the sign of the login is missing."""
        exchanges = await self._followed(visit, await visit.fetch(self.page))
        opened = exchanges[-1]
        typed = self._by_name(opened)
        posts = parse_page(opened.request.url, decoded_body(opened.response) or b"").posts
        form = next((e for e in posts if typed and typed.keys() <= {each.name for each in e.fields}), None)
        if form is None:
            return []
        free = tuple((n, "text") for n, each in enumerate(form.fields) if each.name in typed)
        button = next((each for each in form.fields if each.type == "submit"), None)
        variant = FormVariant(self.page, form, button, free, posts=True)
        pairs = variant.pairs(form, [typed[form.fields[n].name] for n, _ in free], Values())
        body, kind = encode_form(pairs, multipart=form.multipart)
        fields = (("Content-Type", kind),)
        sent = await visit.fetch(form.action, referer=opened.request.url, body=body, fields=fields)
        exchanges += await self._followed(visit, sent)
        if self.indicator.at:
            exchanges += await self._followed(visit, await visit.fetch(self.indicator.at))
        return exchanges if self._is_shown(exchanges[-1]) else []

    async def _followed(self, visit: PageFetcher, exchange: Exchange) -> list[Exchange]:
        visit.keep_cookies(exchange)
        exchanges = [exchange]
        while (location := location_of(exchanges[-1])) and len(exchanges) <= _REDIRECTS:
            exchanges.append(await visit.fetch(location))
            visit.keep_cookies(exchanges[-1])
        return exchanges

    def _by_name(self, page: Exchange) -> dict[str, str]:
        """Return the values by the names of their fields; {} if a selector finds none."""
        tree = _tree_of(page)
        found = {selector: _first(tree, selector) for selector in self.fills}
        names = {
            selector: (node.attributes.get("name") or "") if node else "" for selector, node in found.items()
        }
        return {names[each]: value for each, value in self.fills.items()} if all(names.values()) else {}

    def _is_shown(self, page: Exchange) -> bool:
        wanted, tree = self.indicator, _tree_of(page)
        if page.response.status >= 400 or tree is None or tree.body is None:
            return False
        if wanted.url:
            return wanted.url in page.request.url
        return wanted.text in tree.body.text() if wanted.text else _first(tree, wanted.selector) is not None


def _tree_of(page: Exchange) -> LexborHTMLParser | None:
    return parse_tree((decoded_body(page.response) or b"").decode("utf-8", "replace"))


def _first(tree: LexborHTMLParser | None, selector: str) -> LexborNode | None:
    """Return the first element of a selector; None for Playwright's own selectors, which are not CSS."""
    from selectolax.lexbor import SelectolaxError  # of the extra stillweb[record]

    with suppress(SelectolaxError):
        return tree.css_first(selector) if tree is not None else None
    return None

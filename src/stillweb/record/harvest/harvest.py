"""Record the pages that links and GET forms lead to by plain HTTP, many at a time, without a browser.

A page whose requests all follow from its HTML needs no browser to be recorded: its document and the
resources that it names are enough. The harvest fetches pages in the order in which a random visitor is
likely to reach them, until its budget ends. Pages whose scripts request more are incomplete afterwards.
`stillweb coverage` shows which they are, and `record explore` or `record amend` complete them.

Exchanges pass through the same redaction and writer as those of the recording proxy.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import httpx
from pydantic import TypeAdapter

from stillweb.certs import CertAuthority
from stillweb.clock import monotonic
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import Learned, merge, read_rules, write_rules
from stillweb.collections.manifest import write_atomically
from stillweb.collections.misses import Missed
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError, RecordError, UpstreamUnreachable
from stillweb.model import Exchange
from stillweb.options import Option
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import Tokens
from stillweb.record.explore.links import HtmlForm, form_requests
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import ANY, FormValues, Values
from stillweb.record.harvest.fetch import (
    PageFetcher,
    TooLarge,
    cookies_of,
    decoded_body,
    location_of,
    recorded_fields,
)
from stillweb.record.harvest.frontier import HarvestFrontier, Pending
from stillweb.record.harvest.misses import PlainRequest, plain_requests, word_templates
from stillweb.record.harvest.page import HtmlPage, Resource, css_urls, parse_page
from stillweb.record.harvest.posts import PostForm, PostForms, send_form
from stillweb.record.login.run import log_in_separately
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions
from stillweb.record.recording import begin, pinning_of, repair_archive
from stillweb.record.redaction.redactor import secrets_of
from stillweb.record.redaction.sweep import sweep
from stillweb.urls import wire_url

__all__ = ["HarvestOptions", "HarvestReport", "harvest"]

STATE_FILE = "harvest.json"
"""In the collection's folder: what waits, so that the next harvest parses only what was recorded since."""

_STATE_VERSION = 1
# Shares of the time left that pages, and then POST forms, may use while something else waits for its turn.
_MISSES_SHARE, _PAGES_SHARE, _FORMS_SHARE = 0.25, 0.5, 0.5
_HTML = ("text/html", "application/xhtml+xml")
_PAGE_AGAIN = 5_000  # recorded documents that are parsed for their links before anything is fetched


@dataclass(frozen=True, slots=True)
class HarvestOptions:
    """How much is fetched, and how fast.

    Attributes:
        size: bytes of response bodies.
        jobs: pages at a time.
        misses: requests that a replay missed, which are sent first.
        avoid: links that are not followed.
        login: None to harvest without a login.
        record: how the sites are reached.
    """

    pages: Annotated[int, Option("Fetch at most N documents.", min=1)] = 2_000
    requests: Annotated[
        int | None, Option("Send at most N requests, resources included.", min=1, default="no limit")
    ] = None
    seconds: Annotated[
        float | None, Option("Harvest for at most this many seconds.", "--time", "SECONDS", min=1)
    ] = None
    size: Annotated[
        int | None,
        Option("Stop after this many MB of response bodies.", metavar="MB", min=1, unit=1_000_000),
    ] = None
    jobs: Annotated[int, Option("Fetch N pages at a time.", min=1, max=256)] = 16
    per_host: Annotated[int, Option("Open at most N connections to one host.", min=1, max=64)] = 8
    rate: Annotated[
        float | None, Option("Send at most N requests per second to one host.", metavar="N", above=0)
    ] = None
    forms: Annotated[
        int, Option("Send at most N POST forms, each as its page has it. This changes the site.", min=0)
    ] = 0
    words: Annotated[
        int, Option("Send N of the site's own words in each text field of GET forms.", min=0)
    ] = 0
    misses: tuple[Missed, ...] = ()
    values: FormValues = field(default_factory=Values)
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    login: Login | None = None
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(slots=True)
class HarvestReport:
    """Totals of a harvest.

    Attributes:
        pages: documents fetched.
        forms: POST forms sent.
        requests: exchanges written.
        body_bytes: of their response bodies.
        waiting: URLs that the budget did not reach.
        statuses: number of documents by HTTP status.
        failed: URLs that gave no answer, with the reason.
        too_large: URLs whose body was longer than the limit.
        seconds: duration.
        ended_by: the limit that ended the harvest, "" if nothing was left.
    """

    pages: int = 0
    forms: int = 0
    requests: int = 0
    body_bytes: int = 0
    waiting: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    too_large: list[str] = field(default_factory=list)
    seconds: float = 0.0
    ended_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "statuses": {str(k): v for k, v in sorted(self.statuses.items())}}


OnPage = Callable[[HarvestReport], None]


async def harvest(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    options: HarvestOptions,
    on_page: OnPage = lambda report: None,
) -> HarvestReport:
    """Fetch the pages that the recorded pages of a collection lead to, into the same collection.

    Only a login by steps uses a browser, and `ca` with it.

    Raises:
        RecordError: if the collection holds no document in scope.
        CollectionError: if another process records, or the archive cannot be written.
    """
    with locked(collection):
        prior = collection.manifest()
        repair_archive(collection, prior)
        fields = recorded_fields(collection)
        state = prior.state
        manifest = replace(begin(collection), state=state)
        collection.write_manifest(manifest)
        cookies = httpx.Cookies()
        if options.login is not None:
            seed = next((page.url for page in collection.page_list() if page.seed), "")
            session = await log_in_separately(
                ca, options.login, pinning_of(manifest), seed, options.record, executable=None
            )
            cookies = cookies_of(session.state)
            options = replace(options, record=options.record.knowing(session.secrets))
        with CollectionWriter(collection) as writer:
            run = _Harvest(collection, writer, scope, options, on_page)
            fetcher = PageFetcher(
                options.record,
                fields,
                per_host=options.per_host,
                interval=1 / options.rate if options.rate else 0.0,
                cookies=cookies,
            )
            async with fetcher:
                return await run.run(fetcher)


class _Harvest:
    def __init__(
        self,
        collection: Collection,
        writer: CollectionWriter,
        scope: Scope,
        options: HarvestOptions,
        on_page: OnPage,
    ) -> None:
        self._collection = collection
        self._writer = writer
        self._scope = scope
        self._options = options
        self._on_page = on_page
        self._secrets = secrets_of(collection, options.record.secrets)
        self._recorded: set[str] = set()
        self._frontier = HarvestFrontier()
        self._words: dict[str, float] = {}
        self._parsed: set[str] = set()
        self._forms: dict[HtmlForm, str] = {}
        self._post_forms = PostForms()
        self._posts: list[PostForm] = []
        self._tokens = Tokens()
        self._end = monotonic() + options.seconds if options.seconds else None
        self._deadline = self._end
        self.report = HarvestReport()

    async def run(self, fetcher: PageFetcher) -> HarvestReport:
        """Fetch until the budget ends or nothing is left."""
        started = monotonic()
        start = self._read_recorded()
        if not start:
            raise RecordError(
                f"{self._collection.name} holds no document in scope to harvest from",
                hint=f"stillweb record crawl URL... -c {self._collection.name}",
            )
        await self._begin_visit(fetcher, start)
        for miss in self._options.misses:
            if miss.method == "GET" and miss.resource == "document" and self._is_followed(miss.url, ""):
                self._frontier.add(wire_url(miss.url), start, 1.0)
        missed = list(plain_requests(self._options.misses, unsafe=bool(self._options.forms)))
        try:
            self._limit_time(_MISSES_SHARE)
            await self._send_plain(fetcher, missed)
            forms, words = bool(self._options.forms), bool(self._options.words)
            self._limit_time(_PAGES_SHARE if forms or words else 1.0)
            await self._fetch_all(fetcher)
            if forms:
                self._limit_time(_FORMS_SHARE if words else 1.0)
                await self._send_forms(fetcher)
            self._limit_time(1.0)
            if words and not self._is_over():
                self._add_words()
                await self._send_plain(fetcher, self._worded(missed))
            await self._fetch_all(fetcher)
        finally:
            if self._secrets is not None:
                sweep(self._writer, self._secrets)
            self._write_state()
            self.report.waiting = self._frontier.waiting
            self.report.seconds = monotonic() - started
        return self.report

    def _read_recorded(self) -> str:
        """Take the links of what is recorded; return the URL to start a visit from."""
        state = self._read_state()
        documents = []
        for capture in self._collection.captures():
            if capture.method != "GET":
                continue
            self._recorded.add(capture.url)
            if capture.mime in _HTML and capture.status == 200 and self._scope.contains(capture.url):
                documents.append(capture)
        seeds = [page.url for page in self._collection.page_list() if page.seed]
        order = {url: number for number, url in enumerate(seeds)}
        documents.sort(key=lambda each: (order.get(each.url, len(order)), each.timestamp))
        parsed = set(state["parsed"])
        fresh = [each for each in documents if each.url not in parsed][:_PAGE_AGAIN]
        for capture in {each.url: each for each in reversed(fresh)}.values():
            exchange = self._collection.read_capture(capture)
            self._take_page(Pending(capture.url, "", 1.0 / len(fresh), taken=True), exchange)
        return documents[0].url if documents else ""

    def _read_state(self) -> dict[str, Any]:
        """Take up what the harvest before left, and return it; a state of another version counts as none."""
        path = self._collection.path / STATE_FILE
        try:
            state = json.loads(path.read_bytes()) if path.is_file() else {}
            if state.get("version") != _STATE_VERSION:
                return {"parsed": []}
            for url, referer, weight in state["waiting"]:
                self._frontier.add(str(url), str(referer), float(weight))
            self._words = {str(word): float(weight) for word, weight in state["words"].items()}
            self._parsed = set(state["parsed"])
            self._forms = dict(TypeAdapter(list[tuple[HtmlForm, str]]).validate_python(state["forms"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"not the state of a harvest ({error!r})",
                path=path,
                hint=f"rm {path}, to parse all pages anew",
            ) from error
        return dict(state)

    def _write_state(self) -> None:
        state = {
            "version": _STATE_VERSION,
            "waiting": self._frontier.waiting_urls(),
            "words": self._words,
            "parsed": sorted(self._parsed),
            "forms": [(asdict(form), page) for form, page in self._forms.items()],
        }
        write_atomically(self._collection.path / STATE_FILE, json.dumps(state, ensure_ascii=False).encode())

    async def _begin_visit(self, fetcher: PageFetcher, start: str) -> None:
        """Open the start page, for the cookies that a visitor has on every further page."""
        try:
            exchange = await fetcher.fetch(start)
        except (UpstreamUnreachable, TooLarge) as error:
            raise RecordError(f"the start page gives no answer: {error}") from error
        fetcher.keep_cookies(exchange)
        if self._secrets is not None:
            self._secrets.redact(exchange, None)  # learns the visit's cookies before anything is written

    async def _fetch_all(self, fetcher: PageFetcher) -> None:
        async with asyncio.TaskGroup() as group:
            running: set[asyncio.Task[None]] = set()
            while True:
                pending = None if self._is_over() else self._next()
                if pending is None:
                    if not running:
                        return
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    continue
                task = group.create_task(self._fetch_page(fetcher, pending))
                running.add(task)
                task.add_done_callback(running.discard)
                if len(running) >= self._options.jobs:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    def _next(self) -> Pending | None:
        while (pending := self._frontier.take()) is not None:
            if pending.url not in self._recorded:
                self._recorded.add(pending.url)
                return pending
        return None

    def _limit_time(self, share: float) -> None:
        """Set the end of the next phase to a share of the time that is left."""
        if self._end is not None:
            self._deadline = monotonic() + share * (self._end - monotonic())

    def _is_over(self) -> bool:
        options, report = self._options, self.report
        limits = {
            "--pages": report.pages >= options.pages,
            "--requests": options.requests is not None and report.requests >= options.requests,
            "--size": options.size is not None and report.body_bytes >= options.size,
            "--time": self._deadline is not None and monotonic() >= self._deadline,
        }
        report.ended_by = next((name for name, reached in limits.items() if reached), "")
        return bool(report.ended_by)

    async def _fetch_page(self, fetcher: PageFetcher, pending: Pending) -> None:
        exchange = await self._fetch(fetcher, pending.url, "document", pending.referer)
        if exchange is None:
            return
        self.report.pages += 1
        self.report.statuses[exchange.response.status] += 1
        page = self._take_page(pending, exchange)
        if page:
            await self._fetch_resources(fetcher, page.resources, pending.url)
        self._on_page(self.report)

    async def _fetch_resources(
        self, fetcher: PageFetcher, resources: Iterable[Resource], referer: str
    ) -> None:
        for resource in resources:
            if resource.url in self._recorded:
                continue
            self._recorded.add(resource.url)
            exchange = await self._fetch(fetcher, resource.url, resource.destination, referer)
            if exchange is None:
                continue
            if location := location_of(exchange):
                await self._fetch_resources(fetcher, [Resource(location, resource.destination)], referer)
            elif exchange.response.mime == "text/css":
                text = decoded_body(exchange).decode("utf-8", "replace")
                await self._fetch_resources(fetcher, css_urls(resource.url, text), resource.url)
            elif resource.destination in ("iframe", "frame") and exchange.response.mime in _HTML:
                framed = parse_page(resource.url, decoded_body(exchange))
                await self._fetch_resources(fetcher, framed.resources, resource.url)

    async def _fetch(self, fetcher: PageFetcher, url: str, destination: str, referer: str) -> Exchange | None:
        """Fetch and write an exchange; None if the site gave none, which the report says."""
        try:
            exchange = await fetcher.fetch(url, destination, referer=referer)
        except UpstreamUnreachable as error:
            self.report.failed[url] = str(error)
            return None
        except TooLarge:
            self.report.too_large.append(url)
            return None
        self._write(exchange)
        return exchange

    def _write(self, exchange: Exchange) -> None:
        if self._secrets is None:
            self._writer.write(exchange, None)
        else:
            self._writer.write(*self._secrets.redact(exchange, None))
        self.report.requests += 1
        self.report.body_bytes += len(exchange.response.raw_body)

    async def _fetch_shown(self, fetcher: PageFetcher, exchanges: list[Exchange]) -> None:
        """Fetch the resources of the page that a form led to."""
        if exchanges and exchanges[-1].response.mime in _HTML:
            url = exchanges[-1].request.url
            shown = parse_page(url, decoded_body(exchanges[-1]))
            await self._fetch_resources(fetcher, shown.resources, url)

    async def _send_forms(self, fetcher: PageFetcher) -> None:
        """Send the POST forms of the pages that were fetched, those of the likeliest pages first."""
        waiting = iter(self._posts[: self._options.forms])

        async def work() -> None:
            for post in waiting:
                if self._deadline is not None and monotonic() >= self._deadline:
                    return
                try:
                    exchanges = await send_form(fetcher, post, self._tokens)
                except UpstreamUnreachable as error:
                    self.report.failed[f"POST {post.form.action}"] = str(error)
                    continue
                except TooLarge:
                    self.report.too_large.append(post.form.action)
                    continue
                for exchange in exchanges:  # together, so that the page shown is the one behind this form
                    self._write(exchange)
                await self._fetch_shown(fetcher, exchanges)
                self.report.forms += bool(exchanges)
                self._on_page(self.report)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.per_host):
                group.create_task(work())
        if learned := self._tokens.rules():
            write_rules(self._collection, merge(read_rules(self._collection), Learned(rules=learned)))

    def _take_page(self, pending: Pending, exchange: Exchange) -> HtmlPage | None:
        """Note where a document leads; return what it refers to, None if it is no HTML."""
        if location := location_of(exchange):
            self._frontier.lead(pending, [location] if self._is_followed(location, "") else [])
            return None
        if exchange.response.mime not in _HTML:
            return None
        page = parse_page(pending.url, decoded_body(exchange))
        self._parsed.add(pending.url)
        for word in page.words:  # as likely as that a visitor is here, and types this of all words
            self._words[word] = self._words.get(word, 0.0) + pending.weight / len(page.words)
        for form in page.forms:
            self._forms.setdefault(form, pending.url)
        self._posts += [
            post
            for post in self._post_forms.of(pending.url, page)
            if self._is_followed(post.form.action, post.label)
        ]
        self._frontier.lead(pending, self._followed(page))
        return page

    def _followed(self, page: HtmlPage) -> Iterator[str]:
        for link in page.links:
            if self._is_followed(link.url, f'link "{link.text}"'):
                yield link.url
        for form in page.forms:
            for lead in form_requests(form, self._options.values):
                if self._is_followed(lead.url, lead.description):
                    yield lead.url

    def _is_followed(self, url: str, description: str) -> bool:
        return self._scope.contains(url) and not self._options.avoid.forbids(description, url)

    def _likely_words(self) -> list[tuple[str, float]]:
        return heapq.nlargest(self._options.words, self._words.items(), key=lambda each: (each[1], each[0]))

    def _add_words(self) -> None:
        """Queue GET forms with the site's own words in their text fields, likely words and pages first.

        Forms that differ in hidden fields only are variants of one. The n-th variant gets 1/n of the words.
        """
        words = self._likely_words()
        variants: dict[tuple[str, ...], list[tuple[HtmlForm, str]]] = {}
        for form, page in self._forms.items():
            typed = sorted(each.name for each in form.fields if each.type in ("text", "search"))
            if typed:
                variants.setdefault((form.action.partition("?")[0], *typed), []).append((form, page))
        for forms in variants.values():
            for number, (form, page) in enumerate(forms):
                for word, weight in words[: max(1, len(words) // (number + 1))]:
                    for lead in form_requests(form, Values({ANY: (word,)})):
                        if self._is_followed(lead.url, lead.description):
                            self._frontier.add(lead.url, page, weight / (number + 1))

    def _worded(self, missed: list[PlainRequest]) -> Iterator[PlainRequest]:
        """Yield missed searches and type-aheads with the site's other words, likely words first."""
        templates = list(word_templates(missed, self._words))
        for word, _ in self._likely_words():
            for request, at in templates:
                pairs = request.pairs
                pairs[at] = (pairs[at][0], word)
                yield request.with_pairs(pairs)

    async def _send_plain(self, fetcher: PageFetcher, requests: Iterable[PlainRequest]) -> None:
        """Send requests that need no page, each once."""
        waiting = iter(requests)
        sent: set[tuple[str, bytes | None]] = set()

        async def work() -> None:
            for request in waiting:
                key = (request.url, request.body)
                known = request.body is None and request.url in self._recorded
                avoided = self._options.avoid.forbids("", request.url)
                if key in sent or known or avoided or self._is_over():
                    continue
                sent.add(key)
                try:
                    exchange = await fetcher.fetch(
                        request.url,
                        request.destination,
                        referer=request.referer,
                        body=request.body,
                        fields=request.fields,
                    )
                except (UpstreamUnreachable, TooLarge) as error:
                    self.report.failed[request.url] = str(error)
                    continue
                self._recorded.add(request.url)
                self._write(exchange)
                self._on_page(self.report)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.per_host):
                group.create_task(work())

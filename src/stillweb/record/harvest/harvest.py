"""Record the pages that links and GET forms lead to by plain HTTP, many at a time, without a browser.

A page whose requests all follow from its HTML needs no browser to be recorded: its document and the
resources that it names are enough. The harvest fetches pages in the order in which a random visitor is
likely to reach them, until its budget ends. Pages whose scripts request more are incomplete afterwards.
`stillweb coverage` shows which they are, and `record explore` or `record amend` complete them.

Exchanges pass through the same redaction and writer as those of the recording proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from http import HTTPStatus

import httpx

from stillweb.certs import CertAuthority
from stillweb.clock import monotonic
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError, UpstreamUnreachable
from stillweb.http.codec import decoded_body
from stillweb.model import HTML_TYPES, Exchange, Request
from stillweb.record.crawl.fetch import Fetcher, Robots
from stillweb.record.crawl.scope import Scope
from stillweb.record.harvest.connections import TooLarge
from stillweb.record.harvest.fetch import (
    WITHOUT_PAGE,
    PageFetcher,
    is_file,
    is_found,
    is_refusal,
    opening_requests,
    recorded_fields,
    recorded_posts,
    recorded_requests,
    refuses_strangers,
)
from stillweb.record.harvest.frontier import Pending
from stillweb.record.harvest.keeper import LoginKeeper
from stillweb.record.harvest.links import LinkedPages
from stillweb.record.harvest.misses import (
    PlainRequest,
    plain_requests,
    script_writes,
)
from stillweb.record.harvest.opened import opened_posts
from stillweb.record.harvest.options import (
    MISSES_SHARE,
    HarvestBudget,
    HarvestOptions,
    HarvestReport,
)
from stillweb.record.harvest.page import Resource, parse_page
from stillweb.record.harvest.posts import PostForm, send_form
from stillweb.record.harvest.proofs import Fetch, NonceRequests, NumberedRequests
from stillweb.record.harvest.resources import fetch_resources
from stillweb.record.harvest.scripts.entries import ListedValues, requests_for_entries
from stillweb.record.harvest.scripts.loaded import loaded_scripts
from stillweb.record.harvest.scripts.requests import ScriptRequests
from stillweb.record.harvest.scripts.writes import ScriptWrites, send_writes
from stillweb.record.harvest.signin import signed_in
from stillweb.record.recording import begin_addition, repair_archive
from stillweb.record.redaction.redactor import secrets_of, write_redacted
from stillweb.record.redaction.sweep import sweep
from stillweb.record.tokens import CsrfTokens, issues_token

_PAGES_SHARE = 0.7  # share of the time that pages may use before writes of scripts are sent
_WRITES_LEAST = 15.0  # seconds for the writes of scripts, once they are planned
_FORM_COST = 3.0  # requests that a POST form takes: its page, itself, the page behind it
_FORMS_EVERY = 20  # pages between two looks at the waiting POST forms
_FINISH = 5.0  # seconds after the deadline in which pages under way may still fetch their resources


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
        begin_addition(collection)
        visitor = await signed_in(collection, ca, options.login, options.record, options.shared)
        options = replace(options, record=visitor.record)
        async with AsyncExitStack() as stack:
            writer = stack.enter_context(CollectionWriter(collection))
            run = _Harvest(collection, writer, scope, options, on_page)
            if options.robots:
                run.robots = Robots(await stack.enter_async_context(Fetcher(options.record)))
            interval = 1 / options.rate if options.rate else 0.0
            fetcher = visitor.fetcher(recorded_fields(collection), options.per_host, interval)
            report = await run.run(await stack.enter_async_context(fetcher))
        run.pages.typed.write_rules()  # of the index that the writer has just written
        return report


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
        self._options = options
        self._on_page = on_page
        self._secrets = secrets_of(collection, options.record.secrets)
        self._until_forms = _FORMS_EVERY
        self._forms_left = options.forms
        self._tokens = CsrfTokens()
        self.report = HarvestReport()
        self._budget = HarvestBudget(options, self.report)
        self.pages = LinkedPages(collection, scope, options, self._budget, self.report)
        self.robots: Robots | None = None
        self._visit: PageFetcher | None = None
        self._listed = ListedValues()
        self._numbered = NumberedRequests()
        self._keeper: LoginKeeper | None = None

    async def run(self, fetcher: PageFetcher) -> HarvestReport:
        """Fetch until the budget ends or nothing is left."""
        started = monotonic()
        start = await asyncio.to_thread(self.pages.read_recorded)
        if not start:
            raise RecordError(
                f"{self._collection.name} holds no document in scope to harvest from",
                hint=f"stillweb record crawl URL... -c {self._collection.name}",
            )
        await self._begin_visit(fetcher, start)
        self._keeper = fetcher.keeper
        self.pages.take_misses(start)
        self.pages.typed.words.raise_to(self._options.shown)
        is_plain = (await asyncio.to_thread(opened_posts, self._collection, self._options.reads)).is_plain
        missed = list(
            plain_requests(self._options.misses, unsafe=bool(self._options.forms), is_plain=is_plain)
        )
        known = self._known(is_plain)
        try:
            plain = await self._plain(missed, known, is_plain)
            await self._prove_rules(partial(self._fetch_plain, fetcher))
            self._budget.limit_time(MISSES_SHARE)
            for requests, is_wanted in plain:
                await self._send_plain(fetcher, requests, is_wanted)
            self.pages.typed.add_requests(missed, known, self._options.misses, self._options.walked)
            self._budget.limit_time(_PAGES_SHARE if self._options.writes else 1.0)
            while await self._fetch_all(fetcher):
                await self._send_forms(fetcher)
            for requests, is_wanted in plain:  # an application in one page has few links, and time is left
                await self._send_plain(fetcher, requests, is_wanted)
            await self._send_writes(fetcher)
        finally:
            if self._secrets is not None:
                sweep(self._writer, self._secrets)
            self.pages.write_state()
            if self._keeper is not None and self._keeper.why:
                self.report.failed[start] = self._keeper.why
            self.report.waiting = self.pages.frontier.waiting
            self.report.seconds = monotonic() - started
        return self.report

    async def _prove_rules(self, fetch: Fetch) -> None:
        """Let the site show which values of recorded requests choose no answer."""
        await self._numbered.prove(self._collection, fetch)
        missed = [each.url for each in self._options.misses if each.method == "GET"]
        if recorded_at := missed and self._collection.manifest().recorded_at:
            nonces = NonceRequests(read_rules(self._collection), recorded_at)
            for request in await asyncio.to_thread(list, opening_requests(self._collection)):
                if not self._options.avoid.forbids("", request.url):
                    nonces.note(request)
            await nonces.prove(self._collection, missed, fetch)

    def _known(self, is_plain: Callable[[Request], bool]) -> list[PlainRequest]:
        """Return the recorded requests that need no page; POST requests count as recorded from now on."""
        known = list(recorded_requests(self._collection))
        if self._options.forms:
            posts = list(recorded_posts(self._collection, is_plain))
            self.pages.recorded.update(each.key for each in posts)
            known += posts
        return known

    async def _plain(
        self, missed: list[PlainRequest], known: list[PlainRequest], is_plain: Callable[[Request], bool]
    ) -> list[tuple[list[PlainRequest], Callable[[Exchange], bool]]]:
        """Return the requests that need no page, each group with the answers of it that are wanted."""
        scripts = ScriptRequests(
            self._collection,
            self.pages.documents,
            self.pages.recorded,
            self.pages.refused,
            self.pages.links_of,
            self._budget.is_over,
        )
        self._listed, self._numbered = scripts.listed, scripts.numbered
        unsafe = bool(self._options.forms)
        await asyncio.to_thread(self._take_loaded, scripts, missed)
        found, linked = await asyncio.to_thread(scripts.for_data, missed, is_plain, unsafe=unsafe)
        entries = [each for each in found if each.destination != "document"]
        self.pages.queue_listed([each.url for each in found if each.destination == "document"])
        return [
            (missed, _is_any),
            (await asyncio.to_thread(scripts.for_links, [*missed, *known]), _is_any),
            (await asyncio.to_thread(scripts.for_named, self.pages.named, missed), is_found),
            (entries, is_file),
            (await asyncio.to_thread(scripts.for_combinations, [*missed, *known], is_plain), is_file),
            (await asyncio.to_thread(scripts.for_rows, [*missed, *known]), is_found),
            (await asyncio.to_thread(scripts.for_orders), is_file),
            (await asyncio.to_thread(scripts.for_files), is_file),
            (linked, _is_any),
        ]

    def _take_loaded(self, scripts: ScriptRequests, missed: list[PlainRequest]) -> None:
        """Queue what scripts of recorded pages load, as missed requests show."""
        pages = scripts.for_loaded(self.pages.loaded, missed)
        for url, page in pages:
            self.pages.add_loaded(url, page, 1 / len(pages))

    async def _begin_visit(self, fetcher: PageFetcher, start: str) -> None:
        """Open the start page, for the cookies that a visitor has on further pages.

        Sites also keep the pages that a visit has seen, and all pages here would belong to one visit. So
        cookies are sent only with a login, and to pages that refuse other requests.
        """
        if self._options.login is None:
            self._visit = fetcher = replace(fetcher, cookies=httpx.Cookies())
        try:
            await fetcher.open_visit(start, self._secrets)
        except (UpstreamUnreachable, TooLarge) as error:
            raise RecordError(f"the start page gives no answer: {error}") from error

    async def _fetch_all(self, fetcher: PageFetcher) -> bool:
        """Fetch pages until the budget ends or nothing is left; return True if POST forms come first."""
        async with asyncio.TaskGroup() as group:
            running: set[asyncio.Task[None]] = set()
            forms = False
            while True:
                forms = forms or self._is_forms_turn_soon()
                pending = None if forms or self._budget.is_over() else self._next()
                if pending is None:
                    if running:
                        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    return forms or self._is_forms_turn()
                task = group.create_task(self._fetch_page(fetcher, pending))
                running.add(task)
                task.add_done_callback(running.discard)
                if len(running) >= self._options.jobs:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    def _next(self) -> Pending | None:
        if self._keeper is not None and self._keeper.why:
            return None
        return self.pages.next()

    def _is_forms_turn_soon(self) -> bool:
        """Return `_is_forms_turn` at every few pages, since it looks at all waiting forms."""
        self._until_forms -= 1
        if self._until_forms > 0:
            return False
        self._until_forms = _FORMS_EVERY
        return self._is_forms_turn()

    def _is_forms_turn(self) -> bool:
        """Return whether the likeliest waiting POST form comes before the pages that wait."""
        waiting = self.pages.post_forms.waiting
        return bool(waiting) and self._comes_first(
            max(waiting, key=lambda post: self.pages.frontier.weight_of(post.key))
        )

    def _comes_first(self, post: PostForm) -> bool:
        """Return whether a POST form is likelier than the pages that its requests could fetch instead."""
        if self._forms_left <= 0 or self._budget.is_over_for_writes():
            return False
        least = 0.0 if self.report.ended_by else _FORM_COST * self.pages.frontier.peek()
        return self.pages.frontier.weight_of(post.key) >= least

    async def _fetch_page(self, fetcher: PageFetcher, pending: Pending) -> None:
        if pending.request is not None:
            return await self._send_plain(fetcher, [pending.request], _is_any)
        if not await self._is_allowed(fetcher, pending.url):
            return
        exchange = await self._fetch(fetcher, pending.url, "document", pending.referer)
        if exchange is None:
            if pending.url in self.report.failed:
                self.pages.unanswered.append(pending)
            return
        self.report.pages += 1
        self.report.statuses[exchange.response.status] += 1
        page = self.pages.take_page(pending, exchange)
        if page:
            await self._fetch_resources(fetcher, page.resources, pending.url)
            await self._send_named(fetcher, exchange, pending.weight / max(1, page.elements))

        async def fetch(url: str) -> Exchange | None:
            return await self._fetch(fetcher, url, "document", pending.referer)

        await self.pages.typed.note_answer(pending.url, exchange, fetch)
        self._on_page(self.report)

    async def _send_named(self, fetcher: PageFetcher, exchange: Exchange, weight: float) -> None:
        """Send what scripts of a page request when it opens, and queue what its controls request."""
        if not self.pages.named.names or exchange.response.status != HTTPStatus.OK:
            return
        text = (decoded_body(exchange.response) or b"").decode("utf-8", "replace")
        opening, others = self.pages.named.requests_for(exchange.request.url, text)
        await self._send_plain(fetcher, opening, is_found)
        for each in others:
            self.pages.frontier.add(each.key, each.referer, weight, each)

    async def _is_allowed(self, fetcher: PageFetcher, url: str) -> bool:
        """Return False for a URL that robots.txt forbids; keep the distance that it states."""
        if self.robots is None:
            return True
        if not await self.robots.allows(url):
            self.report.forbidden += 1
            return False
        fetcher.keep_distance(url, await self.robots.delay(url))
        return True

    async def _fetch_resources(
        self, fetcher: PageFetcher, resources: Iterable[Resource], referer: str
    ) -> None:
        async def fetch(url: str, destination: str, referer: str) -> Exchange | None:
            if url in self.pages.recorded or self._budget.is_late(_FINISH):
                return None
            self.pages.recorded.add(url)
            return await self._fetch(fetcher, url, destination, referer)

        await fetch_resources(fetch, resources, referer)

    async def _fetch(self, fetcher: PageFetcher, url: str, destination: str, referer: str) -> Exchange | None:
        """Fetch and write an exchange; None if the site gave none, which the report says."""
        try:
            exchange = await fetcher.fetch(url, destination, referer=referer)
            if self._visit is not None and self._visit.cookies and refuses_strangers(exchange):
                exchange = await self._visit.fetch(url, destination, referer=referer)
        except UpstreamUnreachable as error:
            self.report.failed[url] = str(error)
            return None
        except TooLarge:
            self.report.too_large.append(url)
            return None
        self._write(exchange)
        return exchange

    def _write(self, exchange: Exchange) -> None:
        write_redacted(self._writer, self._secrets, exchange)
        self.report.requests += 1
        self.report.body_bytes += len(exchange.response.raw_body)

    async def _send_forms(self, fetcher: PageFetcher) -> None:
        """Send the POST forms that are likelier than the pages that wait, the likeliest first."""
        # The last one is sent first. Among equal weights it is the one found first: menus, such as those of
        # languages, stand at the ends of pages.
        waiting = reversed(self.pages.post_forms.waiting)
        weighed = [(self.pages.frontier.weight_of(post.key), post) for post in waiting]
        posts = [post for _, post in sorted(weighed, key=lambda each: each[0])]
        self.pages.post_forms.waiting = posts

        async def work() -> None:
            while posts and self._comes_first(posts[-1]):
                post = posts.pop()
                self._forms_left -= 1
                if await self._is_allowed(fetcher, post.form.action):
                    await self._send_form(fetcher, post)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.per_host):
                group.create_task(work())
        self._tokens.write_rules(self._collection)

    async def _send_form(self, fetcher: PageFetcher, post: PostForm) -> None:
        """Send a POST form from a visit of its own.

        The page behind it is recorded, and what its links lead to that no other page has.
        """
        visit = replace(fetcher, cookies=httpx.Cookies(fetcher.cookies))
        try:
            exchanges = await send_form(visit, post, self._tokens)
        except UpstreamUnreachable as error:
            self.report.failed[f"POST {post.form.action}"] = str(error)
            return
        except TooLarge:
            self.report.too_large.append(post.form.action)
            return
        if exchanges and (status := exchanges[-1].response.status) >= 500:
            # Often a site that is busy with other forms: recorded, it would answer every visitor.
            self.report.failed[f"POST {post.form.action}"] = f"status {status}"
            return
        for exchange in exchanges:  # together, so that the page shown is the one behind this form
            self._write(exchange)
        if exchanges and exchanges[-1].response.mime in HTML_TYPES:
            url = exchanges[-1].request.url
            shown = parse_page(url, decoded_body(exchanges[-1].response) or b"")
            await self._fetch_resources(fetcher, shown.resources, url)
            for link in self.pages.links_behind(shown):
                self.pages.recorded.add(link)
                await self._fetch(visit, link, "document", url)
        self.report.forms += bool(exchanges)
        self._on_page(self.report)

    async def _send_plain(
        self,
        fetcher: PageFetcher,
        requests: Iterable[PlainRequest],
        is_wanted: Callable[[Exchange], bool],
    ) -> None:
        """Send requests that need no page, each once; write the answers that are wanted."""
        waiting = iter(requests)

        async def work() -> None:
            for request in waiting:
                avoided = self._options.avoid.forbids("", request.url)
                is_refused = is_wanted is not _is_any and request.key in self.pages.refused
                if self.pages.is_recorded(request) or is_refused or avoided or self._budget.is_over():
                    continue
                self.pages.recorded.add(request.key)
                if not await self._is_allowed(fetcher, request.url):
                    continue
                exchange = await self._fetch_plain(fetcher, request)
                if exchange is None:
                    continue
                status, is_refused = exchange.response.status, issues_token(exchange.response)
                if request.body is not None and (status in WITHOUT_PAGE or is_refused):
                    continue
                if not is_wanted(exchange):
                    self.pages.refused.update([request.key] if is_refusal(exchange) else ())
                    continue
                self._write(exchange)
                if request.meaning:  # a part of a page, with links and forms of its own
                    part = self.pages.take_page(self.pages.frontier.mark_taken(request.key), exchange)
                    resources = part.resources if part else []
                    await self._fetch_resources(fetcher, resources, request.url)
                    await self._send_plain(fetcher, loaded_scripts(request, resources), is_file)
                self._on_page(self.report)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.per_host):
                group.create_task(work())

    async def _fetch_plain(self, fetcher: PageFetcher, request: PlainRequest) -> Exchange | None:
        """Return the site's answer, None without one, which the report says."""
        try:
            return await fetcher.fetch_plain(request)
        except (UpstreamUnreachable, TooLarge) as error:
            self.report.failed[request.url] = str(error)
            return None

    async def _send_writes(self, fetcher: PageFetcher) -> None:
        """Send the missed writes of scripts, and those of other rows, last: they change the site."""
        if not self._options.writes:
            return
        entries_of = partial(requests_for_entries, listed=self._listed)
        # Replay shows the first one until a session has written something.
        shown = {each.url: each for each in reversed(self.pages.versions)}
        writes = ScriptWrites(self._collection, shown, entries_of, self._options.avoid)
        missed = list(script_writes(self._options.misses))
        planned = await asyncio.to_thread(writes.planned, missed)
        self._budget.leave(_WRITES_LEAST)
        for page, requests in planned.items():
            visit = replace(fetcher, cookies=httpx.Cookies(fetcher.cookies))
            try:
                async for sent in send_writes(visit, page, writes.html_of(page), requests):
                    written = write_redacted(self._writer, self._secrets, sent.exchange)
                    writes.note(sent.request, written)
                    self.report.requests += 1
                    self._on_page(self.report)
                    if self._budget.is_over_for_writes():
                        break
            except (UpstreamUnreachable, TooLarge) as error:
                self.report.failed[page] = str(error)
            if self._budget.is_over_for_writes():
                break
        writes.write_rules()


def _is_any(exchange: Exchange) -> bool:
    return True

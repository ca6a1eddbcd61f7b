"""Walks on the replay that fetch what is missing from the live site, and record it.

A walk meets the requests of the replay exactly as an agent causes them: script bundles that depend on the
pages before, requests of buttons, a page behind a page that was missing. Recorded answers come from the
recording, as fast as in a replay. Only what is new goes to the site: GET requests and, if allowed, form data
that a script sends by POST without a token. Other misses are returned, for `record amend`.

Requests go out with the fields that the walk's browser sent and the cookies of one visit to the live site.
Their exchanges pass through redaction and `NewOnlyWriter`. Each distinct request is sent once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed, Sighting
from stillweb.collections.pack.reader import Pack
from stillweb.coverage.choices import WalkedPages, fill_again, opens_view, words_of
from stillweb.coverage.measure import FirstStart
from stillweb.env import EnvOptions, Observation, VectorEnv, VectorOptions
from stillweb.env.vector.pool import BrowserPool
from stillweb.errors import InfraError, TaskError, UpstreamUnreachable
from stillweb.matching.transports import is_live
from stillweb.model import BUSY, Exchange, Headers, Request, destination, header
from stillweb.record.amend.plan import SealedIndex, identity
from stillweb.record.amend.writer import NewOnlyWriter
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.harvest.connections import TooLarge
from stillweb.record.harvest.fetch import (
    WITHOUT_PAGE,
    PageFetcher,
    recorded_fields,
    visitor_fields,
)
from stillweb.record.harvest.keeper import SharedLogin
from stillweb.record.harvest.misses import json_values, meaning_of
from stillweb.record.harvest.opened import OpenedPosts, opened_posts
from stillweb.record.harvest.signin import signed_in
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions
from stillweb.record.recording import begin_addition
from stillweb.record.redaction.redactor import Secrets, secrets_of, write_redacted
from stillweb.record.redaction.sweep import sweep
from stillweb.replay import ReplayClient, ensure_sealed
from stillweb.replay.ledger.file import LedgerLine
from stillweb.replay.ledger.misses import gather_misses
from stillweb.replay.onmiss.connection import FrontSession
from stillweb.replay.onmiss.loopback import Head
from stillweb.urls import host_of, wire_url

_STEPS = 30  # of one walk
_LONGEST = 150  # its steps if the start page takes long
_OPENED = 0.5  # share of steps that open an address of a template that no walk has opened
# Set by the fetcher, or fields of one connection.
_NOT_SENT = frozenset(("host", "cookie", "content-length", "connection", "accept-datetime"))


@dataclass(frozen=True, slots=True)
class FillOptions:
    """How walks fill a recording.

    Attributes:
        seconds: time limit.
        unsafe: whether POST requests of scripts are sent.
        enough: share of requesting steps with a new answer below which the walks end early.
        walked: of earlier walks of the same loop.
        level: determinism level, that of the measurements.
        avoid: controls and links that are left alone.
        login: None to ask the site without a login.
        shared: its state, for the next stage.
        browsers: pool to walk on; None to start one.
    """

    seconds: float
    enough: float = 0.0
    walked: WalkedPages = field(default_factory=WalkedPages)
    unsafe: bool = False
    jobs: int = 4
    seed: int = 0
    level: str = "clock"
    avoid: AvoidRules = field(default_factory=AvoidRules.of)
    login: Login | None = None
    shared: SharedLogin = field(default_factory=SharedLogin)
    browsers: BrowserPool | None = None
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(slots=True)
class FillReport:
    """Totals of filling walks.

    Attributes:
        start_seconds: until the first walk was at its start page, with the seal; 0 if none was.
        steps: steps taken; `requested` of them sent a request, `filled` of those one that was new.
        exchanges: answers added to the recording; `documents` of them are pages.
        misses: requests that were not sent to the site: writes, WebSockets, other hosts.
        searches: documents with a query that were added.
        loaded: parts of pages that scripts requested under the URL of a page (`X-Requested-With`).
        words: number of steps after which the page showed each word.
        reads: POST requests that opened views sent, and that went to the site.
        addresses: of pages that walks have seen.
        failed: URLs that gave no answer, with the reason.
        is_dry: whether they ended because steps found little that is new.
    """

    is_dry: bool = False
    start_seconds: float = 0.0
    steps: int = 0
    requested: int = 0
    filled: int = 0
    exchanges: int = 0
    documents: int = 0
    misses: list[Missed] = field(default_factory=list)
    searches: list[Missed] = field(default_factory=list)
    loaded: list[Missed] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    reads: list[Request] = field(default_factory=list)
    addresses: dict[str, None] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


OnStep = Callable[[FillReport], None]


async def fill(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    starts: Sequence[str],
    options: FillOptions,
    on_step: OnStep = lambda report: None,
) -> FillReport:
    """Walk on the replay of a collection and record what it lacks, until the time is over.

    Raises:
        RecordError: if the login fails.
        CollectionError: if the collection cannot be read, or another process records.
        ReplayError: if the replay does not start.
    """
    began = clock.monotonic()
    await asyncio.to_thread(ensure_sealed, collection)
    with locked(collection):
        begin_addition(collection)
        visitor = await signed_in(collection, ca, options.login, options.record, options.shared)
        fetcher = visitor.fetcher(recorded_fields(collection))
        rules, secrets = read_rules(collection), secrets_of(collection, visitor.record.secrets)
        opened = await asyncio.to_thread(opened_posts, collection)
        with Pack.open(collection.pack) as pack:
            known = SealedIndex(pack, rules)
            with NewOnlyWriter(collection, known, rules, ()) as writer:
                async with fetcher:
                    site = _LiveSite(fetcher, writer, secrets, scope, options, opened)
                    await site.open_visit(starts[0])
                    async with _front(collection, ca, site) as url, ReplayClient(url) as client:
                        run = _FillingWalks(collection, client, site, starts, options, on_step)
                        await run.run(began)
                    await site.close()
                run.report.exchanges, run.report.documents = writer.added, site.documents
                run.report.failed |= site.failed
                run.report.searches, run.report.loaded = site.searches, site.loaded
                run.report.reads = site.reads
    return run.report


@asynccontextmanager
async def _front(collection: Collection, ca: CertAuthority, site: _LiveSite) -> AsyncIterator[str]:
    """Serve a collection, and its misses from the live site; yield the URL."""
    from stillweb.replay.onmiss.front import Front, FrontOptions  # only a fill starts servers
    from stillweb.replay.onmiss.hermetic import Hermetic, HermeticOptions

    hermetic = await Hermetic.start([collection], ca, HermeticOptions())
    front = Front(hermetic, site, ca, FrontOptions(port=0, session_ports=None))
    try:
        await front.start()
        yield front.url
    finally:
        await front.stop()
        await hermetic.stop()


@dataclass(slots=True)
class _Body:
    """A received body."""

    content: bytes
    payload: int = 0

    async def body(self, head: Head, method: str) -> AsyncIterator[bytes]:
        self.payload = len(self.content)
        yield self.content

    def close(self) -> None:
        """Hold no connection."""


class _LiveSite:
    """The live site as the back-end of a front: each missed request is sent once, its answer is written.

    Attributes:
        opening: sessions whose current step opens a view: what their pages send by POST only reads.
        reads: those POST requests.
    """

    name = "the site"
    methods = frozenset(("GET", "POST"))

    def __init__(
        self,
        fetcher: PageFetcher,
        writer: NewOnlyWriter,
        secrets: Secrets | None,
        scope: Scope,
        options: FillOptions,
        opened: OpenedPosts,
    ) -> None:
        self.failed: dict[str, str] = {}
        self.documents = 0
        self.searches: list[Missed] = []
        self.loaded: list[Missed] = []
        self.opening: set[str] = set()
        self.reads: list[Request] = []
        self._fetcher = fetcher
        self._writer = writer
        self._secrets = secrets
        self._scope = scope
        self._avoid = options.avoid
        self._unsafe = options.unsafe
        self._opened = opened
        self.hosts = {host_of(capture.url) for capture in writer.collection.captures()}
        self._fetches: dict[str, asyncio.Task[Exchange | None]] = {}

    @property
    def fetched(self) -> int:
        """Number of distinct requests that were sent to the site."""
        return len(self._fetches)

    async def open_visit(self, start: str) -> None:
        """Open a start page for the cookies of a visit."""
        await self._fetcher.open_visit(start, self._secrets)

    async def close(self) -> None:
        """End what is under way, and remove secrets that became known late."""
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        if self._secrets is not None:
            sweep(self._writer, self._secrets)

    async def prepare(self, collection: str) -> None:
        """Do nothing: the site is up."""

    def passes_on(self, status: int) -> bool:
        """Return True: an error page is an answer of the site too."""
        return True

    async def ask(
        self, session: FrontSession, method: str, url: str, headers: Headers, body: bytes
    ) -> tuple[_Body, Head] | None:
        """Return the site's answer, None if it is not asked or does not answer."""
        request = Request(method, url, headers, body)
        if session.id in self.opening and self._is_read(request):
            self._opened.add(request)
            self.reads.append(request)
        if not self._is_wanted(request):
            return None
        key = identity(request)
        if key not in self._fetches:
            self._fetches[key] = asyncio.create_task(self._fetch(request))
        exchange = await asyncio.shield(self._fetches[key])
        return None if exchange is None else _rendered(exchange)

    def _is_wanted(self, request: Request) -> bool:
        url = wire_url(request.url)
        if header(request.headers, "range") or host_of(url) not in self.hosts or is_live(url):
            return False
        by_script = self._unsafe and destination(request.headers) in ("", "empty")
        if request.method != "GET" and not (by_script and self._opened.is_plain(request)):
            return False
        is_page = destination(request.headers) == "document"
        return not self._avoid.forbids("", url) and (not is_page or self._scope.contains(url))

    def _is_read(self, request: Request) -> bool:
        """Return whether an opened view only reads by a POST that is not known to."""
        if request.method != "POST" or self._opened.is_plain(request):
            return False
        values = json_values(request) or []
        is_mutation = any(path == "query" and "{" in str(value) for path, value in values)  # of GraphQL
        return bool(values) and not is_mutation

    def is_opened(self, url: str) -> bool:
        """Return whether a walk may open an address."""
        return self._scope.contains(url) and host_of(url) in self.hosts and not self._avoid.forbids("", url)

    def note_step(self, session_id: str, *, opens: bool) -> None:
        """Note that a session takes a step, and whether it opens a view."""
        if opens:
            self.opening.add(session_id)
        else:
            self.opening.discard(session_id)

    async def _fetch(self, request: Request) -> Exchange | None:
        body = request.raw_body if request.method == "POST" else None
        fields = tuple(each for each in request.headers if each[0].lower() not in _NOT_SENT)
        try:
            exchange = await self._fetcher.fetch(
                request.url, destination(request.headers) or "empty", body=body, fields=fields
            )
        except (UpstreamUnreachable, TooLarge) as error:
            self.failed[request.url] = str(error)
            return None
        status = exchange.response.status
        if status in BUSY or (body is not None and status in WITHOUT_PAGE):
            return None
        if status == HTTPStatus.UNAUTHORIZED and header(request.headers, "authorization"):
            return None  # the recording has a placeholder, for which the login has no token
        self._note(request)
        if meaning_of(exchange.request.headers):
            self._writer.want(exchange.request)  # the document of the same URL is another answer
        return write_redacted(self._writer, self._secrets, exchange)

    def _note(self, request: Request) -> None:
        """Note a request that other requests of the site are like."""
        kind, nowhere = destination(request.headers), Sighting("", 0)
        self.documents += kind == "document"
        if kind == "document" and "?" in request.url:
            self.searches.append(Missed("", "", "GET", request.url, nowhere, nowhere, resource=kind))
        elif kind in ("", "empty") and request.method == "GET" and meaning_of(request.headers):
            fields = visitor_fields(request.headers)
            self.loaded.append(Missed("", "", "GET", request.url, nowhere, nowhere, fields))


def _rendered(exchange: Exchange) -> tuple[_Body, Head]:
    response = exchange.response
    fields = [each for each in response.headers if each[0].lower() not in ("content-length", "connection")]
    fields.append(("Content-Length", str(len(response.raw_body))))
    line = f"HTTP/1.1 {response.status} {response.reason}".encode("latin-1", "replace")
    coded = tuple((name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields)
    return _Body(response.raw_body), Head(response.status, line, coded)


class _FillingWalks:
    def __init__(
        self,
        collection: Collection,
        client: ReplayClient,
        site: _LiveSite,
        starts: Sequence[str],
        options: FillOptions,
        on_step: OnStep,
    ) -> None:
        self._collection = collection
        self._client = client
        self._starts = starts
        self._site = site
        self._options = options
        self._on_step = on_step
        self._end = clock.monotonic() + options.seconds
        self._addresses, self._controls = options.walked.addresses, options.walked.controls
        self._recent = options.walked.recent
        self._lines: list[LedgerLine] = []
        self._fetched = 0
        self._first = FirstStart()
        self.report = FillReport()

    @property
    def is_over(self) -> bool:
        """Whether the time is over, or steps find little that is new."""
        return self._is_dry or clock.monotonic() >= self._end

    @property
    def _is_dry(self) -> bool:
        most = self._recent.maxlen
        return len(self._recent) == most and sum(self._recent) <= self._options.enough * most

    async def run(self, begun: float) -> None:
        """Take walks in several sessions; the report has the seconds between `begun` and the first one."""
        jobs, walks = self._options.jobs, iter(range(1_000_000))
        vector = VectorEnv(
            self._client.url,
            jobs,
            collection=self._collection.name,
            level=self._options.level,
            observe=("axtree:with_urls",),
            options=VectorOptions(
                env=EnvOptions(max_steps=_LONGEST + 1, off_path="follow"),
                browsers=self._options.browsers,
            ),
        )
        async with vector, asyncio.TaskGroup() as group:

            async def work(session: int) -> None:
                is_worth = await self._first.is_worth(session)
                while is_worth and not self.is_over:
                    try:
                        await self._visit(vector, session, walks, begun)
                    except (InfraError, TaskError) as error:
                        self.report.failed[f"a walk of session {session}"] = str(error)

            for session in range(jobs):
                group.create_task(work(session))
        self.report.is_dry = self._is_dry
        self.report.misses = [
            each for each in gather_misses(self._lines) if host_of(each.url) in self._site.hosts
        ]

    async def _visit(self, vector: VectorEnv, session: int, walks: Iterator[int], begun: float) -> None:
        """Take a walk in a fresh context; a longer one if starts take long, as of large applications."""
        number, began, opened = next(walks), clock.monotonic(), ""
        with suppress(TimeoutError):  # as in a measurement
            async with asyncio.timeout(self._end - began):
                try:
                    seen, info = await vector.reset(session, url=self._start(number))
                finally:
                    self._first.note(clock.monotonic() - began)
                opened = info["session"]
                self.report.start_seconds = self.report.start_seconds or clock.monotonic() - begun
                steps = _LONGEST if self._first.is_slow else _STEPS
                await self._walk(vector, session, number, steps, (seen, opened))
        if opened:
            ledger = await self._client.ledger(opened, closed=True)
            name = self._collection.name
            self._lines += [LedgerLine(opened, name, "", each) for each in ledger.entries]

    def _start(self, number: int) -> str:
        return self._starts[number % len(self._starts)]

    async def _walk(
        self, vector: VectorEnv, session: int, number: int, steps: int, begun: tuple[Observation, str]
    ) -> None:
        """Take the steps of one walk."""
        seen, session_id = begun
        rng, start = clock.seeded("fill", self._options.seed, number), self._start(number)
        action: Mapping[str, Any] = {}
        again: Mapping[str, Any] = {}
        for _ in range(steps):
            if self.is_over:
                break
            self.report.addresses[seen.url] = None
            self._addresses.note(seen, self._site.is_opened)
            action, control = (again, ()) if again else self._choose(seen, action, start, rng)
            self._site.note_step(session_id, opens=opens_view(seen, action))
            seen, _, terminated, truncated, info = await vector.step(session, action)
            traffic = info["traffic"]
            self.report.steps += 1
            self.report.words.update(words_of(seen))
            has_requested = traffic["requests"] > traffic["noise"]
            again = fill_again(seen, action, rng) if has_requested and not again else {}
            if has_requested:
                self.report.requested += 1
                # Another session may have fetched it meanwhile: then it is no longer new.
                new, self._fetched = self._site.fetched > self._fetched, self._site.fetched
                self.report.filled += new
                if new:
                    self._controls.note_new(control)
                self._recent.append(new)
            self._on_step(self.report)
            if terminated or truncated:
                return

    def _choose(
        self, seen: Observation, last: Mapping[str, Any], start: str, rng: Any
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        if rng.random() < _OPENED and (opening := self._addresses.open(seen)):
            return opening, ()
        return self._controls.choose(seen, last, start, self._options.avoid, rng)

"""Record a script form: drive its page in a browser, then request the recorded documents behind it.

Each recording is a fresh browser context behind the recording proxy. It has a seed and a start time of its
own. Values that the page's script generates (an identifier, a time) then differ between two recordings of the
same values. The request that holds the values is the write. The documents that the page requested before it
are requested once more afterwards, with the same fields: they are what a reload shows.

Some pages read by POST (GraphQL). A POST that opening the page sends is a read if opening it leaves the
documents as they were. Otherwise the form is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx
from playwright.async_api import Browser, Page
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.context import open_context
from stillweb.browser.launch import launch
from stillweb.browser.profile import Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.certs import CertAuthority
from stillweb.clock import Deadline
from stillweb.collections.branches import FormOutcome
from stillweb.collections.layout import Collection
from stillweb.collections.learn.proof import Refusal, objection, prove, touched_labels
from stillweb.collections.learn.recordings import AFTER, WRITE, FormRecordings, RecordedBranch, RecordedStep
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.frames import RecordFrames
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import InfraError, UpstreamUnreachable
from stillweb.matching.derived.branch import Branch, leaf_text, leaves_of, read_key
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.parts import Parts
from stillweb.matching.resolver import Policy, SessionState, advance, resolve
from stillweb.model import MUTATIONS, TEXT_TYPES, Capture, Exchange, Request, destination
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.forms.scripts import CANDIDATES, ScriptForm, candidates, perform
from stillweb.record.forms.sentinels import NEEDED, NO_VALUES, sentinels
from stillweb.record.harvest.connections import TooLarge
from stillweb.record.harvest.fetch import PageFetcher, visitor_fields
from stillweb.record.harvest.misses import json_values
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.recording import pinning_of
from stillweb.record.reset import SiteReset

_PAGE_SECONDS = 60.0
_DRAIN_SECONDS = 5.0
_RESOURCES = frozenset(("image", "style", "script", "font", "worker", "sharedworker"))  # Fetch §3.2.7
_APART = timedelta(minutes=7, seconds=13)  # between the clocks of two recordings


class KeepingWriter(CollectionWriter):
    """A writer that also keeps the exchanges of the current recording.

    Attributes:
        taken: exchanges as written, since the list was last cleared.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.taken: list[Exchange] = []

    def write(
        self, exchange: Exchange, beside: RecordFrames | None = None, redactions: Iterable[Any] = ()
    ) -> Capture:
        self.taken.append(exchange)
        return super().write(exchange, beside, redactions)


@dataclass(frozen=True, slots=True)
class RecordedProbe:
    """A document to request after a form.

    Attributes:
        request: as the browser sent it, without the fields that belong to one request.
        recorded: URL of the capture that answers it in the collection; they differ in volatile parameters.
    """

    request: Request
    recorded: str
    status: int

    @property
    def label(self) -> str:
        """The recorded URL, with the key of a POST: many have one URL."""
        is_post = self.request.method == "POST"
        return f"{self.recorded} {read_key(self.request).hex()}" if is_post else self.recorded


@dataclass(frozen=True, slots=True)
class _Driven:
    """One recording in the browser; requests have the URLs of the captures that answer them."""

    opened: tuple[Exchange, ...]
    write: Exchange
    shown: tuple[Exchange, ...]
    probes: tuple[RecordedProbe, ...]
    cookies: httpx.Cookies


@dataclass(slots=True)
class ScriptDriver:
    """Drives pages for the recordings of script forms.

    Attributes:
        state: storage state of the login, {} without one.
        pack: of the collection, whose captures name the documents.
    """

    browser: Browser
    recording: RecordingProxy
    writer: KeepingWriter
    scope: Scope
    pinned: tuple[Profile, Pinning]
    pack: Pack
    policy: Policy
    state: Mapping[str, Any] = field(default_factory=dict)
    _visits: int = 0

    async def find(self, page_url: str, avoid: AvoidRules) -> list[ScriptForm]:
        """Return the script forms of a page; none if it cannot be opened."""
        context = await self._context()
        try:
            activity = Activity(context)
            page = await context.new_page()
            await page.goto(page_url, timeout=1000 * _PAGE_SECONDS)
            await settle(page, activity, cap=_PAGE_SECONDS)
            found = await (await PageProbe.of(page)).evaluate(CANDIDATES)
            return candidates(page_url, found, avoid)
        except (PlaywrightError, InfraError):
            return []
        finally:
            await context.close()

    async def record(
        self, form: ScriptForm, values: Sequence[str], fetcher: PageFetcher
    ) -> tuple[RecordedBranch, tuple[RecordedProbe, ...]] | str:
        """Return a recording and the documents that it requested; or why the form was not sent.

        Args:
            fetcher: requests the documents after the write.
        """
        try:
            driven = await self._drive(form, values)
        except (PlaywrightError, InfraError, TimeoutError) as error:
            return f"the page could not be driven: {str(error).partition(chr(10))[0] or 'timeout'}"
        if isinstance(driven, str):
            return driven
        visit = replace(fetcher, cookies=driven.cookies)
        steps = [RecordedStep(WRITE, driven.write)]
        steps += [RecordedStep(f"{AFTER} {number}", each) for number, each in enumerate(driven.shown)]
        steps += await request_all(visit, driven.probes)
        return RecordedBranch(tuple(values), tuple(steps), driven.opened), driven.probes

    async def _context(self) -> Any:
        self._visits += 1
        profile, pinning = self.pinned
        apart = replace(
            pinning, seed=pinning.seed + self._visits, start=pinning.start + self._visits * _APART
        )
        return await open_context(
            self.browser,
            proxy=self.recording.url,
            profile=profile,
            pinning=apart,
            storage_state=dict(self.state) or None,
        )

    async def _drive(self, form: ScriptForm, values: Sequence[str]) -> _Driven | str:
        async with self._opened(form) as (page, activity):
            opening = frozenset(read_key(e.request) for e in self.writer.taken if _reads_by_post(e))
            await perform(page, activity, form, values)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.recording.idle(), _DRAIN_SECONDS)
            cookies = _cookies(await page.context.cookies())
        return self._sorted(list(self.writer.taken), values, cookies, opening)

    async def open(self, form: ScriptForm) -> None:
        """Open the page of a form as a recording does, and close it.

        Raises:
            PlaywrightError: if it cannot be opened.
        """
        async with self._opened(form):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.recording.idle(), _DRAIN_SECONDS)

    @asynccontextmanager
    async def _opened(self, form: ScriptForm) -> AsyncIterator[tuple[Page, Activity]]:
        self.writer.taken.clear()
        context = await self._context()
        try:
            activity = Activity(context)
            page = await context.new_page()
            await page.goto(form.page, timeout=1000 * _PAGE_SECONDS)
            await settle(page, activity, cap=_PAGE_SECONDS)
            yield page, activity
        finally:
            await context.close()

    def _sorted(
        self,
        taken: Sequence[Exchange],
        values: Sequence[str],
        cookies: httpx.Cookies,
        opening: frozenset[bytes],
    ) -> _Driven | str:
        """Return the exchanges before and after the one that holds the values.

        Args:
            opening: request keys of the POST requests that opening the page sent.
        """

        def is_read(exchange: Exchange) -> bool:
            return _is_document(exchange) or read_key(exchange.request) in opening

        writes = [each for each in taken if each.request.method in MUTATIONS and not is_read(each)]
        holding = [each for each in writes if _holds(each, values)]
        if not holding:
            return "the page's script sends no write that holds the values"
        if len(writes) > 1:
            others = ", ".join(f"{e.request.method} {e.request.url}" for e in writes if e is not holding[0])
            return f"the page's script sends other writes too: {others}"
        at = next(number for number, each in enumerate(taken) if each is holding[0])
        named = self._named(taken)
        probes = tuple(
            RecordedProbe(
                replace(each.request, headers=visitor_fields(each.request.headers)), url, each.response.status
            )
            for each, url in zip(taken[:at], named[:at], strict=True)
            if is_read(each) and self.scope.contains(each.request.url)
        )
        renamed = [
            replace(each, request=replace(each.request, url=url))
            for each, url in zip(taken, named, strict=True)
        ]
        shown = tuple(each for each in renamed[at + 1 :] if is_read(each))
        unique = tuple({each.label: each for each in probes}.values())
        return _Driven(tuple(renamed[:at]), holding[0], shown, unique, cookies)

    def _named(self, taken: Sequence[Exchange]) -> list[str]:
        """Return the URLs of the captures that replay answers some requests of one session with."""
        state = SessionState()
        urls = []
        for each in taken:
            match = resolve(each.request, self.pack, state, self.policy)
            url = each.request.url
            if match.entry >= 0:
                entry = self.pack.entry(match.entry)
                advance(state, each.request, match, entry)
                url = entry.url if each.request.method == "GET" else url
            urls.append(url)
        return urls


async def request_all(visit: PageFetcher, probes: Sequence[RecordedProbe]) -> list[RecordedStep]:
    """Request documents; one that the plain request does not get as the browser did is left out."""
    exchanges = await asyncio.gather(
        *(
            visit.fetch(e.url, "empty", fields=e.headers, body=e.raw_body if e.method == "POST" else None)
            for e in (probe.request for probe in probes)
        )
    )
    return [
        RecordedStep(probe.label, replace(got, request=replace(got.request, url=probe.recorded)))
        for probe, got in zip(probes, exchanges, strict=True)
        if got.response.status == probe.status
    ]


def recordings_of(
    form: ScriptForm,
    branches: Sequence[RecordedBranch],
    untouched: tuple[tuple[RecordedStep, ...], tuple[RecordedStep, ...]],
    opening: frozenset[bytes],
) -> FormRecordings:
    """Return the recordings of a script form."""
    fields = tuple((name, each.kind) for name, each in form.fields.items())
    opened = tuple(each for each in branches[0].opened if each.request.method == "GET")
    given = fields, False, tuple(branches), untouched
    return FormRecordings(form.name, form.page, *given, opened=opened, opening=opening)


def _is_document(exchange: Exchange) -> bool:
    return exchange.request.method == "GET" and exchange.response.mime in TEXT_TYPES


def _reads_by_post(exchange: Exchange) -> bool:
    """Return True for a POST of JSON that a page may send to read."""
    is_text = exchange.response.mime in TEXT_TYPES and exchange.response.status < 400
    return exchange.request.method == "POST" and is_text and json_values(exchange.request) is not None


def _is_resource(exchange: Exchange) -> bool:
    return exchange.request.method == "GET" and destination(exchange.request.headers) in _RESOURCES


def _holds(exchange: Exchange, values: Sequence[str]) -> bool:
    """Return True if a request holds a value as typed."""
    parts = Parts.of(exchange.request)
    texts = [leaf_text(parts, leaf) for leaf in leaves_of(parts)]
    return any(value in text for value in values for text in texts)


def _cookies(found: Iterable[Mapping[str, Any]]) -> httpx.Cookies:
    cookies = httpx.Cookies()
    for each in found:
        cookies.set(each["name"], each["value"], domain=each["domain"], path=each["path"])
    return cookies


OnForm = Callable[[FormOutcome, int], None]


@dataclass(slots=True)
class ScriptRun:
    """Records the script forms of a collection's pages.

    Attributes:
        fetcher: of plain requests, with the cookies of the login.
        vocabulary: words of the collection's documents, in which no value occurs.
        store: writes a plain exchange and returns it as written.
        deadline: ends the recording of a form too.
        proved: forms that are proved so far.
        loaded: resources that the pages of the recorded forms loaded.
    """

    collection: Collection
    writer: KeepingWriter
    scope: Scope
    record: RecordOptions
    fetcher: PageFetcher
    reset: SiteReset
    avoid: AvoidRules
    vocabulary: Vocabulary
    store: Callable[[Exchange], Exchange]
    deadline: Deadline
    proved: list[Branch]
    loaded: list[Exchange]

    async def run(
        self,
        ca: CertAuthority,
        state: Mapping[str, Any],
        given: Sequence[ScriptForm],
        pages: Sequence[str],
        on_form: OnForm,
    ) -> None:
        """Record given forms, and those that are found on some pages."""
        if not given and not pages:
            return
        await asyncio.to_thread(seal, self.collection)
        pinned = pinning_of(self.collection.manifest())
        with Pack.open(self.collection.pack) as pack:
            policy = Policy().under(pack.manifest.get("rules", ""))
            async with (
                recording_proxy(self.writer, ca, replace(self.record, port=0)) as recording,
                launch(spki=ca.spki_hashes()) as browser,
            ):
                driver = ScriptDriver(
                    browser, recording, self.writer, self.scope, pinned, pack, policy, state
                )
                forms = [*given, *await self._found(driver, pages)]
                for number, form in enumerate(forms):
                    try:
                        async with asyncio.timeout(self.deadline.left):
                            outcome = await self._form(driver, form)
                    except TimeoutError:
                        break
                    on_form(outcome, len(forms) - number - 1)

    async def _found(self, driver: ScriptDriver, pages: Sequence[str]) -> list[ScriptForm]:
        """Return the script forms of some pages, those with the same button and fields once."""
        found: dict[str, ScriptForm] = {}
        for page in pages:
            try:
                async with asyncio.timeout(self.deadline.left):
                    forms = await driver.find(page, self.avoid)
            except TimeoutError:
                break
            for form in forms:
                found.setdefault(form.name.removeprefix(f"script {page} "), form)
        return list(found.values())

    async def _form(self, driver: ScriptDriver, form: ScriptForm) -> FormOutcome:
        if form.refused:
            return FormOutcome(form.name, form.page, form.refused)
        try:
            recordings = await self._record(driver, form)
        except (UpstreamUnreachable, TooLarge) as error:
            return FormOutcome(form.name, form.page, str(error))
        if isinstance(recordings, str):
            return FormOutcome(form.name, form.page, recordings)
        result = await asyncio.to_thread(prove, recordings, read_rules(self.collection), self.deadline.check)
        if isinstance(result, Refusal):
            return FormOutcome(form.name, form.page, result.reason, result.left_out)
        self.proved.append(result.branch)
        return FormOutcome(form.name, form.page, "", result.left_out, len(result.branch.reads))

    async def _record(self, driver: ScriptDriver, form: ScriptForm) -> FormRecordings | str:
        found = sentinels(form.limits, self.vocabulary.words, check=self.deadline.check)
        sets = [tuple(value.replace("\r\n", "\n") for value in values) for values in found]
        if len(sets) < NEEDED:
            return NO_VALUES
        first = await self._branch(driver, form, sets[0])
        if isinstance(first, str):
            return first
        loaded = [each for each in driver.writer.taken if _is_resource(each)]
        untouched = [await self._untouched(first[1]) for _ in range(2)]
        posts = [each.request for each in first[1] if each.request.method == "POST"]
        if posts and await self._changes_by_opening(driver, form, first[1], untouched):
            return f"opening the page changes the site: POST {posts[0].url}"
        branches = [first[0]]
        if why := objection(first[0], searches=False):
            return why
        for values in (*sets[1:], sets[0]):  # the same values last: ages have grown then
            branch = await self._branch(driver, form, values)
            if not isinstance(branch, str):
                branches.append(branch[0])
            elif len(branches) < NEEDED or values == sets[0]:
                return branch
        self.loaded += loaded
        ordered = [branches[0], branches[-1], *branches[1:-1]]
        return recordings_of(form, ordered, (untouched[0], untouched[1]), frozenset(map(read_key, posts)))

    async def _changes_by_opening(
        self,
        driver: ScriptDriver,
        form: ScriptForm,
        probes: Sequence[RecordedProbe],
        untouched: Sequence[tuple[RecordedStep, ...]],
    ) -> bool:
        """Return True if documents differ after the page was opened in a browser."""
        await self.reset.run(self.fetcher)
        await driver.open(form)
        opened = RecordedBranch((), await self._requested(probes))
        pair = untouched[0], untouched[1]
        touched, _ = touched_labels(FormRecordings(form.name, form.page, (), False, (opened,), pair))
        return bool(touched)

    async def _branch(
        self, driver: ScriptDriver, form: ScriptForm, values: Sequence[str]
    ) -> tuple[RecordedBranch, tuple[RecordedProbe, ...]] | str:
        await self.reset.run(self.fetcher)
        recorded = await driver.record(form, values, self.fetcher)
        if isinstance(recorded, str):
            return recorded
        branch, probes = recorded
        plain = {each.label for each in probes}
        steps = tuple(
            replace(step, exchange=self.store(step.exchange)) if step.label in plain else step
            for step in branch.steps
        )
        return replace(branch, steps=steps), probes

    async def _untouched(self, probes: Sequence[RecordedProbe]) -> tuple[RecordedStep, ...]:
        """Request the documents from the first state of the site, without the form."""
        await self.reset.run(self.fetcher)
        return await self._requested(probes)

    async def _requested(self, probes: Sequence[RecordedProbe]) -> tuple[RecordedStep, ...]:
        visit = replace(self.fetcher, cookies=httpx.Cookies(self.fetcher.cookies))
        steps = await request_all(visit, probes)
        return tuple(replace(step, exchange=self.store(step.exchange)) for step in steps)

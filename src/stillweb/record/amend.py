"""Fetch what a replay missed, into the same collection, as a new version of it.

The collection is kept as it is (`NAME@1`) before anything is added; then the browser visits missed pages,
pinned as the recording was, and what else was missed is asked for with the fields that the client had and
the cookies of the page that it came from. All passes the recording proxy, so what is written is as
received; `Sieve` leaves out what the collection answers already. Robots exclusion is not asked: these are
requests that an agent made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.activity import Activity
from stillweb.browser.context import open_context, plain_user_agent
from stillweb.browser.launch import launch
from stillweb.browser.settle import settle
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.amends import Absent, Amend, next_version, read_amends, write_amends
from stillweb.collections.layout import Collection
from stillweb.collections.learn import read_rules
from stillweb.collections.misses import Missed
from stillweb.collections.pack import Pack
from stillweb.collections.seal import seal, what_changed
from stillweb.collections.store import remove_collection
from stillweb.collections.versions import keep_version, versions
from stillweb.errors import CollectionError, InfraError, RecordError
from stillweb.model import MUTATIONS, Page
from stillweb.record.amendask import Asker, asker, browser_fields
from stillweb.record.amendjournal import Journal, Outcome
from stillweb.record.amendplan import Errand, Kind, Known, Refusal, plan
from stillweb.record.amendsieve import Sieve
from stillweb.record.frontier import Visit
from stillweb.record.options import RecordOptions
from stillweb.record.proxy import RecordingProxy, recording_proxy
from stillweb.record.recording import begin, pinning_of
from stillweb.record.visit import Setting, extra_of, visit_page
from stillweb.urls import to_timestamp, wire_url

__all__ = ["AmendOptions", "AmendReport", "Outcome", "amend"]

_HTML = frozenset({"text/html", "application/xhtml+xml"})


@dataclass(frozen=True, slots=True)
class AmendOptions:
    """How misses are fetched.

    Attributes:
        unsafe: whether requests are sent that may change the site (POST, PUT, PATCH, DELETE).
        any_host: whether hosts are asked that nothing was recorded of.
        storage_state: file of cookies and local storage, as Playwright writes it; None for nobody's.
        page_timeout: seconds for a navigation or a request.
        retries: further attempts at what failed.
        browser: its executable; None to look for one.
        record: how the sites are reached.
        dry_run: whether to say only what would be done.
    """

    unsafe: bool = False
    any_host: bool = False
    storage_state: Path | None = None
    page_timeout: float = 45.0
    retries: int = 1
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)
    dry_run: bool = False


@dataclass(slots=True)
class AmendReport:
    """What was done.

    Attributes:
        version: what the collection is now; that of before if nothing was to be fetched.
        kept: the version that holds it as it was; "" if nothing was to be fetched.
        before, after: environment ids; equal if nothing was added.
        outcomes: of every miss, equal ones once.
        captures: added.
        pages: URLs of pages added.
        notes: what passed without being recorded, with counts.
    """

    version: str = ""
    kept: str = ""
    before: str = ""
    after: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    captures: int = 0
    pages: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)


OnOutcome = Callable[[Outcome, int], None]


async def amend(
    collection: Collection,
    misses: Iterable[Missed],
    ca: CertAuthority,
    options: AmendOptions,
    on_outcome: OnOutcome = lambda outcome, left: None,
) -> AmendReport:
    """Fetch misses into a collection; one that was cut short goes on, with what is missed now besides.

    Args:
        collection: whose version before is kept.
        misses: of this collection.
        ca: of the recording proxy.
        options: how.
        on_outcome: told of each errand, and how many are left.

    Raises:
        RecordError: if an exchange could not be written, or the browser ended.
        CollectionError: if the collection cannot be read.
    """
    journal = Journal.read(collection.path)
    rules = read_rules(collection)
    amends, _ = read_amends(collection.path)
    report = AmendReport(version=amends[-1].version if amends else "1")
    with _sealed(collection) as pack:
        report.before = report.after = pack.environment_id
        known = Known(pack, rules)
        begun = journal.unfinished if journal else frozenset()
        errands, refusals = plan(misses, known, unsafe=options.unsafe, any_host=options.any_host, begun=begun)
        report.outcomes = [_refused(each) for each in refusals]
        if options.dry_run:
            report.outcomes += [_planned(each) for each in errands]
            return report
        if not errands and journal is None:
            return report
        if journal is None:
            number = next_version(versions(collection))
            journal = Journal(str(number + 1), str(number), collection.manifest().state)
            _keep(collection, journal)
        journal.begun += [each.id for each in errands if each.id not in journal.begun]
        journal.write(collection.path)
        recorded_at = pack.manifest.get("recorded_at", "")
        wanted = {each.id for each in errands if not known.answers(each.missed.request())}
        with Sieve(collection, known, rules, wanted) as sieve:
            run = _Run(collection, ca, options, journal, sieve, on_outcome, str(recorded_at))
            try:
                await run.fetch(errands)
            finally:
                journal.captures += sieve.added
                journal.write(collection.path)
                report.notes = dict(run.notes)
    _finish(collection, journal, report, len(errands))
    return report


def _sealed(collection: Collection) -> Pack:
    """Return the pack of a collection as it is now."""
    if collection.pack.is_dir():
        pack = Pack.open(collection.pack)
        if not what_changed(collection, pack):
            return pack
        pack.close()
    seal(collection)
    return Pack.open(collection.pack)


def _keep(collection: Collection, journal: Journal) -> None:
    """Keep the collection as it is; a version that a killed amend kept is the same, and goes."""
    kept = collection.path / "versions" / journal.kept
    if kept.exists():
        raise CollectionError("there is a version of that name", path=kept)
    keep_version(collection, journal.kept)


def _finish(collection: Collection, journal: Journal, report: AmendReport, asked: int) -> None:
    """Say in the collection what was added and what is absent, and seal it."""
    done = list(journal.outcomes.values())
    at = to_timestamp(now())
    amends, absent = read_amends(collection.path)
    mine = [each for each in done if each.outcome == "absent"]
    answered = {each.id for each in done if each.outcome != "absent"} | {each.id for each in mine}
    absent = [each for each in absent if each.id not in answered]
    absent += [Absent(each.method, each.url, each.reason, at, each.id) for each in mine]
    refused = sum(each.outcome == "refused" for each in report.outcomes)
    counts = (len(done), sum(each.outcome == "recorded" for each in done), len(mine), refused)
    added = Amend(journal.version, journal.kept, at, *counts, journal.captures, tuple(journal.pages))
    if journal.captures or journal.pages:
        amends.append(added)
    write_amends(collection.path, amends, absent)
    collection.write_manifest(replace(collection.manifest(), state=journal.state))
    journal.remove(collection.path)
    report.outcomes += done
    if not journal.captures and not journal.pages:
        remove_collection(collection.path / "versions" / journal.kept)  # it is what it was
        return
    report.version, report.kept = journal.version, journal.kept
    report.captures, report.pages = journal.captures, list(journal.pages)
    report.after = seal(collection).environment_id


def _refused(refusal: Refusal) -> Outcome:
    missed = refusal.missed
    outcome = "present" if refusal.present else "refused"
    return Outcome(missed.method, missed.url, outcome, refusal.reason, count=missed.count)


def _planned(errand: Errand) -> Outcome:
    how = {Kind.PAGE: "the browser visits it", Kind.FRAME: "the browser visits it, as a frame"}
    reason = how.get(errand.kind) or (f"asked with the cookies of {errand.page}" if errand.page else "asked")
    return Outcome(errand.missed.method, errand.missed.url, "planned", reason, 0, errand.count, errand.id)


@dataclass(slots=True)
class _Run:
    """One amend under way."""

    collection: Collection
    ca: CertAuthority
    options: AmendOptions
    journal: Journal
    sieve: Sieve
    on_outcome: OnOutcome
    recorded_at: str
    notes: dict[str, int] = field(default_factory=dict)

    async def fetch(self, errands: Sequence[Errand]) -> None:
        """Do the errands, those of a page together."""
        manifest = self.collection.manifest()
        if not manifest.recorded_at:  # imported: its clock starts with its first capture, and goes on to
            self.collection.write_manifest(replace(manifest, recorded_at=self.recorded_at))
        profile, pinning = pinning_of(begin(self.collection))
        options, left = self.options, len(errands)
        async with (
            recording_proxy(self.sieve, self.ca, options.record) as recording,
            launch(spki=self.ca.spki_hashes(), executable=options.browser) as browser,
            asker(recording.url, self.ca, options.page_timeout) as asking,
        ):
            setting = Setting(
                recording.url, profile, pinning, options.page_timeout, options.retries, recording.at_rest
            )
            doing = _Doing(self, recording, browser, setting, asking)
            try:
                for page, group in groupby(errands, key=lambda each: (each.kind, each.page)):
                    async with _Origin(doing, page[1]) as origin:
                        for errand in group:
                            outcome = await doing.do(errand, origin)
                            left -= 1
                            self._note(outcome, left)
                            recording.check()
            finally:
                self.notes = dict(recording.notes)

    def _note(self, outcome: Outcome, left: int) -> None:
        self.journal.outcomes[outcome.id] = outcome
        self.journal.write(self.collection.path)
        self.on_outcome(outcome, left)

    def list_page(self, page: Page) -> None:
        """Add a page to the collection's list, if it is not there."""
        pages = self.collection.page_list()
        if all(each.url != page.url for each in pages):
            self.collection.write_pages([*pages, page])
        if page.url not in self.journal.pages:
            self.journal.pages.append(page.url)


@dataclass(slots=True)
class _Doing:
    """What errands are done with."""

    run: _Run
    recording: RecordingProxy
    browser: Browser
    setting: Setting
    asking: Asker

    async def do(self, errand: Errand, origin: _Origin) -> Outcome:
        """Fetch a miss by its means, again if it fails."""
        missed = errand.missed
        reason = ""
        if errand.kind is not Kind.REQUEST:
            reason = await self._visit(errand)
        asked = missed.request()
        place = (asked.method, wire_url(asked.url))
        through = self.run.sieve.has(asked)
        # What may change the site is sent once, whatever becomes of it.
        for _ in range(1 if asked.method in MUTATIONS else self.setting.retries + 1):
            if through:
                break
            if not self.browser.is_connected():
                raise RecordError("the browser ended", hint="the same command goes on where this one was")
            referer = missed.first.referer or errand.page
            _, failure = await self.asking.ask(asked, origin.fields, referer, origin.context)
            await self.recording.idle()
            reason = self.recording.failed.get(missed.url) or failure or reason
            answered = self.run.sieve.last.get(place)
            through = answered is not None and answered.kept
        answer = self.run.sieve.answers.get(errand.id) or self.run.sieve.last.get(place)
        kept = through
        if answer is not None and not answer.kept:
            reason = f"answered with status {answer.status}, which is not kept"
        return Outcome(
            missed.method,
            missed.url,
            "recorded" if kept else "absent",
            "" if kept else reason or "no answer came",
            answer.status if answer else 0,
            errand.count,
            errand.id,
        )

    async def _visit(self, errand: Errand) -> str:
        """Visit a document; return why it could not be loaded."""
        url, run = errand.missed.url, self.run
        number = len(run.journal.pages) + 1
        name = f"amend-{run.journal.version}-{number:04d}"
        folder = run.collection.baseline / name
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
        visited = await visit_page(self.browser, self.setting, Visit(0, url, 0, seed=False), folder)
        answer = run.sieve.answers.get(errand.id)
        page = errand.kind is Kind.PAGE and answer is not None and answer.kept and answer.mime in _HTML
        if visited.error or not page:
            shutil.rmtree(folder, ignore_errors=True)
            return visited.error
        extra = extra_of(visited) | {"amended": run.journal.version}
        run.list_page(
            Page(
                url, visited.timestamp, visited.title, name, seed=False, status=visited.status,
                baseline=name, extra=extra,
            )
        )  # fmt: skip
        return ""


class _Origin:
    """The page that misses come from, open while they are asked for; a bare context if there is none."""

    def __init__(self, doing: _Doing, url: str) -> None:
        self._doing = doing
        self._url = url
        self.context: BrowserContext | None = None
        self.fields: Mapping[str, str] = {}

    async def __aenter__(self) -> _Origin:
        setting, options = self._doing.setting, self._doing.run.options
        agent = setting.profile.user_agent or plain_user_agent(self._doing.browser.version)
        self.fields = {
            "user-agent": agent,
            "accept-language": setting.profile.locale,
            "accept-encoding": "gzip, deflate, br, zstd",
        }
        state: Any = str(options.storage_state) if options.storage_state else None
        self.context = await open_context(
            self._doing.browser,
            proxy=setting.proxy,
            profile=setting.profile,
            pinning=setting.pinning,
            storage_state=state,
        )
        if self._url:
            with suppress(PlaywrightError, InfraError):  # without its cookies, then
                await self._load(self.context)
        return self

    async def _load(self, context: BrowserContext) -> None:
        activity = Activity(context)
        page = await context.new_page()
        answer = await page.goto(self._url, timeout=1000 * self._doing.setting.page_timeout)
        await settle(page, activity)
        if answer is not None:
            self.fields = {**self.fields, **browser_fields(await answer.request.all_headers())}

    async def __aexit__(self, *_: object) -> None:
        if self.context is not None:
            with suppress(PlaywrightError):  # the browser is gone already
                await self.context.close()

"""Fetch the misses of a replay into the same collection, as a new version.

The collection is first stored as it is (`NAME@1`). Then the browser visits missed pages, pinned like the
recording. Other misses are sent with the client's fields and the cookies of their page. Everything passes the
recording proxy, so that bodies are written as received; `NewOnlyWriter` omits what the collection already
answers. robots.txt is not consulted, because an agent made these requests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Annotated

from playwright.async_api import Browser

from stillweb.browser.launch import launch
from stillweb.browser.profile import Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.amends import Absent, Amend, next_version, read_amends, write_amends
from stillweb.collections.layout import Collection, locked
from stillweb.collections.learn.rules import LearnResult, merge, read_rules, write_rules
from stillweb.collections.learn.transports import learn_transports
from stillweb.collections.misses import Missed
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal, what_changed
from stillweb.collections.pack.store import remove_collection
from stillweb.collections.reachability import ReachabilityMap
from stillweb.collections.versions import keep_version, versions
from stillweb.errors import CollectionError, RecordError
from stillweb.files import write_atomically
from stillweb.matching.rules import Rule
from stillweb.model import HTML_TYPES, Page, Request, destination
from stillweb.options import Option
from stillweb.polling import poll
from stillweb.record.amend.origin import OriginPage, RequestSender, request_sender
from stillweb.record.amend.plan import (
    FetchMethod,
    FetchTask,
    RefusedMiss,
    SealedIndex,
    by_visit,
    identity,
    plan,
)
from stillweb.record.amend.writer import NewOnlyWriter
from stillweb.record.crawl.frontier import Visit
from stillweb.record.crawl.scope import Scope
from stillweb.record.crawl.visit import CrawlContext, extra_of, visit_page
from stillweb.record.explore.frontier import ExploreFrontier
from stillweb.record.explore.journal import ExplorationJournal, RecordedActions
from stillweb.record.explore.links import open_links
from stillweb.record.explore.options import ExplorationContext, ExploreOptions, ExploreReport
from stillweb.record.explore.values import FormValues, Values
from stillweb.record.login.renewed import LiveTokens, knowing_login
from stillweb.record.login.run import LoginSession, log_in_separately
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions, ScopeKind
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.record.recording import begin, pinning_of
from stillweb.scratch import scratch_folder
from stillweb.urls import to_timestamp, wire_url

FILE = "amend.json"


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """Outcome of a miss.

    Attributes:
        outcome: `recorded`, `present` (already there), `absent` (no response), `refused` or `planned`.
        reason: why, "" if recorded.
        status: status of the response, 0 without one.
        count: number of equal misses.
        id: `identity` of the request.
    """

    method: str
    url: str
    outcome: str
    reason: str = ""
    status: int = 0
    count: int = 1
    id: str = ""


@dataclass(slots=True)
class AmendJournal:
    """Progress of an amend, stored as `amend.json`.

    Attributes:
        version: version that the collection will have.
        kept: version that holds the earlier state.
        state: `state` of the manifest before.
        begun: identities of all fetches.
        outcomes: outcomes of those that are done.
        captures: captures added by interrupted runs.
        pages: URLs of pages added so far.
    """

    version: str
    kept: str
    state: str
    begun: list[str] = field(default_factory=list)
    outcomes: dict[str, FetchOutcome] = field(default_factory=dict)
    captures: int = 0
    pages: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> set[str]:
        """Identities of fetches that started and are not done."""
        return set(self.begun) - self.outcomes.keys()

    @classmethod
    def read(cls, folder: Path) -> AmendJournal | None:
        """Return the journal in a collection's folder; None if no amend was interrupted.

        Raises:
            CollectionError: if the file is malformed.
        """
        path = folder / FILE
        try:
            members = json.loads(path.read_bytes())
            members.pop("format")
            members["outcomes"] = {name: FetchOutcome(**each) for name, each in members["outcomes"].items()}
            return cls(**members)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"malformed journal of an amend: {error!r}", path=path, hint=f"rm {path}, and amend again"
            ) from error

    def write(self, folder: Path) -> None:
        content = json.dumps({"format": 1, **asdict(self)}, ensure_ascii=True)
        write_atomically(folder / FILE, content.encode("ascii"))

    def remove(self, folder: Path) -> None:
        (folder / FILE).unlink(missing_ok=True)


async def open_candidates(
    collection: Collection,
    urls: Sequence[str],
    browsing: tuple[Browser, RecordingProxy, Profile, Pinning],
    options: ExploreOptions,
) -> int:
    """Open what pages lead to, within their hosts, the likeliest first; return how many URLs were opened.

    Args:
        collection: URLs that it holds are not opened.
        urls: the pages; each is opened once more to read its links.
        browsing: browser, proxy and pinning.
        options: `links` is the maximum; values for forms.

    Raises:
        RecordError: if an exchange could not be written.
    """
    limit = options.links or 0
    if not urls or not limit:
        return 0
    pages = frozenset(urls)
    known = RecordedActions(
        each.url for each in collection.captures() if each.method == "GET" and each.url not in pages
    )
    report = ExploreReport()
    journal = ExplorationJournal(
        ReachabilityMap(), known, StringIO(), report, browsing[1], lambda event: None
    )
    frontier = ExploreFrontier()
    frontier.seed(urls)
    scope = Scope.of(ScopeKind.HOST, urls)
    context = ExplorationContext(*browsing, scope, options)
    await open_links(context, journal, frontier, limit + len(urls), lambda: False)
    return max(0, report.opened - len(urls))


_CLOSE_SECONDS = 10.0
_NO_SOCKET = "its page opened no such WebSocket"


OnOutcome = Callable[[FetchOutcome, int], None]


@dataclass(frozen=True, slots=True)
class AmendOptions:
    """How misses are fetched.

    Attributes:
        login: None to fetch without a login.
        browser: the browser's executable; None to search for one.
    """

    unsafe: Annotated[
        bool, Option("Send POST, PUT, PATCH and DELETE requests too: they may change the site.")
    ] = False
    any_host: Annotated[
        bool, Option("Also send requests to hosts that the collection has no recording of.", "--scope-any")
    ] = False
    login: Login | None = None
    page_timeout: Annotated[
        float, Option("Seconds for one navigation or request.", metavar="SECONDS", min=1)
    ] = 45.0
    retries: Annotated[int, Option("Retry a failed fetch up to N times.", min=0)] = 1
    browser: Path | None = None
    record: RecordOptions = field(default_factory=RecordOptions)
    dry_run: Annotated[bool, Option("Print the planned fetches; send and record nothing.")] = False
    links: Annotated[
        int,
        Option(
            "Open at most N more addresses that fetched pages lead to (links, GET forms).",
            min=0,
        ),
    ] = 0
    values: FormValues = field(default_factory=Values)


@dataclass(slots=True)
class AmendRun:
    """One running amend."""

    collection: Collection
    ca: CertAuthority
    options: AmendOptions
    journal: AmendJournal
    writer: NewOnlyWriter
    on_outcome: OnOutcome
    recorded_at: str
    notes: dict[str, int] = field(default_factory=dict)
    learned: tuple[Rule, ...] = ()
    opened: int = 0
    tokens: LiveTokens = field(default_factory=LiveTokens)

    async def fetch(self, tasks: Sequence[FetchTask]) -> None:
        """Fetch the misses, those of a page together."""
        manifest = self.collection.manifest()
        if not manifest.recorded_at:  # imported: its clock starts with its first capture, as in a replay
            self.collection.write_manifest(replace(manifest, recorded_at=self.recorded_at))
        profile, pinning = pinning_of(begin(self.collection))
        options, left = self.options, len(tasks)
        session, record = await self._log_in((profile, pinning))
        async with (
            recording_proxy(self.writer, self.ca, record) as recording,
            launch(spki=self.ca.spki_hashes(), executable=options.browser) as browser,
            request_sender(recording.url, self.ca, options.page_timeout) as sender,
        ):
            setting = CrawlContext(
                recording.url, profile, pinning, options.page_timeout, options.retries, recording.at_rest
            )
            setting = replace(setting, login=session)
            fetcher = _MissFetcher(self, recording, browser, setting, sender)
            reads = [each for each in tasks if not each.changes]
            try:
                for part in (reads, tasks[len(reads) :]):
                    for group_key, group in groupby(part, key=_group_key):
                        async with OriginPage(browser, setting, group_key[1]) as origin:
                            for task in group:
                                outcome = await fetcher.fetch(task, origin)
                                left -= 1
                                self._note(outcome, left)
                                recording.check()
                    if part is reads:  # before the site is changed
                        browsing = (browser, recording, profile, pinning)
                        self.opened = await open_candidates(
                            self.collection, self.journal.pages, browsing, self._link_options(session)
                        )
            finally:
                self.notes = dict(recording.notes)

    async def _log_in(self, pinned: tuple[Profile, Pinning]) -> tuple[LoginSession | None, RecordOptions]:
        """Return the session of the login, None without one, and options that redact its secrets."""
        options = self.options
        if options.login is None:
            return None, options.record
        first = next((page.url for page in self.collection.page_list()), "")
        login = replace(options.login, retries=options.retries)
        session = await log_in_separately(
            self.ca, login, pinned, first, options.record, executable=options.browser
        )
        record = knowing_login(options.record, self.collection, session)
        self.tokens = LiveTokens.of(self.collection, session.state)
        return session, record

    def _link_options(self, session: LoginSession | None) -> ExploreOptions:
        options = self.options
        state = session.state if session else None
        return ExploreOptions(0, options.links, values=options.values, storage_state=state)

    def _note(self, outcome: FetchOutcome, left: int) -> None:
        if self.learned and outcome.outcome == "recorded":
            write_rules(self.collection, merge(read_rules(self.collection), LearnResult(rules=self.learned)))
            self.learned = ()
        self.journal.outcomes[outcome.id] = outcome
        self.journal.write(self.collection.path)
        self.on_outcome(outcome, left)

    def list_page(self, page: Page) -> None:
        """Add a page to the collection's list unless it is listed."""
        pages = self.collection.page_list()
        if all(each.url != page.url for each in pages):
            self.collection.write_pages([*pages, page])
        if page.url not in self.journal.pages:
            self.journal.pages.append(page.url)


@dataclass(slots=True)
class _MissFetcher:
    run: AmendRun
    recording: RecordingProxy
    browser: Browser
    setting: CrawlContext
    sender: RequestSender
    pages: dict[str, str] = field(default_factory=dict)

    async def fetch(self, task: FetchTask, origin: OriginPage) -> FetchOutcome:
        """Fetch a miss by its method, and retry after a failure."""
        missed, writer = task.missed, self.run.writer
        reason = ""
        request = missed.request()
        name = (request.method, wire_url(request.url))
        if task.kind is FetchMethod.SOCKET:
            reason = await self._open_sockets(task.page)
        elif task.kind is not FetchMethod.REQUEST:
            reason = await self._visit(task)
        elif task.changes and not writer.has(request):
            writer.last.pop(name, None)
            request = await self._with_fresh_tokens(task, origin)
        last = writer.last.get(name)
        recorded = writer.has(missed.request()) or bool(by_visit(missed.url) and last and last.recorded)
        attempts = 1 if task.changes else self.setting.retries + 1
        for _ in range(0 if by_visit(missed.url) else attempts):
            if recorded:
                break
            if not self.browser.is_connected():
                raise RecordError("the browser ended", hint="the same command continues where this one ended")
            failure = await self._send(task, request, origin)
            await self.recording.idle()
            reason = self.recording.failed.get(missed.url) or failure or reason
            last = writer.last.get(name)
            recorded = last is not None and last.recorded
        answer = writer.answers.get(task.id) or writer.last.get(name)
        if answer is not None and not answer.recorded:
            reason = f"the response has status {answer.status}, which is not recorded"
        return FetchOutcome(
            missed.method,
            missed.url,
            "recorded" if recorded else "absent",
            "" if recorded else reason or (_NO_SOCKET if by_visit(missed.url) else "no response"),
            answer.status if answer else 0,
            task.count,
            task.id,
        )

    async def _open_sockets(self, page: str) -> str:
        """Visit a recorded page for its WebSockets and event streams; return why it could not be loaded."""
        if page in self.pages:
            return self.pages[page]
        with scratch_folder() as scratch:
            setting = replace(self.setting, baseline=False)
            visit = Visit(0, page, 0, seed=False)
            visited = await visit_page(self.browser, setting, visit, scratch)
        # They are written when the context has closed them.
        await poll(lambda: not (self.recording.sockets or self.recording.streams), timeout=_CLOSE_SECONDS)
        self.pages[page] = visited.error
        return visited.error

    async def _with_fresh_tokens(self, task: FetchTask, origin: OriginPage) -> Request:
        """Return a mutation with the current tokens of its page."""
        run, missed = self.run, task.missed
        request, learned = await origin.with_fresh_tokens(
            missed.request(), missed.first.referer, run.writer.rules
        )
        if learned:
            run.writer.learn(learned)
            run.learned += learned
        return request

    async def _send(self, task: FetchTask, request: Request, origin: OriginPage) -> str:
        """Send a request, a mutation only once; return why there is no response."""
        missed = task.missed
        if task.changes and await origin.submit(request):
            await self.recording.idle()
            name = (request.method, wire_url(request.url))
            if name in self.run.writer.last or missed.url in self.recording.failed:
                return ""
        referer = missed.first.referer or task.page
        if destination(request.headers) in ("", "empty"):  # the misses have no tokens
            request = replace(request, headers=(*self.run.tokens.live_for(request.url), *request.headers))
        return (await self.sender.send(request, origin.fields, referer, origin.context))[1]

    async def _visit(self, task: FetchTask) -> str:
        """Visit a document; return why it could not be loaded."""
        url, run = task.missed.url, self.run
        number = len(run.journal.pages) + 1
        name = f"amend-{run.journal.version}-{number:04d}"
        folder = run.collection.baseline / name
        shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
        visited = await visit_page(self.browser, self.setting, Visit(0, url, 0, seed=False), folder)
        answer = run.writer.answers.get(task.id)
        page = (
            task.kind is FetchMethod.PAGE
            and answer is not None
            and answer.recorded
            and answer.mime in HTML_TYPES
        )
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


def _group_key(task: FetchTask) -> tuple[FetchMethod, str, str]:
    """Return the key of fetches that share an origin page; a mutation has its own."""
    page = task.page if task.kind is FetchMethod.REQUEST else ""
    return task.kind, page, task.id if task.changes else ""


@dataclass(slots=True)
class AmendReport:
    """Result of an amend; the field names are those of `--json`.

    Attributes:
        version: version of the collection now; the earlier one if nothing was fetched.
        kept: version that holds the earlier state; "" if nothing was fetched.
        before, after: environment ids; equal if nothing was added.
        outcomes: outcome of each distinct miss.
        opened: number of URLs opened because a fetched page leads there.
        pages: URLs of added pages.
        notes: traffic that passed without being recorded, with counts.
    """

    version: str = ""
    kept: str = ""
    before: str = ""
    after: str = ""
    outcomes: list[FetchOutcome] = field(default_factory=list)
    captures: int = 0
    opened: int = 0
    pages: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)


async def amend(
    collection: Collection,
    misses: Iterable[Missed],
    ca: CertAuthority,
    options: AmendOptions,
    on_outcome: OnOutcome = lambda outcome, left: None,
) -> AmendReport:
    """Fetch misses into a collection; an interrupted amend continues, with the additional misses.

    Args:
        collection: collection to add to; its earlier state is stored as a version.
        misses: misses of this collection.
        on_outcome: called after each fetch with its outcome and the number of fetches left.

    Raises:
        RecordError: if an exchange could not be written, or the browser ended.
        CollectionError: if the collection cannot be read, or another process records into it.
    """
    with locked(collection):
        return await _amend(collection, misses, ca, options, on_outcome)


async def _amend(
    collection: Collection,
    misses: Iterable[Missed],
    ca: CertAuthority,
    options: AmendOptions,
    on_outcome: OnOutcome,
) -> AmendReport:
    journal = AmendJournal.read(collection.path)
    rules = read_rules(collection)
    amends, _ = read_amends(collection.path)
    report = AmendReport(version=amends[-1].version if amends else "1")
    with _sealed(collection) as pack:
        report.before = report.after = pack.environment_id
        known = SealedIndex(pack, rules, collection.each_page())
        begun = journal.unfinished if journal else frozenset()
        tasks, refusals = plan(misses, known, unsafe=options.unsafe, any_host=options.any_host, begun=begun)
        through = journal.outcomes if journal else {}  # done by the interrupted run, and reported again
        fresh = (each for each in refusals if identity(each.missed.request()) not in through)
        report.outcomes = [_refused(each) for each in fresh]
        if options.dry_run:
            report.outcomes += [_planned(each) for each in tasks]
            return report
        if not tasks and journal is None:
            return report
        if journal is None:
            number = next_version(versions(collection))
            journal = AmendJournal(str(number + 1), str(number), collection.manifest().state)
            _store_version(collection, journal)
        journal.begun += [each.id for each in tasks if each.id not in journal.begun]
        journal.write(collection.path)
        recorded_at = pack.manifest.get("recorded_at", "")
        wanted = {each.id for each in tasks if not known.answers(each.missed.request())}
        with NewOnlyWriter(collection, known, rules, wanted) as writer:
            run = AmendRun(collection, ca, options, journal, writer, on_outcome, str(recorded_at))
            try:
                await run.fetch(tasks)
            finally:
                journal.captures += writer.added
                journal.write(collection.path)
                report.notes, report.opened = dict(run.notes), run.opened
    _finish(collection, journal, report)
    return report


def _sealed(collection: Collection) -> Pack:
    """Return the pack of a collection in its current state."""
    if collection.pack.is_dir():
        pack = Pack.open(collection.pack)
        if not what_changed(collection, pack):
            return pack
        pack.close()
    seal(collection)
    return Pack.open(collection.pack)


def _store_version(collection: Collection, journal: AmendJournal) -> None:
    path = collection.path / "versions" / journal.kept
    if path.exists():
        raise CollectionError("a version of that name exists", path=path)
    keep_version(collection, journal.kept)


def _finish(collection: Collection, journal: AmendJournal, report: AmendReport) -> None:
    """Write into the collection what was added and what is absent, and seal it."""
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
        remove_collection(collection.path / "versions" / journal.kept)  # nothing has changed
        return
    learn_transports(collection)
    report.version, report.kept = journal.version, journal.kept
    report.captures, report.pages = journal.captures, list(journal.pages)
    report.after = seal(collection).environment_id


def _refused(refusal: RefusedMiss) -> FetchOutcome:
    missed = refusal.missed
    outcome = "present" if refusal.present else "refused"
    return FetchOutcome(missed.method, missed.url, outcome, refusal.reason, count=missed.count)


def _planned(task: FetchTask) -> FetchOutcome:
    how = {
        FetchMethod.PAGE: "the browser visits it",
        FetchMethod.FRAME: "the browser visits it as a frame",
        FetchMethod.SOCKET: f"the browser visits {task.page}, which opens it",
    }
    reason = how.get(task.kind) or (f"sent with the cookies of {task.page}" if task.page else "sent")
    return FetchOutcome(task.missed.method, task.missed.url, "planned", reason, 0, task.count, task.id)

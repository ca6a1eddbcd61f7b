"""One amend under way: the errands are done, those of a page together, and each is noted when it is through.

Documents are visited as a crawl visits pages; other requests are sent with the cookies of the page that
they come from, which is opened for that. What may change the site comes last, each from a page opened for it
alone, with the tokens that the site gives out now; forms are sent by the browser.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Annotated

from playwright.async_api import Browser

from stillweb.browser.launch import launch
from stillweb.browser.profile import Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import Learned, merge, read_rules, write_rules
from stillweb.collections.manifest import write_atomically
from stillweb.collections.reachability import Reach
from stillweb.errors import CollectionError, RecordError
from stillweb.matching.rules import Rule
from stillweb.model import Page, Request
from stillweb.options import Option
from stillweb.record.amend.origin import Asker, OriginPage, asker
from stillweb.record.amend.plan import Errand, FetchMethod
from stillweb.record.amend.writer import NewOnlyWriter
from stillweb.record.crawl.frontier import Visit
from stillweb.record.crawl.scope import Scope
from stillweb.record.crawl.visit import CrawlContext, extra_of, visit_page
from stillweb.record.explore.frontier import ExploreFrontier
from stillweb.record.explore.journal import ExplorationJournal, RecordedActions
from stillweb.record.explore.links import open_links
from stillweb.record.explore.options import ExplorationContext, ExploreOptions, ExploreReport
from stillweb.record.explore.values import Values, read_values
from stillweb.record.login.run import LoginSession, log_in_aside
from stillweb.record.login.steps import Login
from stillweb.record.options import RecordOptions, ScopeKind
from stillweb.record.proxy.proxy import RecordingProxy, recording_proxy
from stillweb.record.recording import begin, pinning_of
from stillweb.urls import wire_url

__all__ = ["AmendJournal", "AmendOptions", "AmendRun", "ErrandOutcome", "OnOutcome", "open_leads"]

FILE = "amend.json"


@dataclass(frozen=True, slots=True)
class ErrandOutcome:
    """What came of a miss.

    Attributes:
        outcome: `recorded`, `present` (it was there), `absent` (the site gave no answer) or `refused`.
        reason: why, "" if recorded.
        status: of the answer, 0 without one.
        count: how often it was missed.
        id: of the request (`amendplan.identity`).
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
    """How far an amend is.

    Attributes:
        version: what the collection will be.
        kept: the version before.
        state: of the manifest before.
        begun: identities of the errands, whether or not they are through.
        outcomes: of those that are.
        captures: added by runs that were cut short.
        pages: URLs of pages added so far.
    """

    version: str
    kept: str
    state: str
    begun: list[str] = field(default_factory=list)
    outcomes: dict[str, ErrandOutcome] = field(default_factory=dict)
    captures: int = 0
    pages: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> set[str]:
        """Errands that were begun and are not through."""
        return set(self.begun) - self.outcomes.keys()

    @classmethod
    def read(cls, folder: Path) -> AmendJournal | None:
        """Return the journal of a collection's folder; None if no amend was cut short.

        Raises:
            CollectionError: if the file is none of ours.
        """
        path = folder / FILE
        try:
            members = json.loads(path.read_bytes())
            members.pop("format")
            members["outcomes"] = {name: ErrandOutcome(**told) for name, told in members["outcomes"].items()}
            return cls(**members)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"no journal of an amend: {error!r}", path=path, hint=f"rm {path}, and amend again"
            ) from error

    def write(self, folder: Path) -> None:
        """Write it atomically."""
        content = json.dumps({"format": 1, **asdict(self)}, ensure_ascii=True)
        write_atomically(folder / FILE, content.encode("ascii"))

    def remove(self, folder: Path) -> None:
        """Remove the file: all is through."""
        (folder / FILE).unlink(missing_ok=True)


async def open_leads(
    collection: Collection,
    urls: Sequence[str],
    grounds: tuple[Browser, RecordingProxy, Profile, Pinning],
    options: ExploreOptions,
) -> int:
    """Open what pages lead to, within their hosts, the likeliest first; return how many were opened.

    Args:
        collection: what it holds is not opened.
        urls: of the pages; each is opened once more, to be looked at.
        grounds: where.
        options: `links` at most, with values for forms.

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
    book = ExplorationJournal(Reach(), known, StringIO(), report, grounds[1], lambda event: None)
    frontier = ExploreFrontier()
    frontier.seed(urls)
    scope = Scope.of(ScopeKind.HOST, urls)
    ground = ExplorationContext(*grounds, scope, options)
    await open_links(ground, book, frontier, limit + len(urls), lambda: False)
    return max(0, report.opened - len(urls))


_HTML = frozenset({"text/html", "application/xhtml+xml"})


OnOutcome = Callable[[ErrandOutcome, int], None]


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
    values: Annotated[
        Values,
        Option(
            "YAML file of values to fill those forms with, as for `record explore`. Repeatable.",
            path="existing file",
            parse=read_values,
            repeat=True,
        ),
    ] = field(default_factory=Values)


@dataclass(slots=True)
class AmendRun:
    """One amend under way."""

    collection: Collection
    ca: CertAuthority
    options: AmendOptions
    journal: AmendJournal
    sieve: NewOnlyWriter
    on_outcome: OnOutcome
    recorded_at: str
    notes: dict[str, int] = field(default_factory=dict)
    learned: tuple[Rule, ...] = ()
    opened: int = 0

    async def fetch(self, errands: Sequence[Errand]) -> None:
        """Do the errands, those of a page together."""
        manifest = self.collection.manifest()
        if not manifest.recorded_at:  # imported: its clock starts with its first capture, and goes on to
            self.collection.write_manifest(replace(manifest, recorded_at=self.recorded_at))
        profile, pinning = pinning_of(begin(self.collection))
        options, left = self.options, len(errands)
        held, reach = None, options.record
        if options.login:
            first = next((page.url for page in self.collection.page_list()), "")
            held = await log_in_aside(
                self.ca, options.login, (profile, pinning), first, reach, executable=options.browser
            )
            reach = reach.knowing(held.secrets)
        async with (
            recording_proxy(self.sieve, self.ca, reach) as recording,
            launch(spki=self.ca.spki_hashes(), executable=options.browser) as browser,
            asker(recording.url, self.ca, options.page_timeout) as asking,
        ):
            setting = CrawlContext(
                recording.url, profile, pinning, options.page_timeout, options.retries, recording.at_rest
            )
            setting = replace(setting, login=held)
            doing = _Doing(self, recording, browser, setting, asking)
            reads = [each for each in errands if not each.changes]
            try:
                for part in (reads, errands[len(reads) :]):
                    for place, group in groupby(part, key=_place):
                        async with OriginPage(browser, setting, place[1]) as origin:
                            for errand in group:
                                outcome = await doing.do(errand, origin)
                                left -= 1
                                self._note(outcome, left)
                                recording.check()
                    if part is reads:  # before the site is changed
                        grounds = (browser, recording, profile, pinning)
                        self.opened = await open_leads(
                            self.collection, self.journal.pages, grounds, self._leading(held)
                        )
            finally:
                self.notes = dict(recording.notes)

    def _leading(self, held: LoginSession | None) -> ExploreOptions:
        options = self.options
        state = held.state if held else None
        return ExploreOptions(0, options.links, values=options.values, storage_state=state)

    def _note(self, outcome: ErrandOutcome, left: int) -> None:
        if self.learned and outcome.outcome == "recorded":
            write_rules(self.collection, merge(read_rules(self.collection), Learned(rules=self.learned)))
            self.learned = ()
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

    run: AmendRun
    recording: RecordingProxy
    browser: Browser
    setting: CrawlContext
    asking: Asker

    async def do(self, errand: Errand, origin: OriginPage) -> ErrandOutcome:
        """Fetch a miss by its means, again if it fails."""
        missed, sieve = errand.missed, self.run.sieve
        reason = ""
        asked = missed.request()
        place = (asked.method, wire_url(asked.url))
        if errand.kind is not FetchMethod.REQUEST:
            reason = await self._visit(errand)
        elif errand.changes and not sieve.has(asked):
            sieve.last.pop(place, None)
            asked = await self._renewed(errand, origin)
        through = sieve.has(missed.request())
        for _ in range(1 if errand.changes else self.setting.retries + 1):
            if through:
                break
            if not self.browser.is_connected():
                raise RecordError("the browser ended", hint="the same command goes on where this one was")
            failure = await self._ask(errand, asked, origin)
            await self.recording.idle()
            reason = self.recording.failed.get(missed.url) or failure or reason
            answered = sieve.last.get(place)
            through = answered is not None and answered.kept
        answer = sieve.answers.get(errand.id) or sieve.last.get(place)
        kept = through
        if answer is not None and not answer.kept:
            reason = f"answered with status {answer.status}, which is not kept"
        return ErrandOutcome(
            missed.method,
            missed.url,
            "recorded" if kept else "absent",
            "" if kept else reason or "no answer came",
            answer.status if answer else 0,
            errand.count,
            errand.id,
        )

    async def _renewed(self, errand: Errand, origin: OriginPage) -> Request:
        """Return what changes the site with the tokens of its page as it is now."""
        run, missed = self.run, errand.missed
        asked, learned = await origin.renewed(missed.request(), missed.first.referer, run.sieve.rules)
        if learned:
            run.sieve.learn(learned)
            run.learned += learned
        return asked

    async def _ask(self, errand: Errand, asked: Request, origin: OriginPage) -> str:
        """Send a request; return why there is no answer. What may change the site is sent once."""
        missed = errand.missed
        if errand.changes and await origin.submit(asked):
            await self.recording.idle()
            place = (asked.method, wire_url(asked.url))
            if place in self.run.sieve.last or missed.url in self.recording.failed:
                return ""
        referer = missed.first.referer or errand.page
        return (await self.asking.ask(asked, origin.fields, referer, origin.context))[1]

    async def _visit(self, errand: Errand) -> str:
        """Visit a document; return why it could not be loaded."""
        url, run = errand.missed.url, self.run
        number = len(run.journal.pages) + 1
        name = f"amend-{run.journal.version}-{number:04d}"
        folder = run.collection.baseline / name
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
        visited = await visit_page(self.browser, self.setting, Visit(0, url, 0, seed=False), folder)
        answer = run.sieve.answers.get(errand.id)
        page = errand.kind is FetchMethod.PAGE and answer is not None and answer.kept and answer.mime in _HTML
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


def _place(errand: Errand) -> tuple[FetchMethod, str, str]:
    """Return what errands have in common that are done together; what changes the site is done alone."""
    return errand.kind, errand.page, errand.id if errand.changes else ""

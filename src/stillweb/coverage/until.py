"""Record until agents miss little: measure, record what was missed, measure again with fresh seeds.

Each round records in passes and then measures. First, walks that missed requests with the page's time are
repeated at another time, which proves rules for these (`times`). In a pass the harvest fetches linked pages,
GET forms with the site's words and, if allowed, POST forms by plain HTTP. Filling walks (`fill`) then act on
the replay and fetch what it lacks; their share of steps that needed the site says when a measurement is worth
its time. A second, short harvest requests the same for other entries of lists, and sends the writes that
they missed. Walks on the live site and amend record those that need their page. At the end of a round, forms
that agents sent with own text are recorded with several texts (`record forms`), for a replay with --derived.
Explore is the last resort. All measurements and filling walks share a browser.

The loop ends when a measurement's rate is at most the target; its seeds were used by no earlier
measurement. It also ends when the time is over, or when a round adds nothing. If templates of forms were
proved, the walks of the last measurement are repeated with them. Time that is too short for another
measurement is used to record what the last one missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from stillweb.browser.profile import Level
from stillweb.certs import CertAuthority
from stillweb.clock import monotonic
from stillweb.collections.branches import FormOutcome, read_forms
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.misses import Missed
from stillweb.coverage.causes import Obstacles, causes_of, closable_rate
from stillweb.coverage.choices import WalkedPages
from stillweb.coverage.fill import FillOptions, FillReport, fill
from stillweb.coverage.measure import CoverageOptions, CoverageResult, OnWalk, measure_coverage
from stillweb.coverage.rounds import (
    HarvestShare,
    Round,
    UntilReport,
    is_frame,
    is_linked,
    key_of,
    live_share,
    needs_walks,
    why_over,
)
from stillweb.coverage.times import (
    ShownTimes,
    TimedPages,
    prove_opened,
    prove_times,
    timed_pages,
    to_repeat,
)
from stillweb.env.episode.determinism import level_of, probe_level
from stillweb.env.vector.pool import BrowserPool, PoolOptions
from stillweb.matching.parts import shape_key
from stillweb.model import MUTATIONS, Request
from stillweb.options import Option, parse_duration, parse_share
from stillweb.record.amend.amend import AmendOptions, amend
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import explore
from stillweb.record.explore.options import ExploreOptions, WalkOptions, WalkReport
from stillweb.record.explore.walks import record_walks
from stillweb.record.forms.run import FormsOptions, record_forms
from stillweb.record.forms.wanted import OwnText
from stillweb.record.harvest.harvest import harvest
from stillweb.record.harvest.opened import opened_posts
from stillweb.record.harvest.options import HarvestOptions
from stillweb.replay import ReplayClient, ensure_sealed
from stillweb.replay.pywb.backend import BACKENDS, serve_by
from stillweb.urls import host_of

_SEEDS_APART = 10_000  # between the seeds of two measurements
_ERRANDS = 150  # misses that one round amends, the most frequent first
_AMEND_LEFT = 0.4  # share of what is left of a pass after the harvest
_FOLLOW = 0.4  # share of what is left of a pass after the filling walks, for the harvest of what they found
_FILL_AND_WRITE = 4.0  # starts that a pass has to last for after its harvest to fill and then to send writes
_WALKS = 0.5  # share of what is left of a pass after that
_LIVE_MOST = 0.7  # share of what is left of a pass after the harvest, for walks on the live site
_EXPLORE = 0.5  # share of the time left
_PASS_LEAST = 150.0  # seconds; a shorter pass spends its time on seals and browsers that start
_PASS_STARTS = 8  # starts of a replay and a browser that a pass has to last for at least
_MEASURE_LEAST, _MEASURE_MOST = 0.1, 0.15  # shares of the whole time that are kept for the last measurement
_LONGER = 1.3  # times the last walks: those on a more complete recording see more pages
_FIRST_MOST = 0.1  # share of the whole time that the first measurement may use
_SURE = 2  # walks of each agent before a measurement may end early
_LATE = 3.0  # times the seconds of a stage that recording takes after the last measurement
_LEAST = 20.0  # seconds that are worth another stage, if replay and browser start in less
_TIMES_SHARE = 0.1  # share of the whole time for walks at another time
_FORMS_SHARE = 0.1  # share of the whole time for forms with own text
_DERIVED_SHARE = 0.05  # share of the whole time for the walks with their templates
_FORMS, _FORM_PAGES = 20, 12  # forms, and pages that are requested after each


@dataclass(frozen=True, slots=True)
class UntilOptions:
    """Limits of the loop, and how it records.

    Attributes:
        miss_rate: share of asking steps on the site that may miss.
        read_only: whether no POST form is sent.
        measure: how the miss rate is measured; its first seed is that of the first measurement.
        harvest, explore, amend: how each means records; limits of time and number are set by the loop.
    """

    miss_rate: Annotated[
        float,
        Option("Miss rate to reach.", metavar="PERCENT", parse=parse_share, format="{:.0%}".format),
    ] = 0.01
    seconds: Annotated[
        float,
        Option(
            "Time limit, such as 90s, 30m or 2h.",
            "--time",
            "DURATION",
            parse=parse_duration,
            format=lambda seconds: f"{seconds / 60:g}m",
        ),
    ] = 1800.0
    read_only: Annotated[bool, Option("Send no POST form.")] = False
    backend: Annotated[str, Option("Replay server on which the miss rate is measured.", choices=BACKENDS)] = (
        BACKENDS[0]
    )
    measure: CoverageOptions = field(default_factory=lambda: CoverageOptions(seeds=7))
    harvest: HarvestOptions = field(default_factory=HarvestOptions)
    explore: ExploreOptions = field(default_factory=lambda: ExploreOptions(budget=1))
    amend: AmendOptions = field(default_factory=AmendOptions)


OnProgress = Callable[[str], None]


async def record_until(
    collection: Collection,
    ca: CertAuthority,
    scope: Scope,
    starts: list[str],
    options: UntilOptions,
    on_progress: OnProgress = lambda text: None,
) -> UntilReport:
    """Record into a collection until agents miss at most a share of what they request.

    Raises:
        RecordError, CollectionError: if recording fails.
        ReplayError, InfraError: if the replay or the browser fails.
        AgentError: if no walk of an agent took a step.
    """
    level = level_of(options.measure.level)
    pool = PoolOptions(exact=level is Level.EXACT)
    prepare = partial(probe_level, level=level)
    async with BrowserPool(ca.spki_hashes(), pool, prepare=prepare) as browsers:
        (await browsers.lease()).release()
        options = replace(options, measure=replace(options.measure, browsers=browsers))
        return await _Loop(collection, ca, scope, starts, options, on_progress).run()


class _Loop:
    def __init__(
        self,
        collection: Collection,
        ca: CertAuthority,
        scope: Scope,
        starts: list[str],
        options: UntilOptions,
        on_progress: OnProgress,
    ) -> None:
        self._collection = collection
        self._ca = ca
        self._scope = scope
        self._starts = starts
        self._options = options
        self._say = on_progress
        self._began = monotonic()
        self._report = UntilReport()
        self._pass_end = 0.0
        self._fills = self._walks = 0
        self._walked = WalkedPages()
        self._walk_seconds = 0.0
        self._steps = 0  # of filling walks
        self._start_seconds = 0.0  # until replay and browser have started; a busy machine takes a minute
        self._obstacles = Obstacles(scope)
        self._own_text = OwnText()
        self._words: Counter[str] = Counter()
        self._reads: list[Request] = []
        self._addresses: dict[str, None] = {}  # of pages that walks have seen
        self._tried_times: set[bytes] = set()
        self._opened_later = False
        self._keeps_time = True  # for another measurement
        self._written: set[tuple[str, str, str]] = set()

    @property
    def _left(self) -> float:
        return self._options.seconds - (monotonic() - self._began)

    async def run(self) -> UntilReport:
        """Record and measure in turn until the target holds or nothing more can be done."""
        report = self._report
        self._own_text.opened = await asyncio.to_thread(opened_posts, self._collection)
        last = await self._measure({})
        exhausted = False
        while not self._holds(last):
            if last.number and self._to_record < self._least:
                reached = self._rate_of(last) <= self._options.miss_rate
                report.why = why_over(self._options.seconds, self._left, last.result, reached=reached)
                break
            recorded = await self._record(last.result)
            # The first measurement may have ended after few walks, which missed little.
            if not any(recorded.values()) and (last.number or last.result.complete):
                report.why, exhausted = self._why_nothing, True
                break
            last = await self._measure(recorded)
        await self._measure_derived(last)
        if not self._holds(last) and not exhausted and self._left > _LATE * self._least:
            self._keeps_time = False
            report.late = (await self._record(last.result)).total()
        recorded_at = self._collection.manifest().recorded_at
        causes = causes_of(last.result, self._options.harvest.avoid, recorded_at)
        self._obstacles.forms = report.forms
        report.causes = [replace(each, why=self._obstacles.why(each)) for each in causes]
        report.reached = self._holds(last)
        report.why = "" if report.reached else report.why
        return report

    @property
    def _why_nothing(self) -> str:
        """Reason for which a round recorded nothing."""
        if not self._steps:
            return f"no walk took a step: replay and browser need {self._start_seconds:.0f} s to start"
        return "nothing more can be recorded by harvest, fill, walks, explore and amend"

    def _rate_of(self, last: Round) -> float:
        return closable_rate(last.result, self._options.harvest.avoid).share

    def _holds(self, last: Round) -> bool:
        return last.result.complete and self._rate_of(last) <= self._options.miss_rate

    @property
    def _pass_left(self) -> float:
        return self._pass_end - monotonic()

    @property
    def _to_record(self) -> float:
        """Seconds left for recording; the rest is for the last measurement."""
        if not self._keeps_time:
            return self._left - self._start_seconds
        walks = len(self._options.measure.agents) * self._options.measure.seeds
        whole = self._options.seconds
        last = min(_MEASURE_MOST * whole, _LONGER * self._walk_seconds * walks)
        if len(self._report.rounds) < 2:  # walks on the recording as it was found may end early
            last = max(last, _MEASURE_LEAST * whole)
        is_worth = self._records_forms and _FORMS_SHARE * whole > self._least
        forms = (_FORMS_SHARE + _DERIVED_SHARE) * whole if is_worth else 0.0
        return self._left - last - forms - self._start_seconds

    @property
    def _least(self) -> float:
        """Seconds that are worth another stage."""
        return max(_LEAST, self._start_seconds)

    async def _record(self, result: CoverageResult) -> Counter[str]:
        """Record in passes until the filling walks find little that is new; return the exchanges by means."""
        recorded: Counter[str] = Counter()
        self._walked.recent.clear()  # the measurement has missed what they did not
        recorded["times"] = await self._prove_times(result)
        misses, walked = result.misses(), sum(1 for _ in result.steps())
        searches: list[Missed] = []
        self._own_text.add(misses)
        self._addresses.update(dict.fromkeys(step.page for step in result.steps()))
        share = HarvestShare()
        share.add(sum(is_linked(each) * each.count for each in misses), sum(each.count for each in misses))
        if self._to_record <= self._least:  # a replay takes longer to start; plain HTTP needs none
            self._pass_end = monotonic() + max(_LEAST, self._to_record)
            writes = not self._options.read_only
            recorded["harvest"] += await self._harvest(misses, walked, 1.0, writes=writes)
        while self._to_record > self._least:
            self._pass_end = monotonic() + self._budget()
            added = Counter(harvest=await self._harvest([*misses, *searches], walked, share.of_pass))
            found = await self._record_misses(misses, added)
            recorded += added
            self._own_text.add(found.misses)
            share.add(found.documents, found.exchanges)
            # Filling walks prefer unused controls. They show which searches are sent, and not how often.
            misses, walked = found.misses, 0
            searches += found.searches
            if found.is_dry or not added.total():
                break
        if recorded["fill"] + recorded["harvest"] == 0 and self._to_record > self._least:
            recorded["explore"] = await self._explore()
        # Their share is a part of what is kept for the last measurement, if one follows.
        reserve = _FORMS_SHARE * self._options.seconds if self._keeps_time else 0.0
        if self._records_forms and self._to_record + reserve > self._least:
            recorded["forms"] = await self._record_forms()
        return recorded

    async def _record_misses(self, misses: list[Missed], added: Counter[str]) -> FillReport:
        """Record and count in a pass what its harvest could not; return what filling walks found."""
        live = live_share(misses)
        if live and live * self._pass_left > self._least:
            # Before the filling walks: these open no connection to the site.
            added["walks"] += await self._walk(min(_LIVE_MOST, live))
        due = self._is_due(misses)
        # Agents have pressed what sends them. Filling walks may find more, if there is time for both.
        is_filled = self._pass_left > (_FILL_AND_WRITE if due else 1.0) * self._least
        found = await self._fill(_AMEND_LEFT) if is_filled else FillReport()
        added["fill"] = found.exchanges
        self._start_seconds = found.start_seconds or self._start_seconds
        due = due or self._is_due(found.misses)
        if found.exchanges or found.misses or due:
            added["harvest"] += await self._follow([*misses, *found.misses, *found.loaded], due=due)
        is_walked = not self._options.read_only and any(map(needs_walks, found.misses))
        if is_walked and not added["walks"] and _WALKS * self._pass_left > self._least:
            added["walks"] += await self._walk(_WALKS)
        to_amend = [each for each in (*misses, *found.misses) if not is_frame(each)]
        if to_amend and self._pass_left > 0:
            added["amend"] = await self._amend(to_amend)
        return found

    async def _prove_times(self, result: CoverageResult) -> int:
        """Repeat pages and walks that requested the page's time at another; return the number of new rules.

        It is tried once for requests of each method, URL and field names.
        """
        rules = read_rules(self._collection)
        recorded_at = self._collection.manifest().recorded_at
        is_shown = (await asyncio.to_thread(ShownTimes, self._collection, result.misses())).cover
        walks = to_repeat(result, recorded_at, rules, self._tried_times, is_shown)
        opened = TimedPages()
        if not self._opened_later:
            opened = await asyncio.to_thread(timed_pages, self._collection)
        has_time = self._to_record >= self._least
        if not (walks or opened.pages) or not has_time or self._options.backend != BACKENDS[0]:
            return 0
        self._opened_later = True
        end = monotonic() + _TIMES_SHARE * self._options.seconds

        def limited() -> CoverageOptions:
            return replace(self._options.measure, seconds=max(_LEAST, end - monotonic()))

        count = 0
        async with self._replayed() as (client, hosts):
            if opened.pages:
                self._say(f"times: {len(opened.pages)} pages at another time")
                count += await prove_opened(client, self._collection, hosts, opened, limited())
            rules = read_rules(self._collection)
            walks = to_repeat(result, recorded_at, rules, self._tried_times, is_shown)
            if walks:
                self._say(f"times: {len(walks)} walks at another time")
                count += await prove_times(client, self._collection, hosts, walks, limited())
        self._say(f"times: {count} rules")
        self._tried_times.update(shape_key(miss.request()) for walk in walks for miss in walk.misses)
        return count

    @property
    def _records_forms(self) -> bool:
        """True if agents sent own text that no recorded form covers, and its forms may be sent."""
        return not self._options.read_only and self._own_text.is_new

    async def _record_forms(self) -> int:
        """Record the forms that agents sent with own text; return the number of those that are proved.

        Templates of a site that is put back before each recording prove more. They are kept.
        """
        known = await asyncio.to_thread(read_forms, self._collection)
        wanted = self._own_text.take(max(_LEAST, min(_FORMS_SHARE * self._options.seconds, self._left)))
        if known is not None and known.reset:
            return 0
        given = self._options.harvest
        options = FormsOptions(
            forms=_FORMS,
            pages=_FORM_PAGES,
            wanted=wanted,
            values=given.values,
            avoid=given.avoid,
            login=given.login,
            shared=given.shared,
            record=given.record,
        )
        self._say(f"forms: {len(wanted.targets)} forms to look for")

        def show(outcome: FormOutcome, left: int) -> None:
            self._say(f"forms: {outcome.name} {'refused' if outcome.refused else 'proved'}, {left} left")

        def show_read(documents: int) -> None:
            self._say(f"forms: {documents} documents read for {len(wanted.targets)} forms")

        report = await record_forms(self._collection, self._ca, self._scope, options, show, show_read)
        self._report.forms = report.outcomes
        return sum(not each.refused for each in report.outcomes)

    def _budget(self) -> float:
        """Return the seconds of one pass: half of what is left, or all if little would be left."""
        least = max(_PASS_LEAST, _PASS_STARTS * self._start_seconds)
        half = max(least, self._to_record / 2)
        return half if self._to_record - half > least / 2 else self._to_record

    def _is_due(self, misses: list[Missed]) -> bool:
        """Return whether agents missed writes that no harvest has sent."""
        writes = (each for each in misses if each.method in MUTATIONS and not self._options.read_only)
        return any(key_of(each) not in self._written for each in writes)

    async def _follow(self, misses: list[Missed], *, due: bool) -> int:
        """Harvest what filling walks lead to: the same for other entries; send the writes of scripts."""
        if self._pass_left < _LEAST / 2 and not due:  # plain HTTP needs no replay, which may take longer
            return 0
        fresh = {key_of(each): each for each in misses}
        writes = [each for key, each in fresh.items() if key not in self._written]
        self._written |= fresh.keys()
        # Links wait where walks found no write: the rest of the pass is theirs.
        share = _FOLLOW if any(map(needs_walks, writes)) else 1.0
        return await self._harvest(writes, 0, share, writes=not self._options.read_only)

    async def _harvest(self, misses: list[Missed], walked: int, share: float, *, writes: bool = False) -> int:
        base = self._options.harvest
        forms = 0 if self._options.read_only else base.forms or 1_000
        options = replace(
            base,
            seconds=max(2 * _LEAST if writes else _LEAST, share * self._pass_left),
            forms=forms,
            words=base.words or 2_000,
            misses=tuple(misses),
            walked=walked,
            shown=self._words,
            writes=writes,
            reads=tuple(self._reads),
            addresses=tuple(self._addresses),
        )
        self._say(f"harvest: {len(misses)} misses, links")

        def show(report: Any) -> None:
            self._say(f"harvest: {report.pages} pages, {report.forms} forms, {report.requests} requests")

        report = await harvest(self._collection, self._ca, self._scope, options, show)
        self._obstacles.failed.update(report.failed)
        self._obstacles.waiting = report.waiting
        return report.requests

    async def _fill(self, left: float) -> FillReport:
        """Walk on the replay for the time of the pass, apart from a share of it that is left."""
        given = self._options.harvest
        self._fills += 1
        options = FillOptions(
            max(_LEAST, (1 - left) * self._pass_left),
            enough=self._options.miss_rate,
            walked=self._walked,
            unsafe=not self._options.read_only,
            seed=self._fills,
            level=self._options.measure.level,
            avoid=given.avoid,
            login=given.login,
            shared=given.shared,
            browsers=self._options.measure.browsers,
            record=given.record,
        )
        self._say("fill: starts")

        def show(report: FillReport) -> None:
            self._say(f"fill: {report.steps} steps, {report.filled} of {report.requested} needed the site")

        report = await fill(self._collection, self._ca, self._scope, self._starts, options, show)
        self._obstacles.failed.update(report.failed)
        self._words += report.words
        self._reads += report.reads
        self._addresses |= report.addresses
        for request in report.reads:
            self._own_text.opened.add(request)
        self._steps += report.steps
        return report

    async def _walk(self, share: float) -> int:
        """Walk on the live site: what it shows after a write depends on the writes before."""
        given = self._options.explore
        self._walks += 1
        options = WalkOptions(
            max(_LEAST, share * self._pass_left),
            seed=self._walks,
            mutations=not self._options.read_only,
            values=given.values,
            avoid=given.avoid,
            login=given.login,
            storage_state=given.storage_state,
            browser=given.browser,
            record=given.record,
        )
        self._say("walks: starts")

        def show(report: WalkReport) -> None:
            self._say(f"walks: {report.steps} steps")

        report = await record_walks(self._collection, self._ca, self._scope, self._starts, options, show)
        return report.exchanges

    async def _explore(self) -> int:
        seconds = max(_LEAST, _EXPLORE * self._to_record)
        options = replace(
            self._options.explore,
            budget=100_000,
            seconds=seconds,
            links=0,
            mutations=not self._options.read_only,
        )
        self._say("explore: starts")

        def show(event: Any) -> None:
            self._say(f"explore: {event.acts} actions, {event.states} states")

        report = await explore(self._collection, self._ca, self._scope, options, show)
        return report.exchanges

    async def _amend(self, misses: list[Missed]) -> int:
        chosen = sorted(misses, key=lambda miss: -miss.count)[:_ERRANDS]
        options = replace(self._options.amend, unsafe=not self._options.read_only)
        self._say(f"amend: {len(chosen)} misses")
        await asyncio.to_thread(ensure_sealed, self._collection)

        def show(outcome: Any, left: int) -> None:
            self._say(f"amend: {outcome.method} {outcome.outcome}, {left} left")
            if outcome.outcome != "recorded":
                self._obstacles.failed[outcome.url] = outcome.reason

        before = self._collection.count_lines()
        try:
            async with asyncio.timeout(max(_LEAST, self._pass_left)):
                report = await amend(self._collection, chosen, self._ca, options, show)
        except TimeoutError:  # what was fetched is kept
            return self._collection.count_lines() - before
        return report.captures

    async def _measure(self, recorded: dict[str, int]) -> Round:
        number = len(self._report.rounds)
        options = self._options.measure
        seconds = self._left if number else _FIRST_MOST * self._options.seconds
        options = replace(
            options, first_seed=options.first_seed + _SEEDS_APART * number, seconds=max(_LEAST, seconds)
        )
        self._say("measure: starts")
        began, done = monotonic(), 0

        def count(so_far: CoverageResult) -> bool:
            nonlocal done
            done += 1
            self._walk_seconds = (monotonic() - began) / done
            self._say(f"measure: {done} of {len(options.agents) * options.seeds} walks")
            sure = closable_rate(so_far, self._options.harvest.avoid).low > self._options.miss_rate
            return sure and done >= _SURE * len(options.agents)

        result = await self._walk_on_replay(options, count)
        measured = Round(number, recorded, result, monotonic() - self._began)
        self._report.rounds.append(measured)
        rate = result.miss_rate()
        shown = rate if rate.tried else "not known, no step requested anything"
        self._say(f"round {number}: miss rate {shown}")
        return measured

    async def _measure_derived(self, last: Round) -> None:
        """Repeat the walks of a measurement with the templates that were proved."""
        if all(each.refused for each in self._report.forms) or self._options.backend != BACKENDS[0]:
            return
        options = self._options.measure
        first = options.first_seed + _SEEDS_APART * last.number
        seeds = -(-len(last.result.walks) // len(options.agents))
        seconds = max(_LEAST, self._left)
        options = replace(options, first_seed=first, seeds=seeds, seconds=seconds, derived=True)

        def show(so_far: CoverageResult) -> None:
            self._say(f"measure with --derived: {len(so_far.walks)} of {len(last.result.walks)} walks")

        self._report.derived = await self._walk_on_replay(options, show)

    @asynccontextmanager
    async def _replayed(self) -> AsyncIterator[tuple[ReplayClient, set[str]]]:
        """Serve the collection; yield a client and the recorded hosts."""
        await asyncio.to_thread(ensure_sealed, self._collection)
        hosts = {host_of(capture.url) for capture in self._collection.captures()}
        async with (
            serve_by(self._options.backend, self._collection, self._ca) as url,
            ReplayClient(url) as client,
        ):
            yield client, hosts

    async def _walk_on_replay(self, options: CoverageOptions, on_walk: OnWalk) -> CoverageResult:
        began = monotonic()
        async with self._replayed() as (client, hosts):
            before = monotonic() - began
            options = replace(options, seconds=max(_LEAST, (options.seconds or 0.0) - before))
            name = self._collection.name
            result = await measure_coverage(client, name, self._starts, hosts, options, on_walk)
        self._start_seconds = before + result.start_seconds
        return result

"""Record until agents miss little: measure, record what was missed, measure again with fresh seeds.

Each round records and then measures. The harvest fetches linked pages, GET forms with the site's words and,
if allowed, POST forms by plain HTTP. If misses are left that no link explains, a browser is used from the
second round on: explore tries controls, and amend requests what the last measurement missed.

The loop ends when a measurement's rate is at most the target; its seeds were used by no earlier
measurement. It also ends when the time is over, or when a round adds nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from stillweb.certs import CertAuthority
from stillweb.clock import monotonic
from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed
from stillweb.coverage.causes import MissCause, causes_of, closable_rate
from stillweb.coverage.measure import CoverageOptions, CoverageResult, measure
from stillweb.errors import RecordError
from stillweb.options import Option, parse_duration, parse_share
from stillweb.record.amend.amend import AmendOptions, amend
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.explore import explore
from stillweb.record.explore.options import ExploreOptions
from stillweb.record.explore.walks import WalkOptions, WalkReport, record_walks
from stillweb.record.harvest.harvest import HarvestOptions, harvest
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve
from stillweb.urls import host_of

__all__ = ["Round", "UntilOptions", "UntilReport", "record_until"]

_SEEDS_APART = 10_000  # between the seeds of two measurements
_ERRANDS = 150  # misses that one round amends, the most frequent first
_HARVEST_LEAST, _HARVEST_MOST = 0.4, 0.6  # shares of the time left that a round may spend
_WALKS, _EXPLORE, _AMEND = 0.4, 0.4, 0.4
_SCRIPTED = 0.3  # share of misses by scripts from which on a browser is used in the first round
_MEASURE_MOST = 0.15  # share of the whole time that is kept for the last measurement
_FIRST_MOST = 0.1  # share of the whole time that the first measurement may use
_SURE = 2  # walks of each agent before a measurement may end early
_LEAST = 20.0  # seconds that are worth another step of a round


@dataclass(frozen=True, slots=True)
class UntilOptions:
    """Limits of the loop, and how it records.

    Attributes:
        miss_rate: share of asking steps on the site that may miss.
        seconds: time limit for everything.
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
    measure: CoverageOptions = field(default_factory=lambda: CoverageOptions(seeds=7))
    harvest: HarvestOptions = field(default_factory=HarvestOptions)
    explore: ExploreOptions = field(default_factory=lambda: ExploreOptions(budget=1))
    amend: AmendOptions = field(default_factory=AmendOptions)


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement, and what was recorded before it.

    Attributes:
        number: 0 for the recording as it was found.
        recorded: exchanges written by each means in this round.
        result: the measurement.
        seconds: since the loop began.
    """

    number: int
    recorded: dict[str, int]
    result: CoverageResult
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, without walks."""
        rate = self.result.miss_rate()
        counts = self.result.counts()
        return {
            "round": self.number,
            "recorded": self.recorded,
            "seconds": round(self.seconds, 1),
            "miss_rate": rate.to_dict(),
            **counts,
        }


@dataclass(slots=True)
class UntilReport:
    """Outcome of the loop.

    Attributes:
        rounds: measurements in order; the first is of the recording as it was found.
        reached: whether the last rate is at most the target; controls that are left alone do not count.
        causes: of the misses that are left.
        why: why the loop ended without reaching the target, "" if it was reached.
    """

    rounds: list[Round] = field(default_factory=list)
    reached: bool = False
    causes: list[MissCause] = field(default_factory=list)
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "reached": self.reached,
            "why": self.why,
            "rounds": [each.to_dict() for each in self.rounds],
            "causes": [each.to_dict() for each in self.causes],
        }


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
    """
    loop = _Loop(collection, ca, scope, starts, options, on_progress)
    return await loop.run()


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
        self._exhausted: set[str] = set()
        self._walk_seconds = 0.0

    @property
    def _left(self) -> float:
        return self._options.seconds - (monotonic() - self._began)

    async def run(self) -> UntilReport:
        """Run rounds until the target holds or nothing more can be done."""
        report = self._report
        last = await self._measure({})
        while not self._holds(last):
            if self._to_record < _LEAST:
                report.why = f"the time limit of {self._options.seconds:g} s is over"
                break
            recorded = await self._record(last.result)
            if not any(recorded.values()):
                report.why = "nothing more can be recorded by harvest, explore and amend"
                break
            last = await self._measure(recorded)
        report.causes = causes_of(last.result, self._options.harvest.avoid)
        report.reached = self._holds(last)
        report.why = "" if report.reached else report.why
        return report

    def _holds(self, last: Round) -> bool:
        rate = closable_rate(last.result, self._options.harvest.avoid)
        return last.result.complete and rate.share <= self._options.miss_rate

    @property
    def _to_record(self) -> float:
        """Seconds left for recording; the rest is for the last measurement."""
        walks = len(self._options.measure.agents) * self._options.measure.seeds
        return self._left - min(_MEASURE_MOST * self._options.seconds, self._walk_seconds * walks)

    async def _record(self, result: CoverageResult) -> dict[str, int]:
        """Record by each means, with time by how many misses it can avoid."""
        misses = result.misses()
        by_script = 1 - sum(_is_document(each) * each.count for each in misses) / _total(misses)
        # A browser is slow, and most of what it would find is a page away: harvest alone where links miss.
        alone = len(self._report.rounds) == 1 and by_script < _SCRIPTED
        share = _HARVEST_MOST if alone else min(_HARVEST_MOST, max(_HARVEST_LEAST, 1 - by_script))
        recorded = {"harvest": await self._harvest(result, share)}
        if alone or not by_script:
            return recorded
        for means, record in (("walks", self._walk), ("explore", self._explore)):
            if means not in self._exhausted and self._to_record > _LEAST:
                recorded[means] = await record()
                self._exhausted |= set() if recorded[means] else {means}
        if self._to_record > _LEAST:
            recorded["amend"] = await self._amend(misses)
        return recorded

    async def _harvest(self, result: CoverageResult, share: float) -> int:
        base = self._options.harvest
        seconds = max(_LEAST, share * self._to_record)
        forms = 0 if self._options.read_only else base.forms or 1_000
        options = replace(
            base,
            seconds=seconds,
            forms=forms,
            words=base.words or 2_000,
            misses=tuple(result.misses()),
            walked=sum(1 for _ in result.steps()),
        )

        def show(report: Any) -> None:
            self._say(f"harvest: {report.pages} pages, {report.forms} forms, {report.requests} requests")

        report = await harvest(self._collection, self._ca, self._scope, options, show)
        return report.requests

    async def _walk(self) -> int:
        given = self._options.explore
        options = WalkOptions(
            max(_LEAST, _WALKS * self._to_record),
            seed=len(self._report.rounds),
            mutations=not self._options.read_only,
            values=given.values,
            avoid=given.avoid,
            login=given.login,
            storage_state=given.storage_state,
            browser=given.browser,
            record=given.record,
        )

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

        def show(event: Any) -> None:
            self._say(f"explore: {event.acts} actions, {event.states} states")

        report = await explore(self._collection, self._ca, self._scope, options, show)
        return report.exchanges

    async def _amend(self, misses: list[Missed]) -> int:
        chosen = sorted(misses, key=lambda miss: -miss.count)[:_ERRANDS]
        options = replace(self._options.amend, unsafe=not self._options.read_only)
        await asyncio.to_thread(ensure_sealed, self._collection)

        def show(outcome: Any, left: int) -> None:
            self._say(f"amend: {outcome.method} {outcome.outcome}, {left} left")

        before = self._collection.count_lines()
        try:
            async with asyncio.timeout(max(_LEAST, _AMEND * self._to_record)):
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
        await asyncio.to_thread(ensure_sealed, self._collection)
        hosts = {host_of(capture.url) for capture in self._collection.captures()}
        began, done = monotonic(), 0

        def count(so_far: CoverageResult) -> bool:
            nonlocal done
            done += 1
            self._walk_seconds = (monotonic() - began) / done
            self._say(f"measure: {done} of {len(options.agents) * options.seeds} walks")
            sure = closable_rate(so_far, self._options.harvest.avoid).low > self._options.miss_rate
            return sure and done >= _SURE * len(options.agents)

        replay = ReplayOptions(port=0, session_ports=None)
        async with (
            serve([self._collection], self._ca, replay) as server,
            ReplayClient(server.url) as client,
        ):
            result = await measure(client, self._collection.name, self._starts, hosts, options, count)
        if not any(walk.steps for walk in result.walks):
            errors = sorted({walk.error for walk in result.walks if walk.error})
            raise RecordError(f"no walk on {self._collection.name} could start: {'; '.join(errors)}")
        measured = Round(number, recorded, result, monotonic() - self._began)
        self._report.rounds.append(measured)
        self._say(f"round {number}: miss rate {result.miss_rate()}")
        return measured


def _is_document(miss: Missed) -> bool:
    """Return whether a link or a GET form leads to a miss: no browser is needed to find more like it."""
    return miss.method == "GET" and miss.resource == "document"


def _total(misses: list[Missed]) -> int:
    return sum(each.count for each in misses) or 1

"""Replay against replay: the same traces again and again, and whether anything ever differs.

Each trace is run many times at several counts of sessions, alone and (if wanted) on a loaded
machine. The commonest stream of observations of a trace is its **reference**; a run unlike it at any
step has failed, and so has one of which the environment itself said that a step is not exact. The
first difference is explained (`divergence`), the share of failures is given with its bound (`flake`),
and all of it is a certificate that others can check (`certificate`, `verify`).
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser

from stillweb import __version__, clock
from stillweb.browser.launch import launch
from stillweb.browser.profile import Level
from stillweb.diff.certify.certificate import Certificate, CertifiedStep, RunGroup, TraceResult, this_machine
from stillweb.diff.certify.divergence import explain
from stillweb.diff.certify.runs import CertifySetup, Condition, TraceRepetition, make_runs, planned
from stillweb.diff.certify.watch import ContentStore, SeenStep
from stillweb.env.observations.observation import Observe
from stillweb.env.trajectories.trace import Trace
from stillweb.errors import CollectionNotFound, StillwebError, UsageError
from stillweb.replay.client import ReplayClient

FORMS = ("axtree", "dom", "screenshot")
"""What agents are shown, and what is promised. Others can be asked for."""


@dataclass(frozen=True, slots=True)
class CertifyOptions:
    """How to certify.

    Attributes:
        runs: of each trace under each condition, at least.
        jobs: counts of sessions.
        load: whether all is done a second time with every processor kept busy.
        observe: forms of observation that are compared.
        folder: where runs and observations are kept, so that a stopped certification goes on; None
            for a temporary one.
        executable: the browser; None to look for one.
    """

    runs: int = 20
    jobs: tuple[int, ...] = (1, 8, 32)
    level: str = "clock"
    load: bool = False
    observe: tuple[str, ...] = ()
    folder: Path | None = None
    executable: Path | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Under which conditions runs are made, in order; the first run of all is made alone."""
        loads = (False, True) if self.load else (False,)
        return tuple(Condition(jobs, loaded) for loaded in loads for jobs in sorted(self.jobs))

    @property
    def forms(self) -> tuple[str, ...]:
        """What is observed: what was asked for, else those of `FORMS` that this stillweb can observe."""
        known = {kind.value for kind in Observe}
        return self.observe or tuple(form for form in FORMS if form in known)

    def total(self, traces: int) -> int:
        """Return how many runs so many traces come to."""
        return sum(traces * planned(traces, condition, self.runs) for condition in self.conditions)


async def certify(
    client: ReplayClient,
    collection: str,
    traces: Sequence[Trace],
    options: CertifyOptions | None = None,
    *,
    browser: Browser | None = None,
    on_run: Callable[[TraceRepetition], None] = lambda _: None,
) -> Certificate:
    """Run traces again and again on a replay server, and certify what came.

    Args:
        client: of the server.
        collection: its name there.
        traces: what to run; their names must differ.
        options: how.
        browser: one to use, started for the level and with the server's SPKI hashes; otherwise one is
            started.
        on_run: told of each run when it has ended.

    Raises:
        UsageError: if there are no traces, or two have one name.
        CollectionNotFound: if the server does not serve the collection.
        TaskError: if the collection does not hold where a trace begins.
        InfraError: if no browser or no environment can be opened.
    """
    options = options or CertifyOptions()
    _check(traces)
    began = clock.perf()
    info = await client.info()
    if collection not in info.collections:
        raise CollectionNotFound(
            f"the server does not serve {collection!r}", hint=f"stillweb replay {collection}"
        )
    async with AsyncExitStack() as stack:
        folder = options.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="stillweb-certify-"))
        )
        if browser is None:
            exact = options.level == Level.EXACT
            browser = await stack.enter_async_context(
                launch(spki=info.spki, executable=options.executable, exact=exact)
            )
        setting = CertifySetup(
            client,
            browser,
            collection,
            info.collections[collection],
            info.backend,
            options.level,
            options.forms,
            folder,
            has_ledger=bool(info.features.get("ledger")),
        )
        runs = await _all_runs(setting, traces, options, on_run)
        results = [
            await asyncio.to_thread(_trace_result, trace, runs, options, setting.kept) for trace in traces
        ]
    return Certificate(
        collection=collection,
        environment_id=setting.environment_id,
        backend=setting.backend,
        level=options.level,
        forms=options.forms,
        machine=this_machine(setting.browser.version),
        traces=tuple(results),
        made=clock.now().isoformat(timespec="seconds"),
        software=__version__,
        seconds=round(clock.perf() - began, 3),
    )


def reference_of(runs: Iterable[TraceRepetition]) -> TraceRepetition | None:
    """Return the first of the runs whose stream of observations is the commonest; None if there are none."""
    ended = [run for run in runs if not run.failure]
    if not ended:
        return None
    count = Counter(stream_of(run.steps) for run in ended)
    return max(ended, key=lambda run: count[stream_of(run.steps)])  # the first of those that are largest


def stream_of(steps: Sequence[SeenStep]) -> tuple[object, ...]:
    """Return what two runs must have in common to be the same."""
    return tuple((step.status, step.url, tuple(sorted(step.digests.items()))) for step in steps)


def _check(traces: Sequence[Trace]) -> None:
    if not traces:
        raise UsageError("there are no traces to run", hint="stillweb certify NAME --explore 3")
    twice = [name for name, count in Counter(trace.name for trace in traces).items() if count > 1]
    if twice:
        raise UsageError(f"two traces are called {twice[0]!r}", hint="give each trace a name of its own")


async def _all_runs(
    setting: CertifySetup,
    traces: Sequence[Trace],
    options: CertifyOptions,
    on_run: Callable[[TraceRepetition], None],
) -> list[TraceRepetition]:
    runs: list[TraceRepetition] = []
    try:
        for condition in options.conditions:
            runs += await make_runs(setting, traces, condition, options.runs, on_run)
    except ExceptionGroup as group:
        ours, _ = group.split(StillwebError)
        raise (ours or group).exceptions[0] from None
    return runs


def _trace_result(
    trace: Trace, every: Sequence[TraceRepetition], options: CertifyOptions, kept: ContentStore
) -> TraceResult:
    runs = [run for run in every if run.trace == trace.name]
    reference = reference_of(runs)
    error = next((run.failure for run in runs if run.failure), "")
    if reference is None:
        groups = tuple(_group(condition, runs, ()) for condition in options.conditions)
        return TraceResult(trace, (), groups, 0, {}, error=error)
    ended = [run for run in runs if not run.failure]
    stream = stream_of(reference.steps)
    unlike = [run for run in ended if stream_of(run.steps) != stream]
    streams = len({stream_of(run.steps) for run in ended})
    divergence = None
    if unlike:
        # Of all that differ, the one that differs earliest: what is explained is the first cause.
        first = min(unlike, key=lambda run: _agreement(stream, stream_of(run.steps)))
        divergence = explain(
            trace.name, reference.steps, first.steps, kept, runs=len(unlike), streams=streams
        )
    return TraceResult(
        trace,
        tuple(_step_result(index, reference, ended) for index in range(len(reference.steps))),
        tuple(_group(condition, runs, stream) for condition in options.conditions),
        streams,
        {
            form: len({tuple(step.digests.get(form, "") for step in run.steps) for run in ended})
            for form in reference.steps[0].digests
        },
        divergence,
        error,
    )


def _agreement(one: Sequence[object], other: Sequence[object]) -> int:
    """Return at how many steps two streams agree from the beginning on."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _step_result(index: int, reference: TraceRepetition, runs: Sequence[TraceRepetition]) -> CertifiedStep:
    mine = reference.steps[index]
    steps = [run.steps[index] for run in runs if index < len(run.steps)]
    key = stream_of([mine])
    return CertifiedStep(
        action=mine.action,
        url=mine.url,
        status=mine.status,
        digests=mine.digests,
        distinct={form: len({step.digests.get(form) for step in steps}) for form in mine.digests},
        requests=len({step.asked for step in steps}),
        flagged=sum(bool(step.flags) for step in steps),
        unlike=sum(stream_of([step]) != key for step in steps),
        flags=tuple(sorted({flag for step in steps for flag in step.flags})),
    )


def _group(condition: Condition, runs: Sequence[TraceRepetition], stream: tuple[object, ...]) -> RunGroup:
    every = [run for run in runs if run.condition == condition]
    ended = [run for run in every if not run.failure]
    differ = [run for run in ended if stream_of(run.steps) != stream]
    flagged = [run for run in ended if any(step.flags for step in run.steps)]
    steps = [step for run in ended for step in run.steps]
    walls = sorted(step.seconds for step in steps)
    return RunGroup(
        jobs=condition.jobs,
        loaded=condition.loaded,
        runs=len(ended),
        differ=len(differ),
        failed=len({run.index for run in (*differ, *flagged)}),
        broken=len(every) - len(ended),
        steps=len(steps),
        flagged=sum(bool(step.flags) for step in steps),
        unsettled=sum(not step.settled for step in steps),
        median=round(statistics.median(walls), 4) if walls else 0.0,
        p90=round(walls[-(-9 * len(walls) // 10) - 1], 4) if walls else 0.0,
    )

"""Run the same traces repeatedly in the replay, and check that every observation is equal.

Each trace runs many times at several numbers of sessions, on an idle and optionally on a loaded machine. The
most frequent observation stream of a trace is its **reference**. A run fails if any step differs from the
reference, or if the environment flags a step as not exact. `divergence` explains the first difference,
`rates` gives the failure rate with its bound, and `certificate` writes the results to a file that others can
verify.

Every run is its own episode on its own session. `jobs` environments take runs from one queue in which traces
alternate. If there are fewer runs than sessions, runs are added, because idle sessions cause no interference.
A run that an infrastructure failure ended is repeated, at most `ATTEMPTS` times. A stopped certification
resumes if it has a folder: each run is stored under the digest of its inputs.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from playwright.async_api import Browser
from pydantic import TypeAdapter

from stillweb import __version__, clock
from stillweb.browser.launch import launch
from stillweb.browser.profile import BEST_LEVEL, LEVEL, Level
from stillweb.diff.certify.certificate import (
    Certificate,
    CertifiedStep,
    RunGroup,
    TraceResult,
    digest_of,
    this_machine,
    trace_dict,
)
from stillweb.diff.certify.divergence import explain
from stillweb.diff.certify.watch import ContentStore, FirstRuns, SeenStep, WatchedEnv
from stillweb.env import EnvOptions, Observe, Trace, run_trace
from stillweb.env.episode.determinism import level_of
from stillweb.env.episode.perturbation import PERTURB, Perturbation
from stillweb.errors import CollectionNotFound, TaskError, UsageError, first_error
from stillweb.files import write_atomically
from stillweb.matching.resolver import UnrecordedAnswers
from stillweb.options import Option, format_counts, parse_counts
from stillweb.replay import ReplayClient, ReplayInfo
from stillweb.scratch import scratch_folder

ATTEMPTS = 3
_STEPS = TypeAdapter(tuple[SeenStep, ...])

# Seconds. A time-out that occurs only on a loaded machine would count as a difference, although the page does
# not differ. Therefore these limits are generous.
_ACTION, _STEP = 60.0, 300.0

# It ends when this process is killed, because its parent then changes.
_CPU_LOAD = """import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(200_000))
"""


@dataclass(frozen=True, slots=True)
class Condition:
    """Number of concurrent sessions, and whether other processes keep all CPUs busy."""

    jobs: int
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class TraceRepetition:
    """One run of a trace.

    Attributes:
        index: index among the runs of this trace under this condition, from 0.
        failure: the infrastructure failure that ended the run early, "" if none did.
    """

    trace: str
    condition: Condition
    index: int
    steps: tuple[SeenStep, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CertifySetup:
    """Settings that all runs of a certification share.

    Attributes:
        collection, environment_id: name and digest of the replayed pack.
        has_ledger: whether the server has a ledger per session.
    """

    client: ReplayClient
    browser: Browser
    collection: str
    environment_id: str
    backend: str
    level: str
    options: CertifyOptions
    folder: Path
    has_ledger: bool = True
    first_runs: FirstRuns = field(default_factory=FirstRuns)

    @property
    def store(self) -> ContentStore:
        return ContentStore(self.folder / "observations")

    def path(self, trace: Trace, condition: Condition, index: int) -> Path:
        options = self.options
        inputs = {
            "environment_id": self.environment_id,
            "backend": self.backend,
            "level": self.level,
            "observe": list(options.forms),
            "browser": self.browser.version,
            "trace": trace_dict(trace),
            "run": [condition.jobs, condition.loaded, index],
            **({"unrecorded": asdict(options.unrecorded)} if options.unrecorded else {}),
            **({"perturb": [asdict(options.perturb), options.perturb_seed]} if options.perturb else {}),
        }
        name = digest_of(inputs).removeprefix("sha256:")
        return self.folder / "runs" / f"{name}.json"


async def make_runs(
    setup: CertifySetup,
    traces: Sequence[Trace],
    condition: Condition,
    runs: int,
    on_run: Callable[[TraceRepetition], None] = lambda _: None,
) -> list[TraceRepetition]:
    """Run each trace `runs` times under one condition, more often if sessions would be idle.

    Raises:
        TaskError: if the collection does not contain the start page of a trace.
        InfraError: if no environment can be opened.
    """
    count = planned(len(traces), condition, runs)
    todo = deque((trace, index) for index in range(count) for trace in traces)
    made: list[TraceRepetition] = []

    def finish(run: TraceRepetition) -> None:
        made.append(run)
        on_run(run)

    async with AsyncExitStack() as stack:
        if condition.loaded:
            await stack.enter_async_context(cpu_load())
        envs = [
            await stack.enter_async_context(_env(setup, traces))
            for _ in range(min(condition.jobs, len(todo)))
        ]
        async with asyncio.TaskGroup() as group:
            for env in envs:
                group.create_task(_work(setup, env, condition, todo, finish))
    order = {trace.name: number for number, trace in enumerate(traces)}
    return sorted(made, key=lambda run: (order[run.trace], run.index))


def planned(traces: int, condition: Condition, runs: int) -> int:
    """Return the number of runs of each trace under a condition."""
    return max(runs, -(-condition.jobs // max(1, traces)))


@asynccontextmanager
async def cpu_load() -> AsyncIterator[None]:
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _CPU_LOAD)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        await asyncio.gather(*(process.wait() for process in processes))


@asynccontextmanager
async def _env(setup: CertifySetup, traces: Iterable[Trace]) -> AsyncIterator[WatchedEnv]:
    longest = max(len(trace.actions) for trace in traces)
    async with WatchedEnv(
        setup.client.url,
        setup.collection,
        setup.client if setup.has_ledger else None,
        setup.store,
        setup.first_runs,
        level=setup.level,
        observe=setup.options.forms,
        browser=setup.browser,
        options=EnvOptions(
            max_steps=longest + 1,
            action_seconds=_ACTION,
            step_seconds=_STEP,
            off_path="follow",
            unrecorded=setup.options.unrecorded,
            perturb=setup.options.perturb,
            perturb_seed=setup.options.perturb_seed,
        ),
    ) as env:
        yield env


async def _work(
    setup: CertifySetup,
    env: WatchedEnv,
    condition: Condition,
    todo: deque[tuple[Trace, int]],
    finish: Callable[[TraceRepetition], None],
) -> None:
    while todo:
        trace, index = todo.popleft()
        path = setup.path(trace, condition, index)
        run = _stored(path, trace.name, condition, index)
        if run is None:
            run = await _run(env, trace, condition, index)
            if not run.failure:
                await asyncio.to_thread(_store, path, run)
        for number, step in enumerate(run.steps):
            setup.first_runs.setdefault(trace.name, number, step.digests)
        finish(run)


async def _run(env: WatchedEnv, trace: Trace, condition: Condition, index: int) -> TraceRepetition:
    failure = ""
    for _ in range(ATTEMPTS):
        env.start_run(trace.name)
        result = await run_trace(env, trace)
        if result.failure is None:
            return TraceRepetition(trace.name, condition, index, tuple(env.steps))
        if result.failure.kind == "task_error":
            raise TaskError(f"trace {trace.name}: {result.failure.message}", hint="stillweb env check")
        failure = f"step {result.failure.step}: {result.failure.message}"
    return TraceRepetition(trace.name, condition, index, tuple(env.steps), failure)


def _store(path: Path, run: TraceRepetition) -> None:
    write_atomically(path, _STEPS.dump_json(run.steps, by_alias=True), durable=False)


def _stored(path: Path, trace: str, condition: Condition, index: int) -> TraceRepetition | None:
    if not path.is_file():
        return None
    return TraceRepetition(trace, condition, index, _STEPS.validate_json(path.read_bytes(), by_alias=True))


FORMS = ("axtree", "dom", "screenshot")
"""The default forms of observation that are compared."""


@dataclass(frozen=True, slots=True)
class CertifyOptions:
    """Options of `certify`.

    Attributes:
        folder: None for a temporary one.
        executable: path of the browser executable; None to search for one.
    """

    runs: Annotated[int, Option("Minimum runs of each trace at each session count.", min=1)] = 20
    jobs: Annotated[
        tuple[int, ...],
        Option("Session counts.", metavar="N,...", repeat=False, parse=parse_counts, format=format_counts),
    ] = (1, 8, 32)
    level: Annotated[str, replace(LEVEL, choices=(*reversed(LEVEL.choices), "live"))] = BEST_LEVEL
    load: Annotated[bool, Option("Run everything a second time with all processors busy.")] = False
    observe: Annotated[
        tuple[str, ...],
        Option(
            "Form of observation to compare. Repeatable.",
            metavar="FORM",
            default="axtree, dom and screenshot",
        ),
    ] = ()
    folder: Annotated[
        Path | None,
        Option("Store runs in this folder, to resume an interrupted certification.", "--keep", path="folder"),
    ] = None
    executable: Path | None = None
    unrecorded: UnrecordedAnswers = field(default_factory=UnrecordedAnswers)
    perturb: Annotated[Perturbation | None, PERTURB] = None
    perturb_seed: Annotated[int, Option("Seed of the perturbation.")] = 0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        loads = (False, True) if self.load else (False,)
        return tuple(Condition(jobs, loaded) for loaded in loads for jobs in sorted(self.jobs))

    @property
    def forms(self) -> tuple[str, ...]:
        known = {kind.value for kind in Observe}
        return self.observe or tuple(form for form in FORMS if form in known)

    def total(self, traces: int) -> int:
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
    """Run traces repeatedly on a replay server, and return the certificate.

    Args:
        traces: traces with distinct names.
        browser: a browser started for the level and with the server's SPKI hashes; None starts one.

    Raises:
        UsageError: if there are no traces, or two have the same name.
        CollectionNotFound: if the server does not serve the collection.
        TaskError: if the collection does not contain the start page of a trace.
        InfraError: if no browser or no environment can be opened.
    """
    options = options or CertifyOptions()
    level = level_of(options.level, browser=browser, executable=options.executable)
    _check(traces)
    began = clock.perf()
    info = await client.info()
    if collection not in info.collections:
        raise CollectionNotFound(
            f"the server does not serve {collection!r}", hint=f"stillweb replay {collection}"
        )
    async with _setup(client, collection, info, options, level, browser) as setup:
        runs = await _all_runs(setup, traces, on_run)
        results = [await asyncio.to_thread(_trace_result, trace, runs, setup) for trace in traces]
    return Certificate(
        collection=collection,
        environment_id=setup.environment_id,
        backend=setup.backend,
        level=level.value,
        forms=options.forms,
        machine=this_machine(setup.browser.version),
        traces=tuple(results),
        made=clock.now().isoformat(timespec="seconds"),
        software=__version__,
        seconds=round(clock.perf() - began, 3),
        unrecorded=options.unrecorded,
        perturb=options.perturb,
        perturb_seed=options.perturb_seed,
    )


@asynccontextmanager
async def _setup(
    client: ReplayClient,
    collection: str,
    info: ReplayInfo,
    options: CertifyOptions,
    level: Level,
    browser: Browser | None,
) -> AsyncIterator[CertifySetup]:
    """Yield the setup of runs, with a browser and a folder of its own if none are given."""
    async with AsyncExitStack() as stack:
        folder = options.folder or stack.enter_context(scratch_folder())
        if browser is None:
            exact = level is Level.EXACT
            browser = await stack.enter_async_context(
                launch(spki=info.spki, replay=client.url, executable=options.executable, exact=exact)
            )
        yield CertifySetup(
            client,
            browser,
            collection,
            info.collections[collection],
            info.backend,
            level.value,
            options,
            folder,
            has_ledger=bool(info.features.get("ledger")),
        )


def reference_of(runs: Iterable[TraceRepetition]) -> TraceRepetition | None:
    """Return the first run with the most frequent observation stream; None if no run finished."""
    ended = [run for run in runs if not run.failure]
    if not ended:
        return None
    count = Counter(stream_of(run.steps) for run in ended)
    return max(ended, key=lambda run: count[stream_of(run.steps)])  # max returns the first of equal ones


def stream_of(steps: Sequence[SeenStep]) -> tuple[object, ...]:
    """Return the values that are equal for equal runs."""
    return tuple((step.status, step.url, tuple(sorted(step.digests.items()))) for step in steps)


def _check(traces: Sequence[Trace]) -> None:
    if not traces:
        raise UsageError("no traces to run", hint="stillweb certify NAME --explore 3")
    twice = [name for name, count in Counter(trace.name for trace in traces).items() if count > 1]
    if twice:
        raise UsageError(f"two traces have the name {twice[0]!r}", hint="rename one of them")


async def _all_runs(
    setup: CertifySetup, traces: Sequence[Trace], on_run: Callable[[TraceRepetition], None]
) -> list[TraceRepetition]:
    runs: list[TraceRepetition] = []
    try:
        for condition in setup.options.conditions:
            runs += await make_runs(setup, traces, condition, setup.options.runs, on_run)
    except ExceptionGroup as group:
        raise first_error(group) from None
    return runs


def _trace_result(trace: Trace, every: Sequence[TraceRepetition], setup: CertifySetup) -> TraceResult:
    runs = [run for run in every if run.trace == trace.name]
    reference = reference_of(runs)
    error = next((run.failure for run in runs if run.failure), "")
    if reference is None:
        groups = tuple(_group(condition, runs, ()) for condition in setup.options.conditions)
        return TraceResult(trace, (), groups, 0, {}, error=error)
    ended = [run for run in runs if not run.failure]
    stream = stream_of(reference.steps)
    differing = [run for run in ended if stream_of(run.steps) != stream]
    streams = len({stream_of(run.steps) for run in ended})
    divergence = None
    if differing:
        # The run that differs earliest shows the first cause.
        first = min(differing, key=lambda run: _agreement(stream, stream_of(run.steps)))
        divergence = explain(
            trace.name, reference.steps, first.steps, setup.store, runs=len(differing), streams=streams
        )
    return TraceResult(
        trace,
        tuple(_step_result(index, reference, ended) for index in range(len(reference.steps))),
        tuple(_group(condition, runs, stream) for condition in setup.options.conditions),
        streams,
        {
            form: len({tuple(step.digests.get(form, "") for step in run.steps) for run in ended})
            for form in reference.steps[0].digests
        },
        divergence,
        error,
    )


def _agreement(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the number of equal steps before the first difference."""
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
        requests=len({step.request_set for step in steps}),
        flagged=sum(bool(step.flags) for step in steps),
        unlike=sum(stream_of([step]) != key for step in steps),
        flags=tuple(sorted({flag for step in steps for flag in step.flags})),
        derived=mine.derived,
        guesses=mine.guesses,
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

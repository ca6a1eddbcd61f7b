"""Run traces concurrently in one browser, and store finished runs in a folder.

Every run is its own episode on its own session. `jobs` environments take runs from one queue in which traces
alternate, so concurrent sessions do different things. If there are fewer runs than sessions, runs are added,
because idle sessions cause no interference. A run that an infrastructure failure ended is repeated, at most
`ATTEMPTS` times.

A stopped certification resumes if it has a folder: each run is stored under the digest of its inputs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Browser
from pydantic import TypeAdapter

from stillweb.diff.certify.certificate import digest_of, trace_dict
from stillweb.diff.certify.watch import ContentStore, FirstRuns, SeenStep, WatchedEnv
from stillweb.env import EnvOptions, Trace, run_trace
from stillweb.errors import TaskError
from stillweb.replay import ReplayClient

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
        client: client of the replay server.
        collection, environment_id: name and digest of the replayed pack.
        observe: forms of observation.
        folder: folder for runs and observations.
        has_ledger: whether the server has a ledger per session.
    """

    client: ReplayClient
    browser: Browser
    collection: str
    environment_id: str
    backend: str
    level: str
    observe: tuple[str, ...]
    folder: Path
    has_ledger: bool = True
    first_runs: FirstRuns = field(default_factory=FirstRuns)

    @property
    def store(self) -> ContentStore:
        return ContentStore(self.folder / "observations")

    def path(self, trace: Trace, condition: Condition, index: int) -> Path:
        """Return the file of a run."""
        inputs = {
            "environment_id": self.environment_id,
            "backend": self.backend,
            "level": self.level,
            "observe": list(self.observe),
            "browser": self.browser.version,
            "trace": trace_dict(trace),
            "run": [condition.jobs, condition.loaded, index],
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
    """Keep every CPU busy with other processes."""
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
        observe=setup.observe,
        browser=setup.browser,
        options=EnvOptions(
            max_steps=longest + 1, action_seconds=_ACTION, step_seconds=_STEP, off_path="follow"
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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{hashlib.sha256(run.trace.encode()).hexdigest()[:8]}.partial")
    partial.write_bytes(_STEPS.dump_json(run.steps, by_alias=True))
    partial.replace(path)


def _stored(path: Path, trace: str, condition: Condition, index: int) -> TraceRepetition | None:
    if not path.is_file():
        return None
    return TraceRepetition(trace, condition, index, _STEPS.validate_json(path.read_bytes(), by_alias=True))

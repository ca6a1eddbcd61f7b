"""Runs of traces, many at a time in one browser, and a folder in which finished ones are kept.

Every run is an episode of its own on a session of its own. At `jobs` sessions so many environments
take from one queue in which traces alternate, so that neighbours do different things; where
there would be fewer runs than sessions there are more runs, since idle sessions are no neighbours. A
run that our own failure ended is made again, `ATTEMPTS` times at most.

With a folder given a certification that was stopped goes on where it was: a run is kept under the
digest of all that it depends on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from stillweb.diff.certify.certificate import digest_of, trace_dict
from stillweb.diff.certify.watch import ContentStore, Firsts, SeenStep, WatchedEnv, step_dict
from stillweb.env.env import EnvOptions
from stillweb.env.trajectories.trace import Trace, run_trace
from stillweb.errors import TaskError
from stillweb.replay.client import ReplayClient

ATTEMPTS = 3

# Seconds. Limits in real time are the machine's affair: one that is met on a loaded machine only is a
# difference of its own, which says nothing of the page.
_ACTION, _STEP = 60.0, 300.0

# Ends by itself if we are killed: then it has another parent.
_BURN = """import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(200_000))
"""


@dataclass(frozen=True, slots=True)
class Condition:
    """At how many sessions runs are made, and whether something else uses all processors meanwhile."""

    jobs: int
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class TraceRepetition:
    """A run of a trace: what was seen, or why it broke.

    Attributes:
        index: of this trace's runs under this condition, from 0.
        failure: why it ended too early by our own fault, "" if it did not.
    """

    trace: str
    condition: Condition
    index: int
    steps: tuple[SeenStep, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CertifySetup:
    """What all runs of a certification share.

    Attributes:
        client: of the replay server.
        collection, environment_id: what is replayed.
        observe: forms of observation.
        folder: where runs and observations are kept.
        has_ledger: whether the server tells how requests were answered.
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
    firsts: Firsts = field(default_factory=Firsts)

    @property
    def kept(self) -> ContentStore:
        """Where observations are."""
        return ContentStore(self.folder / "observations")

    def path(self, trace: Trace, condition: Condition, index: int) -> Path:
        """Return where a run is kept."""
        depends = {
            "environment_id": self.environment_id,
            "backend": self.backend,
            "level": self.level,
            "observe": list(self.observe),
            "browser": self.browser.version,
            "trace": trace_dict(trace),
            "run": [condition.jobs, condition.loaded, index],
        }
        name = digest_of(depends).removeprefix("sha256:")
        return self.folder / "runs" / f"{name}.json"


async def make_runs(
    setting: CertifySetup,
    traces: Sequence[Trace],
    condition: Condition,
    runs: int,
    on_run: Callable[[TraceRepetition], None] = lambda _: None,
) -> list[TraceRepetition]:
    """Run each trace `runs` times under one condition, more often where there would be idle sessions.

    Raises:
        TaskError: if the collection does not hold where a trace begins.
        InfraError: if no environment can be opened at all.
    """
    count = planned(len(traces), condition, runs)
    todo = deque((trace, index) for index in range(count) for trace in traces)
    made: list[TraceRepetition] = []

    def finish(run: TraceRepetition) -> None:
        made.append(run)
        on_run(run)

    async with AsyncExitStack() as stack:
        if condition.loaded:
            await stack.enter_async_context(burning())
        envs = [
            await stack.enter_async_context(_env(setting, traces))
            for _ in range(min(condition.jobs, len(todo)))
        ]
        async with asyncio.TaskGroup() as group:
            for env in envs:
                group.create_task(_work(setting, env, condition, todo, finish))
    order = {trace.name: number for number, trace in enumerate(traces)}
    return sorted(made, key=lambda run: (order[run.trace], run.index))


def planned(traces: int, condition: Condition, runs: int) -> int:
    """Return how often each trace is run under a condition."""
    return max(runs, -(-condition.jobs // max(1, traces)))


@asynccontextmanager
async def burning() -> AsyncIterator[None]:
    """Keep every processor busy with something else."""
    burners = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _BURN) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        await asyncio.gather(*(burner.wait() for burner in burners))


@asynccontextmanager
async def _env(setting: CertifySetup, traces: Iterable[Trace]) -> AsyncIterator[WatchedEnv]:
    longest = max(len(trace.actions) for trace in traces)
    async with WatchedEnv(
        setting.client.url,
        setting.collection,
        setting.client if setting.has_ledger else None,
        setting.kept,
        setting.firsts,
        level=setting.level,
        observe=setting.observe,
        browser=setting.browser,
        options=EnvOptions(max_steps=longest + 1, action_seconds=_ACTION, step_seconds=_STEP),
    ) as env:
        yield env


async def _work(
    setting: CertifySetup,
    env: WatchedEnv,
    condition: Condition,
    todo: deque[tuple[Trace, int]],
    finish: Callable[[TraceRepetition], None],
) -> None:
    while todo:
        trace, index = todo.popleft()
        path = setting.path(trace, condition, index)
        run = _stored(path, trace.name, condition, index)
        if run is None:
            run = await _run(env, trace, condition, index)
            if not run.failure:
                await asyncio.to_thread(_store, path, run)
        for number, step in enumerate(run.steps):
            setting.firsts.of(trace.name, number, step.digests)
        finish(run)


async def _run(env: WatchedEnv, trace: Trace, condition: Condition, index: int) -> TraceRepetition:
    failure = ""
    for _ in range(ATTEMPTS):
        env.begin(trace.name)
        went = await run_trace(env, trace)
        if went.failure is None:
            return TraceRepetition(trace.name, condition, index, tuple(env.seen))
        if went.failure.kind == "task_error":
            raise TaskError(f"trace {trace.name}: {went.failure.message}", hint="stillweb env check")
        failure = f"step {went.failure.step}: {went.failure.message}"
    return TraceRepetition(trace.name, condition, index, tuple(env.seen), failure)


def _store(path: Path, run: TraceRepetition) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{hashlib.sha256(run.trace.encode()).hexdigest()[:8]}.partial")
    partial.write_text(
        json.dumps([step_dict(step) for step in run.steps], ensure_ascii=False), encoding="utf-8"
    )
    partial.replace(path)


def _stored(path: Path, trace: str, condition: Condition, index: int) -> TraceRepetition | None:
    if not path.is_file():
        return None
    steps: list[Mapping[str, Any]] = json.loads(path.read_text("utf-8"))
    return TraceRepetition(trace, condition, index, tuple(SeenStep.from_dict(step) for step in steps))

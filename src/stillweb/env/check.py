"""Check that tasks and traces give equal results in every run, before training on them.

Each subject, a task or a trace, is run several times at several numbers of sessions on one browser. The
actions of a task are proposed once by a random walk from its start page, followed by `terminate`; a trace has
its own actions. Digests of observations, statuses, URLs and rewards must be equal in all runs. The result
also lists problems that repeat in every run: pages that do not settle, requests that the collection does not
hold, and tasks that are solved by doing nothing. `stillweb certify` checks a whole collection at length.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from playwright.async_api import Browser

from stillweb import clock
from stillweb.browser.profile import BEST_LEVEL, LEVEL
from stillweb.env.env import Env, open_envs
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.propose import propose_trace
from stillweb.env.trajectories.trace import Failure, Trace, TraceRun, run_trace
from stillweb.errors import InfraError, TaskError, UsageError
from stillweb.options import Option, format_counts, parse_counts


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """Result of a task that was reset and immediately scored.

    Attributes:
        outcome: "ok", "task_error" (the task or its collection is wrong) or "infra_error" (browser or proxy
            failed).
        reward: None unless `outcome` is "ok".
        detail: reasons of the score, or the error.
        settled: whether the start page settled.
        requests: requests of the start page.
        misses: requests that the collection does not hold.
        seconds: duration of reset and score.
    """

    task: str
    collection: str
    outcome: str
    reward: float | None = None
    detail: str = ""
    settled: bool = False
    requests: int = 0
    misses: int = 0
    missed: tuple[str, ...] = ()
    seconds: float = 0.0


async def check_tasks(
    tasks: Sequence[Task],
    proxy: str,
    *,
    level: str = BEST_LEVEL,
    jobs: int = 2,
    browser: Browser | None = None,
    on_checked: Callable[[TaskCheck], None] = lambda _: None,
) -> list[TaskCheck]:
    """Reset every task and score it immediately, `jobs` concurrently in one browser.

    Raises:
        ReplayUnreachable: if no replay server answers at `proxy`.
        InfraError: if the browser does not start or does not keep the level.
    """
    rows: list[TaskCheck | None] = [None] * len(tasks)
    todo = iter(enumerate(tasks))
    async with (
        open_envs(proxy, min(jobs, len(tasks)), level=level, observe=(), browser=browser) as envs,
        asyncio.TaskGroup() as group,
    ):
        for env in envs:
            group.create_task(_work(env, todo, rows, on_checked))
    return [row for row in rows if row is not None]


async def _work(
    env: Env, todo: Any, rows: list[TaskCheck | None], on_checked: Callable[[TaskCheck], None]
) -> None:
    for index, task in todo:
        rows[index] = row = await _check_task(env, task)
        on_checked(row)


async def _check_task(env: Env, task: Task) -> TaskCheck:
    started = clock.perf()
    try:
        _, info = await env.reset(task=task)
        _, reward, _, _, last = await env.step({"action": "terminate"})
    except (InfraError, TaskError, UsageError) as error:
        outcome = "infra_error" if isinstance(error, InfraError) else "task_error"
        return TaskCheck(task.id, task.collection, outcome, detail=str(error), seconds=clock.perf() - started)
    return TaskCheck(
        task=task.id,
        collection=info["collection"],
        outcome="ok",
        reward=reward,
        detail="; ".join(last["score"]["reasons"]),
        settled=info["settle"]["settled"],
        requests=info["traffic"]["requests"],
        misses=info["traffic"]["misses"],
        missed=tuple(info["traffic"]["missed"]),
        seconds=clock.perf() - started,
    )


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of `check_env`.

    Attributes:
        observe: forms of observation that are compared.
    """

    runs: Annotated[int, Option("Minimum runs of each task or trace at each session count.", min=2)] = 3
    sessions: Annotated[
        tuple[int, ...],
        Option(
            "Session counts to run at.",
            metavar="N,...",
            repeat=False,
            parse=parse_counts,
            format=format_counts,
        ),
    ] = (1, 4)
    steps: Annotated[int, Option("Steps to explore in each task.", min=0)] = 6
    seed: Annotated[int, Option("Seed of the exploration.")] = 0
    level: Annotated[str, LEVEL] = BEST_LEVEL
    observe: tuple[str, ...] = ("axtree", "screenshot")
    collection: str | None = None

    def total(self, subjects: int) -> int:
        """Return the total number of runs."""
        return subjects * sum(_rounded(self.runs, count) for count in self.sessions)


@dataclass(frozen=True, slots=True)
class StepDivergence:
    """First step at which the runs of a subject differ.

    Attributes:
        step: 0 is the reset.
        what: what differs: forms of observation, "status", "url" or "steps" (some runs lack the step).
        distinct: number of different values of the first of these.
    """

    step: int
    what: tuple[str, ...]
    distinct: int
    action: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class EnvCheck:
    """Result of one subject.

    Attributes:
        outcome: "same", "differs", "task_error" (task or collection are wrong) or "infra_error" (browser or
            proxy failed).
        distinct: number of different observations at each step, by form.
        divergence: None if all runs are equal.
        rewards: each reward with its number of runs.
        unsettled: steps in all runs at which the page did not settle.
        flagged: steps in all runs with determinism flags.
        misses: requests of the first run that the collection does not hold.
        failures: the first failure of each kind.
        untouched: reward for doing nothing; None for traces.
    """

    name: str
    outcome: str
    runs: int = 0
    steps: int = 0
    distinct: tuple[dict[str, int], ...] = ()
    divergence: StepDivergence | None = None
    rewards: tuple[tuple[float | None, int], ...] = ()
    unsettled: int = 0
    flagged: int = 0
    misses: int = 0
    failures: tuple[Failure, ...] = ()
    untouched: float | None = None

    @property
    def detail(self) -> str:
        """Failures and differences in one line."""
        problems = [f"{each.kind} at step {each.step}: {each.message}" for each in self.failures]
        if found := self.divergence:
            after = f" after {found.action}" if found.action else ""
            problems.append(f"step {found.step}{after}: {found.distinct} {'/'.join(found.what)}")
        if len(self.rewards) > 1:
            problems.append("rewards " + ", ".join(f"{value} x{count}" for value, count in self.rewards))
        return "; ".join(problems)

    def to_dict(self) -> dict[str, Any]:
        rewards = [[value, count] for value, count in self.rewards]
        return {**asdict(self), "detail": self.detail, "rewards": rewards}


async def check_env(
    subjects: Sequence[Task | Trace],
    proxy: str,
    *,
    options: CheckOptions | None = None,
    browser: Browser | None = None,
    on_run: Callable[[], None] = lambda: None,
) -> list[EnvCheck]:
    """Run every subject repeatedly, and compare the runs.

    Args:
        subjects: tasks, for which actions are proposed, and traces.
        proxy: control URL of the replay server.
        browser: browser to share, started with the server's SPKI hashes and for the level.

    Raises:
        ReplayUnreachable: if no replay server answers at `proxy`.
        InfraError: if the browser does not start or does not keep the level.
    """
    chosen = options or CheckOptions()
    async with open_envs(
        proxy,
        max(chosen.sessions),
        collection=chosen.collection,
        level=chosen.level,
        observe=chosen.observe,
        browser=browser,
    ) as envs:
        return [await _check(envs, subject, chosen, on_run) for subject in subjects]


async def _check(
    envs: Sequence[Env], subject: Task | Trace, options: CheckOptions, on_run: Callable[[], None]
) -> EnvCheck:
    untouched = None
    try:
        if isinstance(subject, Trace):
            trace = subject
        else:
            untouched = (await run_trace(envs[0], _trace(subject, ()))).reward
            proposed = await propose_trace(
                envs[0], subject.start_url, options.seed, options.steps, task=subject
            )
            trace = _trace(subject, proposed.actions)
    except (InfraError, TaskError) as error:
        name = subject.name if isinstance(subject, Trace) else subject.id
        failure = Failure.of(error, 0)
        return EnvCheck(name, failure.kind, failures=(failure,))
    runs: list[TraceRun] = []
    for count in options.sessions:
        todo = iter(range(_rounded(options.runs, count)))
        async with asyncio.TaskGroup() as group:
            for env in envs[:count]:
                group.create_task(_run(env, trace, todo, runs, on_run))
    return replace(_judged(trace, runs), untouched=untouched)


def _trace(task: Task, actions: tuple[Any, ...]) -> Trace:
    return Trace(task.id, (*actions, {"action": "terminate"}), task=task)


def _rounded(runs: int, sessions: int) -> int:
    """Return the number of runs, rounded up to a multiple of the sessions."""
    return -(-runs // sessions) * sessions


async def _run(
    env: Env, trace: Trace, todo: Iterator[int], runs: list[TraceRun], on_run: Callable[[], None]
) -> None:
    for _ in todo:
        runs.append(await run_trace(env, trace))
        on_run()


def _judged(trace: Trace, runs: Sequence[TraceRun]) -> EnvCheck:
    whole = [run for run in runs if run.failure is None]
    failures = {run.failure.kind: run.failure for run in reversed(runs) if run.failure}
    steps = max((len(run.steps) for run in runs), default=0)
    rewards = Counter(run.reward for run in whole)
    divergence = _divergence(whole)
    differs = divergence is not None or len(rewards) > 1
    return EnvCheck(
        name=trace.name,
        outcome=next(iter(sorted(failures)), "differs" if differs else "same"),
        runs=len(runs),
        steps=steps,
        distinct=tuple(_distinct(whole, step) for step in range(steps)),
        divergence=divergence,
        rewards=tuple(rewards.most_common()),
        unsettled=sum(not step.settled for run in runs for step in run.steps),
        flagged=sum(bool(step.flags) for run in runs for step in run.steps),
        misses=sum(step.misses for step in runs[0].steps),
        failures=tuple(failures.values()),
    )


def _distinct(runs: Sequence[TraceRun], step: int) -> dict[str, int]:
    reached = [run.steps[step] for run in runs if step < len(run.steps)]
    forms = dict.fromkeys(form for each in reached for form in each.digests)
    return {form: len({each.digests.get(form) for each in reached}) for form in forms}


def _divergence(runs: Sequence[TraceRun]) -> StepDivergence | None:
    for index in range(max((len(run.steps) for run in runs), default=0)):
        reached = [run.steps[index] for run in runs if index < len(run.steps)]
        counts = _distinct(runs, index)
        counts["status"] = len({each.status for each in reached})
        counts["url"] = len({each.url for each in reached})
        counts["steps"] = len({index < len(run.steps) for run in runs})
        if what := tuple(name for name, count in counts.items() if count > 1):
            action = reached[0].action or {}
            text = " ".join(str(value) for value in action.values())
            return StepDivergence(index, what, counts[what[0]], text, reached[0].url)
    return None

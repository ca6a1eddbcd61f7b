"""The batch runner: plays several episodes of each task with an agent, and stores them in a folder.

    with BatchFolder.open(Path("out"), options.to_json()) as folder:
        await rollout(url, agent, tasks, folder, options)
    folder.results[("kettle", 0)].reward

Episodes run concurrently without barriers (`VectorEnv.rollout`); each is stored as soon as it ends. An
episode that fails because of browser or proxy is tried again, and ends without a reward if all attempts fail.
A finished episode is played again only on request.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from stillweb import clock
from stillweb.browser.profile import BEST_LEVEL, LEVEL
from stillweb.env import (
    EnvOptions,
    Observation,
    Planned,
    PoolOptions,
    RolloutOptions,
    Task,
    VectorEnv,
    VectorOptions,
)
from stillweb.env.episode.offpath import OFF_PATH, OffPathMode
from stillweb.env.episode.perturbation import PERTURB, Perturbation
from stillweb.env.observations.observation import observe_kinds
from stillweb.env.vector.rollout import Agent, Policy
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.matching.resolver import UnrecordedAnswers
from stillweb.options import Option, format_counts, parse_list
from stillweb.replay import ReplayClient
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.results import Result

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBER = re.compile(r"(?:^|\.)(\d+)$")


def select_tasks(tasks: Iterable[Task], ids: Sequence[str] = (), sites: Sequence[str] = ()) -> list[Task]:
    """Return the selected tasks in the order of their file.

    Args:
        ids: each an id (`online.85`), a pattern (`online.*`), or a number or range (`7`, `7-12`) of ids or of
            the part after their last point.
        sites: each the name of a collection, or the host of a start page.

    Raises:
        UsageError: if one of them selects no task.
    """
    chosen = list(tasks)
    if sites:
        known = {name for task in chosen for name in _sites(task)}
        _refuse("site", [site for site in sites if site not in known], known)
        chosen = [task for task in chosen if _sites(task) & set(sites)]
    if ids:
        wanted = {each: {task.id for task in chosen if _matches(task.id, each)} for each in ids}
        empty = [each for each, found in wanted.items() if not found]
        _refuse("task id", empty, {task.id for task in chosen})
        named = set().union(*wanted.values())
        chosen = [task for task in chosen if task.id in named]
    return chosen


def _sites(task: Task) -> set[str]:
    return {task.collection, urlsplit(task.start_url).hostname or ""} - {""}


def _matches(task_id: str, wanted: str) -> bool:
    if task_id == wanted or fnmatchcase(task_id, wanted):
        return True
    span, number = _RANGE.fullmatch(wanted), _NUMBER.search(task_id)
    return bool(span and number) and int(span[1]) <= int(number[1]) <= int(span[2] or span[1])  # type: ignore[index]


def _refuse(what: str, unknown: Sequence[str], known: Iterable[str]) -> None:
    if not unknown:
        return
    from rapidfuzz import process as fuzzy  # slow to import; only the error needs it

    close = [match[0] for match in fuzzy.extract(unknown[0], sorted(known), limit=8)]
    raise UsageError(
        f"no task has the {what} {', '.join(unknown)}",
        hint=f"similar names: {', '.join(close)}" if close else "stillweb env tasks FILE lists the tasks",
    )


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, parse_list(text)))
    except ValueError:
        raise ValueError("expected numbers separated by commas, such as 7,8,9") from None


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of a batch.

    Attributes:
        missing: whether to play episodes without a result.
        failed: whether to play failed episodes again.
    """

    episodes: Annotated[int, Option("Episodes of each task.", min=1)] = 1
    max_concurrent: Annotated[int, Option("Maximum simultaneous episodes.", min=1, max=256)] = 4
    max_concurrent_launch: Annotated[
        int, Option("Maximum simultaneous episode starts, with their browsers; 0 for no limit.", min=0)
    ] = 0
    retries: Annotated[
        int,
        Option(
            "Retry an episode up to N times if the browser or the proxy failed, never for another reason.",
            "--retry",
            min=0,
        ),
    ] = 2
    page_seeds: Annotated[
        tuple[int, ...],
        Option(
            "Seeds of the pages' random numbers, for a task's episodes in turn.",
            metavar="N,...",
            parse=_parse_seeds,
            format=format_counts,
            default="the recording's seed",
            repeat=False,
        ),
    ] = ()
    level: Annotated[str, LEVEL] = BEST_LEVEL
    off_path: Annotated[OffPathMode | None, OFF_PATH] = None
    unrecorded: UnrecordedAnswers = field(default_factory=UnrecordedAnswers)
    perturb: Annotated[Perturbation | None, PERTURB] = None
    perturb_seed: Annotated[int, Option("Seed of the perturbation.")] = 0
    observe: Annotated[
        tuple[str, ...],
        Option(
            "Form of observation for the agent (docs/reference/observations.md). Repeatable.", metavar="FORM"
        ),
    ] = ("axtree",)
    collection: Annotated[str, Option("Collection of tasks that name none.", "-c --collection", "NAME")] = ""
    max_steps: Annotated[
        int, Option("Truncate an episode after N steps, unless its task sets a limit.", min=1)
    ] = 30
    browsers: Annotated[int, Option("Browsers that share the episodes.", min=1)] = 1
    missing: bool = True
    failed: bool = False

    def __post_init__(self) -> None:
        if min(self.episodes, self.max_concurrent, self.max_steps, self.browsers) < 1:
            raise UsageError("episodes, max_concurrent, max_steps and browsers must be at least 1")
        if min(self.retries, self.max_concurrent_launch) < 0:
            raise UsageError("retries and max_concurrent_launch must be at least 0")
        observe_kinds(self.observe)

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = TypeAdapter(BatchOptions).dump_python(self, mode="json")
        return values


@dataclass(slots=True)
class BatchState:
    """Progress of a batch in this process.

    Attributes:
        planned: episodes to play.
        started, ended: episodes of these.
        steps: steps so far, including those of running episodes.
        started_at: start time, of `clock.monotonic()`.
        latest: result of the last episode.
    """

    planned: int = 0
    started: int = 0
    ended: int = 0
    steps: int = 0
    started_at: float = 0.0
    latest: Result | None = None

    @property
    def running(self) -> int:
        return self.started - self.ended

    @property
    def steps_per_second(self) -> float:
        """Mean since the start."""
        spent = clock.monotonic() - self.started_at
        return self.steps / spent if spent > 0 else 0.0


def planned_episodes(
    tasks: Sequence[Task], results: Mapping[tuple[str, int], Result], options: BatchOptions
) -> list[Planned]:
    """Return the episodes to play, ordered by task.

    Raises:
        UsageError: if two tasks have the same id.
    """
    if len({task.id for task in tasks}) < len(tasks):
        raise UsageError("two tasks have the same id; their results would be mixed")
    seeds = options.page_seeds or (None,)
    return [
        Planned(task, number, seeds[number % len(seeds)])
        for task in tasks
        for number in range(options.episodes)
        if _wanted(results.get((task.id, number)), options)
    ]


def _wanted(result: Result | None, options: BatchOptions) -> bool:
    return options.missing if result is None else options.failed and result.failed


async def rollout(
    proxy: str,
    agent: Agent,
    tasks: Sequence[Task],
    folder: BatchFolder,
    options: BatchOptions,
    *,
    on_change: Callable[[BatchState], None] = lambda _: None,
) -> BatchState:
    """Play tasks and store each episode as it ends.

    Cancellation leaves running episodes and keeps finished ones.

    Args:
        proxy: control URL of the replay server.
        agent: creates the policies; if it has a coroutine function `aclose`, that is called at the end.
        tasks: tasks with unique ids.
        on_change: called with the progress when an episode starts, steps or ends.

    Raises:
        ReplayUnreachable: if no replay server answers at the start.
        CollectionNotFound: if the server lacks a collection that a task names.
        InfraError: if no browser starts, or the browser does not support the level.
    """
    planned = planned_episodes(tasks, folder.results, options)
    state = BatchState(planned=len(planned), started_at=clock.monotonic())
    if not planned:
        return state
    await _check_served(proxy, tasks, options.collection)
    sessions = min(options.max_concurrent, len(planned))
    vector = _vector(proxy, sessions, folder, options)
    chosen = RolloutOptions(max_resets=options.max_concurrent_launch, attempts=1 + options.retries)

    def start() -> Iterator[Planned]:
        for each in planned:
            state.started += 1
            on_change(state)
            yield each

    def step() -> None:
        state.steps += 1
        on_change(state)

    playing = vector.rollout(_counting(agent, step), start(), chosen)
    try:
        async with _closing(agent), vector, aclosing(playing) as ended:
            async for rollout in ended:
                state.latest = folder.keep(rollout)
                state.ended += 1
                on_change(state)
    finally:
        folder.sweep()
    return state


def _vector(proxy: str, sessions: int, folder: BatchFolder, options: BatchOptions) -> VectorEnv:
    return VectorEnv(
        proxy,
        sessions,
        collection=options.collection or None,
        level=options.level,
        observe=options.observe,
        options=VectorOptions(
            pool=PoolOptions(browsers=options.browsers),
            env=EnvOptions(
                max_steps=options.max_steps,
                trajectories=folder.path,
                off_path=options.off_path,
                unrecorded=options.unrecorded,
                perturb=options.perturb,
                perturb_seed=options.perturb_seed,
            ),
        ),
    )


async def _check_served(proxy: str, tasks: Sequence[Task], collection: str) -> None:
    async with ReplayClient(proxy) as client:
        served = (await client.info()).collections
    named = {task.collection or collection for task in tasks} - {""}
    if missing := sorted(named - set(served)):
        raise CollectionNotFound(
            f"{proxy} does not serve {', '.join(missing)}, only {', '.join(sorted(served))}",
            hint=f"start stillweb replay {' '.join(sorted(named))}",
        )


@asynccontextmanager
async def _closing(agent: Agent) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if close := getattr(agent, "aclose", None):
            stack.push_async_callback(close)
        yield


def _counting(agent: Agent, step: Callable[[], None]) -> Agent:
    """Return the agent with a callback for each step."""

    async def counted(task: Task) -> Policy:
        made = agent(task)
        policy = await made if inspect.isawaitable(made) else made

        def act(observation: Observation, info: dict[str, Any]) -> Any:
            step()
            return policy(observation, info)

        return act

    return counted

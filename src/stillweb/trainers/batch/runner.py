"""The batch runner: tasks, several episodes each, played by an agent into a folder.

    with BatchFolder.open(Path("out"), options.to_dict()) as folder:
        await rollout(url, agent, tasks, folder, options)
    folder.results[("kettle", 0)].reward

Episodes run beside each other without barriers (`VectorEnv.rollout`); each is kept the moment it ends. What
browser or proxy broke is tried again, and ends without a reward if it breaks every time; what has ended
is never played again unless that is asked for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from stillweb import clock
from stillweb.browser.profile import LEVEL
from stillweb.env.observations.observation import Observation, observe_kinds
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.rollout import Agent, Planned, Policy, RolloutOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.options import Option, format_counts, parse_list
from stillweb.replay.client import ReplayClient
from stillweb.trainers.batch.folder import BatchFolder
from stillweb.trainers.batch.results import Result

__all__ = ["BatchOptions", "BatchState", "planned_episodes", "rollout", "select_tasks"]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBER = re.compile(r"(?:^|\.)(\d+)$")


def select_tasks(tasks: Iterable[Task], ids: Sequence[str] = (), sites: Sequence[str] = ()) -> list[Task]:
    """Return the tasks that are asked for, in the order of their file.

    Args:
        tasks: to choose from.
        ids: any of them: an id (`online.85`), a pattern (`online.*`), or a number or range (`7`, `7-12`) that
            is the id or stands behind its last point.
        sites: any of them: the name of a collection, or the host of the start page.

    Raises:
        UsageError: if one of them chooses nothing.
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
    from rapidfuzz import process as fuzzy  # slow to import, and only who errs has to wait

    close = [match[0] for match in fuzzy.extract(unknown[0], sorted(known), limit=8)]
    raise UsageError(
        f"no task has the {what} {', '.join(unknown)}",
        hint=f"there are: {', '.join(close)}" if close else "stillweb env tasks FILE lists them",
    )


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, parse_list(text)))
    except ValueError:
        raise ValueError("expected numbers separated by commas, such as 7,8,9") from None


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How a batch is played.

    Attributes:
        missing: whether episodes without a result are played.
        failed: whether episodes that ended without a reward are played again.
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
    level: Annotated[str, LEVEL] = "clock"
    observe: Annotated[
        tuple[str, ...],
        Option("Form of observation for the agent (docs/observations.md). Repeatable.", metavar="FORM"),
    ] = ("axtree",)
    collection: Annotated[str, Option("Collection of tasks that name none.", "-c --collection", "NAME")] = ""
    max_steps: Annotated[
        int, Option("Truncate an episode after N steps, unless its task sets a limit.", min=1)
    ] = 30
    browsers: Annotated[int, Option("Browsers that share the episodes.", min=1)] = 1
    missing: bool = True
    failed: bool = False

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: if one of them is too small, or an observation has no such form.
        """
        if min(self.episodes, self.max_concurrent, self.max_steps, self.browsers) < 1:
            raise UsageError("episodes, max_concurrent, max_steps and browsers must be at least 1")
        if min(self.retries, self.max_concurrent_launch) < 0:
            raise UsageError("retries and max_concurrent_launch must be at least 0")
        observe_kinds(self.observe)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, for `batch.json`."""
        told = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


@dataclass(slots=True)
class BatchState:
    """How far a batch is; counts of this program, not of what was there before.

    Attributes:
        planned: episodes to be played.
        begun, ended: of these.
        steps: taken so far, those of running episodes counted.
        began: at which `clock.monotonic()`.
        latest: the episode that ended last.
    """

    planned: int = 0
    begun: int = 0
    ended: int = 0
    steps: int = 0
    began: float = 0.0
    latest: Result | None = None

    @property
    def running(self) -> int:
        """Episodes that go on now."""
        return self.begun - self.ended

    @property
    def steps_per_second(self) -> float:
        """Since the beginning."""
        spent = clock.monotonic() - self.began
        return self.steps / spent if spent > 0 else 0.0


def planned_episodes(
    tasks: Sequence[Task], results: Mapping[tuple[str, int], Result], options: BatchOptions
) -> list[Planned]:
    """Return the episodes to be played, a task's one after the other.

    Raises:
        UsageError: if two tasks have one id.
    """
    if len({task.id for task in tasks}) < len(tasks):
        raise UsageError("two tasks have one id, so that their results could not be told apart")
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
    """Play tasks and keep each episode as it ends. Cancelled, it leaves what runs and keeps what has ended.

    Args:
        proxy: control URL of the replay server.
        agent: makes the policies; one that has a coroutine function `aclose` is closed at the end.
        tasks: with ids of their own.
        folder: where episodes are kept.
        options: see `BatchOptions`.
        on_change: told of the batch whenever an episode begins, steps or ends.

    Raises:
        ReplayUnreachable: if no replay server answers at the beginning.
        CollectionNotFound: if it lacks a collection that a task names.
        InfraError: if no browser starts, or it does not keep the level.
    """
    planned = planned_episodes(tasks, folder.results, options)
    state = BatchState(planned=len(planned), began=clock.monotonic())
    if not planned:
        return state
    await _check_served(proxy, tasks, options.collection)
    vector = VectorEnv(
        proxy,
        min(options.max_concurrent, len(planned)),
        collection=options.collection or None,
        level=options.level,
        observe=options.observe,
        options=VectorOptions(
            pool=PoolOptions(browsers=options.browsers),
            env=EnvOptions(max_steps=options.max_steps, trajectories=folder.path),
        ),
    )
    chosen = RolloutOptions(max_resets=options.max_concurrent_launch, attempts=1 + options.retries)

    def begin() -> Iterator[Planned]:
        for each in planned:
            state.begun += 1
            on_change(state)
            yield each

    def step() -> None:
        state.steps += 1
        on_change(state)

    playing = vector.rollout(_counting(agent, step), begin(), chosen)
    try:
        async with _closing(agent), vector, aclosing(playing) as ended:
            async for rollout in ended:
                state.latest = folder.keep(rollout)
                state.ended += 1
                on_change(state)
    finally:
        folder.sweep()
    return state


async def _check_served(proxy: str, tasks: Sequence[Task], collection: str) -> None:
    async with ReplayClient(proxy) as client:
        served = (await client.info()).collections
    named = {task.collection or collection for task in tasks} - {""}
    if missing := sorted(named - set(served)):
        raise CollectionNotFound(
            f"{proxy} does not serve {', '.join(missing)}, only {', '.join(sorted(served))}",
            hint=f"stillweb replay {' '.join(sorted(named))}",
        )


@asynccontextmanager
async def _closing(agent: Agent) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if close := getattr(agent, "aclose", None):
            stack.push_async_callback(close)
        yield


def _counting(agent: Agent, step: Callable[[], None]) -> Agent:
    """Return an agent that does the same and has its steps counted."""

    async def counted(task: Task) -> Policy:
        made = agent(task)
        policy = await made if inspect.isawaitable(made) else made

        def act(observation: Observation, info: dict[str, Any]) -> Any:
            step()
            return policy(observation, info)

        return act

    return counted

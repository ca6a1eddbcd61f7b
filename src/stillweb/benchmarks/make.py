"""Make tasks from a recording: find candidates, prove them, write the file.

Generators take turns, so that no family crowds out the others. Candidates are proved in waves of a fixed
order, and a wave's results count in that order: equal arguments give equal tasks, however long a proof takes.
Reports of made and audited tasks are one HTML file each, pictures included.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from PIL import Image

from stillweb import clock
from stillweb.benchmarks.candidates import SiteFacts, TaskCandidate, in_turn
from stillweb.benchmarks.forms import (
    change_and_verify,
    choose_options,
    press_buttons,
    search_words,
    send_forms,
)
from stillweb.benchmarks.plan import TaskPlan, TaskPlanner
from stillweb.benchmarks.proof import ProofOptions, ProofResult, TaskProver
from stillweb.benchmarks.reading import FAMILIES
from stillweb.benchmarks.scripted import game_plans, game_tasks, next_game, with_rendered
from stillweb.benchmarks.site import SiteMap, read_site, split_pages
from stillweb.benchmarks.states import with_states
from stillweb.browser.profile import LEVEL
from stillweb.collections.layout import Collection
from stillweb.env import Env, EnvOptions, Task
from stillweb.env.env import open_envs
from stillweb.errors import InfraError, UsageError
from stillweb.options import Option, parse_list, parse_share
from stillweb.replay import ReplayClient
from stillweb.templates import write_page

_GENERATORS: dict[str, tuple[Callable[[SiteFacts], Iterator[TaskCandidate]], ...]] = {
    **FAMILIES,
    "form": (send_forms, press_buttons, search_words),
    "filter": (*FAMILIES["filter"], choose_options),
    "change": (change_and_verify,),
    "game": (),  # found in the browser (`benchmarks/scripted.py`)
}
ALL_FAMILIES = (
    *("report", "open", "compare", "sort", "filter", "form", "change", "chain", "impossible", "game"),
)
_MOST_STARTS = 4  # of each part; the walks from one have as many steps as the oracles of a dozen tasks
_PER_START = 50  # tasks, train and test
_PER_PAGE = (4, 20)  # tasks of a template on one page, and if all pages together do not suffice
_MOST_STEPS = 60
_IMPOSSIBLE = 0.2  # share of the made tasks, at most: an agent that always answers "N/A" solves them all
_MOST_FAILURES = 5  # candidates without a proof since browser or proxy failed; more are no accident
_WAVE = 16  # candidates that are proved before the next ones are chosen, whatever the number of jobs


@dataclass(frozen=True, slots=True)
class MakeOptions:
    """Options of `make_tasks`.

    Attributes:
        pictures: whether the report gets screenshots.
    """

    n: Annotated[int, Option("Number of tasks to make.", "-n --number", min=1)] = 200
    seed: Annotated[int, Option("Seed of all choices.")] = 0
    families: Annotated[
        tuple[str, ...],
        Option("Families of tasks.", metavar="NAME,...", parse=parse_list, format=",".join, repeat=False),
    ] = ALL_FAMILIES
    test_share: Annotated[
        float,
        Option(
            "Share of the pages for the test part; the parts have no page in common.",
            metavar="PERCENT",
            parse=parse_share,
            format="{:.0%}".format,
        ),
    ] = 0.3
    starts: Annotated[
        int | None, Option("Start pages of each part.", min=1, default="2 to 4, one for each 50 tasks")
    ] = None
    runs: Annotated[int, Option("Runs of each oracle.", min=2)] = 3
    walks: Annotated[int, Option("Random walks from each start page.", min=0)] = 20
    walk_steps: Annotated[int, Option("Steps of each random walk.", min=1)] = 8
    jobs: Annotated[int, Option("Episodes to play at a time.", min=1)] = 4
    level: Annotated[str, LEVEL] = "exact"
    pictures: bool = False

    @property
    def start_pages(self) -> int:
        """Start pages of each part."""
        return self.starts or min(_MOST_STARTS, max(2, self.n // _PER_START))

    def __post_init__(self) -> None:
        """Raise UsageError for a family that does not exist."""
        if unknown := set(self.families) - set(ALL_FAMILIES):
            raise UsageError(
                f"no family is called {', '.join(sorted(unknown))}", hint=f"one of: {', '.join(ALL_FAMILIES)}"
            )


@dataclass(frozen=True, slots=True)
class MadeTask:
    """A proved task, and the results of its proofs."""

    task: Task
    proof: ProofResult


@dataclass(slots=True)
class MadeTasks:
    """Tasks of a collection.

    Attributes:
        tried: candidates that were proved or dropped, by family.
        dropped: number of dropped candidates, by family and failed proof.
        details: an example for each failed proof.
        preparing: the current work before the first candidate; "" after it.
        failures: candidates whose browser or proxy failed at each attempt.
        walks: random walks from start pages.
        walk_seconds: sum of their durations; `jobs` of them run at a time.
    """

    collection: str
    environment_id: str
    options: MakeOptions
    pages: int = 0
    starts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    made: list[MadeTask] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    details: dict[tuple[str, str], str] = field(default_factory=dict)
    seconds: float = 0.0
    preparing: str = ""
    failures: int = 0
    walks: int = 0
    walk_seconds: float = 0.0

    @property
    def tasks(self) -> list[Task]:
        return [each.task for each in self.made]

    def families(self) -> list[dict[str, Any]]:
        """Return a row for each family: made, tried, dropped, splits, lengths."""
        rows = []
        for family in self.options.families:
            made = [each for each in self.made if each.task.origin and each.task.origin.family == family]
            splits = Counter(each.task.origin.split for each in made if each.task.origin)
            lengths = [each.task.origin.length for each in made if each.task.origin]
            rows.append(
                {
                    "family": family,
                    "tried": self.tried[family],
                    "made": len(made),
                    "train": splits["train"],
                    "test": splits["test"],
                    "lengths": [min(lengths), max(lengths)] if lengths else [],
                    "dropped": {p: n for (f, p), n in sorted(self.dropped.items()) if f == family},
                    "examples": {p: text for (f, p), text in sorted(self.details.items()) if f == family},
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return counts as JSON, without the tasks."""
        return {
            "collection": self.collection,
            "environment_id": self.environment_id,
            "pages": self.pages,
            "made": len(self.made),
            "tried": sum(self.tried.values()),
            "seconds": round(self.seconds, 1),
            "walk_seconds": round(self.walk_seconds, 1),
            "starts": {part: list(urls) for part, urls in self.starts.items()},
            "families": self.families(),
        }


async def make_tasks(
    collection: Collection,
    client: ReplayClient,
    options: MakeOptions,
    on_progress: Callable[[MadeTasks], None] = lambda _: None,
) -> MadeTasks:
    """Make proved tasks from a collection that a replay server serves.

    Raises:
        UsageError: if the collection has no page, or none that makes a task.
        InfraError: if browser or proxy fail repeatedly, for more than a few tasks.
    """
    began = clock.perf()
    site = await asyncio.to_thread(read_site, collection)
    info = await client.info()
    chosen = EnvOptions(max_steps=_MOST_STEPS)
    made = MadeTasks(collection.name, info.collections.get(collection.name, ""), options)

    def prepare(work: str) -> None:
        made.preparing = work
        on_progress(made)

    async with open_envs(
        client.url, options.jobs, collection=collection.name, level=options.level, options=chosen
    ) as envs:
        prover = TaskProver(client, envs, _proofs(options))
        judging = game_tasks(collection.name, site.pages)
        games = await _planned_games(envs, judging, options, prepare)
        judged = {task.start_url for task in judging}
        prepare("reading pages that scripts draw")
        site = await with_rendered(envs, collection.name, site, judged)
        prepare("clicking controls of pages without links")
        site = await with_states(envs, collection.name, site, judged)
        parts = split_pages(site, options.seed, options.test_share)
        planner = TaskPlanner(site, parts, collection.name, options.seed, options.start_pages)
        made.pages, made.starts = len(site.pages), dict(planner.starts)
        prepare("")

        prover.on_walk = partial(_count_walk, made, on_progress)
        plans = in_turn(_candidates(site, planner, made, options), iter(games))
        await _prove_all(prover, planner, plans, made, on_progress)
        while _drop_surplus(made):
            await _prove_all(prover, planner, plans, made, on_progress)
        made.starts = dict(planner.starts)
    if not made.tried:
        raise UsageError(
            f"no page of {collection.name} makes a task of the families {', '.join(options.families)} "
            f"({made.pages} pages read)",
            hint="tasks need links between pages, headings, tables, labelled values or forms: record more",
        )
    made.seconds = clock.perf() - began
    return made


def _count_walk(made: MadeTasks, on_progress: Callable[[MadeTasks], None], seconds: float) -> None:
    made.walks += 1
    made.walk_seconds += seconds
    on_progress(made)


async def _planned_games(
    envs: Sequence[Env], judging: Sequence[Task], options: MakeOptions, prepare: Callable[[str], None]
) -> list[TaskPlan]:
    games: list[TaskPlan] = []
    if "game" in options.families:
        async for plan in game_plans(envs, judging, options.seed, options.test_share):
            games.append(plan)
            prepare(f"{len(games)} problems planned")
            if len(games) >= options.n:
                break
    return games


def _proofs(options: MakeOptions) -> ProofOptions:
    return ProofOptions(options.runs, options.walks, options.walk_steps, options.seed, options.pictures)


async def _prove_all(
    prover: TaskProver,
    planner: TaskPlanner,
    plans: Iterator[TaskPlan],
    made: MadeTasks,
    on_progress: Callable[[MadeTasks], None],
) -> None:
    options = made.options
    # Few at a time, so that the first ones end early; two for each episode, as those that share one wait.
    slots = asyncio.Semaphore(2 * options.jobs)

    async def prove(plan: TaskPlan) -> tuple[ProofResult, TaskPlan | None]:
        """Return the proof of a task, and the next problem of a page that sets its own."""
        async with slots:
            try:
                proof = await prover.prove(plan)
                if plan.task.setup and not proof.failed:
                    return proof, await prover.in_env(partial(next_game, plan))
                return proof, None
            except InfraError as error:
                made.failures += 1
                if made.failures > _MOST_FAILURES:
                    raise
                return ProofResult("browser: it failed at each attempt", str(error)), None

    again: list[TaskPlan] = []
    while len(made.made) < options.n:
        count = min(options.n - len(made.made), _WAVE)
        wave = [*again[:count], *_next(plans, count - len(again[:count]))]
        again = again[count:]
        if not wave:
            return
        async with asyncio.TaskGroup() as group:
            proving = [group.create_task(prove(plan)) for plan in wave]
            for plan, proved in zip(wave, proving, strict=True):
                proof, following = await proved
                if (other := planner.after(plan, proof.failed, proof.hidden)) is not None:
                    again.append(other)
                else:
                    _note(made, plan, proof)
                    again += filter(None, [following])
                on_progress(made)


def _next(plans: Iterator[TaskPlan], count: int) -> list[TaskPlan]:
    return [plan for _, plan in zip(range(count), plans, strict=False)]


def _note(made: MadeTasks, plan: TaskPlan, proof: ProofResult) -> None:
    origin = plan.task.origin
    assert origin is not None
    made.tried[origin.family] += 1
    if proof.failed:
        made.dropped[origin.family, proof.failed] += 1
        made.details.setdefault((origin.family, proof.failed), f"{plan.task.goal} ({proof.detail})")
        return
    number = sum(each.task.origin.family == origin.family for each in made.made if each.task.origin) + 1
    plan = plan.played(proof.oracle)
    assert plan.task.origin is not None
    task = replace(
        plan.task,
        id=f"{made.collection}.{origin.family}.{number:03}",
        origin=replace(plan.task.origin, proofs=dict(proof.proofs)),
    )
    made.made.append(MadeTask(task, proof))


def _candidates(
    site: SiteMap, planner: TaskPlanner, made: MadeTasks, options: MakeOptions
) -> Iterator[TaskPlan]:
    """Yield plans of the generators in turn; an instance and a goal occur once.

    `impossible` waits while it has its share, unless it is the only family.
    """
    facts = SiteFacts(site, options.seed)
    planned: Counter[str] = Counter()
    search = _PlanSearch(planner)
    for most, running in _rounds(search, facts, options):
        went_on = True
        while went_on:
            went_on = False
            for family, generator in list(running):
                if family == "impossible" and not _is_impossible_due(made, planned):
                    continue
                went_on = True
                plan = search.next(generator, most)
                if plan is None:
                    running.remove((family, generator))
                else:
                    planned[family] += 1
                    yield plan
    for candidate in search.without_way():
        failed = (candidate.family, "plan: no way within a part")
        made.tried[candidate.family] += 1
        made.dropped[failed] += 1
        made.details.setdefault(failed, f"{candidate.goal} ({candidate.visits[-1]})")


_Running = list[tuple[str, Iterator[TaskCandidate]]]


def _rounds(search: _PlanSearch, facts: SiteFacts, options: MakeOptions) -> Iterator[tuple[int, _Running]]:
    """Yield generators by family, and the number of tasks that a page may make of a template.

    Then the candidates without a way begin on their own pages, as long as start pages may be added.
    """
    for most in _PER_PAGE:
        yield most, [(family, make(facts)) for family in options.families for make in _GENERATORS[family]]
    while options.starts is None and search.planner.begin_on(search.without_way(), _MOST_STARTS):
        lost = search.without_way()
        yield (
            _PER_PAGE[-1],
            [(name, iter([c for c in lost if c.family == name])) for name in options.families],
        )


def _is_impossible_due(made: MadeTasks, planned: Mapping[str, int]) -> bool:
    """Return whether one more task of the family impossible keeps its share of the tasks not dropped."""
    if _is_alone(made):
        return True
    dropped = sum(count for (family, _), count in made.dropped.items() if family != "impossible")
    others = sum(planned.values()) - planned["impossible"] - dropped
    return planned["impossible"] + 1 <= _IMPOSSIBLE * (planned["impossible"] + 1 + others)


def _is_alone(made: MadeTasks) -> bool:
    return set(made.options.families) == {"impossible"}


def _drop_surplus(made: MadeTasks) -> bool:
    """Drop the last tasks of the family impossible that exceed its share, since other tasks were dropped."""
    impossible = [each for each in made.made if each.task.origin and each.task.origin.family == "impossible"]
    most = int((len(made.made) - len(impossible)) * _IMPOSSIBLE / (1 - _IMPOSSIBLE))
    surplus = [] if _is_alone(made) else impossible[most:]
    if surplus:
        made.dropped["impossible", "share: too few other tasks"] += len(surplus)
        made.made = [each for each in made.made if each not in surplus]
    return bool(surplus)


@dataclass(slots=True)
class _PlanSearch:
    """Plans of candidates: an instance and a goal occur once, a page has few of a template."""

    planner: TaskPlanner
    _seen: set[Any] = field(default_factory=set)
    _lost: dict[Any, TaskCandidate] = field(default_factory=dict)
    _crowded: Counter[tuple[frozenset[str], str]] = field(default_factory=Counter)

    def next(self, generator: Iterator[TaskCandidate], most: int) -> TaskPlan | None:
        """Return the next plan of a generator; an instance without a way may have one from another page."""
        for candidate in generator:
            instance = (candidate.family, candidate.slots)
            place = (self.planner.site.views(candidate.visits[-1]), candidate.template)
            if instance in self._seen or candidate.goal in self._seen or self._crowded[place] >= most:
                continue
            plan = self.planner.plan(candidate, "candidate")
            if plan is None:
                self._lost[instance] = candidate
                continue
            self._seen.update((instance, candidate.goal))
            self._crowded[place] += 1
            return plan
        return None

    def without_way(self) -> list[TaskCandidate]:
        """Return a candidate of each instance that has no plan."""
        return [each for key, each in self._lost.items() if key not in self._seen]


_WIDTH = 360  # pixels of a picture
_QUALITY = 60


def write_made_report(made: MadeTasks, path: Path) -> None:
    """Write what was made, from which pages, what was dropped and why, with pictures of start and end."""
    tasks = [
        {
            "task": each.task,
            "origin": each.task.origin,
            "pictures": list(map(_thumbnail, each.proof.pictures)),
        }
        for each in made.made
    ]
    dropped = [
        (family, proof, count, made.details.get((family, proof), ""))
        for (family, proof), count in sorted(made.dropped.items())
    ]
    write_page(path, "stillweb.benchmarks", "made.html.j2", made=made, tasks=tasks, dropped=dropped)


def write_audit_report(audit: Mapping[str, Any], path: Path) -> None:
    """Write the findings of an audit, as `AuditReport.to_dict` returns it."""
    write_page(path, "stillweb.benchmarks", "audit.html.j2", audit=audit)


def _thumbnail(png: bytes) -> str:
    """Return a screenshot as a small JPEG in a data URI."""
    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB")
        small.thumbnail((_WIDTH, _WIDTH))
        out = io.BytesIO()
        small.save(out, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")

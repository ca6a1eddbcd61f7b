"""From candidates to tasks: a start page, the way to the pages that a candidate needs, and its oracle. Pure.

Start pages are few, so that the random walks from each of them serve many tasks. All pages of a task are in
the same part of the split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stillweb import clock
from stillweb.benchmarks.candidates import Act, TaskCandidate
from stillweb.benchmarks.site import SiteMap, SiteStep, SiteWay
from stillweb.env import Task
from stillweb.env.tasks.task import TaskOrigin

_LONGEST = 3  # clicks from the start page to the first page that a task needs
_LEG = 4  # clicks between two pages that a task needs
_SHORT = 15_000  # characters of a start page; every episode and walk observes it
_SPARE = 10  # steps that an agent may take beyond three times the oracle's


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task that is to be proved.

    Attributes:
        clicks: the links that the oracle follows first.
        expected: URL after each step of the oracle, "" where any is right.
        neighbours: oracles of similar tasks, which must score 0.
    """

    task: Task
    candidate: TaskCandidate
    clicks: SiteWay
    expected: tuple[str, ...]
    neighbours: tuple[tuple[Act, ...], ...]

    @property
    def oracle(self) -> tuple[Act, ...]:
        assert self.task.origin is not None
        return self.task.origin.oracle


class TaskPlanner:
    """Planner of the tasks of one collection.

    Args:
        site: the pages.
        parts: "train" or "test" for each page.
        collection: name of the collection.
        seed: seed of the choices.
        starts: start pages of each part.
    """

    def __init__(
        self, site: SiteMap, parts: Mapping[str, str], collection: str, seed: int, starts: int
    ) -> None:
        self._site = site
        self._parts = parts
        self._collection = collection
        self._seed = seed
        self._within = {part: {u for u, p in parts.items() if p == part} for part in ("train", "test")}
        self.starts = {part: self._start_pages(part, starts) for part in ("train", "test")}

    def _start_pages(self, part: str, most: int) -> tuple[str, ...]:
        """Return pages from which most pages of a part are a few clicks away, greedily."""
        reach: defaultdict[str, set[str]] = defaultdict(set)
        within = self._within[part]
        for target in within:
            for start, way in self._site.ways_to(target, within, _LONGEST).items():
                if way:
                    reach[start].add(target)
        short = {url: pages for url, pages in reach.items() if len(self._site.pages[url].text) <= _SHORT}
        reach = defaultdict(set, short or reach)
        chosen = [url for url in self._site.starts if url in within][:1]
        left = set(within).difference(*(reach[url] for url in chosen))
        while len(chosen) < most and reach:
            best = max(sorted(reach), key=lambda url: (len(reach[url] & left), len(reach[url])))
            chosen.append(best)
            left -= reach.pop(best)
        if not chosen:  # no page of the part leads to another one
            alone = sorted(within, key=lambda url: (-len(self._site.pages[url].links), url))
            chosen = [url for url in self._site.starts if url in within] + alone
        return tuple(dict.fromkeys(chosen))[:most]

    def plan(self, candidate: TaskCandidate, task_id: str) -> TaskPlan | None:
        """Return the task of a candidate; None if its pages are in different parts or cannot be reached."""
        parts = {self._parts[url] for url in (*candidate.visits, *candidate.lands)}
        if len(parts) != 1:
            return None
        part = parts.pop()
        ways = self._ways(candidate, part)
        if ways is None:
            return None
        clicks = [step for way in ways for step in way]
        start = clicks[0].page if clicks else candidate.visits[0]
        goes = tuple(_click(step) for step in clicks)
        end: Act = {"action": "terminate", **({"answer": candidate.answer} if candidate.answer else {})}
        oracle = (*goes, *candidate.acts, end)
        if candidate.family == "impossible":
            oracle = (end,)
        pages = tuple(dict.fromkeys((start, *(step.target for step in clicks), *candidate.lands)))
        origin = TaskOrigin(
            family=candidate.family,
            template=candidate.template,
            split="test" if part == "test" else "train",
            length=len(oracle),
            pages=pages if candidate.family != "impossible" else (start,),
            oracle=oracle,
            wrong=candidate.wrong,
            shows=candidate.shows,
        )
        task = Task(
            id=task_id,
            goal=candidate.goal,
            start_url=start,
            collection=self._collection,
            evaluation=candidate.evaluation,
            max_steps=3 * len(oracle) + _SPARE,
            origin=origin,
        )
        expected = (*(step.target for step in clicks), *("" for _ in candidate.acts), "")
        neighbours = tuple((*goes, *acts, end) for acts in candidate.neighbours)
        if candidate.family == "open" and clicks and (other := self._other(clicks[-1], part)):
            neighbours = ((*goes[:-1], _click(other), end),)
        return TaskPlan(task, candidate, tuple(clicks), expected[-len(oracle) :], neighbours)

    def _ways(self, candidate: TaskCandidate, part: str) -> list[SiteWay] | None:
        """Return the ways from a start page to the visits, one after the other."""
        within = self._within[part]
        first = self._site.ways_to(candidate.visits[0], within, _LONGEST)
        starts = [url for url in self.starts[part] if first.get(url)]
        if not starts and candidate.visits[0] in self.starts[part] and candidate.family != "open":
            starts = [candidate.visits[0]]  # the task begins on the page that it is about
        if not starts:
            return None
        # Tasks on the same pages have the same way, so one run of an oracle serves several of them.
        start = clock.seeded("start", self._seed, *candidate.visits).choice(starts)
        ways = [first[start]]
        for one, other in zip(candidate.visits, candidate.visits[1:], strict=False):
            way = self._site.way(one, other, within, _LEG)
            if way is None:
                return None
            ways.append(way)
        return ways

    def _other(self, step: SiteStep, part: str) -> SiteStep | None:
        """Return another link of the page of a step, the next one after it if possible."""
        steps = [s for s in self._site.edges[step.page] if s.target in self._within[part]]
        others: Sequence[SiteStep] = [s for s in steps if s.target != step.target]
        if not others:
            return None
        position = steps.index(step) if step in steps else 0
        return (
            (steps[position + 1 :] or others)[0]
            if (steps[position + 1 :] or others)[0] in others
            else others[0]
        )


def _click(step: SiteStep) -> Act:
    number = {"nth": step.number} if step.number else {}
    return {"action": "click", "role": "link", "name": step.name, **number}

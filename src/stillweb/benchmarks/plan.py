"""From candidates to tasks: a start page, the way to the pages that a candidate needs, and its oracle. Pure.

Start pages are few, so that the random walks from each of them serve many tasks. All pages of a task are in
the same part of the split.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stillweb import clock
from stillweb.benchmarks.candidates import Act, TaskCandidate
from stillweb.benchmarks.pages import SiteOpener
from stillweb.benchmarks.site import SiteMap, SiteStep, SiteWay
from stillweb.env import Task
from stillweb.env.tasks.requests import RequestEvaluator
from stillweb.env.tasks.task import TaskOrigin

_LONGEST = 3  # clicks from the start page to the first page that a task needs
_LEG = 4  # clicks between two pages that a task needs
_SHORT = 15_000  # characters of a start page; every episode and walk observes it
_AT_ITS_URL = ("sort/table", "filter/rows", "chain/link")  # the first page of these has the link to follow
_SPARE = 10  # steps that an agent may take beyond three times the oracle's


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task that is to be proved.

    Attributes:
        clicks: the links that the oracle follows first.
        expected: URL after each step of the oracle, "" where any is right.
        neighbours: oracles of similar tasks, which must score 0.
        without: start pages from which a random walk solved the task.
    """

    task: Task
    candidate: TaskCandidate
    clicks: SiteWay
    expected: tuple[str, ...]
    neighbours: tuple[tuple[Act, ...], ...]
    without: frozenset[str] = frozenset()

    @property
    def oracle(self) -> tuple[Act, ...]:
        assert self.task.origin is not None
        return self.task.origin.oracle

    def played(self, acts: Sequence[Act]) -> TaskPlan:
        """Return the plan with the acts of an oracle's episode, which may open menus."""
        assert self.task.origin is not None
        oracle = (*acts[:-1], self.oracle[-1])  # episodes are shared, so theirs ends without an answer
        origin = replace(self.task.origin, oracle=oracle, length=len(oracle))
        return replace(self, task=replace(self.task, origin=origin, max_steps=3 * len(oracle) + _SPARE))


class TaskPlanner:
    """Planner of the tasks of one collection.

    Args:
        parts: "train" or "test" for each page.
        starts: start pages of each part.
    """

    def __init__(
        self, site: SiteMap, parts: Mapping[str, str], collection: str, seed: int, starts: int
    ) -> None:
        self.site = site
        self._parts = parts
        self._collection = collection
        self._seed = seed
        self._within = {part: {u for u, p in parts.items() if p == part} for part in ("train", "test")}
        self.starts = {part: self._start_pages(part, starts) for part in ("train", "test")}

    def _start_pages(self, part: str, most: int) -> tuple[str, ...]:
        """Return pages from which most pages of a part are a few clicks away, greedily."""
        reach: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
        within, views = self._within[part], self.site.views
        named = {min(views(url), key=lambda view: (len(view), view)) for url in within}
        for target in within:
            for start, way in self.site.ways_to(target, within, _LONGEST).items():
                if way and start in named:
                    reach[start].add(views(target))
        short = {url: pages for url, pages in reach.items() if len(self.site.pages[url].text) <= _SHORT}
        reach = defaultdict(set, short or reach)
        chosen = [url for url in self.site.starts if url in within][:1]
        left = set(map(views, within)).difference(*(reach[url] for url in chosen))
        while len(chosen) < most:
            rest = [url for url in sorted(reach) if not views(url).intersection(chosen)]
            if not rest:
                break
            best = max(rest, key=lambda url: (len(reach[url] & left), len(reach[url])))
            chosen.append(best)
            left -= reach[best]
        # Further tasks begin on the page that they are about: no page leads to it.
        alone = [url for url in named if views(url) in left]
        alone.sort(key=lambda url: (-len(self.site.pages[url].links), url))
        starts = [url for url in self.site.starts if url in within and views(url) in left]
        return tuple(dict.fromkeys(chosen + starts + alone))[:most]

    def begin_on(self, candidates: Sequence[TaskCandidate], most: int) -> bool:
        """Add the page that most candidates without a way are about to the start pages of its part.

        Args:
            most: start pages that a part may have.

        Returns:
            False if no page may be added.
        """
        about = Counter(
            self.site.views(each.visits[0])
            for each in candidates
            if each.family != "open" and len({self._parts[url] for url in (*each.visits, *each.lands)}) == 1
        )
        for views in sorted(about, key=lambda views: (-about[views], min(views))):
            url = min(views, key=lambda view: (len(view), view))
            starts = self.starts[self._parts[url]]
            if len(starts) < most and not views.intersection(starts):
                self.starts[self._parts[url]] = (*starts, url)
                return True
        return False

    def plan(
        self, candidate: TaskCandidate, task_id: str, without: frozenset[str] = frozenset()
    ) -> TaskPlan | None:
        """Return the task of a candidate; None if its pages are in different parts or cannot be reached.

        Args:
            without: start pages that are not used.
        """
        parts = {self._parts[url] for url in (*candidate.visits, *candidate.lands)}
        if len(parts) != 1:
            return None
        part = parts.pop()
        ways = self._ways(candidate, part, without)
        if ways is None:
            return None
        start, legs = ways
        clicks = [step for way in legs for step in way]
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
        return TaskPlan(task, candidate, tuple(clicks), expected[-len(oracle) :], neighbours, without)

    def after(self, plan: TaskPlan, failed: str, hidden: SiteStep | None) -> TaskPlan | None:
        """Return another plan of a candidate whose proof failed because of its way or its page's own writes.

        Args:
            failed: the proof that failed, such as "walks: reward".
            hidden: a link that the browser does not show; no later plan uses it.
        """
        if plan.task.setup:
            return None  # a page that sets its own problem has no other way to it
        candidate, without = plan.candidate, plan.without
        sent = candidate.evaluation
        if hidden is not None:
            self.site.forget(hidden)
        elif failed.startswith("walks"):
            without |= {plan.task.start_url}
        elif failed == "oracle: reward" and isinstance(sent, RequestEvaluator) and sent.only:
            # The page may send further writes by a script, such as drafts of what is typed.
            candidate = replace(candidate, evaluation=sent.model_copy(update={"only": False}))
        else:
            return None
        return self.plan(candidate, plan.task.id, without)

    def _ways(
        self, candidate: TaskCandidate, part: str, without: frozenset[str]
    ) -> tuple[str, list[SiteWay]] | None:
        """Return a start page, and the ways from it to the visits, one after the other."""
        visits = [self._urls(candidate, visit) for visit in candidate.visits]
        firsts = self._first_ways(candidate, visits[0], part)
        starts = [url for url in firsts if url not in without]
        if candidate.family == "open":  # a random walk often follows a single link
            starts = [url for url in starts if len(firsts[url]) > 1] or starts
        if not starts:
            return None
        # Tasks on the same pages have the same way, so one run of an oracle serves several of them.
        start = clock.seeded("start", self._seed, *candidate.visits).choice(starts)
        ways, page = [firsts[start]], start
        for urls in visits[1:]:
            page = ways[-1][-1].target if ways[-1] else page
            found = [self.site.way(page, url, self._within[part], _LEG) for url in urls]
            way = min((each for each in found if each is not None), key=len, default=None)
            if way is None:
                return None
            ways.append(way)
        return start, ways

    def _urls(self, candidate: TaskCandidate, visit: str) -> tuple[str, ...]:
        """Return the URLs at which a visited page can be read; controls are used at its own URL."""
        acts = candidate.acts or candidate.lands or candidate.template in _AT_ITS_URL
        return (visit,) if acts else self.site.alike(visit)

    def _first_ways(self, candidate: TaskCandidate, urls: Sequence[str], part: str) -> dict[str, SiteWay]:
        """Return the shortest way to one of several pages from each start page."""
        found: dict[str, SiteWay] = {}
        for url in urls:
            ways = self.site.ways_to(url, self._within[part], _LONGEST)
            for start in self.starts[part]:
                way = ways.get(start)
                if way and start not in urls and (start not in found or len(way) < len(found[start])):
                    found[start] = way
        if not found and candidate.family != "open":  # the task begins on the page that it is about
            found = {url: () for url in self.starts[part] if url in urls}
        return found

    def _other(self, step: SiteStep, part: str) -> SiteStep | None:
        """Return another link of the page of a step, the next one after it if possible."""
        steps = [each for each in self.site.edges[step.page] if each.target in self._within[part]]
        after = steps[steps.index(step) + 1 :] if step in steps else ()
        return next((each for each in (*after, *steps) if each.target != step.target), None)


def _click(step: SiteStep | SiteOpener) -> Act:
    """Return the click on a link, or on the control of a menu.

    `via` is the click that opens its menu, `other_name` the name that a link has if styles hide its text.
    """
    role, outer = (step.role, step.outer) if isinstance(step, SiteOpener) else ("link", step.opener)
    act: dict[str, Any] = {"action": "click", "role": role, "name": step.name}
    if step.number:
        act["nth"] = step.number
    if isinstance(step, SiteStep) and step.title:
        act["other_name"] = step.title
    if outer is not None:
        act["via"] = _click(outer)
    return act

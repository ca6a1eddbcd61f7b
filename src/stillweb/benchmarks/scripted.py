"""Pages whose content comes from scripts: read in the browser, since the recorded HTML does not show it.

- Pages that scripts draw: `with_rendered` reads the document after the scripts have run. The recorded HTML is
  a shell without links and text. Elements that scripts add to a page with a text of its own are not read.
- Pages that set and judge their own problem (MiniWoB++): `game_plans` opens each page with each seed, reads
  the goal and the controls, and writes an oracle that does what the goal names. It fills quoted texts into
  the text fields in order, clicks the controls that the goal names, and then the button that sends. The
  proofs decide whether that solves the problem.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from stillweb import clock
from stillweb.benchmarks.candidates import Act, TaskCandidate
from stillweb.benchmarks.oracle import retry_episode
from stillweb.benchmarks.pages import SitePage, fold, read_page
from stillweb.benchmarks.plan import TaskPlan
from stillweb.benchmarks.site import SiteMap, with_subjects
from stillweb.benchmarks.states import in_envs
from stillweb.browser.observe.axtree import AxNode
from stillweb.env import Env, Task
from stillweb.env.tasks.evaluators import SiteEvaluator
from stillweb.env.tasks.miniwob import miniwob_tasks
from stillweb.env.tasks.task import TaskOrigin
from stillweb.errors import TaskError, UsageError
from stillweb.urls import wire_url

_MOST_SHELLS = 60  # pages that are opened
_SHELL = (
    200  # characters of a page that scripts draw, at most, such as a message for browsers without scripts
)
_JUDGE = SiteEvaluator(
    reward="WOB_RAW_REWARD_GLOBAL >= 1 ? 1 : 0",  # some pages give a part of the reward to near solutions
    ended="WOB_DONE_GLOBAL",
    tell="JSON.stringify({raw: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON})",
)
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_FIELDS = ("textbox", "searchbox", "spinbutton")
_CLICKED = ("button", "link", "checkbox", "radio", "tab", "menuitem")
_OPTIONS = ("option", "MenuListOption")
_LISTS = ("combobox", "listbox")
_SENDS = re.compile(r"submit|log ?in|search|ok|send|go|book|next", re.IGNORECASE)
_SEEDS = 4  # problems of a page
_MOST = 12  # acts of an oracle
_OTHER_TEXT = "another text"


# --- pages that scripts draw -----------------------------------------------------------------------


async def with_rendered(
    envs: Sequence[Env], collection: str, site: SiteMap, without: Container[str] = ()
) -> SiteMap:
    """Return a site with the rendered documents of the pages that scripts draw.

    A shell whose script goes to another URL becomes a redirect.

    Args:
        envs: environments of the collection, one for each page that is opened at the same time.
        without: URLs of pages that are not opened.

    Raises:
        InfraError: if browser or proxy fail.
    """
    shells = [url for url, page in site.pages.items() if _is_shell(page) and url not in without][
        :_MOST_SHELLS
    ]
    found = await in_envs(envs, shells, lambda env, url: _rendered(env, collection, url))
    return _replaced(site, dict(zip(shells, found, strict=True)))


def _is_shell(page: SitePage) -> bool:
    return not page.links and not page.forms and len(page.text) <= _SHELL


async def _rendered(env: Env, collection: str, url: str) -> tuple[str, SitePage] | None:
    """Return a page's URL after its scripts have run, and its document; None if it cannot be opened."""
    task = Task("rendered", "", url, collection, goal_script="document.documentElement.outerHTML")
    try:
        observation, info = await env.reset(task=task)
    except TaskError:
        return None
    end = wire_url(observation.url).partition("#")[0]
    return end, read_page(end, info["goal"])


def _replaced(site: SiteMap, rendered: Mapping[str, tuple[str, SitePage] | None]) -> SiteMap:
    pages, redirects = dict(site.pages), dict(site.redirects)
    for url, found in rendered.items():
        if found is None:
            continue
        end, page = found
        if end != url:
            del pages[url]
            redirects[url] = end
        pages[end] = page
    changed = replace(site, pages=with_subjects(pages), redirects=redirects)
    return replace(changed, starts=tuple(dict.fromkeys(filter(None, map(changed.landing, site.starts)))))


# --- pages that set their own problem --------------------------------------------------------------


def game_oracle(goal: str, nodes: Sequence[AxNode]) -> tuple[Act, ...]:
    """Return acts that do what a goal names on a page; () if it names no text and no control to use first."""
    lists = _owners(nodes)
    named = [node for node in nodes if node.name and (node in lists or (node.bid and node.role in _CLICKED))]
    names = {fold(node.name) for node in named}
    fields = [node for node in nodes if node.bid and node.role in _FIELDS]
    quoted = _QUOTED.findall(goal)
    texts = [text for text in quoted if fold(text) not in names]
    acts: list[Act] = []
    if fields and texts:
        values = texts if len(texts) >= len(fields) else texts + [texts[-1]] * (len(fields) - len(texts))
        acts += [_act(node, nodes, "fill", value=text) for node, text in zip(fields, values, strict=False)]
    chosen = [node for node in named if _position(goal, node.name) >= 0]
    chosen = [node for node in chosen if not _sends(node) or node.name in quoted]
    chosen.sort(key=lambda node: _position(goal, node.name))
    for node in chosen:
        owner = lists.get(node)
        acts.append(_act(owner, nodes, "select", value=node.name) if owner else _act(node, nodes, "click"))
    if not acts:
        return ()
    if not any(map(_sends, chosen)):
        acts += [_act(node, nodes, "click") for node in named if _sends(node)][:1]
    return tuple(acts) if len(acts) <= _MOST else ()


def _owners(nodes: Sequence[AxNode]) -> dict[AxNode, AxNode]:
    """Return the list of each option: a click on an option of a closed list is not possible."""
    found: dict[AxNode, AxNode] = {}
    owner: AxNode | None = None
    for node in nodes:
        if owner and node.depth <= owner.depth:
            owner = None
        if node.bid and node.role in _LISTS:
            owner = node
        elif owner and node.role in _OPTIONS:
            found[node] = owner
    return found


def _sends(node: AxNode) -> bool:
    return node.role == "button" and bool(_SENDS.fullmatch(node.name.strip()))


def _position(goal: str, name: str) -> int:
    match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", goal)
    return match.start() if match else -1


def _act(node: AxNode, nodes: Sequence[AxNode], action: str, **more: str) -> Act:
    alike = [n.bid for n in nodes if n.bid and n.role == node.role and fold(n.name) == fold(node.name)]
    number = alike.index(node.bid)
    return {
        "action": action,
        "role": node.role,
        "name": node.name,
        **({"nth": number} if number else {}),
        **more,
    }


def game_tasks(collection: str, urls: Iterable[str]) -> list[Task]:
    """Return a task for each page that sets and judges its own problem."""
    try:
        return miniwob_tasks(urls, collection=collection)
    except UsageError:
        return []  # no such page


async def game_plans(
    envs: Sequence[Env], tasks: Sequence[Task], seed: int, test_share: float
) -> AsyncIterator[TaskPlan]:
    """Yield a plan of the first problem of each task of `game_tasks`.

    Args:
        envs: environments of the collection, one for each page that is opened at the same time.

    Raises:
        InfraError: if browser or proxy fail.
    """
    parts = clock.seeded("games", seed)
    tasks = clock.seeded("games", seed, "order").sample(tasks, len(tasks))
    split = {task.start_url: "test" if parts.random() < test_share else "train" for task in tasks}
    todo = [replace(task, seed=1000 * (seed % 1000), evaluation=_JUDGE) for task in tasks]
    for first in range(0, len(todo), len(envs)):
        some = todo[first : first + len(envs)]
        async with asyncio.TaskGroup() as group:
            planning = [
                group.create_task(_planned(env, task, split[task.start_url]))
                for env, task in zip(envs, some, strict=False)
            ]
        for planned in planning:
            if (plan := planned.result()) is not None:
                yield plan


async def next_game(plan: TaskPlan, env: Env) -> TaskPlan | None:
    """Return a plan of the next problem of a page whose last one was proved; None if that has its share.

    Pages whose problems an oracle does not solve, or random walks do, have no further ones.

    Raises:
        InfraError: if browser or proxy fail.
    """
    task = plan.task
    assert task.origin is not None
    number = (task.seed or 0) + 1
    if number % 1000 >= _SEEDS:
        return None
    (drawn,) = game_tasks(task.collection, [task.start_url])
    return await _planned(env, replace(drawn, seed=number, evaluation=_JUDGE), task.origin.split)


async def _planned(env: Env, task: Task, part: str) -> TaskPlan | None:
    try:
        observation, info = await retry_episode(lambda: env.reset(task=task))
    except TaskError:
        return None  # a page below /miniwob/ that sets no problem
    goal = " ".join(str(info["goal"]).split())
    acts = game_oracle(goal, observation.nodes)
    if not acts:
        return None
    template = task.id.partition(".")[2]
    candidate = TaskCandidate(
        "game",
        f"game/{template}",
        (task.start_url, str(task.seed)),
        goal,
        _JUDGE,
        (task.start_url,),
        acts,
        neighbours=_neighbours(acts),
    )
    origin = TaskOrigin(
        family="game",
        template=candidate.template,
        split="test" if part == "test" else "train",
        length=len(acts),
        pages=(task.start_url,),
        oracle=acts,
    )
    made = replace(task, goal=goal, goal_script="", source="", max_steps=3 * len(acts) + 10, origin=origin)
    return TaskPlan(made, candidate, (), ("",) * len(acts), candidate.neighbours)


def _neighbours(acts: tuple[Act, ...]) -> tuple[tuple[Act, ...], ...]:
    """Return the oracle with another text in its last field, followed by the end of the episode."""
    filled = [number for number, act in enumerate(acts) if act["action"] == "fill"]
    if not filled:
        return ()
    other = {**acts[filled[-1]], "value": _OTHER_TEXT}
    return ((*acts[: filled[-1]], other, *acts[filled[-1] + 1 :], {"action": "terminate"}),)

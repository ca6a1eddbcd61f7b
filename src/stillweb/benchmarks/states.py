"""States of pages without links to other pages, such as single-page applications, and questions about them.

`with_states` clicks the controls of a page in the browser, and keeps the accessibility tree after each click.
The questions are about values, entries and texts that a click brings up; they are pure.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

from stillweb.benchmarks.candidates import (
    NOT_FOUND,
    NOT_SAID,
    WRONG_ANSWERS,
    Act,
    SiteFacts,
    TaskCandidate,
    answer_evaluator,
    is_name,
    is_value,
)
from stillweb.benchmarks.oracle import action_of, name_of, retry_episode
from stillweb.benchmarks.pages import ICONS, fold
from stillweb.benchmarks.site import SiteMap, SiteState
from stillweb.browser.observe.axtree import AxNode
from stillweb.env import Env, Task
from stillweb.errors import TaskError
from stillweb.urls import wire_url

_MOST_PAGES = 60
_MOST_STATES = 160  # clicks on all pages together; a page has at least the fewest
_FEWEST_STATES = 4
_MOST_STEPS = 500
_CLICKS = 2  # before a state, at most
_MOST_NODES = 3_000  # of a state
_PRESSED = ("button", "link", "tab", "menuitem", "treeitem", "generic", "listitem", "DisclosureTriangle")
_LONGEST_LABEL = 40
_WORDS_OF_LABEL = 6
_MEASURED = re.compile(r"\d[.:,]\d")  # a value that may change with time, such as "21.5"
_SYMBOL = re.compile(r"""^[\[({]|["▀-➿←-⇿]""")  # brackets around a value, arrows and shapes
_WORD = re.compile(r"[^\W\d_]{2,}")
_SENTENCE = 4  # words
_LONGEST_SENTENCE = 160
_LINE = re.compile(r"([^:]{3,40}\S): (\S.*)")
_QUESTIONS = {
    "row": "what does the row “{}” {}show?",
    "field": "what does the field “{}” {}contain?",
    "list": "which option is {1}selected under “{0}”?",
    "line": "what is {1}given for “{0}”?",
}
_ENTRIES = {
    "menuitem": "item of the menu",
    "option": "option of the list",
    "MenuListOption": "option of the list",
    "tab": "tab",
    "treeitem": "entry of the tree",
    "listitem": "entry of the list",
}
_SHORTEST_LIST = 3
_PER_LIST = 3
_FIELDS = ("textbox", "searchbox", "spinbutton", "slider")
_LISTS = ("combobox", "listbox")

T = TypeVar("T")
R = TypeVar("R")


async def in_envs(envs: Sequence[Env], items: Sequence[T], play: Callable[[Env, T], Awaitable[R]]) -> list[R]:
    """Return the result of an episode for each item, in their order."""
    todo = iter(enumerate(items))
    found: dict[int, R] = {}

    async def work(env: Env) -> None:
        for number, item in todo:
            found[number] = await retry_episode(partial(play, env, item))

    async with asyncio.TaskGroup() as group:
        for env in envs:
            group.create_task(work(env))
    return [found[number] for number in range(len(items))]


async def with_states(
    envs: Sequence[Env], collection: str, site: SiteMap, without: Container[str] = ()
) -> SiteMap:
    """Return a site with states of the pages that link to no other page, if most pages are such.

    Each page has one episode, in which its controls are clicked one after the other; then those that a click
    brought up. So a state may depend on earlier clicks: the proof of a task plays its own clicks only.

    Args:
        envs: environments of the collection, which observe `axtree`.
        without: URLs of pages whose controls are not clicked.

    Raises:
        InfraError: if browser or proxy fail.
    """
    pages = dict.fromkeys((*site.starts, *site.pages))
    alone = [url for url in pages if not site.edges[url] and url not in without]
    if not alone or 2 * len(alone) < len(pages):
        return site
    alone = alone[:_MOST_PAGES]
    most = max(_FEWEST_STATES, _MOST_STATES // len(alone))
    links = {url: {fold(link.name) for link in site.pages[url].links} for url in alone}
    sweeps = await in_envs(
        envs, alone, lambda env, url: _Sweep(env, collection, url, links[url]).states(most)
    )
    states = tuple(state for found, _ in sweeps for state in found)
    explored = frozenset(url for url, (_, complete) in zip(alone, sweeps, strict=True) if complete)
    return replace(site, states=states, explored=explored)


@dataclass(slots=True)
class _Sweep:
    """Clicks on the controls of a page, in one episode as far as they leave it open.

    Attributes:
        links: folded names of links to other pages, which are not clicked.
    """

    env: Env
    collection: str
    url: str
    links: Container[str]
    nodes: tuple[AxNode, ...] = ()
    missed: frozenset[str] = frozenset()

    async def states(self, most: int) -> tuple[list[SiteState], bool]:
        """Return the first state and those after a click, and whether every control was clicked."""
        try:
            await self._reset()
        except TaskError:
            return [], False
        found = [SiteState(self.url, self.nodes)]
        todo = deque(self._following(found[0]))
        clicked = 0
        while todo and clicked < most:
            clicked += 1
            state = todo.popleft()
            if (shown := await self._shown(state)) is not None:
                found.append(shown)
                if len(shown.clicks) < _CLICKS:
                    todo.extend(self._following(shown))
        return found, all(len(state.clicks) > 1 for state in todo)

    def _following(self, state: SiteState) -> Iterator[SiteState]:
        """Yield states, still without nodes, for the controls that the last click brought up."""
        known = {fold(text) for text, _ in _controls(state.before)}
        for text, node in _controls(state.nodes):
            if fold(text) not in known and fold(text) not in self.links:
                act = {"action": "click", "role": node.role, "name": text}
                yield SiteState(self.url, (), (), (*state.clicks, text), (*state.acts, act))

    async def _shown(self, state: SiteState) -> SiteState | None:
        """Return a state with the nodes after its last click; None if that leaves the page or misses."""
        for acts, anew in ((state.acts[-1:], not self.nodes), (state.acts, False), (state.acts, True)):
            try:
                if anew:
                    await self._reset()
                before = await self._play(acts)
            except LookupError:
                continue  # an earlier click hides the control
            return replace(state, before=before, nodes=self.nodes) if self.nodes else None
        return None

    async def _play(self, acts: Sequence[Act]) -> tuple[AxNode, ...]:
        """Return the nodes before the last act.

        Raises:
            LookupError: if an act cannot be done.
        """
        before: tuple[AxNode, ...] = ()
        for act in acts:
            before = self.nodes
            observation, *_, info = await self.env.step(action_of(act, before, self.url))
            if info["action"]["status"] != "ok":
                raise LookupError(info["action"]["error"])
            left = wire_url(observation.url).partition("#")[0] != self.url
            missed = not self.missed.issuperset(info["traffic"]["missed"])
            stays = not left and not missed and not info["determinism"]["flags"]
            self.nodes = observation.nodes if stays and len(observation.nodes) <= _MOST_NODES else ()
        return before

    async def _reset(self) -> None:
        task = Task("states", "", self.url, self.collection, max_steps=_MOST_STEPS)
        observation, info = await self.env.reset(task=task)
        self.nodes = observation.nodes if len(observation.nodes) <= _MOST_NODES else ()
        self.missed = frozenset(info["traffic"]["missed"])


def _controls(nodes: Sequence[AxNode]) -> list[tuple[str, AxNode]]:
    """Return text and node of each control that its text alone identifies."""
    named = [
        (_plain(name_of(nodes, index)), node)
        for index, node in enumerate(nodes)
        if node.bid and node.role in _PRESSED and ("disabled", True) not in node.properties
    ]
    counts = Counter(fold(text) for text, _ in named)
    return [(text, node) for text, node in named if counts[fold(text)] == 1 and _is_label(text)]


def _plain(text: str) -> str:
    """Return a text without the characters of icons."""
    return " ".join(text.translate(ICONS).split())


def _is_label(text: str) -> bool:
    short = len(text) <= _LONGEST_LABEL and len(text.split()) <= _WORDS_OF_LABEL
    words = bool(_WORD.search(text)) and not _MEASURED.search(text)
    return short and words and is_name(text) and '"' not in text


# --- questions about states ------------------------------------------------------------------------


def report_shown(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for a value that a state shows and the one before it does not."""
    shown = [(state, _shown_values(state.nodes)) for state in _states_of(facts)]
    for state, found in facts.shuffled(shown, "shown"):
        known = {item for nodes in _older(facts, state) for item in _shown_values(nodes).items()}
        for (kind, label), value in facts.shuffled(list(found.items()), *state.clicks):
            goal = _goal(facts, state, _QUESTIONS[kind].format(label, "then " if state.clicks else ""))
            values = [each[kind, label] for _, each in shown if (kind, label) in each]
            guessed = len(values) > 2 and 2 * values.count(value) > len(values)
            given = ((kind, label), value) in known or fold(value) in fold(goal)
            if given or guessed or not is_value(value) or _SYMBOL.search(value):
                continue
            others = dict.fromkeys(each for each in (*values, *found.values()) if each != value)
            wrong = (*list(others)[:WRONG_ANSWERS], label)
            yield _candidate(
                f"report/shown-{kind}", state, f"{goal} {NOT_SAID}", value, wrong, (label, value)
            )


def impossible_shown(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for a value that another state of the page shows."""
    shown = [(state, _shown_values(state.nodes)) for state in _states_of(facts)]
    for state, found in facts.shuffled(shown, "impossible states"):
        text = fold(" ".join(node.name for node in state.nodes))
        kinds = {kind for kind, _ in found}
        elsewhere = [
            (key, value)
            for other, values in shown
            for key, value in values.items()
            if other.page == state.page and key[0] in kinds and fold(key[1]) not in text
            if state.clicks[:1] != other.clicks[:1]  # a further click on the way may show it
        ]
        for (kind, label), value in facts.shuffled(elsewhere, *state.clicks)[:1]:
            goal = _goal(facts, state, _QUESTIONS[kind].format(label, "then " if state.clicks else ""))
            yield _candidate(
                f"impossible/shown-{kind}", state, f"{goal} {NOT_SAID}", NOT_FOUND, (value, label), ()
            )


def report_entries(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the entry of a menu or list that follows another one."""
    for state in facts.shuffled(_states_of(facts), "entries"):
        older = [texts for nodes in _older(facts, state) for _, _, texts in _lists(nodes)]
        known = {fold(text) for texts in older for text in texts}
        lists = _lists(state.nodes)
        counts = Counter(fold(text) for _, _, texts in lists for text in texts)
        for role, name, texts in lists:
            pairs = [
                (one, other)
                for one, other in pairwise(texts)
                if _is_label(one) and is_value(other) and counts[fold(one)] == 1 == counts[fold(other)]
                if fold(other) not in known and not _SYMBOL.search(other)
            ]
            for one, other in facts.shuffled(pairs, *state.clicks)[:_PER_LIST]:
                of_list = f" “{name}”" if _is_label(name) and role != "tab" else ""
                question = f"which {_ENTRIES[role]}{of_list} comes right after “{one}”?"
                wrong = tuple(text for text in texts if text and fold(text) != fold(other))[:WRONG_ANSWERS]
                goal = _goal(facts, state, question)
                yield _candidate("report/next-entry", state, goal, other, wrong, (one, other))


def report_effects(facts: SiteFacts) -> Iterator[TaskCandidate]:
    """Yield questions for the control that brings up a text; all controls of its page were clicked."""
    states = [each for each in _states_of(facts) if each.page in facts.site.explored]
    texts = [(state, fold("\n".join(node.name for node in state.nodes))) for state in states]
    for state in facts.shuffled([each for each in states if len(each.clicks) == 1], "effects"):
        alike = [(each, text) for each, text in texts if each.page == state.page]
        others = [each.clicks[0] for each, _ in alike if each.clicks]
        others = [each for each in dict.fromkeys(others) if each != state.clicks[0]]
        if _SYMBOL.search(state.clicks[0]):
            continue
        for sentence in dict.fromkeys(_sentences(state)):
            if any(fold(sentence) in text and each.clicks[:1] != state.clicks for each, text in alike):
                continue
            question = f"which control brings up the text “{sentence}” when you click it?"
            goal = f"{_goal(facts, replace(state, clicks=()), question)} Answer with the text of the control."
            wrong = (*facts.shuffled(others, sentence)[:WRONG_ANSWERS], NOT_FOUND)
            yield _candidate("report/effect", state, goal, state.clicks[0], wrong, (sentence,))
            break


def _states_of(facts: SiteFacts) -> list[SiteState]:
    """Return the states of pages that a goal can name."""
    pages = facts.site.pages
    return [
        each
        for each in facts.site.states
        if is_name(pages[each.page].subject) and facts.is_only(pages[each.page])
    ]


def _older(facts: SiteFacts, state: SiteState) -> list[tuple[AxNode, ...]]:
    """Return the trees of a page that need fewer clicks than a state, and the one before its last click."""
    states = [each for each in facts.site.states if each.page == state.page]
    return [state.before, *(each.nodes for each in states if len(each.clicks) < len(state.clicks))]


def _goal(facts: SiteFacts, state: SiteState, question: str) -> str:
    place = f"On the page “{facts.site.pages[state.page].subject}”"
    if not state.clicks:
        return f"{place}, {question}"
    clicks = " and then ".join(f"“{text}”" for text in state.clicks)
    return f"{place}, click {clicks}. {question[0].upper()}{question[1:]}"


def _candidate(
    template: str, state: SiteState, goal: str, answer: str, wrong: tuple[str, ...], shows: tuple[str, ...]
) -> TaskCandidate:
    return TaskCandidate(
        template.partition("/")[0],
        template,
        (state.page, *state.clicks, goal),
        goal,
        answer_evaluator(answer),
        (state.page,),
        state.acts,
        answer=answer,
        wrong=wrong,
        shows=shows,
    )


def _shown_values(nodes: Sequence[AxNode]) -> dict[tuple[str, str], str]:
    """Return the values that a tree shows, by kind and label; a label has one value."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for index, node in enumerate(nodes):
        name, value = _plain(node.name), _plain(node.value)
        if node.role == "row":
            cells = [_plain(name_of(nodes, number)) for number in _children(nodes, index)]
            if len(cells) == 2:
                found["row", cells[0]].add(cells[1])
        elif node.role in _FIELDS:
            found["field", name].add(value)
        elif node.role in _LISTS:
            found["list", name].add(value)
        elif node.role == "StaticText" and (line := _LINE.fullmatch(name)):
            found["line", line[1]].add(line[2])
    return {key: values.pop() for key, values in found.items() if len(values) == 1 and _is_label(key[1])}


def _children(nodes: Sequence[AxNode], index: int) -> Iterator[int]:
    depth = nodes[index].depth
    for number in range(index + 1, len(nodes)):
        if nodes[number].depth <= depth:
            return
        if nodes[number].depth == depth + 1:
            yield number


def _lists(nodes: Sequence[AxNode]) -> list[tuple[str, str, list[str]]]:
    """Return the role of its entries, name and texts of each list; the text "" is an entry of several."""
    found: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    above: dict[int, int] = {}
    for index, node in enumerate(nodes):
        above[node.depth] = index
        if node.role in _ENTRIES:
            found[above.get(node.depth - 1, -1), node.role].append(_plain(name_of(nodes, index)))
    return [
        (role, _plain(nodes[parent].name).rstrip(" :*") if parent >= 0 else "", texts)
        for (parent, role), texts in found.items()
        if len(texts) >= _SHORTEST_LIST
    ]


def _sentences(state: SiteState) -> Iterator[str]:
    """Yield the sentences of a state, without the name of its last control before them."""
    control = re.compile(rf"(?<!\w){re.escape(state.clicks[-1])}(?!\w)")
    for node in state.nodes:
        text = _plain(node.name) if node.role in ("StaticText", "heading") else ""
        text = control.split(text, maxsplit=1)[-1].strip(" :-")
        if len(_WORD.findall(text)) < _SENTENCE or len(text) > _LONGEST_SENTENCE or re.search('[“”"]', text):
            continue
        if text[0].isalpha() and fold(state.clicks[-1]) not in fold(text):
            yield text

"""Agents that measure coverage. They see observations only and share no code with the recorder.

- `uniform` chooses uniformly among all elements that have a bid. Fields get words from the page.
- `forms` fills every field of a page with words from it, then presses the button that follows.
- `reader` picks a word of the page and follows the links that mention it.

Equal seeds choose equally on equal observations (`clock.seeded`), so that a walk can be repeated. From a page
that the recording does not hold, each agent goes back, and after that to its start page.

Other names are agents of `stillweb rollout`: `openai` (a model at an OpenAI-compatible endpoint) and
MODULE:NAME. They play a task whose goal is to use the site; the seed of a walk is the number of its episode.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from stillweb import clock
from stillweb.env import Observation, Task
from stillweb.errors import UsageError
from stillweb.urls import wire_url

if TYPE_CHECKING:
    from stillweb.env.vector.rollout import Agent, Policy

Action = Mapping[str, Any]

_TEXT_FIELDS = frozenset(("textbox", "searchbox"))
_NUMBER_FIELDS = frozenset(("spinbutton",))
_LISTS = frozenset(("combobox", "listbox", "popUpButton", "ComboBoxMenuButton"))
_OPTIONS = frozenset(("option", "MenuListOption"))
_NOT_CLICKED = frozenset(("scrollbar", "slider", "MenuListOption"))
_BUTTONS = frozenset(("button", "togglebutton"))
_WORD = re.compile(r"[^\W_]{3,}")
_SHORT = 30  # characters of a name that is typed whole
_NAMES = 0.25  # share of texts that are whole names
_ENTER = 0.5  # share of filled fields that Enter is pressed in
_SCROLL, _BACK = 0.05, 0.05  # shares of the uniform agent's steps
_READS = 6  # links that the reader follows before it returns to its start page
_GOAL = (
    "Use this site as a visitor would who has not seen it before: read, follow links, search, sort and "
    "filter, and fill in forms. Do something else in each step. If a page is empty, go back."
)


class WalkAgent:
    """An agent that chooses the next action of one walk.

    Args:
        start: URL that it returns to from a page that is not recorded.
    """

    def __init__(self, start: str, seed: int) -> None:
        self.start = start
        self.rng = clock.seeded("coverage", type(self).__name__, seed)
        self.last: Action = {}

    def choose(self, observation: Observation, info: Mapping[str, Any]) -> Action:
        """Return the next action."""
        nodes = [node for node in observation.nodes if node.bid and ("disabled", True) not in node.properties]
        missed = f"GET {wire_url(observation.url)}" in info["traffic"]["missed"]
        self.last = self.pick(observation, nodes) if nodes and not missed else self._return()
        return self.last

    def pick(self, observation: Observation, nodes: list[Any]) -> Action:
        """Return an action on a page that has elements to act on."""
        raise NotImplementedError

    def _return(self) -> Action:
        return (
            {"action": "goto", "url": self.start} if self.last.get("action") == "back" else {"action": "back"}
        )

    def text_for(self, observation: Observation) -> str:
        """Return a word of the page, or the whole short name of an element."""
        names = sorted({node.name for node in observation.nodes if node.name})
        words = sorted({word for name in names for word in _WORD.findall(name)})
        short = [name for name in names if " " in name and len(name) <= _SHORT]
        if short and self.rng.random() < _NAMES:
            return self.rng.choice(short)
        return self.rng.choice(words) if words else "test"

    def act_on(self, observation: Observation, node: Any) -> Action:
        """Return the action that suits an element's role."""
        if node.role in _TEXT_FIELDS and ("readonly", True) not in node.properties:
            return {"action": "fill", "bid": node.bid, "value": self.text_for(observation)}
        if node.role in _NUMBER_FIELDS:
            return {"action": "fill", "bid": node.bid, "value": str(self.rng.randint(1, 99))}
        if node.role in _LISTS and (options := _options_of(observation, node)):
            return {"action": "select", "bid": node.bid, "value": self.rng.choice(options)}
        if node.role == "combobox" and ("readonly", True) not in node.properties:
            return {"action": "fill", "bid": node.bid, "value": self.text_for(observation)}
        return {"action": "click", "bid": node.bid}


class UniformAgent(WalkAgent):
    """Chooses uniformly among all elements that have a bid."""

    def pick(self, observation: Observation, nodes: list[Any]) -> Action:
        """Return an action on any element; sometimes Enter after a fill, a scroll, or a step back."""
        if self.last.get("action") == "fill" and self.rng.random() < _ENTER:
            return {"action": "press", "bid": self.last["bid"], "key": "Enter"}
        if (drawn := self.rng.random()) < _SCROLL:
            return {"action": "scroll", "dy": self.rng.choice((400, 800, -400))}
        if drawn < _SCROLL + _BACK and wire_url(observation.url) != wire_url(self.start):
            return {"action": "back"}
        return self.act_on(
            observation, self.rng.choice([n for n in nodes if n.role not in _NOT_CLICKED] or nodes)
        )


class FormAgent(WalkAgent):
    """Fills the fields of a page one by one, then sends the form; follows a link where there is no field."""

    def __init__(self, start: str, seed: int) -> None:
        super().__init__(start, seed)
        self._filled: set[tuple[str, str]] = set()

    def pick(self, observation: Observation, nodes: list[Any]) -> Action:
        """Return a fill, a press of the next button, or a click on a link."""
        fields = [n for n in nodes if n.role in _TEXT_FIELDS | _NUMBER_FIELDS | _LISTS]
        empty = [n for n in fields if (observation.url, n.bid) not in self._filled]
        if empty and self.rng.random() < 0.8:
            node = self.rng.choice(empty[:3])
            self._filled.add((observation.url, node.bid))
            return self.act_on(observation, node)
        if self.last.get("action") in ("fill", "select") and self.last["bid"] in (
            bids := [n.bid for n in nodes]
        ):
            after = nodes[bids.index(self.last["bid"]) :]
            if button := next((n for n in after if n.role in _BUTTONS), None):
                return {"action": "click", "bid": button.bid}
            if self.last["action"] == "fill":
                return {"action": "press", "bid": self.last["bid"], "key": "Enter"}
        others = [n for n in nodes if n not in fields and n.role not in _NOT_CLICKED]
        return self.act_on(observation, self.rng.choice(others or nodes))


class ReaderAgent(WalkAgent):
    """Follows links that mention a word it has chosen, as a person does who searches for it."""

    def __init__(self, start: str, seed: int) -> None:
        super().__init__(start, seed)
        self._topic = ""
        self._followed = 0

    def pick(self, observation: Observation, nodes: list[Any]) -> Action:
        """Return a click on a link about the topic, a scroll, or the way back to the start page."""
        if self._followed >= _READS:
            self._followed, self._topic = 0, ""
            return {"action": "goto", "url": self.start}
        links = [n for n in nodes if n.role in ("link", "tab", "menuitem", "treeitem") and n.name]
        if not links:
            return {"action": "back"}
        if self.rng.random() < 0.2:
            return {"action": "scroll", "dy": 600}
        about = [n for n in links if self._topic and self._topic in n.name.lower()]
        chosen = self.rng.choice(about or links)
        words = _WORD.findall(chosen.name.lower())
        if words and not about:
            self._topic = self.rng.choice(words)
        self._followed += 1
        return {"action": "click", "bid": chosen.bid}


AGENTS: dict[str, Callable[[str, int], WalkAgent]] = {
    "uniform": UniformAgent,
    "forms": FormAgent,
    "reader": ReaderAgent,
}
"""Agents by their names on the command line."""


def walk_agent(name: str, start: str, seed: int) -> WalkAgent:
    """Return a new agent for one walk.

    Raises:
        UsageError: if no agent of `AGENTS` has this name.
    """
    if name not in AGENTS:
        raise UsageError(
            f"no coverage agent is called {name!r}", hint=f"one of: {', '.join(AGENTS)}, openai, MODULE:NAME"
        )
    return AGENTS[name](start, seed)


class WalkPolicies:
    """Policies of walks, by the names of their agents. Closes agents that hold connections.

    Args:
        names: names of `AGENTS`, `openai`, or MODULE:NAME.
        options: options of the agents that are not in `AGENTS`.

    Raises:
        UsageError: if a name or an option is unknown, or an option has no agent that takes it.
        ExtraNotInstalled: for `openai`, if its package is missing.
    """

    def __init__(self, names: tuple[str, ...], options: Mapping[str, str]) -> None:
        self._others: dict[str, Agent] = {}
        for name in names:
            if name == "openai" or ":" in name:
                from stillweb.trainers.agents import load_agent  # trainers are slow to import

                self._others[name] = load_agent(name, options=options)
            else:
                walk_agent(name, "", 0)
        if options and not self._others:
            raise UsageError("--agent-option is for the agents openai and MODULE:NAME")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self._others.values():
            if close := getattr(agent, "aclose", None):
                await close()

    def policy(self, name: str, start: str, seed: int) -> Policy:
        """Return the policy of a new walk."""
        if name not in self._others:
            return walk_agent(name, start, seed).choose
        made = self._others[name](Task(f"coverage-{seed}", _GOAL, start))

        async def policy(observation: Observation, info: dict[str, Any]) -> Any:
            nonlocal made
            made = await made if inspect.isawaitable(made) else made
            chosen = made(observation, {**info, "episode_number": seed})
            return await chosen if inspect.isawaitable(chosen) else chosen

        return policy


def _options_of(observation: Observation, owner: Any) -> list[str]:
    """Return the names of the options below a list in the accessibility tree."""
    found: list[str] = []
    inside = False
    for node in observation.nodes:
        if node is owner:
            inside = True
        elif inside and node.depth <= owner.depth:
            break
        elif inside and node.role in _OPTIONS and node.name:
            found.append(node.name)
    return found

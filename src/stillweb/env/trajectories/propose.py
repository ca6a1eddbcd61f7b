"""Random walk over pages, to make traces for checks from observations alone.

Equal seeds choose equal actions from equal observations. The walk clicks, fills, selects, scrolls, hovers,
goes back and reopens pages that it has seen. It leaves a page that the recording does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb import clock
from stillweb.browser.observe.axtree import AxNode
from stillweb.env.env import Env
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.task import Task
from stillweb.env.trajectories.trace import Trace
from stillweb.errors import UsageError
from stillweb.urls import wire_url

_CLICKED = frozenset(
    ("link", "button", "checkbox", "radio", "tab", "switch", "menuitem", "option", "treeitem", "gridcell")
)
_TYPED = frozenset(("textbox", "searchbox"))
_TEXTS = ("Ada", "7", "blue", "a longer text, with a comma", "")
_SCROLLS = (300, 700, -400)
# Weight of each kind of action among those that a page offers.
_WEIGHTS = {"click": 10, "fill": 4, "select": 3, "scroll": 2, "hover": 1, "back": 1, "goto": 1}


async def propose_trace(
    env: Env, url: str, seed: int, steps: int = 20, *, name: str = "", task: Task | None = None
) -> Trace:
    """Make a trace of at most `steps` random actions by performing them in a new episode of `env`.

    The trace ends early if the page ends the episode.

    Args:
        url: start page; a `task` has its own.
        seed: seed of the choice of actions. The page keeps the seed of the task or the recording.
        name: label of the trace; "" makes one of the seed.

    Raises:
        UsageError: if the environment does not observe the accessibility tree.
        TaskError: if the collection does not hold the page.
        InfraError: if browser or proxy fail.
    """
    start = task.start_url if task else url
    walk = RandomWalk(start, seed)
    observation, info = await env.reset(task=task, url=None if task else start)
    if observation.axtree is None:
        raise UsageError("exploring needs the accessibility tree", hint='Env(..., observe=("axtree",))')
    for _ in range(steps):
        action = walk.choose(observation, info)
        walk.actions.append(action)
        observation, _, terminated, truncated, info = await env.step(action)
        if terminated or truncated:
            break
    return Trace(name or f"explored-{seed}", tuple(walk.actions), "" if task else url, task)


class RandomWalk:
    """Chooser of random actions from observations.

    Args:
        start: URL to open when `back` does not leave an unrecorded page.
    """

    def __init__(self, start: str, seed: int | str) -> None:
        self.actions: list[Mapping[str, Any]] = []
        self._rng = clock.seeded("trace", seed)
        self._start = start
        self._visited: list[str] = []  # in the order of the first visit

    def choose(self, observation: Observation, info: Mapping[str, Any]) -> Mapping[str, Any]:
        if f"GET {wire_url(observation.url)}" in info["traffic"]["missed"] or not observation.nodes:
            went_back = bool(self.actions) and self.actions[-1]["action"] == "back"
            return {"action": "goto", "url": self._start} if went_back else {"action": "back"}
        if observation.url not in self._visited and observation.url.startswith("http"):
            self._visited.append(observation.url)
        offers = self._offers(observation)
        kinds = list(offers)
        kind = self._rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
        return self._rng.choice(offers[kind])

    def _offers(self, observation: Observation) -> dict[str, list[Mapping[str, Any]]]:
        nodes = [node for node in observation.nodes if node.bid and ("disabled", True) not in node.properties]
        texts = [{"action": "fill", "bid": n.bid, "value": v} for n in nodes if _is_typed(n) for v in _TEXTS]
        offers: dict[str, list[Mapping[str, Any]]] = {
            "click": [{"action": "click", "bid": node.bid} for node in nodes if node.role in _CLICKED],
            "fill": [*texts],
            "select": [*_selects(observation.nodes)],
            "scroll": [{"action": "scroll", "dy": dy} for dy in _SCROLLS],
            "hover": [{"action": "hover", "bid": node.bid} for node in nodes if node.role in _CLICKED],
            "back": [{"action": "back"}] if len(self._visited) > 1 else [],
            "goto": [{"action": "goto", "url": url} for url in self._visited[:-1]],
        }
        return {kind: offered for kind, offered in offers.items() if offered}


def _is_typed(node: AxNode) -> bool:
    return node.role in _TYPED and ("readonly", True) not in node.properties


def _selects(nodes: tuple[AxNode, ...]) -> list[Mapping[str, Any]]:
    """Return an action for each option of each drop-down list."""
    found: list[Mapping[str, Any]] = []
    owner: AxNode | None = None
    for node in nodes:
        if owner and node.depth <= owner.depth:
            owner = None
        if node.role in ("combobox", "listbox") and node.bid:
            owner = node
        elif owner and node.role in ("option", "MenuListOption") and node.name:
            found.append({"action": "select", "bid": owner.bid, "value": node.name})
    return found

"""Oracles: solutions of tasks whose steps name controls by role and accessible name.

    - {action: click, role: link, name: Travel}
    - {action: fill, role: textbox, name: E-mail, value: ada@mail.example}
    - {action: terminate, answer: "£51.77"}

`nth` is the number of the control among those of equal role and name, from 0. A step has no bid, so it holds
on the same page with another layout. An element without a name that takes clicks is named by its only text.
`run_oracle` plays an oracle in an `Env`.

A planned step may have `via`, a step that opens the menu with its control. It is done only if the page does
not show the control; `OracleRun.acts` has the steps that were done. `other_name` is the name that a link has
if styles hide its text, or show it under the pointer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stillweb.benchmarks.pages import fold
from stillweb.browser.observe.axtree import INTERACTIVE, AxNode
from stillweb.env import Env, Observation, Task
from stillweb.env.episode.perturbation import FAULT_TEXTS, is_dismissal
from stillweb.errors import InfraError, TaskError

Step = Mapping[str, Any]
T = TypeVar("T")

_ATTEMPTS = 3  # of an episode while browser or proxy fail

_ALIKE = (
    frozenset(("textbox", "searchbox", "combobox", "spinbutton")),
    frozenset(("combobox", "listbox", "popUpButton", "ComboBoxMenuButton")),
    frozenset(("button", "togglebutton")),
)
_RETRIES: tuple[Step, ...] = (  # while a fault hides a control
    {"action": "wait", "ms": 10_000},
    {"action": "reload"},
    {"action": "wait", "ms": 10_000},
)
_OF_STEP = ("role", "name", "nth", "other_name", "via")


@dataclass(slots=True)
class OracleRun:
    """An oracle's episode.

    Attributes:
        reward: None if the episode did not reach its end.
        steps: for each observation from the reset on its digests, URL and status of the action.
        texts: folded text of each observed page.
        acts: the steps that were done, without `via`.
        stops: for each planned step the number of the observation after it.
        start: the `info` of the reset.
        trouble: why a step could not be done, "" if all were; `kind` names it in one word.
        pictures: screenshots at the start and before the end, if they were requested.
    """

    reward: float | None = None
    steps: list[tuple[Mapping[str, str], str, str]] = field(default_factory=list)
    acts: list[Step] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    reasons: tuple[str, ...] = ()
    kind: str = ""
    trouble: str = ""
    start: Mapping[str, Any] = field(default_factory=dict)
    pictures: list[bytes] = field(default_factory=list)


def action_of(step: Step, nodes: Sequence[AxNode], url: str) -> dict[str, Any]:
    """Return a step of an oracle as the JSON object of an action, with the bid of its control on the page.

    Args:
        nodes: what the page at `url` shows.

    Raises:
        LookupError: if the page shows no such control.
    """
    action = {name: value for name, value in step.items() if name not in _OF_STEP}
    if "role" not in step:
        return action
    roles = {step["role"]}.union(*(group for group in _ALIKE if step["role"] in group))
    found = [
        node.bid
        for index, node in enumerate(nodes)
        if node.bid and node.role in roles and _label(name_of(nodes, index)) == _label(str(step["name"]))
    ]
    number = int(step.get("nth", 0))
    if len(found) <= number:
        raise LookupError(f"{url} shows no {step['role']} {step['name']!r}")
    return {**action, "bid": found[number]}


def name_of(nodes: Sequence[AxNode], index: int) -> str:
    """Return a node's name; of an element that only scripts make a control, its only text."""
    node = nodes[index]
    if node.name or node.role in INTERACTIVE:
        return node.name
    texts: dict[str, str] = {}
    for number in range(index + 1, len(nodes)):
        if nodes[number].depth <= node.depth or len(texts) > 1:
            break
        if text := fold(nodes[number].name):
            texts[text] = nodes[number].name
    return next(iter(texts.values())) if len(texts) == 1 else ""


def _label(name: str) -> str:
    """Return a name as it is compared: without the mark of required fields, which styles may add."""
    return fold(name).rstrip("*")


def _shows(step: Step, observation: Observation) -> bool:
    try:
        action_of(step, observation.nodes, observation.url)
    except LookupError:
        return False
    return True


def _as_named(step: Step, observation: Observation) -> Step:
    """Return a step with the name under which the page shows its control."""
    if "other_name" not in step or _shows(step, observation):
        return step
    other = {name: value for name, value in step.items() if name != "nth"}
    other |= {"name": step["other_name"], "other_name": step["name"]}
    return other if _shows(other, observation) else step


def _without_via(step: Step) -> Step:
    return {name: value for name, value in step.items() if name != "via"}


async def retry_episode(play: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an episode; play it again if browser or proxy fail.

    Raises:
        InfraError: if they fail in three attempts.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return await play()
        except InfraError:
            continue
    return await play()


async def run_oracle(
    env: Env,
    task: Task,
    oracle: Sequence[Step],
    *,
    pictures: bool = False,
    on_page: Callable[[Observation], None] = lambda _: None,
    before_act: Callable[[Observation, Mapping[str, Any]], Awaitable[None]] | None = None,
) -> OracleRun:
    """Play an oracle in a new episode.

    Failures of the task or of a step are in the result.

    Args:
        env: environment that observes `axtree`.
        oracle: steps; the last one is `terminate`.
        before_act: awaited before each step, with the last observation and its info.

    Raises:
        InfraError: if browser or proxy fail.
    """
    run = OracleRun()
    play = _OraclePlay(run, env, task, pictures, on_page, before_act)
    try:
        await play.play(oracle)
    except TaskError as error:
        run.kind, run.trouble = "task", str(error)
    except LookupError as error:
        run.kind, run.trouble = "control", str(error)
    return run


@dataclass(slots=True)
class _OraclePlay:
    run: OracleRun
    env: Env
    task: Task
    pictures: bool
    on_page: Callable[[Observation], None]
    before_act: Callable[[Observation, Mapping[str, Any]], Awaitable[None]] | None

    async def play(self, oracle: Sequence[Step]) -> None:
        run = self.run
        observation, info = await self.env.reset(task=self.task)
        run.start = info
        self._note(observation, info)
        await self._picture()
        if "perturbation" in info and self.env.task and self.env.task.origin and self._is_whole(oracle):
            oracle = self.env.task.origin.oracle  # with the names of the perturbed pages
        todo = deque((step, True) for step in oracle)
        while todo:
            step, planned = todo.popleft()
            observation = await self._dismiss(observation, info)
            named = _as_named(step, observation)
            if "via" in step and not _shows(named, observation):
                todo.extendleft(((_without_via(step), planned), (step["via"], False)))
                continue
            step = named
            observation = await self._recover(step, observation, info)
            if self.before_act:
                await self.before_act(observation, info)
            if step["action"] == "terminate":
                await self._picture()
            observation, reward, terminated, truncated, info = await self.env.step(
                action_of(step, observation.nodes, observation.url)
            )
            self._note(observation, info)
            run.acts.append(_without_via(step))
            if planned:
                run.stops.append(len(run.steps) - 1)
            if terminated:
                run.reward, run.reasons = reward, tuple(info["score"]["reasons"])
                return
            if truncated:
                run.kind, run.trouble = "truncated", f"truncated after {info['step']} steps"
                return
            if info["action"]["status"] not in ("ok", "not_recorded"):
                # A menu that cannot be opened hides its link: there may be another way.
                run.kind, run.trouble = "action" if planned else "control", info["action"]["error"]
                return

    def _is_whole(self, oracle: Sequence[Step]) -> bool:
        return self.task.origin is not None and tuple(oracle) == tuple(self.task.origin.oracle)

    async def _recover(self, step: Step, observation: Observation, info: Mapping[str, Any]) -> Observation:
        """Wait or reload while a fault hides what a step needs."""
        for action in (*_RETRIES, None) if "perturbation" in info else ():
            if self._can_do(step, observation) or action is None:
                break
            reload = any(node.name in FAULT_TEXTS for node in observation.nodes)
            observation, _, terminated, truncated, info = await self.env.step(
                {"action": "reload"} if reload else action
            )
            self._note(observation, info)
            if terminated or truncated:
                raise LookupError("the episode ended during a fault")
            observation = await self._dismiss(observation, info)
        return observation

    def _can_do(self, step: Step, observation: Observation) -> bool:
        if any(node.name in FAULT_TEXTS for node in observation.nodes):
            return False
        if step["action"] == "terminate":
            task = self.env.task
            shows = task.origin.shows if task and task.origin else ()
            return all(any(fold(each) in text for text in self.run.texts) for each in shows)
        return _shows(step, observation)

    async def _dismiss(self, observation: Observation, info: Mapping[str, Any]) -> Observation:
        """Close the interruptions of a perturbed episode, the topmost first."""
        while "perturbation" in info:
            shown = [node.bid for node in observation.nodes if is_dismissal(node.role, node.name)]
            if not shown:
                break
            observation, *_, info = await self.env.step({"action": "click", "bid": shown[-1]})
            self._note(observation, info)
            if info["action"]["status"] != "ok":
                raise LookupError(f"an interruption stays: {info['action']['error']}")
        return observation

    def _note(self, observation: Observation, info: Mapping[str, Any]) -> None:
        self.run.steps.append((dict(observation.digests), observation.url, info["action"]["status"]))
        self.run.texts.append(text_of(observation))
        self.run.flags += info["determinism"].get("flags", ())
        self.on_page(observation)

    async def _picture(self) -> None:
        if self.pictures:
            seen = await self.env.observe("screenshot")
            self.run.pictures.append(seen.screenshot or b"")


def text_of(observation: Observation) -> str:
    """Return everything that a page's accessibility tree says, folded."""
    return fold("\n".join(f"{node.name} {node.value}" for node in observation.nodes))

"""Proof of tasks in the browser: the oracle solves a task, and what is near its solution does not.

Proofs of a task, in the order in which they are tried; the first that fails drops it:

- `wrong answers`: values near the answer score 0, on the evidence of the oracle's episode;
- `walks`: random walks from the start page score 0 after each of their steps;
- `oracle`: the steps can be done, lead to the planned pages, show what the answer needs, and score 1.0;
- `untouched`: doing nothing scores 0, on the evidence of the start page before any action;
- `cut`: the oracle without its last act scores 0;
- `neighbours`: the oracles of similar tasks score 0;
- `repeated`: further runs of the oracle give equal observations.

The walks of a start page are made before its first oracle, so that a candidate which they solve costs no
episode.

`Evaluator.score` is a pure function of evidence, the one that an episode's end uses. So episodes are shared:

- Tasks with the same start and acts share the runs of the oracle; their answers differ only at the end.
- `untouched` and `cut` are scored on the evidence before the first and the last act of the oracle's run.
- Each start page is walked once. The evidence after each step (URL, requests, a random visible text as the
  answer) is scored for all tasks that start there.

A task whose page sets and judges its own problem has all its episodes for itself.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from stillweb import clock
from stillweb.benchmarks.candidates import Act
from stillweb.benchmarks.oracle import OracleRun, retry_episode, run_oracle
from stillweb.benchmarks.pages import fold
from stillweb.benchmarks.plan import TaskPlan
from stillweb.benchmarks.site import SiteStep
from stillweb.env import Env, Evidence, Observation, Task
from stillweb.env.tasks.evaluators import AnswerEvaluator
from stillweb.env.tasks.evidence import Evaluator, Score
from stillweb.env.tasks.writes import request_evidence
from stillweb.env.trajectories.propose import RandomWalk
from stillweb.matching.rules import Rules
from stillweb.replay import ReplayClient
from stillweb.urls import wire_url

T = TypeVar("T")

_WHOLE = "axtree"
# Random walks choose from what is visible: a whole tree costs as much as its page is long.
_VISIBLE = "axtree:viewport"
_PLAYS = 256  # oracles' episodes that are kept; an evicted one is played again when a task needs it


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """Options of `TaskProver`.

    Attributes:
        runs: runs of the oracle, all of which must succeed.
        walk_steps: actions of each walk.
        walks: random walks from a start page.
        pictures: whether screenshots are taken of the start and the end.
    """

    runs: int = 3
    walks: int = 20
    walk_steps: int = 8
    seed: int = 0
    pictures: bool = False


@dataclass(frozen=True, slots=True)
class ProofResult:
    """Result of the proofs of one task.

    Attributes:
        failed: name of the proof that failed and how, such as "oracle: control"; "" if all hold.
        detail: what happened.
        proofs: for the task file, what was tried and how it ended.
        pictures: PNG files of the start and the end of the oracle.
        hidden: a link of the recorded HTML that the browser does not show, if that is the reason.
        oracle: the steps of the oracle, the clicks that opened menus included.
    """

    failed: str = ""
    detail: str = ""
    seconds: float = 0.0
    proofs: Mapping[str, str | int | float] = field(default_factory=dict)
    pictures: tuple[bytes, ...] = ()
    hidden: SiteStep | None = None
    oracle: tuple[Act, ...] = ()


class _Dropped(Exception):
    def __init__(self, failed: str, detail: str = "", hidden: SiteStep | None = None) -> None:
        super().__init__(failed)
        self.hidden = hidden
        self.failed = failed
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _Play:
    """An oracle's episode, with the evidence after each of its observations except the last one."""

    run: OracleRun
    evidence: tuple[Evidence, ...]


class TaskProver:
    """Prover of tasks on one replay server.

    Args:
        envs: environments, one for each episode that is played at the same time; the prover chooses what they
            observe.

    Attributes:
        on_walk: called after each random walk from a start page, with its duration in seconds.
    """

    def __init__(self, client: ReplayClient, envs: Sequence[Env], options: ProofOptions) -> None:
        self._client = client
        self._options = options
        self._free: asyncio.Queue[Env] = asyncio.Queue()
        for env in envs:
            self._free.put_nowait(env)
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._plays: OrderedDict[Hashable, _Play] = OrderedDict()  # the least recently used one first
        self._walks: dict[str, list[Evidence]] = {}
        self._rules: dict[str, Rules] = {}
        self.on_walk: Callable[[float], None] = lambda _: None

    async def prove(self, plan: TaskPlan) -> ProofResult:
        """Try all proofs of a task.

        Raises:
            InfraError: if browser or proxy fail repeatedly.
        """
        began = clock.perf()
        proofs: dict[str, str | int | float] = {}
        try:
            pictures, oracle = await self._prove(plan, proofs)
        except _Dropped as dropped:
            seconds = clock.perf() - began
            return ProofResult(dropped.failed, dropped.detail, seconds, proofs, hidden=dropped.hidden)
        return ProofResult("", "", clock.perf() - began, proofs, pictures, oracle=oracle)

    async def _prove(
        self, plan: TaskPlan, proofs: dict[str, Any]
    ) -> tuple[tuple[bytes, ...], tuple[Act, ...]]:
        """Try all proofs; return pictures and the steps of the oracle."""
        task, options = plan.task, self._options
        self._check_wrong(plan, proofs)
        if not task.setup:
            await self._check_walks(plan)
        first = last = await self._oracle(plan)
        plan = plan.played(first.run.acts)
        proofs["oracle"] = 1.0
        await self._check_untouched(plan, first)
        proofs["untouched"] = 0.0
        await self._check_cut(plan, first, proofs)
        for neighbour in plan.neighbours:
            await self._zero(plan, neighbour, "neighbours")
        proofs["neighbours"] = len(plan.neighbours)
        if task.setup:
            await self._check_own_walks(task)
        for number in range(1, options.runs):
            last = await self._play(task, plan.oracle, number)
            if last.run.flags:  # such as a step that took too long on a busy machine
                raise _Dropped("repeated: flagged", "; ".join(dict.fromkeys(last.run.flags)))
            if last.run.steps != first.run.steps or self._score(plan, last) != self._score(plan, first):
                raise _Dropped("repeated: observations differ", _difference(first.run, last.run))
        proofs["runs"] = options.runs
        proofs |= {"walks": options.walks, "walk_steps": options.walk_steps}
        return tuple(last.run.pictures), plan.oracle

    # --- episodes of oracles -------------------------------------------------------------------------

    async def _play(self, task: Task, oracle: Sequence[Mapping[str, Any]], number: int = 0) -> _Play:
        """Play an oracle, once for all tasks that do the same from the same start.

        Args:
            oracle: its acts; the answer at the end has no effect on the episode.
            number: of the run.
        """
        acts = [{**act, "answer": ""} if act["action"] == "terminate" else act for act in oracle]
        key = (task.start_url, task.seed, task.setup, json.dumps(acts, sort_keys=True), number)
        async with self._lock(key):
            play = self._plays.get(key)
            if play is None:
                play = await self.in_env(lambda env: self._played(env, task, oracle, number))
                self._plays[key] = play
            self._plays.move_to_end(key)
            if len(self._plays) > _PLAYS:
                self._plays.popitem(last=False)
            return play

    def _lock(self, key: Hashable) -> asyncio.Lock:
        """Return the lock of a key; it exists as long as an episode holds it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def _played(self, env: Env, task: Task, oracle: Sequence[Mapping[str, Any]], number: int) -> _Play:
        found: list[Evidence] = []

        async def note(observation: Observation, info: Mapping[str, Any]) -> None:
            found.append(await self._evidence(task, observation, info, ""))

        pictures = self._options.pictures and number == self._options.runs - 1
        before_act = None if task.setup else note  # the page itself judges a task with a setup
        run = await run_oracle(env, task, oracle, pictures=pictures, before_act=before_act)
        if number:  # further runs are compared by steps and score only
            return _Play(replace(run, texts=[]), tuple(found[-1:]))
        return _Play(run, tuple(found))

    async def in_env(self, play: Callable[[Env], Awaitable[T]], observe: str = _WHOLE) -> T:
        """Return the result of an episode in a free environment; play it again if browser or proxy fail.

        Raises:
            InfraError: if they fail repeatedly.
        """
        env = await self._free.get()
        env.set_observation(observe)
        try:
            return await retry_episode(lambda: play(env))
        finally:
            self._free.put_nowait(env)

    @staticmethod
    def _score(plan: TaskPlan, play: _Play) -> Score:
        """Return what the episode of a play scores in a task; an episode of another task has its evidence."""
        if plan.task.setup or play.run.reward is None:
            return Score(play.run.reward or 0.0, play.run.reasons)
        assert plan.task.evaluation is not None
        return plan.task.evaluation.score(replace(play.evidence[-1], answer=plan.candidate.answer))

    async def _oracle(self, plan: TaskPlan) -> _Play:
        play = await self._play(plan.task, plan.oracle)
        run = play.run
        if run.kind:
            done = len(run.stops)
            lost = plan.clicks[done] if run.kind == "control" and done < len(plan.clicks) else None
            raise _Dropped(f"oracle: {run.kind}", run.trouble, lost)
        if run.flags:
            raise _Dropped("oracle: flagged", "; ".join(dict.fromkeys(run.flags)))
        if len(run.stops) < len(plan.expected):
            raise _Dropped("oracle: ended early", f"after {len(run.stops)} of {len(plan.expected)} steps")
        for stop, expected in zip(run.stops, plan.expected, strict=True):
            url = run.steps[stop][1]
            if expected and wire_url(url).partition("#")[0] != expected:
                raise _Dropped("oracle: another page", f"{url} instead of {expected}")
        for shown in plan.candidate.shows:
            if not any(fold(shown) in text for text in run.texts):
                raise _Dropped("oracle: value not shown", shown)
        score = self._score(plan, play)
        if score.reward != 1.0:
            raise _Dropped("oracle: reward", f"{score.reward}: {'; '.join(score.reasons)}")
        return play

    async def _zero(self, plan: TaskPlan, oracle: Sequence[Mapping[str, Any]], proof: str) -> None:
        play = await self._play(plan.task, oracle)
        if play.run.reward is None:
            if proof != "neighbours":  # a neighbour that cannot be done proves nothing
                raise _Dropped(f"{proof}: {play.run.kind}", play.run.trouble)
        elif (score := self._score(plan, play)).reward:
            raise _Dropped(f"{proof}: reward {score.reward:g}", "; ".join(score.reasons))

    async def _check_untouched(self, plan: TaskPlan, first: _Play) -> None:
        if plan.task.setup:
            await self._zero(plan, ({"action": "terminate"},), "untouched")
        else:
            self._check_evidence(plan, first.evidence[0], "untouched")

    async def _check_cut(self, plan: TaskPlan, first: _Play, proofs: dict[str, Any]) -> None:
        cut = without_last_act(plan.oracle)
        if plan.candidate.answer:
            self._check_answer(plan, "", "cut")
        elif not cut:
            return
        elif plan.task.setup:
            await self._zero(plan, cut, "cut")
        else:
            self._check_evidence(plan, first.evidence[len(cut) - 1], "cut")
        proofs["cut"] = 0.0

    @staticmethod
    def _check_evidence(plan: TaskPlan, evidence: Evidence, proof: str) -> None:
        assert plan.task.evaluation is not None
        score = plan.task.evaluation.score(evidence)
        if score.reward:
            raise _Dropped(f"{proof}: reward {score.reward:g}", "; ".join(score.reasons))

    # --- answers -----------------------------------------------------------------------------------

    def _check_wrong(self, plan: TaskPlan, proofs: dict[str, Any]) -> None:
        if not plan.candidate.answer:
            return
        self._check_answer(plan, "", "wrong answers")
        for wrong in plan.candidate.wrong:
            self._check_answer(plan, wrong, "wrong answers")
        proofs["wrong_answers"] = len(plan.candidate.wrong)

    @staticmethod
    def _check_answer(plan: TaskPlan, answer: str, proof: str) -> None:
        assert plan.task.evaluation is not None
        if answer_part(plan.task.evaluation).score(Evidence(answer=answer)).reward:
            raise _Dropped(f"{proof}: accepted", answer)

    # --- random walks ------------------------------------------------------------------------------

    async def _check_walks(self, plan: TaskPlan) -> None:
        assert plan.task.evaluation is not None
        for evidence in await self._walked_from(plan.task):
            score = plan.task.evaluation.score(evidence)
            if score.reward:
                raise _Dropped("walks: reward", "; ".join(score.reasons))

    async def _walked_from(self, task: Task) -> list[Evidence]:
        """Return the evidence of the walks from a task's start page; walk there for the first task."""
        url = task.start_url
        async with self._lock(("walks", url)):
            if url not in self._walks:
                start = Task("walk", "", url, task.collection, max_steps=self._options.walk_steps + 1)
                async with asyncio.TaskGroup() as group:
                    walks = [
                        group.create_task(self.in_env(partial(self._walk, start, number), _VISIBLE))
                        for number in range(self._options.walks)
                    ]
                self._walks[url] = [evidence for walk in walks for evidence in walk.result()]
        return self._walks[url]

    async def _walk(self, start: Task, number: int, env: Env) -> list[Evidence]:
        began = clock.perf()
        seed = f"{self._options.seed} {start.start_url} {number}"
        walk, rng = RandomWalk(start.start_url, seed), clock.seeded("answers", seed)
        observation, info = await env.reset(task=start)
        found = []
        for _ in range(self._options.walk_steps):
            action = walk.choose(observation, info)
            walk.actions.append(action)
            observation, _, terminated, truncated, info = await env.step(action)
            names = sorted({node.name for node in observation.nodes if node.name}) or [""]
            found.append(await self._evidence(start, observation, info, rng.choice(names)))
            if terminated or truncated:
                break
        self.on_walk(clock.perf() - began)
        return found

    async def _check_own_walks(self, task: Task) -> None:
        """Walk in episodes of a task whose page draws its own problem."""
        for number in range(self._options.walks):
            reward, reasons = await self.in_env(partial(self._walk_task, task, number), _VISIBLE)
            if reward > 0:
                raise _Dropped("walks: reward", reasons)

    async def _walk_task(self, task: Task, number: int, env: Env) -> tuple[float, str]:
        walk = RandomWalk(task.start_url, f"{self._options.seed} {task.seed} {number}")
        observation, info = await env.reset(task=task)
        for _ in range(self._options.walk_steps):
            action = walk.choose(observation, info)
            walk.actions.append(action)
            observation, reward, terminated, truncated, info = await env.step(action)
            if reward > 0:
                return reward, "; ".join(info["score"]["reasons"])
            if terminated or truncated:
                break
        return 0.0, ""

    async def _evidence(
        self, task: Task, observation: Observation, info: Mapping[str, Any], answer: str
    ) -> Evidence:
        """Return what an episode's end would read here, for evaluators of answer, URL and requests."""
        if task.collection not in self._rules:
            manifest = (await self._client.info()).manifests.get(task.collection, {})
            self._rules[task.collection] = Rules.parse(manifest.get("rules", ""))
        rules = self._rules[task.collection]
        entries = (await self._client.ledger(info["session"])).entries
        requests = request_evidence([asdict(each) for each in entries], bodies=True, rules=rules)
        return Evidence(answer, observation.url, requests=requests)


def without_last_act(oracle: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return an oracle without its last act, () if it has no other one."""
    acts = [each for each in oracle if each["action"] != "terminate"]
    return (*acts[:-1], {"action": "terminate"}) if len(acts) > 1 else ()


def answer_part(evaluation: Evaluator) -> Evaluator:
    """Return the part of an evaluation that judges the answer; without one the whole evaluation."""
    parts = [part for part in evaluation.parts_in if isinstance(part, AnswerEvaluator)]
    return parts[0] if len(parts) == 1 else evaluation


def _difference(one: OracleRun, other: OracleRun) -> str:
    for number, (a, b) in enumerate(zip(one.steps, other.steps, strict=False)):
        if a != b:
            kinds = [kind for kind in a[0] if a[0][kind] != b[0].get(kind)]
            return f"at step {number}, {a[1]}: {', '.join(kinds) or f'{a[1:]} and {b[1:]}'}"
    return f"{len(one.steps)} and {len(other.steps)} steps, rewards {one.reward} and {other.reward}"

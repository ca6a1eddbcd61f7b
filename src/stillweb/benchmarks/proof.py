"""Proof of tasks in the browser: the oracle solves a task, and what is near its solution does not.

Proofs of a task, in the order in which they are tried; the first that fails drops it:

- `wrong answers`: values near the answer score 0, on the evidence of the oracle's episode;
- `oracle`: the steps can be done, lead to the planned pages, show what the answer needs, and score 1.0;
- `untouched`: doing nothing scores 0, on the evidence of the start page before any action;
- `cut`: the oracle without its last act scores 0;
- `neighbours`: the oracles of similar tasks score 0;
- `repeated`: further runs of the oracle give equal observations;
- `walks`: random walks from the start page score 0 after each of their steps.

Random walks do not depend on the task, only on its start page. Each start page is walked once; the evidence
after each step (URL, requests, a random text of the page as the answer) is scored for all tasks that start
there. `Evaluator.score` is a pure function of evidence, the one that an episode's end uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stillweb import clock
from stillweb.benchmarks.oracle import OracleRun, retry_episode, run_oracle
from stillweb.benchmarks.pages import fold
from stillweb.benchmarks.plan import TaskPlan
from stillweb.benchmarks.site import SiteStep
from stillweb.env import Env, Evidence, Observation, Task
from stillweb.env.tasks.evaluators import AnswerEvaluator
from stillweb.env.tasks.evidence import Evaluator
from stillweb.env.tasks.writes import request_evidence
from stillweb.env.trajectories.propose import RandomWalk
from stillweb.matching.rules import Rules
from stillweb.replay import ReplayClient
from stillweb.urls import wire_url

__all__ = ["ProofOptions", "ProofResult", "TaskProver"]


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """How often things are tried.

    Attributes:
        runs: runs of the oracle.
        walks: random walks from a start page.
        walk_steps: steps of a walk.
        seed: seed of the walks.
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
        seconds: duration.
        proofs: for the task file, what was tried and how it ended.
        pictures: PNG files of the start and the end of the oracle.
        hidden: a link of the recorded HTML that the browser does not show, if that is the reason.
    """

    failed: str = ""
    detail: str = ""
    seconds: float = 0.0
    proofs: Mapping[str, str | int | float] = field(default_factory=dict)
    pictures: tuple[bytes, ...] = ()
    hidden: SiteStep | None = None


class _Dropped(Exception):
    def __init__(self, failed: str, detail: str = "", hidden: SiteStep | None = None) -> None:
        super().__init__(failed)
        self.hidden = hidden
        self.failed = failed
        self.detail = detail


class TaskProver:
    """Prover of tasks on one replay server.

    Args:
        client: client of the server.
        envs: environments that observe `axtree`, one for each task that is proved at the same time.
        options: see `ProofOptions`.
    """

    def __init__(self, client: ReplayClient, envs: Sequence[Env], options: ProofOptions) -> None:
        self._client = client
        self._options = options
        self._free: asyncio.Queue[Env] = asyncio.Queue()
        for env in envs:
            self._free.put_nowait(env)
        self._walks: dict[str, list[Evidence]] = {}
        self._starts: dict[str, Evidence] = {}  # before any action

    async def prove(self, plan: TaskPlan) -> ProofResult:
        """Try all proofs of a task.

        Raises:
            InfraError: if browser or proxy fail repeatedly.
        """
        env = await self._free.get()
        began = clock.perf()
        proofs: dict[str, str | int | float] = {}
        failed = detail = ""
        pictures: tuple[bytes, ...] = ()
        hidden: SiteStep | None = None
        try:
            pictures = await self._prove(env, plan, proofs)
        except _Dropped as dropped:
            failed, detail, hidden = dropped.failed, dropped.detail, dropped.hidden
        finally:
            self._free.put_nowait(env)
        return ProofResult(failed, detail, clock.perf() - began, proofs, pictures, hidden)

    async def _prove(self, env: Env, plan: TaskPlan, proofs: dict[str, Any]) -> tuple[bytes, ...]:
        task, options = plan.task, self._options
        self._check_wrong(plan, proofs)
        first = await self._oracle(env, plan)
        proofs["oracle"] = 1.0
        if task.setup:
            await self._zero(env, task, ({"action": "terminate"},), "untouched")
        else:
            self._check_untouched(plan)
        proofs["untouched"] = 0.0
        if plan.candidate.answer:
            self._check_answer(plan, "", "cut")
            proofs["cut"] = 0.0
        elif cut := without_last_act(plan.oracle):
            proofs["cut"] = await self._zero(env, task, cut, "cut")
        for neighbour in plan.neighbours:
            await self._zero(env, task, neighbour, "neighbours")
        proofs["neighbours"] = len(plan.neighbours)
        last = first
        for run in range(1, options.runs):
            pictures = options.pictures and run == options.runs - 1
            last = await self._play(env, task, plan.oracle, pictures=pictures)
            if (last.steps, last.reward) != (first.steps, first.reward):
                raise _Dropped("repeated: observations differ", _difference(first, last))
        proofs["runs"] = options.runs
        if task.setup:
            await self._walk_task(env, task)
        else:
            self._check_walks(plan)
        proofs |= {"walks": options.walks, "walk_steps": options.walk_steps}
        return last.pictures

    # --- the oracle --------------------------------------------------------------------------------

    async def _oracle(self, env: Env, plan: TaskPlan) -> OracleRun:
        run = await self._play(env, plan.task, plan.oracle)
        if run.kind:
            done = len(run.steps) - 1
            lost = plan.clicks[done] if run.kind == "control" and 0 <= done < len(plan.clicks) else None
            raise _Dropped(f"oracle: {run.kind}", run.trouble, lost)
        if run.flags:
            raise _Dropped("oracle: flagged", "; ".join(dict.fromkeys(run.flags)))
        for (_, url, _), expected in zip(run.steps[1:], plan.expected, strict=True):
            if expected and wire_url(url).partition("#")[0] != expected:
                raise _Dropped("oracle: another page", f"{url} instead of {expected}")
        for shown in plan.candidate.shows:
            if not any(fold(shown) in text for text in run.texts):
                raise _Dropped("oracle: value not shown", shown)
        if run.reward != 1.0:
            raise _Dropped("oracle: reward", f"{run.reward}: {'; '.join(run.reasons)}")
        return run

    async def _zero(self, env: Env, task: Task, oracle: Sequence[Mapping[str, Any]], proof: str) -> float:
        run = await self._play(env, task, oracle)
        if run.reward:
            raise _Dropped(f"{proof}: reward {run.reward:g}", "; ".join(run.reasons))
        if run.reward is None and proof != "neighbours":  # a neighbour that cannot be done proves nothing
            raise _Dropped(f"{proof}: {run.kind}", run.trouble)
        return 0.0

    async def _play(
        self, env: Env, task: Task, oracle: Sequence[Mapping[str, Any]], *, pictures: bool = False
    ) -> OracleRun:
        return await retry_episode(lambda: run_oracle(env, task, oracle, pictures=pictures))

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

    def _check_untouched(self, plan: TaskPlan) -> None:
        assert plan.task.evaluation is not None
        score = plan.task.evaluation.score(self._starts[plan.task.start_url])
        if score.reward:
            raise _Dropped(f"untouched: reward {score.reward:g}", "; ".join(score.reasons))

    def _check_walks(self, plan: TaskPlan) -> None:
        assert plan.task.evaluation is not None
        for evidence in self._walks[plan.task.start_url]:
            score = plan.task.evaluation.score(evidence)
            if score.reward:
                raise _Dropped("walks: reward", "; ".join(score.reasons))

    async def _walk_task(self, env: Env, task: Task) -> None:
        """Walk in episodes of a task whose page draws its own problem."""
        for number in range(self._options.walks):
            walk = RandomWalk(task.start_url, f"{self._options.seed} {task.seed} {number}")
            observation, info = await env.reset(task=task)
            for _ in range(self._options.walk_steps):
                action = walk.choose(observation, info)
                walk.actions.append(action)
                observation, reward, terminated, truncated, info = await env.step(action)
                if reward > 0:
                    raise _Dropped("walks: reward", "; ".join(info["score"]["reasons"]))
                if terminated or truncated:
                    break

    async def walk_from(self, collection: str, urls: Iterable[str]) -> None:
        """Walk from start pages of tasks; this precedes the proofs of these tasks.

        Raises:
            InfraError: if browser or proxy fail repeatedly.
            TaskError: if the collection does not hold a start page.
        """
        todo = [
            (Task("walk", "", url, collection, max_steps=self._options.walk_steps + 1), number)
            for url in dict.fromkeys(urls)
            for number in range(max(1, self._options.walks))  # the start itself is in each
        ]
        async with asyncio.TaskGroup() as group:
            walks = [group.create_task(self._walked(*each)) for each in todo]
        for (start, _), walk in zip(todo, walks, strict=True):
            self._starts[start.start_url], *steps = walk.result()
            self._walks.setdefault(start.start_url, []).extend(steps)

    async def _walked(self, start: Task, number: int) -> list[Evidence]:
        env = await self._free.get()
        try:
            return await retry_episode(lambda: self._walk(env, start, number))
        finally:
            self._free.put_nowait(env)

    async def _walk(self, env: Env, start: Task, number: int) -> list[Evidence]:
        seed = f"{self._options.seed} {start.start_url} {number}"
        walk, rng = RandomWalk(start.start_url, seed), clock.seeded("answers", seed)
        observation, info = await env.reset(task=start)
        rules = Rules.parse((await self._client.info()).manifests.get(start.collection, {}).get("rules", ""))
        found = [await self._evidence(observation, info, rules, "")]
        for _ in range(self._options.walk_steps if self._options.walks else 0):
            action = walk.choose(observation, info)
            walk.actions.append(action)
            observation, _, terminated, truncated, info = await env.step(action)
            names = sorted({node.name for node in observation.nodes if node.name}) or [""]
            found.append(await self._evidence(observation, info, rules, rng.choice(names)))
            if terminated or truncated:
                break
        return found

    async def _evidence(
        self, observation: Observation, info: Mapping[str, Any], rules: Rules, answer: str
    ) -> Evidence:
        """Return what an episode's end would read here, for evaluators of answer, URL and requests."""
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
            return f"at step {number}"
    return f"{len(one.steps)} and {len(other.steps)} steps, rewards {one.reward} and {other.reward}"

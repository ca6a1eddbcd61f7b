"""Solvability of tasks under perturbations: the oracle plays each variant, and unsolved tasks are left out.

Steps of an oracle name controls by role and name, so that it plays on other layouts and orders. Under
`content` its names and its answer change with the pages. Under `faults` it waits and reloads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from stillweb.benchmarks.oracle import retry_episode, run_oracle
from stillweb.benchmarks.pages import fold
from stillweb.browser.launch import launch
from stillweb.browser.profile import LEVEL
from stillweb.env import Env, Task
from stillweb.env.episode.perturbation import PERTURB, Perturbation
from stillweb.errors import UsageError
from stillweb.options import Option
from stillweb.replay import ReplayClient


@dataclass(frozen=True, slots=True)
class PerturbTasksOptions:
    """Selection of the variants to prove."""

    perturb: Annotated[Perturbation | None, PERTURB] = None
    perturb_seed: Annotated[int, Option("Seed of the perturbation.")] = 0
    runs: Annotated[int, Option("Runs of each oracle; all must give equal observations.", min=1)] = 2
    jobs: Annotated[int, Option("Tasks to prove at a time.", min=1)] = 4
    level: Annotated[str, LEVEL] = "exact"


@dataclass(frozen=True, slots=True)
class PerturbedTask:
    """A task in one variant.

    Attributes:
        trouble: why it is not solvable; "" if it is.
        steps: steps of the oracle, dismissals and reloads included.
    """

    task: Task
    trouble: str
    digest: str = ""
    steps: int = 0


async def perturb_tasks(
    client: ReplayClient, tasks: Sequence[Task], options: PerturbTasksOptions
) -> list[PerturbedTask]:
    """Play the oracles of tasks in their variants.

    Raises:
        UsageError: without a perturbation.
        InfraError: if browser or proxy fail repeatedly.
    """
    if options.perturb is None:
        raise UsageError("no perturbation is given", hint="--perturb layout=0.5,content")
    info = await client.info()
    free = asyncio.Semaphore(options.jobs)
    async with launch(spki=info.spki, exact=options.level == "exact") as browser:

        async def prove(task: Task) -> PerturbedTask:
            async with (
                free,
                Env(
                    client.url,
                    task.collection,
                    level=options.level,
                    browser=browser,
                    perturb=options.perturb,
                    perturb_seed=options.perturb_seed,
                ) as env,
            ):
                return await _proved(env, task, options.runs)

        async with asyncio.TaskGroup() as group:
            proving = [group.create_task(prove(task)) for task in tasks]
    return [each.result() for each in proving]


async def _proved(env: Env, task: Task, runs: int) -> PerturbedTask:
    if task.origin is None or not task.origin.oracle:
        return PerturbedTask(task, "the task has no oracle")
    play = partial(run_oracle, env, task, task.origin.oracle)
    first = None
    for _ in range(runs):
        run = await retry_episode(play)
        digest = str(run.start.get("perturbation", {}).get("digest", ""))
        steps = len(run.steps) - 1
        if run.reward != 1.0:
            why = run.trouble or "; ".join(run.reasons) or f"reward {run.reward}"
            return PerturbedTask(task, why, digest, steps)
        changed = env.task.origin if env.task and env.task.origin else task.origin
        lost = [each for each in changed.shows if not any(fold(each) in text for text in run.texts)]
        if lost:
            return PerturbedTask(task, f"no page shows {lost[0]!r}", digest, steps)
        if first is not None and run.steps != first:
            return PerturbedTask(task, "two runs have different observations", digest, steps)
        first = run.steps
    return PerturbedTask(task, "", digest, steps)

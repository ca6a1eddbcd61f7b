"""Try a task file before anyone trains on it: every task reset, and scored as it is untouched.

A task that cannot be reset is a broken one; a task that is solved by doing nothing pays for
nothing. Both are found here, with several environments on one browser, in the order of the
file whatever the order in which they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser

from stillweb import clock
from stillweb.browser.launch import launch
from stillweb.env.env import Env
from stillweb.env.task import Task
from stillweb.errors import InfraError, TaskError, UsageError
from stillweb.replay.client import ReplayClient

__all__ = ["Checked", "check_tasks"]


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a task that was reset and scored untouched.

    Attributes:
        outcome: "ok", "task_error" (the task or its collection is wrong) or "infra_error" (we are).
        reward: None unless `outcome` is "ok".
        detail: the evaluator's reason, or the error.
        settled: whether the start page came to rest.
        requests: that the start page made.
        misses: of them, not held by the collection.
        seconds: for reset and score.
    """

    task: str
    collection: str
    outcome: str
    reward: float | None = None
    detail: str = ""
    settled: bool = False
    requests: int = 0
    misses: int = 0
    missed: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


async def check_tasks(
    tasks: Sequence[Task],
    proxy: str,
    *,
    level: str = "clock",
    jobs: int = 2,
    browser: Browser | None = None,
    on_checked: Callable[[Checked], None] = lambda _: None,
) -> list[Checked]:
    """Reset every task and score it untouched, `jobs` at a time in one browser.

    Raises:
        ReplayUnreachable: if no replay server answers at `proxy`.
        InfraError: if the browser does not start or does not keep the level.
    """
    rows: list[Checked | None] = [None] * len(tasks)
    todo = iter(enumerate(tasks))
    async with AsyncExitStack() as stack:
        if browser is None:
            async with ReplayClient(proxy) as client:
                spki = (await client.info()).spki
            browser = await stack.enter_async_context(launch(spki=spki, exact=level == "exact"))
        envs = [Env(proxy, level=level, observe=(), browser=browser) for _ in range(min(jobs, len(tasks)))]
        for env in envs:
            await stack.enter_async_context(env)
        async with asyncio.TaskGroup() as group:
            for env in envs:
                group.create_task(_work(env, todo, rows, on_checked))
    return [row for row in rows if row is not None]


async def _work(
    env: Env, todo: Any, rows: list[Checked | None], on_checked: Callable[[Checked], None]
) -> None:
    for index, task in todo:
        rows[index] = row = await _check(env, task)
        on_checked(row)


async def _check(env: Env, task: Task) -> Checked:
    started = clock.perf()
    try:
        _, info = await env.reset(task=task)
        _, reward, _, _, last = await env.step({"action": "terminate"})
    except (InfraError, TaskError, UsageError) as error:
        outcome = "infra_error" if isinstance(error, InfraError) else "task_error"
        return Checked(task.id, task.collection, outcome, detail=str(error), seconds=clock.perf() - started)
    return Checked(
        task=task.id,
        collection=info["collection"],
        outcome="ok",
        reward=reward,
        detail="; ".join(last["score"]["reasons"]),
        settled=info["settle"]["settled"],
        requests=info["traffic"]["requests"],
        misses=info["traffic"]["misses"],
        missed=tuple(info["traffic"]["missed"]),
        seconds=clock.perf() - started,
    )

"""Episodes on Ray workers against one VectorEnv with as many sessions: steps per second, as ratios.

    python bench/ray_rollout.py --shared ../shared [--sessions 4] [--workers 1,2] [--episodes 16] [--rounds 2]

Tasks of WARC-Bench are solved by the plans of bench/solutions. The VectorEnv plays on a replay server that
is a program beside; each Ray worker serves the packs itself, fetched by digest. All stand ready the whole
time and play the same episodes in turns, so that a busy machine slows each. On one machine this shows what
actors cost: the way of calls and results, and a browser and a replay server more for each worker. It
cannot show that throughput grows with machines; where one browser fills all cores, 2 workers can at best be
as fast as 1. Prints JSON; no gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import ray
from rollout import OPTIONS, PLANS, Course, numbers
from serving import program
from warc_bench import prepare

from stillweb.browser.launch import browser_build
from stillweb.collections.layout import Collection
from stillweb.collections.pack.publish import PackRemote
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import Task
from stillweb.env.vector.rollout import Rollout
from stillweb.env.vector.vector import VectorEnv
from stillweb.trainers.ray.rollouts import RayOptions, RayRollouts, WorkerPlacement

HERE = Path(__file__).resolve().parent


def agent(task: Task) -> Course:
    """Solve a task by its plan; workers import it by name."""
    return Course(task, 0.0)


async def by_vector(vector: VectorEnv, tasks: Sequence[Task]) -> AsyncIterator[Rollout]:
    async for ended in vector.rollout(agent, tasks):
        yield ended


async def by_ray(rollouts: RayRollouts, tasks: Sequence[Task]) -> AsyncIterator[Rollout]:
    async for episode in rollouts.rollout("ray_rollout:agent", tasks):
        yield episode.rollout


async def timed(playing: AsyncIterator[Rollout]) -> Counter[str]:
    counted: Counter[str] = Counter()
    began = time.perf_counter()
    async for ended in playing:
        counted.update(steps=len(ended.steps), episodes=1, solved=int(ended.reward == 1.0))
        counted["failed"] += ended.reward is None
    counted["seconds"] = time.perf_counter() - began  # type: ignore[assignment]
    return counted


async def compare(
    url: str, remote: str, options: argparse.Namespace, tasks: Sequence[Task]
) -> dict[str, Any]:
    names = sorted({task.collection for task in tasks})
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        vector = VectorEnv(url, options.sessions, level=options.level, options=OPTIONS)
        await stack.enter_async_context(vector)
        ways: dict[str, Any] = {"vector": lambda: by_vector(vector, tasks)}
        for workers in options.workers:
            chosen = RayOptions(
                level=options.level,
                placement=WorkerPlacement(num_cpus=0.1),
                store=options.work / "store",
                vector=OPTIONS,
            )
            packs = {name: name for name in names}
            each = max(1, options.sessions // workers)
            rollouts = RayRollouts(workers, each, packs=packs, remote=remote, options=chosen)
            await stack.enter_async_context(rollouts)
            ways[f"ray {workers}"] = lambda rollouts=rollouts: by_ray(rollouts, tasks)
        started = time.perf_counter() - began
        spent: dict[str, Counter[str]] = {way: Counter() for way in ways}
        for way in ways.values():
            await timed(way())  # fills caches of files, loads the agent
        for turn in range(options.rounds):
            for way in list(ways)[:: 1 if turn % 2 == 0 else -1]:
                spent[way] += await timed(ways[way]())
                print(way, dict(spent[way]), file=sys.stderr)
    answer = {
        way: {name: round(count, 2) for name, count in counts.items()}
        | {"steps_per_second": round(counts["steps"] / counts["seconds"], 3)}
        for way, counts in spent.items()
    }
    base = answer["vector"]["steps_per_second"]
    ratios = {
        way: round(each["steps_per_second"] / base, 2) for way, each in answer.items() if way != "vector"
    }
    return {"started_in": round(started, 1), "ways": answer, "ratio_to_vector": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=HERE.parents[1] / "shared")
    parser.add_argument("--work", type=Path, default=Path("out/ray"))
    parser.add_argument("--collection", default="synthetic_train")
    parser.add_argument("--sessions", type=int, default=4, help="in all, over all workers")
    parser.add_argument("--workers", type=numbers, default=[1, 2])
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--level", choices=["network", "clock", "exact"], default="clock")
    options = parser.parse_args()

    listed = load_tasks(options.shared / "tasks" / "warc_bench_public.json")
    tasks = [task for task in listed if task.id in PLANS.policies and task.collection == options.collection]
    random.Random("rollout").shuffle(tasks)  # of all kinds, and the same ones each time
    tasks = tasks[: options.episodes]
    work = options.work = options.work.resolve()
    if not (work / "collections").exists():
        prepare(options.shared, work / "collections", {options.collection})
    remote = f"file://{work}/share"
    PackRemote(remote).push(
        Collection.open(work / "collections", options.collection).pack, options.collection
    )
    folder = tempfile.mkdtemp(prefix="sw-ray-")  # its sockets want a short path
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
        runtime_env={"env_vars": {"PYTHONPATH": str(HERE)}},
    )
    try:
        with program(options.collection, root=work / "collections", certs=work / "certs", quiet=True) as (
            _,
            answer,
        ):
            result = asyncio.run(compare(answer["control"], remote, options, tasks))
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "browser": browser_build().version,
        "cores": os.cpu_count(),
        "ray": ray.__version__,
        "sessions": options.sessions,
        "level": options.level,
        **result,
    }
    (work / "ray_rollout.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""Journeys with own text: how often each runs as the first time, what it scores, and which requests miss.

    python bench/journeys.py bench/journeys/shop.yaml --root DIR [--runs 40] [--jobs 2] [--only TEXT]

A journey is a task with an oracle that types what no recording has (`origin.oracle`). DIR/collections holds
its collection, whose forms `stillweb record forms` proved. Each run is an episode at level `exact` with
derived answers, observed as axtree, dom and screenshot. Two runs are identical if the digests of all
observations, the statuses of all actions and the rewards are equal. Prints JSON, and a Markdown table on
stderr. Exit status 1 if a run differs, or scores less than 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.benchmarks.oracle import OracleRun, run_oracle
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.env import Env, EnvOptions, Task
from stillweb.env.env import open_envs
from stillweb.env.tasks.load import load_tasks
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.replay import ReplayOptions, serve

OBSERVED = ("axtree", "dom", "screenshot")


async def journey(envs: list[Env], task: Task, runs: int) -> dict[str, Any]:
    """Play a task's oracle several times, as many at a time as there are environments."""
    assert task.origin is not None
    began = clock.perf()
    done: list[OracleRun] = []
    traffic: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    todo = iter(range(runs))

    async def work(env: Env) -> None:
        async def count(_: Any, info: Any) -> None:
            traffic.update({name: info["traffic"][name] for name in ("requests", "misses", "derived")})
            missed.update(info["traffic"]["missed"])

        for _ in todo:
            done.append(await run_oracle(env, task, task.origin.oracle, before_act=count))

    await asyncio.gather(*(work(env) for env in envs))
    streams = Counter(json.dumps([run.steps, run.reward, run.trouble]) for run in done)
    return {
        "journey": task.id,
        "runs": len(done),
        "identical": max(streams.values()),
        "streams": len(streams),
        "rewards": dict(Counter(str(run.reward) for run in done)),
        "steps": len(done[0].steps) - 1,
        "flags": sorted({flag for run in done for flag in run.flags}),
        "trouble": sorted({run.trouble for run in done if run.trouble}),
        "reasons": sorted({reason for run in done for reason in run.reasons}),
        "requests of a run": {name: round(number / len(done), 2) for name, number in traffic.items()},
        "missed": dict(missed.most_common(20)),
        "seconds of a run": round((clock.perf() - began) / len(done), 2),
    }


async def main() -> None:
    """Play all journeys of the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="Journeys whose id includes this text.")
    args = parser.parse_args()
    tasks = [task for path in args.files for task in load_tasks(path) if args.only in task.id]
    collections = [
        Collection(args.root / "collections", name) for name in {each.collection for each in tasks}
    ]
    options = ReplayOptions(
        port=0, session_ports=None, policy=Policy(unrecorded=UnrecordedAnswers(derived=True))
    )
    results = []
    async with (
        serve(collections, CertAuthority.load_or_init(args.root / "certs"), options) as server,
        open_envs(
            server.url, args.jobs, level="exact", observe=OBSERVED, options=EnvOptions(max_steps=100)
        ) as envs,
    ):
        for task in tasks:
            results.append(await journey(envs, task, args.runs))
            sys.stderr.write(_row(results[-1]))
    print(json.dumps(results, indent=2))
    sys.exit(any(each["identical"] < each["runs"] or set(each["rewards"]) != {"1.0"} for each in results))


def _row(each: dict[str, Any]) -> str:
    rewards = ", ".join(f"{number} x {reward}" for reward, number in each["rewards"].items())
    counts = each["requests of a run"]
    return (
        f"| {each['journey']} | {each['identical']} of {each['runs']} | {rewards} | {each['steps']} "
        f"| {counts.get('derived', 0)} | {counts.get('misses', 0)} | {each['seconds of a run']} |\n"
    )


if __name__ == "__main__":
    asyncio.run(main())

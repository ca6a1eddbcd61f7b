"""Perturbed oracles: whether runs of one seed are identical, whether seeds differ, and what a step costs.

    python bench/perturbations.py tasks.yaml --root DIR [--tasks 5] [--runs 20] [--seeds 3] [--strength 1]

Draws made tasks by lot (`stillweb tasks make`) and plays their oracles under each kind of perturbation, at
level `exact`. The first runs of a seed alternate with unperturbed ones, so that both have the same load.
Then each task is played once with other seeds. Prints JSON, and a Markdown table on stderr. Exit status 1 if
two runs of one seed differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stillweb import clock
from stillweb.benchmarks.oracle import OracleRun, run_oracle
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.env import Env, EnvOptions, Task
from stillweb.env.env import open_envs
from stillweb.env.episode.perturbation import KINDS
from stillweb.env.tasks.load import load_tasks
from stillweb.replay import ReplayOptions, serve

_PLAIN = 4  # runs of a task that alternate with unperturbed ones


@dataclass
class Measured:
    """Runs of one kind."""

    tasks: int = 0
    runs: int = 0
    identical_tasks: int = 0
    solved: int = 0
    digests: list[int] = field(default_factory=list)
    """Different digests of the variants of all seeds, by task."""
    observations: list[int] = field(default_factory=list)
    plain_ms: list[float] = field(default_factory=list)
    perturbed_ms: list[float] = field(default_factory=list)
    trouble: set[str] = field(default_factory=set)

    def row(self, kind: str) -> str:
        """Return a row of the table."""
        plain, perturbed = median(self.plain_ms), median(self.perturbed_ms)
        return (
            f"| `{kind}` | {self.solved} of {self.runs} | {self.identical_tasks} of {self.tasks} "
            f"| {self.digests} | {self.observations} | {plain:.0f} | {perturbed:.0f} "
            f"| {perturbed / plain:.2f} |\n"
        )


async def played(env: Env, task: Task) -> tuple[OracleRun, float]:
    """Play a task's oracle; return the run, and milliseconds a step without the reset."""
    assert task.origin is not None
    began: list[float] = []

    async def note(*_: Any) -> None:
        began.append(clock.perf())

    run = await run_oracle(env, task, task.origin.oracle, before_act=note)
    return run, 1000 * (clock.perf() - began[0]) / max(1, len(run.steps) - 1) if began else 0.0


async def measured(env: Env, kind: str, tasks: list[Task], args: argparse.Namespace) -> Measured:
    """Measure one kind of perturbation."""
    found = Measured(len(tasks))
    for task in tasks:
        streams, digests = set(), set()
        for number in range(args.runs):
            if number < _PLAIN:
                env.set_perturbation(None)
                found.plain_ms.append((await played(env, task))[1])
            env.set_perturbation(f"{kind}={args.strength}", seed=1)
            run, cost = await played(env, task)
            if number < _PLAIN:
                found.perturbed_ms.append(cost)
            found.runs += 1
            found.solved += run.reward == 1.0
            found.trouble |= {run.trouble} - {""}
            streams.add(json.dumps([run.steps, run.reward]))
            digests.add(run.start["perturbation"]["digest"])
        found.identical_tasks += len(streams) == len(digests) == 1
        for seed in range(2, 2 + args.seeds):
            env.set_perturbation(f"{kind}={args.strength}", seed=seed)
            run, _ = await played(env, task)
            streams.add(json.dumps([run.steps, run.reward]))
            digests.add(run.start["perturbation"]["digest"])
        found.digests.append(len(digests))
        found.observations.append(len(streams))
    return found


async def main() -> None:
    """Measure all kinds on the same tasks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    made = [task for path in args.files for task in load_tasks(path) if task.origin]
    tasks = random.Random(7).sample(made, min(args.tasks, len(made)))
    names = sorted({each.collection for each in tasks})
    collections = [Collection(args.root / "collections", name) for name in names]
    ca = CertAuthority.load_or_init(args.root / "certs")
    found: dict[str, Any] = {"tasks": [each.id for each in tasks]}
    options = ReplayOptions(port=0, session_ports=None)
    async with (
        serve(collections, ca, options) as server,
        open_envs(server.url, 1, level="exact", options=EnvOptions(max_steps=100)) as envs,
    ):
        for kind in args.kinds.split(","):
            result = await measured(envs[0], kind, tasks, args)
            sys.stderr.write(result.row(kind))
            found[kind] = {**vars(result), "trouble": sorted(result.trouble)}
    print(json.dumps(found, indent=2))
    done = [each for each in found.values() if isinstance(each, dict)]
    sys.exit(any(each["identical_tasks"] < each["tasks"] for each in done))


if __name__ == "__main__":
    asyncio.run(main())

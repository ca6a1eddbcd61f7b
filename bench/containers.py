"""The same episode several times through each container, and what was identical.

    stillweb demo --out /tmp/demo && cp -r /tmp/demo/collections/bookshop collections/
    STILLWEB_UID=$(id -u) STILLWEB_GID=$(id -g) docker compose up -d replay pywb
    python bench/containers.py --native http://127.0.0.1:8080 --pywb http://127.0.0.1:8090 [--runs 5]

Prints JSON: rewards, and per step and kind of observation how many runs saw what most saw; for each
back-end by itself and for all runs of both together. The bookshop must be the default collection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from stillweb.cli.demo_site.street import KINDS, Trajectory, compare, run_episodes
from stillweb.replay import ReplayClient


async def episodes(url: str, runs: int) -> list[Trajectory]:
    """Run the episode one after the other, each in a browser of its own."""
    async with ReplayClient(url) as client:
        spki = (await client.info()).spki
    return [(await run_episodes(url, spki, 1))[0] for _ in range(runs)]


def told(trajectories: list[Trajectory]) -> dict[str, Any]:
    """Return what a set of trajectories has in common."""
    steps = compare(trajectories)
    return {
        "runs": len(trajectories),
        "rewards": [each.reward for each in trajectories],
        "environment_ids": sorted({each.environment_id for each in trajectories}),
        "missed": sorted({url for each in trajectories for url in each.missed}),
        "steps": [{"action": step.action, **step.alike} for step in steps],
        "identical": {kind: all(step.alike[kind] == len(trajectories) for step in steps) for kind in KINDS},
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run both, and lay them side by side."""
    native = await episodes(args.native, args.runs)
    pywb = await episodes(args.pywb, args.runs)
    return {"native": told(native), "pywb": told(pywb), "both": told([*native, *pywb])}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--native", default="http://127.0.0.1:8080")
    parser.add_argument("--pywb", default="http://127.0.0.1:8090")
    parser.add_argument("--runs", type=int, default=5)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()

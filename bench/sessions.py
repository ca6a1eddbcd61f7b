"""Costs of a session: steps per second and core, memory, and time by role, at 1 to 128 live sessions.

    python bench/sessions.py COLLECTION... [--collections DIR] [--level clock] [--sessions 1,8,32,64,128]
                             [--observe axtree] [--browsers 1] [--rounds 2]

Real pages are replayed by `stillweb replay`: those that the collections list, in turn, so that sessions show
different ones. At each number of sessions: resets until there are so many; then every session steps (scrolls
down, scrolls up), none waiting for another; then memory is read while all are live. PSS is summed over
interpreter, driver, browser and its children (/proc/*/smaps_rollup); the *marginal* cost of a session is the
difference quotient between two numbers of sessions. Seconds of processor are read by role (/proc/*/stat):
`busy` is what a role took of one core while sessions stepped; interpreter, driver and browser have one main
thread each, so that 1.0 is the most they can. Replay is a program beside, reported apart. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from processroles import pss, seconds
from serving import program

from stillweb.browser.launch import browser_build
from stillweb.collections.layout import Collection
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import InfraError, TaskError

REPLAY = ("replay", "replay worker")


def pages(options: argparse.Namespace) -> list[Task]:
    """Return the pages of the collections, in turn."""
    listed = [
        [
            Task(page.url, "", page.url, name)
            for page in Collection.open(options.collections, name).page_list()
            if page.url.startswith("http")
        ]
        for name in options.collection
    ]
    longest = max(map(len, listed))
    return [each[i] for i in range(longest) for each in listed if i < len(each)]


async def opened(vector: VectorEnv, first: int, last: int, tasks: list[Task]) -> None:
    """Bring sessions first to last - 1 to a page each; pages that were not recorded are passed over."""

    async def open_one(i: int) -> None:
        for turn in range(len(tasks)):
            try:
                await vector.reset(i, task=tasks[(i + turn * 7) % len(tasks)])
            except TaskError:
                continue
            return
        raise SystemExit("no page of the collections opens")

    await asyncio.gather(*(open_one(i) for i in range(first, last)))


async def stepped(vector: VectorEnv, count: int, rounds: int) -> list[float]:
    """Have so many sessions step; return the seconds of each step."""
    took: list[float] = []

    async def step_one(i: int) -> None:
        for dy in (300, -300) * rounds:
            began = time.perf_counter()
            await vector.step(i, {"action": "scroll", "dy": dy})
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(step_one(i) for i in range(count)))
    return took


def split(counted: Counter[str]) -> tuple[dict[str, float], dict[str, float]]:
    ours = {role: round(value, 2) for role, value in counted.most_common() if role not in REPLAY}
    return ours, {role: round(value, 2) for role, value in counted.items() if role in REPLAY}


async def row(vector: VectorEnv, have: int, count: int, tasks: list[Task], rounds: int) -> dict[str, object]:
    me = os.getpid()
    began, spent = time.perf_counter(), seconds(me)
    await opened(vector, have, count, tasks)
    resets, reset_time = time.perf_counter() - began, seconds(me) - spent
    began, spent = time.perf_counter(), seconds(me)
    took = await stepped(vector, count, rounds)
    wall, used = time.perf_counter() - began, seconds(me) - spent
    memory, replay = split(pss(me))
    times, replay_times = split(used)
    steps = len(took)
    return {
        "sessions": count,
        "resets": {
            "new": count - have,
            "per_second": round((count - have) / resets, 2),
            "cpu_seconds_each": round(sum(split(reset_time)[0].values()) / (count - have), 3),
        },
        "steps": {
            "count": steps,
            "per_second": round(steps / wall, 2),
            "per_second_and_core": round(steps / sum(used.values()), 2),
            "per_second_and_core_without_replay": round(steps / sum(times.values()), 2),
            "seconds_median": round(statistics.median(took), 3),
            "seconds_p95": round(sorted(took)[int(len(took) * 0.95)], 3),
            "cpu_ms_each": {role: round(1000 * value / steps, 1) for role, value in times.items()},
            "busy": {role: round(value / wall, 2) for role, value in (times | replay_times).items()},
        },
        "pss_mib": {"all": round(sum(memory.values()), 1), **memory},
        "replay_pss_mib": replay,
    }


async def measure(url: str, options: argparse.Namespace) -> dict[str, object]:
    counts = [int(each) for each in options.sessions.split(",")]
    tasks = pages(options)
    chosen = VectorOptions(
        pool=PoolOptions(browsers=options.browsers, episodes=10**9),
        env=EnvOptions(step_seconds=600),
        at_once=options.at_once,
    )
    observe = tuple(filter(None, options.observe.split(",")))
    rows: list[dict[str, object]] = []
    result: dict[str, object] = {
        "level": options.level,
        "observe": observe,
        "browser": browser_build().version,
        "machine": {"cores": os.cpu_count(), "cpu": platform.processor() or platform.machine()},
        "collections": options.collection,
        "browsers": options.browsers,
        "at_once": options.at_once or "default",
        "rows": rows,
    }
    async with VectorEnv(url, max(counts), level=options.level, observe=observe, options=chosen) as vector:
        result["pss_mib_without_sessions"] = split(pss(os.getpid()))[0]
        have = 0
        for count in counts:
            try:
                rows.append(await row(vector, have, count, tasks, options.rounds))
            except InfraError as error:  # the machine's end was reached: that, too, is a figure
                result["ended"] = f"at {count} sessions: {error}"
                break
            have = count
            print(json.dumps(rows[-1]), file=sys.stderr)
    add_margins(rows)
    return result


def add_margins(rows: list[dict[str, object]]) -> None:
    for before, after in itertools.pairwise(rows):
        spread = after["sessions"] - before["sessions"]  # type: ignore[operator]
        now, then = after["pss_mib"], before["pss_mib"]
        assert isinstance(now, dict)
        assert isinstance(then, dict)
        after["marginal_pss_mib"] = {
            role: round((value - then.get(role, 0.0)) / spread, 1) for role, value in now.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection", nargs="+")
    parser.add_argument("--collections", type=Path, default=Path("collections"))
    parser.add_argument("--certs", type=Path, default=Path("certs"))
    parser.add_argument("--level", default="clock")
    parser.add_argument("--observe", default="axtree")
    parser.add_argument("--sessions", default="1,8,32,64,128")
    parser.add_argument("--browsers", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=0, help="of resets and steps, see VectorOptions")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with program(*options.collection, root=options.collections, certs=options.certs, quiet=True) as (_, said):
        print(json.dumps(asyncio.run(measure(said["control"], options)), indent=1))


if __name__ == "__main__":
    main()

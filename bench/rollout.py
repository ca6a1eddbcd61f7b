"""Episodes without barriers against episodes in lockstep: steps per second, episodes per minute, ratios.

    python bench/rollout.py --shared ../shared [--sessions 1,4,16,64] [--episodes 32] [--think 0,300]
    python bench/rollout.py --sessions '' --browsergym 1,2 [--browsergym-venv DIR]

Tasks of WARC-Bench are solved by the plans of bench/solutions: at `VectorEnv.rollout`, in which no session
waits for another, and in lockstep: in each round every session takes one step, or begins its next episode,
and all wait for the slowest. A vector of Gymnasium does that with environments that reset
themselves. Both play the same episodes on one replay server, a program beside, in turns within each
round, so that a busy machine slows both. `--think` is the mean of the milliseconds that a policy takes for
an action, drawn from an exponential distribution, equal for both. With 0 both wait for the processor only.

With `--browsergym` so many programs of browsergym-core (bench/browsergym_side.py, without its delays) play
the script of bench/env.py on one page. As many sessions of a VectorEnv play the same calls. Prints JSON;
writes rollout.json and rollout.svg into the work folder. No gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from serving import program
from solver_plans import NoElement, View, load_plans
from warc_bench import prepare

from env import OBSERVE, SCRIPTS, BrowserGym, Ours, browsergym_python, play
from stillweb.browser.launch import browser_build
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import Task
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.errors import InfraError
from stillweb.replay.client import ReplayClient

PLANS = load_plans()
OPTIONS = VectorOptions(env=EnvOptions(max_steps=200, step_seconds=600))
PAGE = "triwest"
COLOURS = ("#1b6ca8", "#c8553d", "#6aa84f", "#8e7cc3")


class Course:
    """An episode's policy: a plan, and how long each of its actions takes to be thought of."""

    def __init__(self, task: Task, think: float) -> None:
        self._plan = PLANS.policies[task.id]
        self._draws = random.Random(task.id)
        self._think = think
        self._generator: Iterator[Any] | None = None

    async def __call__(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self._think:
            await asyncio.sleep(self._draws.expovariate(1 / self._think))
        view = View.of(observation.axtree)
        try:
            if self._generator is None:
                self._generator = self._plan(view)
                return next(self._generator)
            return self._generator.send(view)
        except (StopIteration, NoElement):
            return {"action": "terminate"}


async def freely(vector: VectorEnv, tasks: Sequence[Task], think: float) -> Counter[str]:
    """Play tasks without barriers."""
    counted: Counter[str] = Counter()
    async for rollout in vector.rollout(lambda task: Course(task, think), tasks):
        counted.update(steps=len(rollout.steps), episodes=1, solved=int(rollout.reward == 1.0))
        counted["failed"] += rollout.reward is None
    return counted


async def in_lockstep(vector: VectorEnv, tasks: Sequence[Task], think: float) -> Counter[str]:
    """Play tasks so that in each round every session steps once, or resets, and all wait for the slowest."""
    counted: Counter[str] = Counter()
    todo = iter(tasks)
    live: dict[int, tuple[Course, Any, Any] | None] = dict.fromkeys(range(len(vector)))

    async def go_on(i: int) -> None:
        now = live[i]
        try:
            if now is None:
                task = next(todo, None)
                if task is None:
                    del live[i]
                    return
                live[i] = (Course(task, think), *await vector.reset(i, task=task))
                return
            policy, observation, info = now
            action = await policy(observation, info)
            observation, reward, terminated, truncated, info = await vector.step(i, action)
        except InfraError:
            live[i] = None
            counted.update(episodes=1, failed=1)
            return
        counted["steps"] += 1
        live[i] = (policy, observation, info)
        if terminated or truncated:
            live[i] = None
            counted.update(episodes=1, solved=int(reward == 1.0))

    while live:
        await asyncio.gather(*(go_on(i) for i in tuple(live)))
    return counted


WAYS: dict[str, Callable[..., Any]] = {"free": freely, "lockstep": in_lockstep}


async def compare(url: str, options: argparse.Namespace, tasks: list[Task]) -> list[dict[str, Any]]:
    rows = []
    for think in options.think:
        for sessions in options.sessions:
            chosen = tasks[: max(options.episodes, 2 * sessions)]
            counted: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
            async with VectorEnv(url, sessions, level=options.level, options=OPTIONS) as vector:
                await freely(vector, chosen[:sessions], 0.0)  # launches, and fills caches of files
                for turn in range(options.rounds):
                    for way in list(WAYS)[:: 1 if turn % 2 == 0 else -1]:
                        began = time.perf_counter()
                        counted[way].update(await WAYS[way](vector, chosen, think / 1000))
                        counted[way].update(seconds=time.perf_counter() - began)  # type: ignore[arg-type]
            rows.append(row(think, sessions, counted))
            print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def row(think: float, sessions: int, counted: dict[str, Counter[str]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"think_ms": think, "sessions": sessions}
    for way, counts in counted.items():
        answer[way] = {name: round(count, 2) for name, count in counts.items()} | {
            "steps_per_second": round(counts["steps"] / counts["seconds"], 3),
            "episodes_per_minute": round(60 * counts["episodes"] / counts["seconds"], 2),
        }
    for figure in ("steps_per_second", "episodes_per_minute"):
        answer[f"{figure}_ratio"] = round(answer["free"][figure] / answer["lockstep"][figure], 2)
    return answer


# --- BrowserGym ----------------------------------------------------------------------------------------


class Seat(Ours):
    """A session of a vector that plays scripts of bench/env.py."""

    def __init__(self, vector: VectorEnv, i: int) -> None:
        super().__init__("", "")  # it has no env of its own
        self._vector = vector
        self._i = i

    async def reset(self, name: str, url: str) -> dict[str, Any]:
        self.seen, info = await self._vector.reset(self._i, task=Task(url, "bench", url, name))
        return self._reported(0.0, info)

    async def step(self, call: str, target: tuple[str, ...], *arguments: Any) -> dict[str, Any]:
        bid = [self._find(*target)] if target else []
        action = f"{call}({', '.join(map(repr, [*bid, *arguments]))})"
        self.seen, *_, info = await self._vector.step(self._i, action)
        return self._reported(0.0, info) | {"action": action}


async def play_all(players: Sequence[Any], who: str, episodes: int) -> dict[str, float]:
    """Have each player play the script so many times, beside the others."""

    async def several(player: Any) -> int:
        return sum([len(await play(player, who, PAGE)) - 1 for _ in range(episodes)])

    began = time.perf_counter()
    steps = sum(await asyncio.gather(*map(several, players)))
    return {"steps": steps, "seconds": time.perf_counter() - began}


async def against_browsergym(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    python = browsergym_python(options.browsergym_venv)
    start = SCRIPTS[PAGE][0]
    zero = {"slow_mo": 0, "pre_observation_delay": 0.0}
    rows = []
    for count in options.browsergym:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(ReplayClient(url))
            programs = [BrowserGym.start(python, zero, client) for _ in range(count)]
            theirs = [await stack.enter_async_context(each) for each in programs]
            vector = VectorEnv(url, count, level=options.level, observe=OBSERVE, options=OPTIONS)
            await stack.enter_async_context(vector)
            ours = [Seat(vector, i) for i in range(count)]
            players = {"browsergym zero": theirs, "stillweb": ours}
            for each in players.values():
                await asyncio.gather(*(player.reset(PAGE, start) for player in each))
            spent: dict[str, Counter[str]] = {who: Counter() for who in players}
            for turn in range(options.rounds):
                for who in list(players)[:: 1 if turn % 2 == 0 else -1]:
                    spent[who].update(await play_all(players[who], who, 2))
        rates = {who: each["steps"] / each["seconds"] for who, each in spent.items()}
        answer = {who: round(rate, 3) for who, rate in rates.items()}
        ratio = round(rates["stillweb"] / rates["browsergym zero"], 2)
        rows.append({"at_once": count, "page": PAGE, "steps_per_second": answer, "ratio": ratio})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


# --- a picture -----------------------------------------------------------------------------------------


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return steps per second over sessions, a line for each way and each mean of thinking, as SVG."""
    width, height, left, top = 640, 400, 60, 40
    counts = sorted({each["sessions"] for each in rows})
    most = max(each[way]["steps_per_second"] for each in rows for way in WAYS)
    sizes = (each * 10.0**power for power in range(-2, 6) for each in (1, 2, 5))
    step = next(size for size in sizes if size * 5 > most)
    most = math.ceil(most / step) * step

    def x(sessions: int) -> float:
        return left + (width - left - 170) * (counts.index(sessions) / max(1, len(counts) - 1))

    def y(value: float) -> float:
        return height - 50 - (height - 50 - top) * value / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">Steps per second by sessions</text>',
    ]
    for n in range(round(most / step) + 1):
        value = step * n
        parts.append(f'<path d="M{left} {y(value):.1f}H{width - 170}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for sessions in counts:
        parts.append(f'<text x="{x(sessions):.1f}" y="{height - 30}" text-anchor="middle">{sessions}</text>')
    parts.append(
        f'<text x="{(left + width - 170) / 2}" y="{height - 10}" text-anchor="middle">sessions</text>'
    )
    lines = [(think, way) for think in sorted({each["think_ms"] for each in rows}) for way in WAYS]
    for number, (think, way) in enumerate(lines):
        colour = COLOURS[number // 2 % len(COLOURS)]
        dash = "" if way == "free" else ' stroke-dasharray="5 4"'
        points = [
            (x(each["sessions"]), y(each[way]["steps_per_second"]))
            for each in rows
            if each["think_ms"] == think
        ]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        at = top + 10 + 20 * number
        parts.append(f'<path d="M{width - 155} {at}h24" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{width - 125}" y="{at + 4}">{way}, {think:g} ms</text>')
    return "\n".join([*parts, "</svg>"])


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--work", type=Path, default=Path("out/rollout"))
    parser.add_argument("--sessions", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument(
        "--episodes", type=int, default=32, help="at least; twice the sessions if that is more"
    )
    parser.add_argument("--think", type=numbers, default=[0, 300], help="mean milliseconds of a policy")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--level", choices=["network", "clock", "exact"], default="clock")
    parser.add_argument("--browsergym", type=numbers, default=[], help="simultaneous programs, such as 1,2")
    default = Path.home() / ".cache" / "stillweb-bench" / "browsergym"
    parser.add_argument("--browsergym-venv", type=Path, default=default)
    options = parser.parse_args()

    listed = load_tasks(options.shared / "tasks" / "warc_bench_public.json")
    tasks = [task for task in listed if task.id in PLANS.policies]
    # Pages of all kinds, and not one page after the other: the same ones each time.
    random.Random("rollout").shuffle(tasks)
    root = options.work / "collections"
    names = {task.collection for task in tasks}
    if not root.exists():
        prepare(options.shared, root, names)

    async def run(url: str) -> dict[str, Any]:
        return {
            "browser": browser_build().version,
            "cores": os.cpu_count(),
            "level": options.level,
            "rows": await compare(url, options, tasks),
            "browsergym": await against_browsergym(url, options) if options.browsergym else [],
        }

    with program(*sorted(names), root=root, certs=options.work / "certs", quiet=True) as (_, answer):
        result = asyncio.run(run(answer["control"]))
    text = json.dumps(result, indent=2)
    (options.work / "rollout.json").write_text(text + "\n")
    if result["rows"]:
        (options.work / "rollout.svg").write_text(plot(result["rows"]))
    print(text)


if __name__ == "__main__":
    main()

"""Episodes while browser, driver and replay workers are killed: is one scored wrongly, does anything stay?

    python bench/chaos.py [--episodes 2000] [--kills 105] [--sessions 16] [--level clock] [--seed chaos]

A small site is recorded and served by `stillweb replay` with two workers. Its tasks are such that a page
which broke would be scored: some are true only of a page that works, some of one on which something is
absent; some need an answer of the replay in the step before the score. Each is solved rightly by half of the
episodes and wrongly by the others, so that both 1 and 0 are known beforehand; first of all they are played
undisturbed, and must be worth just that.

Then SIGKILL meets a browser, a Playwright driver, a renderer or a replay worker. The seed draws the victim
and a delay after each so many episodes; if the victim does not run, another is taken. Wanted: every episode
`ok` with the known reward, or `infra_error`; at the end no process, session or profile folder that did not
exist before. Prints JSON; the exit status is 1 where that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from processroles import roles
from serving import program

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.rollout import Outcome, Rollout, RolloutOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.model import Exchange, Request, Response
from stillweb.replay.client import ReplayClient

ORIGIN = "https://chaos.example"
RECORDED = "20260101000000"
HOME = b"""<!doctype html><title>Chaos</title><h1>Chaos</h1>
<label>Name <input id="name"></label>
<a href="/second">Second</a>
<button onclick="fetch('/stock.json').then(a => a.json()).then(s => { out.textContent = s.stock },
  () => { out.textContent = 'failed' })">Stock</button>
<button onclick="banner.remove()">Dismiss</button><p id="banner">Banner</p>
<output id="out"></output><p>The word is heron.</p>"""
SECOND = b"<!doctype html><title>Second</title><h1>Second</h1><a href='/'>Home</a>"
PAGES = {
    "/": ("text/html", HOME),
    "/second": ("text/html", SECOND),
    "/stock.json": ("application/json", b'{"stock": 7}'),
}
VICTIMS = ("browser", "driver", "renderer", "replay worker")


@dataclass(frozen=True)
class Kind:
    """A task with a right and a wrong way to do it; both as (action, name of the element or None)."""

    evaluation: Evaluation
    right: tuple[tuple[dict[str, str], str | None], ...]
    wrong: tuple[tuple[dict[str, str], str | None], ...]


def script(text: str) -> Evaluation:
    return Evaluation(EvalKind.JS, text)


KINDS = {
    "fill": Kind(
        script("document.getElementById('name').value == 'Ada'"),
        (({"action": "fill", "value": "Ada"}, "Name"), ({"action": "terminate"}, None)),
        (({"action": "fill", "value": "Bob"}, "Name"), ({"action": "terminate"}, None)),
    ),
    # This is not true of a page that broke, though the right action was done.
    "fetch": Kind(
        script("document.getElementById('out').textContent == '7'"),
        (({"action": "click"}, "Stock"), ({"action": "terminate"}, None)),
        (({"action": "terminate"}, None),),
    ),
    # This is true of a page that broke, though the wrong action was done.
    "absent": Kind(
        script("!document.getElementById('banner')"),
        (({"action": "click"}, "Dismiss"), ({"action": "terminate"}, None)),
        (({"action": "click"}, "Stock"), ({"action": "terminate"}, None)),
    ),
    "follow": Kind(
        Evaluation(EvalKind.URL, f"{ORIGIN}/second"),
        (({"action": "click"}, "Second"), ({"action": "terminate"}, None)),
        (({"action": "click"}, "Second"), ({"action": "click"}, "Home"), ({"action": "terminate"}, None)),
    ),
    "answer": Kind(
        Evaluation(EvalKind.STRING, "heron"),
        (({"action": "scroll", "dy": "10"}, None), ({"action": "terminate", "answer": "heron"}, None)),
        (({"action": "scroll", "dy": "10"}, None), ({"action": "terminate", "answer": "egret"}, None)),
    ),
}


def tasks(count: int) -> list[Task]:
    """Return so many tasks; the id says what each is worth: kind, way, number."""
    names = [(name, way) for name in KINDS for way in ("right", "wrong")]
    made = []
    for number in range(count):
        name, way = names[number % len(names)]
        made.append(
            Task(f"{name}/{way}/{number}", "", ORIGIN + "/", "chaos", evaluation=KINDS[name].evaluation)
        )
    return made


def worth(task: Task) -> float:
    return float(task.id.split("/")[1] == "right")


def agent(task: Task) -> object:
    """Do what the task's id says."""
    name, way, _ = task.id.split("/")
    plan = iter(getattr(KINDS[name], way))

    def policy(observation: object, _: object) -> dict[str, str]:
        action, element = next(plan)
        if element is None:
            return action
        nodes = observation.nodes  # type: ignore[attr-defined]
        return {**action, "bid": next(each.bid for each in nodes if each.name == element and each.bid)}

    return policy


def record(folder: Path) -> None:
    collection = Collection.create(folder, "chaos")
    with CollectionWriter(collection) as writer:
        for path, (mime, body) in PAGES.items():
            headers = (("Content-Type", mime), ("Content-Length", str(len(body))))
            writer.write(
                Exchange(Request("GET", ORIGIN + path), Response(200, "OK", headers, body), RECORDED)
            )
    collection.write_manifest(Manifest(name="chaos", recorded_at=RECORDED, seed=5))
    seal(collection)


@dataclass
class Run:
    """The counters of a run."""

    killed: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def take(self, each: Rollout) -> None:
        self.outcomes[each.outcome.value] += 1
        self.attempts[each.attempts] += 1
        for error in each.errors:
            self.errors[re.sub(r"https?://\S+?(?=:? |$)|[0-9a-f-]{36}", "...", error)[:100]] += 1
        if each.outcome is Outcome.OK:
            self.rewards[str(each.reward)] += 1
            if each.reward != worth(each.task):
                statuses = [played.status for played in each.steps]
                self.wrong.append(f"{each.task.id}: {each.reward}, {statuses}, {each.info}")
        elif each.outcome is not Outcome.INFRA_ERROR:
            self.other.append(f"{each.task.id}: {each.outcome}, {each.errors}")


def kill(run: Run, draw: random.Random, victims: list[str]) -> None:
    """Kill a victim of a drawn kind."""
    here = roles(os.getpid())
    wanted = draw.choice(victims)
    for what in (wanted, *victims):
        if found := sorted(pid for pid, each in here.items() if each == what):
            os.kill(draw.choice(found), signal.SIGKILL)
            run.killed[what] += 1
            return


async def disturbed(vector: VectorEnv, options: argparse.Namespace, run: Run) -> None:
    draw = random.Random(options.seed)
    every = options.episodes / (options.kills + 1)
    ended, murders = 0, set()
    async for each in vector.rollout(agent, tasks(options.episodes), RolloutOptions(attempts=3)):
        run.take(each)
        ended += 1
        while ended >= every * (sum(run.killed.values()) + len(murders) + 1) and (
            sum(run.killed.values()) + len(murders) < options.kills
        ):
            murders.add(asyncio.ensure_future(later(run, draw, options.victims.split(","), murders)))
        if not ended % 20:
            print(f"{ended} episodes, {dict(run.killed)}, {dict(run.outcomes)}", file=sys.stderr)
    if murders:
        await asyncio.wait(murders)


async def later(run: Run, draw: random.Random, victims: list[str], murders: set[object]) -> None:
    await asyncio.sleep(draw.random())
    kill(run, draw, victims)
    murders.discard(asyncio.current_task())


def folders() -> set[str]:
    return {each.name for each in Path(tempfile.gettempdir()).glob("playwright_chromiumdev_profile-*")}


async def play(url: str, options: argparse.Namespace) -> dict[str, object]:
    calm, run = Run(), Run()
    before = folders()
    pool = VectorOptions(pool=PoolOptions(browsers=options.browsers, episodes=options.budget))
    async with VectorEnv(url, options.sessions, level=options.level, options=pool) as vector:
        async for each in vector.rollout(agent, tasks(2 * len(KINDS))):
            calm.take(each)
        began = time.perf_counter()
        await disturbed(vector, options, run)
        took = time.perf_counter() - began
        browsers = vector.browsers()[-1]["number"] + 1 if vector.browsers() else 0
    async with ReplayClient(url) as client:
        sessions = [each["id"] for each in await client.sessions()]
    return {
        "episodes": sum(run.outcomes.values()),
        "kills": {"all": sum(run.killed.values()), **run.killed},
        "level": options.level,
        "sessions": options.sessions,
        "seconds": round(took, 1),
        "browsers": browsers,
        "undisturbed": {"outcomes": dict(calm.outcomes), "wrong": calm.wrong},
        "outcomes": dict(run.outcomes),
        "rewards": dict(run.rewards),
        "attempts": dict(run.attempts),
        "scored_wrongly": run.wrong,
        "neither_ok_nor_infra": run.other,
        "errors": dict(run.errors.most_common()),
        "sessions_left": [each for each in sessions if each != "default"],
        "profiles_left": sorted(folders() - before),
    }


async def ended(timeout: float) -> list[str]:
    """Wait until nothing runs below this interpreter but itself; return what still does."""
    until = time.monotonic() + timeout
    while True:
        left = [what for pid, what in roles(os.getpid()).items() if pid != os.getpid()]
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=105)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--browsers", type=int, default=2)
    parser.add_argument("--budget", type=int, default=200, help="episodes for each browser")
    parser.add_argument("--victims", default=",".join(VICTIMS))
    parser.add_argument("--level", default="clock")
    parser.add_argument("--seed", default="chaos")
    options = parser.parse_args()
    # A killed driver is reported by asyncio and by the pool, a hundred times.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("stillweb").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as aside:
        os.environ["TMPDIR"] = tempfile.tempdir = aside  # only the driver puts profiles there
        record(Path(name))
        root = Path(name)
        with program("chaos", root=root, certs=root / "certs", workers=2, quiet=True) as (_, said):
            result = asyncio.run(play(said["control"], options))
    result["processes_left"] = asyncio.run(ended(30))
    print(json.dumps(result, indent=1))
    undisturbed = result["undisturbed"]
    assert isinstance(undisturbed, dict)
    kills = result["kills"]
    assert isinstance(kills, dict)
    bad = any(
        result[name]
        for name in (
            *("scored_wrongly", "neither_ok_nor_infra", "sessions_left"),
            *("profiles_left", "processes_left"),
        )
    )
    whole = result["episodes"] == options.episodes and kills["all"] >= options.kills
    sys.exit(bad or not whole or bool(undisturbed["wrong"]))


if __name__ == "__main__":
    main()

"""Random walks at level EXACT, repeated: does any observation or request differ without a flag?

Shares no code with `stillweb certify`, nor with the walks that make its traces. Each walk is chosen once,
alone on a browser. It has clicks on elements and at positions with each button, text, keys, scrolling,
dragging, hovering, lists, uploads, dialogs and tabs. Often it has `back`, `forward`, `reload` and `goto` of
pages that it has seen. Then its actions are repeated at each number of sessions, idle or beside busy
processes, and every run is compared with the first one. Forms of observation are compared byte by byte.
Address, tabs, result of the action, events, settling in the page's time, and the requests in the order of the
replay server are compared, too.

    python bench/walks.py COLLECTIONS [--only shop,wiki] [--walks 5] [--steps 20] [--groups 1,8,16,8+2]
        [--runs 10] [--observe axtree,dom,text,screenshot] [--work out/walks]

A group is a number of sessions, with `+N` beside N busy processes; each has `--runs` runs of each walk. Work
folder: `walks.jsonl`, a line for each group of each walk, and both sides of each first difference. Prints a
Markdown table. A difference counts as flagged if its own or an earlier step of one of the two runs has a
flag.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archives import start_pages
from playwright.async_api import Browser

from stillweb.browser import launch
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.env.env import Env
from stillweb.env.observations.observation import Observation
from stillweb.env.options import EnvOptions
from stillweb.errors import InfraError, StillwebError
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve

Action = Mapping[str, Any]

CLICKED = (
    "link",
    "button",
    "tab",
    "menuitem",
    "checkbox",
    "radio",
    "switch",
    "option",
    "treeitem",
    "gridcell",
)
TYPED = ("textbox", "searchbox", "combobox", "spinbutton")
TEXTS = ("red lamp", "12", "Grace Hopper", "")
KEYS = ("Tab", "Tab Tab Enter", "Enter", "Escape", "ArrowDown", "PageDown", "End", "Space", "a")
CHORDS = (
    "Shift+Tab",
    "Control+a",
    "Control+a Control+c",
    "Control+v",
    "Control+x",
    "Control+z",
    "ArrowRight",
    "Delete",
)
WEIGHTS = {
    **{"click": 8, "scroll": 3, "hover": 2, "fill": 3, "press": 3, "select": 2, "type": 2, "dblclick": 1},
    **{"back": 3, "forward": 1.5, "reload": 2, "goto": 2, "new_tab": 0.5, "switch_tab": 0.5, "wait": 0.5},
    **{
        "drag": 2,
        "mouse_down": 0.5,
        "mouse_up": 0.7,
        "key_down": 0.2,
        "key_up": 0.4,
        "focus": 0.5,
        "clear": 0.5,
    },
    **{"upload": 1, "dialog": 0.5, "close_tab": 0.5},
}
UPLOADED = "note.txt"
SLOW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """The results of one reset or step."""

    parts: Mapping[str, bytes]
    flags: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Run:
    steps: list[Step] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs at one number of sessions, beside busy processes."""

    sessions: int
    busy: int

    @classmethod
    def parse(cls, text: str) -> Group:
        sessions, _, busy = text.partition("+")
        return cls(int(sessions), int(busy or 0))

    def __str__(self) -> str:
        return f"{self.sessions}+{self.busy}" if self.busy else str(self.sessions)


class Chooser:
    """Chooses actions from observations; equal seeds and observations give equal walks."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._seen: list[str] = []

    def choose(self, observation: Observation) -> Action:
        if observation.url.startswith("http") and observation.url not in self._seen:
            self._seen.append(observation.url)
        offers = {kind: offered for kind, offered in self._offers(observation).items() if offered}
        kinds = list(offers)
        kind = self._random.choices(kinds, [WEIGHTS[each] for each in kinds])[0]
        return {"action": kind, **self._random.choice(offers[kind])}

    def _offers(self, observation: Observation) -> dict[str, list[Action]]:
        nodes = [node for node in observation.nodes if node.bid and ("disabled", True) not in node.properties]
        clicked = [{"bid": node.bid} for node in nodes if node.role in CLICKED]
        typed = [node.bid for node in nodes if node.role in TYPED]
        lists = [node for node in nodes if node.role in ("combobox", "listbox")]
        options = [node.name for node in observation.nodes if node.role in ("option", "MenuListOption")]
        anywhere = [self._position() for _ in range(3)]
        pointed = (
            [{**each, "button": "right"} for each in self._random.sample([*clicked, *anywhere], 3)]
            if clicked
            else anywhere
        )
        pairs = [{**each, "to": self._random.choice(clicked)["bid"]} for each in clicked]
        moves = [{**each, "dx": 90, "dy": 40} for each in anywhere]
        return {
            "click": [*clicked, *anywhere, *pointed],
            "dblclick": [*clicked, *anywhere],
            "hover": [*clicked, *anywhere],
            "drag": [*pairs[:20], *moves],
            "mouse_down": anywhere,
            "mouse_up": anywhere,
            "key_down": [{"key": "Shift"}, {"key": "Control"}],
            "key_up": [{"key": "Shift"}, {"key": "Control"}],
            "focus": clicked,
            "clear": [{"bid": bid} for bid in typed],
            "upload": [{"bid": node.bid, "file": UPLOADED} for node in nodes if node.role == "button"],
            "dialog": [{"accept": False}, {"accept": True, "text": "red lamp"}],
            "close_tab": [{}] if len(observation.tabs) > 1 else [],
            "fill": [{"bid": bid, "value": text, "enter": text == "12"} for bid in typed for text in TEXTS],
            "type": [{"bid": bid, "text": text} for bid in typed for text in TEXTS if text]
            + [{"text": TEXTS[0]}],
            "select": [{"bid": node.bid, "value": name} for node in lists for name in options[:40] if name],
            "press": [{"key": key} for key in (*KEYS, *CHORDS)],
            "scroll": [{"dy": dy} for dy in (250, 900, -600)],
            "back": [{}],
            "forward": [{}],
            "reload": [{}],
            "wait": [{"ms": 700}],
            "goto": [{"url": url} for url in self._seen],
            "new_tab": [{"url": url} for url in self._seen] if len(observation.tabs) == 1 else [],
            "switch_tab": [{"tab": tab.index} for tab in observation.tabs if not tab.active],
        }

    def _position(self) -> Action:
        return {"x": self._random.randrange(20, 1240), "y": self._random.randrange(20, 700)}


class Walker:
    """One session of the replay server, with the environment that walks in it."""

    def __init__(self, server: str, client: ReplayClient, env: Env) -> None:
        self._server, self._client, self._env = server, client, env
        self._requests = 0

    async def choose(self, url: str, seed: str, steps: int) -> tuple[list[Action], Run]:
        """Choose a walk by walking."""
        run, actions, chooser = Run(), [], Chooser(seed)
        observation = await self._begin(run, url)
        while observation and len(actions) < steps:
            actions.append(chooser.choose(observation))
            observation = await self._do(run, actions[-1])
        return actions, run

    async def repeat(self, url: str, actions: list[Action]) -> Run:
        run = Run()
        observation = await self._begin(run, url)
        for action in actions:
            if observation:
                observation = await self._do(run, action)
        return run

    async def _begin(self, run: Run, url: str) -> Observation | None:
        self._requests, begun = 0, time.perf_counter()
        try:
            observation, info = await self._env.reset(url=url)
        except InfraError as error:
            run.error = f"reset: {type(error).__name__}: {error}"
            return None
        return await self._keep(run, observation, info, begun)

    async def _do(self, run: Run, action: Action) -> Observation | None:
        begun = time.perf_counter()
        try:
            observation, _, terminated, truncated, info = await self._env.step(action)
        except InfraError as error:
            run.error = f"step {len(run.steps)}, {json.dumps(action)}: {type(error).__name__}: {error}"
            return None
        observed = await self._keep(run, observation, info, begun)
        return None if terminated or truncated else observed

    async def _keep(
        self, run: Run, observation: Observation, info: Mapping[str, Any], begun: float
    ) -> Observation:
        seconds = time.perf_counter() - begun
        ledger = await self._client.ledger(info["session"], after=self._requests)
        self._requests = max([self._requests, *(entry.seq for entry in ledger.entries)])
        requests = [f"{e.method} {e.url} {e.status} {e.tier} {e.resource} {e.bytes}" for e in ledger.entries]
        settle = info["settle"] and {key: info["settle"][key] for key in ("settled", "reason", "virtual_ms")}
        parts = {kind: observation.body(kind) or b"" for kind in observation.digests}
        parts["address"] = repr((observation.url, observation.title, observation.tabs)).encode()
        parts["action"] = repr((info["action"], observation.last_action_error)).encode()
        parts["events"] = json.dumps([info["dialogs"], info["choosers"], info["downloads"]]).encode()
        parts["settle"] = json.dumps(settle).encode()
        parts["requests"] = "\n".join(requests).encode()
        run.steps.append(Step(parts, tuple(info["determinism"]["flags"]), seconds))
        return observation


@dataclass(frozen=True, slots=True)
class Difference:
    step: int
    parts: tuple[str, ...]
    flagged: tuple[str, ...]


def difference(first: Run, other: Run) -> Difference | None:
    """Return the first step at which two runs differ; a run that broke is not compared beyond its end."""
    flagged: list[str] = []
    for number, (a, b) in enumerate(zip(first.steps, other.steps, strict=False)):
        flagged += [*a.flags, *b.flags]
        parts = tuple(name for name in a.parts if a.parts[name] != b.parts.get(name))
        if parts:
            return Difference(number, parts, tuple(dict.fromkeys(flagged)))
    if len(first.steps) != len(other.steps) and not first.error and not other.error:
        return Difference(min(len(first.steps), len(other.steps)), ("length",), tuple(dict.fromkeys(flagged)))
    return None


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processors busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class Bench:
    """Walks in one collection."""

    def __init__(
        self, collection: Collection, args: argparse.Namespace, server: Any, browser: Browser
    ) -> None:
        self._collection, self._args, self._server, self._browser = collection, args, server, browser

    async def walk(self, number: int, url: str, client: ReplayClient) -> list[dict[str, Any]]:
        """Choose and repeat one walk; return a row for each group."""
        name = f"{self._collection.name}-{number}"
        async with self._env() as env:
            actions, first = await Walker(self._server.url, client, env).choose(url, name, self._args.steps)
        (self._args.work / f"{name}.actions.json").write_text(json.dumps([url, *actions], indent=1))
        if first.error:
            note(f"{name}: {first.error}")
        rows = []
        for group in self._args.groups:
            runs = await self._group(group, url, actions, client)
            rows.append(self._row(name, group, first, runs))
        return rows

    def _env(self) -> Env:
        name, forms = self._collection.name, self._args.observe
        options = EnvOptions(uploads=(self._args.work / UPLOADED,))
        return Env(
            self._server.url, name, level="exact", browser=self._browser, observe=forms, options=options
        )

    async def _group(self, group: Group, url: str, actions: list[Action], client: ReplayClient) -> list[Run]:
        left = list(range(self._args.runs))
        runs: list[Run] = []

        async def session() -> None:
            async with self._env() as env:
                while left:
                    left.pop()
                    runs.append(await Walker(self._server.url, client, env).repeat(url, actions))

        with busy(group.busy):
            await asyncio.gather(*(session() for _ in range(min(group.sessions, self._args.runs))))
        return runs

    def _row(self, name: str, group: Group, first: Run, runs: list[Run]) -> dict[str, Any]:
        found = [(number, each) for number, run in enumerate(runs) if (each := difference(first, run))]
        for number, each in found:
            self._report(f"{name}.{group}.{number}", first, runs[number], each)
        steps = [step for run in runs for step in run.steps]
        seconds = [step.seconds for run in runs for step in run.steps[1:]] or [0.0]
        return {
            "walk": name,
            "group": str(group),
            "runs": len(runs),
            "unflagged": sum(not each.flagged for _, each in found),
            "flagged": sum(bool(each.flagged) for _, each in found),
            "errors": [run.error for run in [first, *runs] if run.error],
            "steps": len(steps),
            "flagged_steps": sum(bool(step.flags) for step in steps),
            "flags": sorted({flag for step in steps for flag in step.flags}),
            "slow": sum(step.seconds > SLOW_SECONDS for step in steps),
            "median_ms": round(1000 * statistics.median(seconds)),
            "p90_ms": round(1000 * statistics.quantiles(seconds, n=10)[-1]) if len(seconds) > 1 else 0,
            "differences": [[number, each.step, each.parts, each.flagged] for number, each in found],
        }

    def _report(self, name: str, first: Run, other: Run, found: Difference) -> None:
        kind = "flagged" if found.flagged else "UNFLAGGED"
        note(f"{name}: {kind}: step {found.step}: {', '.join(found.parts)} {list(found.flagged)}")
        for part in found.parts:
            for side, run in (("a", first), ("b", other)):
                if found.step < len(run.steps):
                    path = self._args.work / f"{name}.{found.step}.{part}.{side}"
                    path.write_bytes(run.steps[found.step].parts.get(part, b""))


def note(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Walk in all collections of the folder."""
    rows = []
    ca = CertAuthority.init(Path(tempfile.mkdtemp()) / "certs")
    every = sorted(path.parent.name for path in args.collections.glob("*/manifest.json"))
    for name in args.only or every:
        collection = Collection.open(args.collections, name)
        ensure_sealed(collection)
        pages = start_pages(collection, args.walks)
        async with (
            serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
            ReplayClient(server.url) as client,
            launch(spki=ca.spki_hashes(), exact=True) as browser,
        ):
            bench = Bench(collection, args, server, browser)
            for number in range(args.walks if pages else 0):
                try:
                    found = await bench.walk(number, pages[number % len(pages)], client)
                except StillwebError as error:
                    note(f"{collection.name}-{number}: {type(error).__name__}: {error}")
                    continue
                rows += found
                with (args.work / "walks.jsonl").open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
        note(f"{collection.name}: done")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a line for each collection and group."""
    lines = [
        "| collection | sessions | walks | runs | differ unflagged | flagged | flagged steps | ms a step |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    keys = dict.fromkeys((row["walk"].rpartition("-")[0], row["group"]) for row in rows)
    for name, group in sorted(keys):
        some = [row for row in rows if row["walk"].rpartition("-")[0] == name and row["group"] == group]
        total = {
            key: sum(row[key] for row in some)
            for key in ("runs", "unflagged", "flagged", "steps", "flagged_steps")
        }
        share = f"{total['flagged_steps'] / max(total['steps'], 1):.1%}"
        walls = f"{max(row['median_ms'] for row in some)} ({max(row['p90_ms'] for row in some)})"
        cells = [name, group, len(some), total["runs"], total["unflagged"], total["flagged"], share, walls]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _groups(text: str) -> tuple[Group, ...]:
    return tuple(map(Group.parse, _list(text)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path, help="folder of collections")
    parser.add_argument("--only", type=_list, default=(), metavar="NAME,...")
    parser.add_argument("--walks", type=int, default=5, help="of each collection")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=_groups, default=_groups("1,8,16,1+2,8+2,16+2"))
    parser.add_argument("--runs", type=int, default=10, help="of each walk and group")
    parser.add_argument("--observe", type=_list, default=("axtree", "dom", "text", "screenshot"))
    parser.add_argument("--work", type=Path, default=Path("out/walks"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / UPLOADED).write_text("a note\n")
    print(table(asyncio.run(measure(args))))


if __name__ == "__main__":
    main()

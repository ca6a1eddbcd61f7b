"""How much faster reset and step are than BrowserGym's, in one run on the same replayed pages.

    python bench/env.py --collections DIR [--shared ../shared] [--work out/env] [--rounds 3]
        [--levels network,clock,exact] [--thinks 0,1] [--sessions 1,8,32] [--only shop,wiki]
        [--browsergym-venv DIR]

The other side is the real browsergym-core 0.14.3 (bench/browsergym_side.py), in a virtual environment that is
made on first use. Both sides drive the same browser on the pages of one replay server, each episode with a
session of its own. The session is opened before BrowserGym's clock runs, but is part of our reset. Both play
the same scripts, the same calls in BrowserGym's words, elements by role and name. They take turns within each
round, and the order turns from round to round, so that a busy machine slows all of them.

Our side computes at least as much. BrowserGym: `dom_object` (DOMSnapshot.captureSnapshot), `axtree_object`,
`extra_element_properties` (box, visibility, clickable), `screenshot` (PNG, decoded), addresses and titles;
then `flatten_axtree_to_str`, measured apart and not counted. Ours: `axtree` (that same text, and its nodes),
`dom` (distilled, as text), `html`, `elements` (box, visibility, clickable) and `screenshot` (PNG). Added are
a SHA-256 of each, tabs and the ledger's account of requests. Before that it waits until the page has settled,
where BrowserGym waits for `domcontentloaded`. A reset is what a training loop pays between episodes: the old
episode's end is in it, the first launch of our browser is not (BrowserGym launches two browsers at each
reset).

At `exact` resets are measured cold, and prefetched (`EnvOptions(prefetch=1)`). The script's start is opened
once, and the script is played while the next start is being prepared. Then the same start is requested
again, which is the reset that counts. Between two calls such a player waits for as long as a policy is said
to think (`--thinks`, seconds): at 0 preparing competes with the steps. Other prepared starts are ready, and
at rest, before the next player's turn.

BrowserGym plays twice: `defaults` (slow_mo 1000 ms, as its tasks require; 0.5 s before each observation) and
`zero` (both 0). Besides, at the last level: seconds per step at so many sessions, and how long a page with
3 s of timers takes to settle; the sessions with and without preparing (`prefetch`).

Prints JSON; writes env.json and env.md into the work folder. No gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from env_rest import sessions_at, timers_at

from stillweb.browser.launch import browser_build
from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.env.env import Env, EnvOptions
from stillweb.polling import poll
from stillweb.replay import ReplayClient, ReplayOptions, ensure_sealed, serve

BROWSERGYM = "browsergym-core==0.14.3"
OBSERVE = ("axtree", "dom", "html", "elements", "screenshot")
BOX = "textbox|searchbox"

# A start page, and calls: the name, role and name of the element it is for, further arguments.
SCRIPTS: dict[str, tuple[str, tuple[tuple[Any, ...], ...]]] = {
    "shop": (
        "https://shop.test/catalogue/",
        (
            ("scroll", (), 0, 400),
            ("scroll", (), 0, -400),
            ("fill", (BOX, "Search"), "kettle"),
            ("click", ("link", "Kitchen")),
            ("go_back", ()),
            ("click", ("link", "Garden")),
            ("go_back", ()),
        ),
    ),
    "docs": (
        "https://docs.test/library/asyncio-task.html",
        (
            ("scroll", (), 0, 600),
            ("scroll", (), 0, -600),
            ("fill", (BOX, "Quick search"), "gather"),
            ("click", ("link", "3.11.2 Documentation")),
            ("click", ("link", "Tutorial")),
            ("go_back", ()),
        ),
    ),
    "wiki": (
        "https://wiki.test/doku.php?id=start",
        (
            ("fill", (BOX, "[F]"), "iterator"),
            ("click", ("link", "Recent Changes")),
            ("go_back", ()),
            ("click", ("link", "classes")),
            ("scroll", (), 0, 500),
            ("go_back", ()),
        ),
    ),
    "triwest": (
        "https://joinournetwork.triwest.com/",
        (
            ("scroll", (), 0, 500),
            ("fill", (BOX, "Federal Tax ID"), "123456789"),
            ("fill", (BOX, "CAQH Number"), "42"),
            ("scroll", (), 0, -500),
        ),
    ),
}
ARCHIVES = {"triwest": "triwest.wacz"}


def log(text: str) -> None:
    sys.stderr.write(text + "\n")


# --- BrowserGym ----------------------------------------------------------------------------------------


def browsergym_python(folder: Path) -> Path:
    """Return the interpreter of BrowserGym's virtual environment, made where there is none."""
    python = folder / "bin" / "python"
    if not python.is_file():
        log(f"installing {BROWSERGYM} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    name, _, version = BROWSERGYM.partition("==")  # not by pip: a virtual environment of uv's has none
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout
    if found.strip() != version:
        subprocess.run([python, "-m", "pip", "install", "-q", BROWSERGYM], check=True)
    return python


class BrowserGym:
    """One BrowserGym environment, in a program of its own."""

    def __init__(self, program: asyncio.subprocess.Process, client: ReplayClient) -> None:
        self._program = program
        self._client = client
        self._session = ""

    @classmethod
    @asynccontextmanager
    async def start(
        cls, python: Path, options: dict[str, Any], client: ReplayClient
    ) -> AsyncIterator[BrowserGym]:
        program = await asyncio.create_subprocess_exec(
            python,
            Path(__file__).with_name("browsergym_side.py"),
            str(browser_build().path),
            json.dumps(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=2**20,
        )
        try:
            yield cls(program, client)
        finally:
            assert program.stdin is not None
            program.stdin.close()
            try:
                async with asyncio.timeout(30):
                    await program.wait()
            except TimeoutError:
                program.kill()
                await program.wait()

    async def reset(self, name: str, url: str) -> dict[str, Any]:
        session = await self._client.open_session(name)
        outcome = await self._ask({"do": "reset", "url": url, "proxy": session.proxy})
        if self._session:
            await self._client.close_session(self._session)
        self._session = session.id
        return outcome

    async def step(self, call: str, target: tuple[str, ...], *arguments: Any) -> dict[str, Any]:
        return await self._ask({"do": "step", "call": call, "target": target, "arguments": arguments})

    async def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(command).encode() + b"\n")
        line = await self._program.stdout.readline()
        if not line:
            raise SystemExit(f"BrowserGym ended at {command}")
        outcome: dict[str, Any] = json.loads(line)
        return outcome


# --- ours ----------------------------------------------------------------------------------------------


class Ours:
    """One Env of a level, with a browser of its own.

    Args:
        thinks: seconds between two calls, of one that has its next start prepared; None for one that has not.
    """

    def __init__(self, url: str, level: str, thinks: float | None = None) -> None:
        self._url = url
        self._level = level
        self.thinks = thinks
        self._envs: dict[str, Env] = {}
        self._env: Env | None = None
        self._stack = AsyncExitStack()
        self.seen: Any = None

    async def __aenter__(self) -> Ours:
        options = EnvOptions(prefetch=0 if self.thinks is None else 1)
        env = Env(self._url, level=self._level, observe=OBSERVE, options=options)
        self._env = await self._stack.enter_async_context(env)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def reset(self, name: str, url: str) -> dict[str, Any]:
        from stillweb.env.tasks.task import Task

        assert self._env is not None
        began = time.perf_counter()
        self.seen, info = await self._env.reset(task=Task(url, "bench", url, name))
        return self._reported(time.perf_counter() - began, info)

    async def rest(self) -> int:
        """Wait until the next start is ready; return how many resets found theirs so far."""
        assert self._env is not None
        prefetcher = self._env.prefetcher

        async def ready() -> bool:
            return bool(prefetcher.ready or prefetcher.counts.failed)

        if not await poll(ready, timeout=120, interval=0.02) or prefetcher.counts.failed:
            raise SystemExit(f"a start was not prepared: {prefetcher.counts}")
        return prefetcher.counts.taken

    async def step(self, call: str, target: tuple[str, ...], *arguments: Any) -> dict[str, Any]:
        assert self._env is not None
        bid = [self._find(*target)] if target else []
        action = f"{call}({', '.join(map(repr, [*bid, *arguments]))})"
        began = time.perf_counter()
        self.seen, *_, info = await self._env.step(action)
        return self._reported(time.perf_counter() - began, info) | {"action": action}

    def _reported(self, seconds: float, info: dict[str, Any]) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "flatten": 0.0,  # within
            "error": self.seen.last_action_error,
            "url": self.seen.url,
            "nodes": len(self.seen.nodes),
            "characters": len(self.seen.axtree),
            "settle": info["settle"]["waited"] if info["settle"] else 0.0,
            "settled": bool(info["settle"] and info["settle"]["settled"]),
            "flags": info["determinism"]["flags"],
        }

    def _find(self, role: str, name: str) -> str:
        found = [each for each in self.seen.elements if each.name == name and each.role in role.split("|")]
        if not found:
            raise LookupError(f"no {role} {name!r} in:\n{self.seen.axtree[:2000]}")
        return next((each.bid for each in found if each.visible), found[0].bid)


# --- the run -------------------------------------------------------------------------------------------


def collections_of(args: argparse.Namespace) -> list[Collection]:
    """Return sealed copies of the recordings in the work folder, the archives imported."""
    root = args.work / "collections"
    root.mkdir(parents=True, exist_ok=True)
    found = []
    for name in args.only:
        if not (root / name).is_dir():
            if name in ARCHIVES:
                import_files([args.shared / "archives" / ARCHIVES[name]], root, name)
            else:
                source = next(p for n in (name, f"{name}-1") if (p := args.collections / n).is_dir())
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("pack"))
        found.append(Collection.open(root, name))
        ensure_sealed(found[-1])
    return found


async def play(player: BrowserGym | Ours, who: str, name: str) -> list[dict[str, Any]]:
    """Play a script; return what each of its calls took."""
    url, calls = SCRIPTS[name]
    reset = {"who": who, "page": name, "kind": "reset", "call": "reset"}
    outcome = [reset | await player.reset(name, url)]
    thinks = player.thinks if isinstance(player, Ours) else None
    for call in calls:
        await asyncio.sleep(thinks or 0)
        answer = await player.step(*call)
        outcome.append({"who": who, "page": name, "kind": "step", "call": call[0]} | answer)
    if isinstance(player, Ours) and thinks is not None:  # the first reset was to have this one prepared
        await asyncio.sleep(thinks)
        outcome[0] = reset | await player.reset(name, url)
        outcome[0]["taken"] = await player.rest()
    for each in outcome:
        if each["error"]:
            log(f"{who}: {name}: {each.get('action')}: {each['error']}")
    return outcome


async def compare(url: str, args: argparse.Namespace, python: Path) -> list[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ReplayClient(url))
        players: dict[str, BrowserGym | Ours] = {}
        zero = {"slow_mo": 0, "pre_observation_delay": 0.0}
        for who, options in (("browsergym defaults", {}), ("browsergym zero", zero)):
            if who.split()[1] in args.browsergym:
                side = BrowserGym.start(python, options, client)
                players[who] = await stack.enter_async_context(side)
        for level in args.levels:
            players[f"stillweb {level}"] = await stack.enter_async_context(Ours(url, level))
        for thinks in args.thinks if "exact" in args.levels else ():
            who = f"stillweb exact, prepared, {thinks:g} s of thought"
            players[who] = await stack.enter_async_context(Ours(url, "exact", thinks))
        taken: list[dict[str, Any]] = []
        first, start = args.only[0], SCRIPTS[args.only[0]][0]
        for player in players.values():
            await player.reset(first, start)  # launches, and fills caches of files
            if isinstance(player, Ours) and player.thinks is not None:
                await player.rest()
        for turn in range(args.rounds):
            for name in args.only:
                order = list(players)
                order = order[turn % len(order) :] + order[: turn % len(order)]
                for who in order:
                    played = await play(players[who], who, name)
                    taken += [{"round": turn} | each for each in played]
                    spent = [each["seconds"] for each in played]
                    log(f"{turn} {name} {who}: reset {spent[0]:.2f}, step {statistics.median(spent[1:]):.3f}")
    return taken


def medians(taken: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return of each player the medians of reset and step, over all and by page."""
    result: dict[str, dict[str, Any]] = {}
    for who in dict.fromkeys(each["who"] for each in taken):
        row: dict[str, Any] = {}
        for kind in ("reset", "step"):
            mine = [each for each in taken if each["who"] == who and each["kind"] == kind]
            spent = sorted(each["seconds"] for each in mine)
            row[kind] = {
                "count": len(mine),
                "median": round(statistics.median(spent), 4),
                "mean": round(statistics.fmean(spent), 4),
                "p90": round(spent[int(len(spent) * 0.9)], 4),
                "flatten_median": round(statistics.median(each["flatten"] for each in mine), 4),
                "failed": sum(bool(each["error"]) for each in mine),
                "by_page": {
                    page: round(statistics.median(e["seconds"] for e in mine if e["page"] == page), 4)
                    for page in dict.fromkeys(each["page"] for each in mine)
                },
            }
        result[who] = row
    return result


def ratios(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return how many times as long as ours BrowserGym takes: medians, means, and the least of all pages."""
    result = {}
    for ours in (who for who in rows if who.startswith("stillweb")):
        for other in (who for who in rows if who.startswith("browsergym")):
            outcome: dict[str, Any] = {}
            for kind in ("reset", "step"):
                theirs, mine = rows[other][kind], rows[ours][kind]
                outcome[kind] = round(theirs["median"] / mine["median"], 1)
                outcome[f"{kind}_of_means"] = round(theirs["mean"] / mine["mean"], 1)
                outcome[f"{kind}_by_page"] = {
                    page: round(theirs["by_page"][page] / mine["by_page"][page], 1)
                    for page in mine["by_page"]
                }
            result[f"{other} / {ours}"] = outcome
    return result


def markdown(result: dict[str, Any]) -> str:
    lines = ["| | reset, s | step, s | calls failed |", "|---|--:|--:|--:|"]
    for who, row in result["seconds"].items():
        reset, step = row["reset"], row["step"]
        failed = reset["failed"] + step["failed"]
        lines.append(f"| {who} | {reset['median']:.3f} | {step['median']:.3f} | {failed} |")
    lines += ["", "| times as fast | reset | step | by page: reset | step |", "|---|--:|--:|---|---|"]
    for pair, outcome in result["ratios"].items():
        pages = [
            " ".join(f"{page} {value}" for page, value in outcome[f"{kind}_by_page"].items())
            for kind in ("reset", "step")
        ]
        lines.append(f"| {pair} | {outcome['reset']} | {outcome['step']} | {pages[0]} | {pages[1]} |")
    if result["sessions"]:
        lines += ["", "| sessions | ahead | steps/s | s per step, median | p95 |", "|--:|--:|--:|--:|--:|"]
        for row in result["sessions"]:
            outcome = [row[name] for name in ("sessions", "ahead", "per_second", "median", "p95")]
            lines.append(f"| {' | '.join(map(str, outcome))} |")
    lines += ["", f"3 s of timers: settled in {result['timers']['median']} s ({result['level']}, alone)."]
    return "\n".join(lines) + "\n"


async def measure(args: argparse.Namespace, python: Path) -> dict[str, Any]:
    collections = collections_of(args)
    ca = CertAuthority.load_or_init(args.work / "certs")
    before = os.getloadavg()
    # Other sessions first: no other browser runs then.
    tasks = [(SCRIPTS[name][0], name) for name in args.only]
    level = args.levels[-1]
    timers = await timers_at(args.work, ca, level)
    async with serve(collections, ca, ReplayOptions(port=0, session_ports=None)) as server:
        counts = [int(each) for each in args.sessions.split(",") if each]
        sessions = [
            row
            for ahead in ((0, 1) if level == "exact" else (0,))
            for row in await sessions_at(server.url, level, OBSERVE, counts, tasks, ahead)
        ]
        taken = await compare(server.url, args, python) if args.rounds else []
    rows = medians(taken)
    return {
        "browser": browser_build().version,
        "browsergym": BROWSERGYM,
        "machine": {"cores": os.cpu_count(), "load_before": before, "load_after": os.getloadavg()},
        "observe": OBSERVE,
        "rounds": args.rounds,
        "level": level,
        "seconds": rows,
        "ratios": ratios(rows),
        "sessions": sessions,
        "timers": timers,
        "calls": taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    venv = Path("~/.cache/stillweb-bench/browsergym").expanduser()
    parser.add_argument("--collections", type=Path, required=True)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--work", type=Path, default=Path("out/env"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", default="1,8,32")
    parser.add_argument("--levels", default="network,clock,exact", type=lambda text: text.split(","))
    parser.add_argument("--thinks", default="0,1", type=lambda text: [float(s) for s in text.split(",") if s])
    parser.add_argument("--browsergym", default="defaults,zero", type=lambda text: text.split(","))
    parser.add_argument("--only", default=",".join(SCRIPTS), type=lambda text: text.split(","))
    parser.add_argument("--browsergym-venv", type=Path, default=venv)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    result = asyncio.run(measure(args, browsergym_python(args.browsergym_venv)))
    (args.work / "env.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.work / "env.md").write_text(markdown(result))
    sys.stderr.write(markdown(result))
    print(json.dumps({key: value for key, value in result.items() if key != "calls"}, indent=1))


if __name__ == "__main__":
    main()

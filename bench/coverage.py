"""How often an agent that clicks about leaves what is recorded: without --explore, with it, and after amend.

    python bench/coverage.py --root DIR [--only docs,shop] [--limit 15] [--explore 200] [--explore-time 300]
                             [--links 400] [--alike 60] [--steps 200] [--train 201,202,203]
                             [--test 301,302,303] [--part crawl,explore,amend]

The shared sites must be up. Each site is crawled into DIR/collections/NAME (`--limit` pages). A copy of it is
explored (NAME-explored). A copy of that is amended (NAME-amended) by the agent's misses on the seeds of
`--train`. Requests of controls that the explorer leaves alone (delete, save) are excluded. On each of the
three the agent takes `--steps` steps per seed of `--test`, which is new to all of them. Existing results are
used again: recordings by name, walks by name, seed and steps.

The agent is `stillweb.env.propose_trace`: it knows observations and its seed alone. It clicks, fills (one of
five texts), chooses, scrolls, hovers, goes back and reopens pages that it has seen; from a missed page it
turns back. The explorer gets the same texts, as an author of tasks states what agents will type:
DIR/values.yaml.

Per site and recording: *asking* are the steps that sent a request; *left* those of them that led off the
site: every miss is on a host that the recording does not hold, nor can a recording of a closed site. They are
counted apart: the miss rate is that of the other asking steps, *with those that left* that of all. *Missed*
are the others with a miss; *dead* the steps that ended on a page that was missed or has nothing to act on.
Seconds are real, and those of all runs that a recording is made of: crawl; crawl and explore; crawl, explore
and amend (the walks of the training seeds record nothing, and are not in it).
Prints JSON, and a Markdown table on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from diff import RESOLVE, SITES_CA, stillweb
from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env import EnvOptions, VectorEnv, VectorOptions
from stillweb.env.observations.observation import Observation
from stillweb.env.trajectories.propose import propose_trace
from stillweb.errors import InfraError, TaskError
from stillweb.record.explore.plan import AvoidRules
from stillweb.replay import ReplayClient, ReplayOptions, serve
from stillweb.replay.ledger.file import LedgerLine
from stillweb.replay.ledger.misses import gather_misses
from stillweb.urls import host_of, wire_url

REACH = (*RESOLVE, "--upstream-ca", str(SITES_CA))
PARTS = ("crawl", "explore", "amend")
# Controls that would change a site that others use at the same time.
SKIPPED = r"\bsave\b|\bdeploy\b|\bpublish\b"
VALUES = 'fields: {"*": [Ada, "7", blue, "a longer text, with a comma", ""]}\n'


class Counting:
    """A session that counts the requests of its steps; passed to the agent in place of an Env.

    Attributes:
        pressed: numbers of the ledger that came of controls which are not to be pressed on the live site.
    """

    def __init__(self, vector: VectorEnv, number: int, client: ReplayClient, hosts: set[str]) -> None:
        self._vector = vector
        self._number = number
        self._client = client
        self._hosts = hosts
        self._avoid = AvoidRules.of([SKIPPED])
        self._seen: Observation | None = None
        self.pressed: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.session = ""

    async def reset(self, **given: Any) -> Any:
        self._seen, info = await self._vector.reset(self._number, **given)
        self.session = info["session"]
        return self._seen, info

    async def step(self, action: Any) -> Any:
        avoided = self._is_avoided(action)
        before = await self._last() if avoided else 0
        figures = await self._vector.step(self._number, action)
        if avoided:
            self.pressed.update(range(before + 1, await self._last() + 1))
        self._count(action, figures[0], figures[4]["traffic"])
        self._seen = figures[0]
        return figures

    def _is_avoided(self, action: Any) -> bool:
        assert self._seen is not None
        nodes = [node for node in self._seen.nodes if node.bid and node.bid == action.get("bid")]
        return any(self._avoid.forbids(f'{node.role} "{node.name}"') for node in nodes)

    async def _last(self) -> int:
        """Return the number of the session's last answer so far."""
        ledger = await self._client.ledger(self.session)
        return max((entry.seq for entry in ledger.entries), default=0)

    def _count(self, action: Any, observation: Observation, traffic: dict[str, Any]) -> None:
        self.counts["steps"] += 1
        self.counts["asking"] += traffic["requests"] > traffic["noise"]
        if traffic["misses"]:
            hosts = {host_of(missed.partition(" ")[2]) for missed in traffic["missed"]}
            self.counts["missed" if hosts & self._hosts else "left"] += 1
            self.missed.update(f"{action['action']}: {missed}" for missed in traffic["missed"])
        gone = f"GET {wire_url(observation.url)}" in traffic["missed"]
        self.counts["dead"] += gone or not any(node.bid for node in observation.nodes)

    async def figures(self, name: str) -> dict[str, Any]:
        """Return counts, and the misses as a file of misses has them."""
        lines: list[LedgerLine] = []
        if self.session:
            ledger = await self._client.ledger(self.session, closed=True)
            environment = str((await self._client.info()).collections[name])
            lines = [LedgerLine(self.session, name, environment, each) for each in ledger.entries]
        stored = [
            line
            for line in lines
            if line.entry.seq not in self.pressed and not self._avoid.forbids("", line.entry.url)
        ]
        return {
            "counts": dict(self.counts),
            "missed": self.missed.most_common(),
            "reasons": Counter(each.reason.partition(":")[0] for each in gather_misses(lines)).most_common(),
            "withheld": len(list(gather_misses(lines))) - len(list(gather_misses(stored))),
            "misses": [each.to_line() for each in gather_misses(stored)],
        }


async def walk(root: Path, name: str, url: str, seeds: list[int], steps: int) -> dict[int, dict[str, Any]]:
    """Let agents walk on a recording, one for each seed, beside each other; return what came of each."""
    collection = Collection.open(root / "collections", name)
    seal(collection)
    ca = CertAuthority.load_or_init(root / "certs")
    hosts = {host_of(capture.url) for capture in collection.captures()}
    options = VectorOptions(env=EnvOptions(max_steps=steps + 1), at_once=len(seeds))
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
        VectorEnv(server.url, len(seeds), collection=name, options=options) as vector,
    ):

        async def one(number: int, seed: int) -> dict[str, Any]:
            agent = Counting(vector, number, client, hosts)
            began = clock.perf()
            try:
                await propose_trace(agent, url, seed, steps)  # type: ignore[arg-type]
            except (InfraError, TaskError) as error:
                sys.stderr.write(f"{name} seed {seed}: {error}\n")
                agent.counts["broken"] += 1
            return await agent.figures(name) | {"seconds": round(clock.perf() - began, 1)}

        figures = await asyncio.gather(*(one(number, seed) for number, seed in enumerate(seeds)))
    return dict(zip(seeds, figures, strict=True))


def walked_on(args: argparse.Namespace, name: str, url: str, seeds: list[int]) -> dict[str, Any]:
    """Return what walks came to, walked before or now, all seeds together."""
    counts: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    result: dict[str, Any] = {"seeds": {}, "seconds": 0.0, "withheld": 0, "misses": []}
    files = {seed: args.root / f"{name}-{seed}-{args.steps}.json" for seed in seeds}
    todo = [seed for seed, stored in files.items() if not stored.exists()]
    for some in (todo[at : at + args.beside] for at in range(0, len(todo), args.beside)):
        for seed, figures in asyncio.run(walk(args.root, name, url, some, args.steps)).items():
            files[seed].write_text(json.dumps(figures, indent=1))
    for seed, stored in files.items():
        walked = json.loads(stored.read_text())
        counts.update(walked["counts"])
        missed.update(dict(walked["missed"]))
        reasons.update(dict(walked["reasons"]))
        result["seeds"][seed] = walked["counts"]
        for key in ("seconds", "withheld", "misses"):
            result[key] += walked[key]
    asking, left, missed_steps = (counts[each] for each in ("asking", "left", "missed"))

    def share(some: int, of: int) -> float | None:
        return round(some / of, 4) if of else None

    return {
        **dict(counts),
        "miss_rate": share(missed_steps, asking - left),
        "miss_rate_all": share(missed_steps + left, asking),
        "dead_rate": share(counts["dead"], counts["steps"]),
        "missed_most": missed.most_common(25),
        "reasons": reasons.most_common(10),
        **result,
    }


def prepare(args: argparse.Namespace, name: str, urls: list[str], part: str) -> dict[str, Any]:
    """Make the recording of a part, unless it lies there; return what that took."""
    made = {"crawl": name, "explore": f"{name}-explored", "amend": f"{name}-amended"}
    stored = args.root / f"{made[part]}.json"
    if stored.exists():
        return json.loads(stored.read_text())
    collections = args.root / "collections"
    if part == "crawl":
        figures = stillweb(
            args.root, "record", "crawl", *urls, "-c", name, "--limit", str(args.limit), *REACH
        )
    else:
        source = made["crawl"] if part == "explore" else made["explore"]
        shutil.rmtree(collections / made[part], ignore_errors=True)
        skipped = shutil.ignore_patterns("pack", "versions", "diff")
        shutil.copytree(collections / source, collections / made[part], ignore=skipped)
        secrets = collections / ".secrets" / f"{source}.jsonl"  # so that placeholders stay what they are
        if secrets.exists():
            shutil.copy2(secrets, secrets.with_name(f"{made[part]}.jsonl"))
        manifest = Collection.open(collections, made[part]).manifest()
        Collection.open(collections, made[part]).write_manifest(replace(manifest, name=made[part]))
    if part == "explore":
        values = args.root / "values.yaml"
        values.write_text(VALUES)
        limits = ["--budget", str(args.explore), "--values", str(values), "--explore-skip", SKIPPED]
        limits += ["--explore-links", str(args.links)] if args.links is not None else []
        limits += ["--explore-alike", str(args.alike)] if args.alike is not None else []
        limits += ["--explore-time", str(args.explore_time)] if args.explore_time else []
        figures = stillweb(args.root, "record", "explore", made[part], *limits, *REACH)
    if part == "amend":
        walked = walked_on(args, made["explore"], urls[0], args.train)
        file = args.root / f"{name}-misses.jsonl"
        file.write_text("".join(walked.pop("misses")).replace(f'"{made["explore"]}"', f'"{made["amend"]}"'))
        seal(Collection.open(collections, made[part]))
        limits = ["--unsafe", "--links", str(args.amend_links), "--values", str(args.root / "values.yaml")]
        figures = stillweb(args.root, "record", "amend", made[part], "--misses", str(file), *limits, *REACH)
        figures = {
            "opened": figures.get("opened", 0),
            "train": walked,
            "real_seconds": figures["real_seconds"],
            "exit_status": figures["exit_status"],
            "outcomes": Counter(each["outcome"] for each in figures.get("outcomes", ())),
        }
    small = {
        key: value for key, value in figures.items() if key not in ("pages", "outcomes") or part == "amend"
    }
    collection = Collection.open(collections, made[part])
    small["captures"] = sum(1 for _ in collection.captures())
    small["page_count"] = len(collection.page_list())
    before = {"explore": "crawl", "amend": "explore"}.get(part)
    whole = prepare(args, name, urls, before)["whole_seconds"] if before else 0
    small["whole_seconds"] = round(whole + figures["real_seconds"], 1)
    stored.write_text(json.dumps(small, indent=1))
    return small


def measure(args: argparse.Namespace) -> dict[str, Any]:
    listed = subprocess.run(
        [args.shared / "sites" / "sites.py", "urls"], stdout=subprocess.PIPE, check=True
    ).stdout
    result: dict[str, Any] = {}
    for name, figures in json.loads(listed).items():
        if args.only and name not in args.only:
            continue
        urls = [
            *figures["start"],
            *(url for url in figures["pages"] if ".json" not in url and ".js" not in url),
        ]
        row = result[name] = {}
        for part in args.part:
            cost = prepare(args, name, urls, part)
            made = {"crawl": name, "explore": f"{name}-explored", "amend": f"{name}-amended"}[part]
            # Amend is given what exploring leaves out: its seeds are as new to the exploration.
            walked = walked_on(args, made, urls[0], args.train if part == "explore" else args.test)
            walked.pop("misses")
            row[part] = {"cost": cost, "walked": walked}
            sys.stderr.write(f"{name} {part}: {json.dumps({k: v for k, v in walked.items()})[:1500]}\n")
    return result


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "| site | recording | pages | acts + links | captures | recorded in s | seeds | steps | asking "
        "| left | missed | miss rate | with those that left | dead ends |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in result.items():
        for part, figures in row.items():
            walked, cost = figures["walked"], figures["cost"]
            cells = [walked.get(key, 0) for key in ("steps", "asking", "left", "missed")]
            rates = [walked["miss_rate"], walked["miss_rate_all"], walked["dead_rate"]]
            reported_rates = [f"{100 * rate:.1f} %" if rate is not None else "-" for rate in rates]
            explored = row["explore"]["cost"] if part != "crawl" and "explore" in row else {}
            acts = f"{explored['acts']} + {explored.get('opened', 0)}" if explored else "0"
            spent = [cost["page_count"], acts, cost["captures"], round(cost["whole_seconds"])]
            cells = [name, part, *spent, ", ".join(map(str, walked["seeds"])), *cells, *reported_rates]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--part", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--limit", type=int, default=15)
    parser.add_argument("--explore", type=int, default=200)
    parser.add_argument("--links", type=int)
    parser.add_argument("--alike", type=int, help="controls of one kind that are tried in a state")
    parser.add_argument("--explore-time", type=float)
    parser.add_argument("--amend-links", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--beside", type=int, default=4, help="seeds that walk beside each other")
    for name, usual in (("--train", [201, 202, 203]), ("--test", [301, 302, 303])):
        parser.add_argument(name, type=lambda text: [int(each) for each in text.split(",")], default=usual)
    args = parser.parse_args()
    args.root.mkdir(parents=True, exist_ok=True)
    result = measure(args)
    print(json.dumps(result, indent=1))
    sys.stderr.write(markdown(result) + "\n")


if __name__ == "__main__":
    main()

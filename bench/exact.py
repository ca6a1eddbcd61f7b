"""One stream per trace: how often scripted traces differ, at 1, 8 and 32 sessions, machine loaded and not.

Each collection is a recorded site of `--collections` or an archive of `--shared`. The traces of
`bench/traces/<collection>/` are certified (`stillweb certify`), in three ways. `exact`: at the level under
test on native replay. `plain`, for contrast: as a plain Playwright would have it, nothing pinned, waiting
until network and DOM have been quiet for 500 ms of real time. `pywb`: at the level under test through the
sidecar. Where a collection has no traces yet, they are made by exploring and written there.

    python bench/exact.py --collections DIR [--shared ../shared] [--work out/exact] [--level exact]
        [--only shop,wiki] [--kinds exact,plain,pywb] [--runs 20] [--jobs 1,8,32] [--traces 3] [--steps 20]

Prints JSON; writes exact.json and exact.md into the work folder, after each collection anew. It may be
stopped, and resumes where it was: finished runs and certificates are kept in the work folder, so that after
a change of stillweb another folder (or `--fresh`) is to be given. Nothing here is a gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from archives import start_pages

from stillweb.browser import launch
from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.diff.certify.certificate import Certificate
from stillweb.diff.certify.certify import CertifyOptions, certify
from stillweb.diff.certify.rates import rate
from stillweb.env.env import Env, EnvOptions
from stillweb.env.trajectories.propose import propose_trace
from stillweb.env.trajectories.trace import Trace, run_trace
from stillweb.errors import StillwebError
from stillweb.replay import ReplayClient, ensure_sealed
from stillweb.replay.pywb.backend import serve_by

SITES = ("shop", "wiki", "docs", "data", "flows", "games", "admin")
ARCHIVES = {
    "svelte-gantt": "svelte_gantt.wacz",
    "svelte-toolbar": "svelte_toolbar.wacz",
    "synthetic-train": "synthetic_train.wacz",
    "triwest": "triwest.wacz",
    "wellcare": "wellcare.wacz",
    "solidaritenum": "solidaritenum.warc.gz",
    "kiwix": "kiwix-with-redirects.warc.gz",
}
TRIES = 4  # explored per trace that is kept
GOOD = 0.8  # of the actions of a trace must go well


def log(text: str) -> None:
    sys.stderr.write(text + "\n")


def collection_of(name: str, args: argparse.Namespace) -> Collection | None:
    """Return a collection, copied or imported into the work folder; None if there is nothing to take."""
    root = args.work / "collections"
    if (root / name).is_dir():
        return Collection.open(root, name)
    if name in ARCHIVES:
        file = args.shared / "archives" / ARCHIVES[name]
        if not file.is_file():
            return None
        import_files([file], root, name)
        return Collection.open(root, name)
    found = [args.collections / each for each in (name, f"{name}-1") if args.collections]
    source = next((each for each in found if each.is_dir()), None)
    if source is None:
        return None
    root.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("pack"))
    return Collection.open(root, name)


async def traces_of(collection: Collection, url: str, args: argparse.Namespace) -> list[Trace]:
    """Return the kept traces of a collection; as many as are missing are made now."""
    folder = args.traces_dir / collection.name
    good = [Trace.load(path) for path in sorted(folder.glob("*.jsonl"))[: args.traces]]
    if len(good) == args.traces:
        return good
    pages = start_pages(collection, args.traces)
    async with ReplayClient(url) as client:
        spki = (await client.info()).spki
    async with launch(spki=spki, exact=args.level == "exact") as browser:
        options = EnvOptions(max_steps=args.steps + 1)
        async with Env(url, collection.name, level=args.level, browser=browser, options=options) as env:
            for seed in range(100 * len(good), 100 * len(good) + TRIES * args.traces):
                if len(good) == args.traces:
                    break
                name = f"{collection.name}-{len(good) + 1}"
                try:
                    trace = await propose_trace(
                        env, pages[seed % len(pages)], seed=seed, steps=args.steps, name=name
                    )
                    went = await run_trace(env, trace)
                except StillwebError as error:
                    log(f"{name}, seed {seed}: {error}")
                    continue
                well = sum(step.status == "ok" for step in went.steps[1:])
                log(f"{name}, seed {seed}: {well} of {len(trace.actions)} actions went well")
                if went.failure is None and well >= GOOD * args.steps:
                    trace.dump(folder / f"{name}.jsonl")
                    good.append(trace)
    return good


async def certified(
    collection: Collection, kind: str, ca: CertAuthority, args: argparse.Namespace
) -> Certificate | None:
    path = args.work / "certificates" / kind / f"{collection.name}.json"
    if path.is_file():
        return Certificate.load(path)
    contrast = kind != "exact"
    options = CertifyOptions(
        runs=args.contrast_runs if contrast else args.runs,
        jobs=args.contrast_jobs if contrast else args.jobs,
        level="live" if kind == "plain" else args.level,
        load=not args.unloaded,
        observe=tuple(args.observe),
        folder=args.work / "kept" / kind / collection.name,
    )
    async with serve_by("native", collection, ca) as url:
        traces = await traces_of(collection, url, args)
    if not traces:
        log(f"{collection.name}: no good trace")
        return None
    total, ended = options.total(len(traces)), 0

    def on_run(run: Any) -> None:
        nonlocal ended
        ended += 1
        if ended % 10 == 0 or run.failure:
            log(f"{kind} {collection.name}: {ended} of {total} {run.failure}")

    async with serve_by(kind, collection, ca) as url, ReplayClient(url) as client:
        certificate = await certify(client, collection.name, traces, options, on_run=on_run)
    certificate.write(path)
    log(f"{kind} {collection.name}: {certificate.summary()} ({certificate.seconds:.0f} s)")
    return certificate


def row_of(certificate: Certificate) -> dict[str, Any]:
    """Return what the table says of a collection."""
    traces = certificate.traces
    differences = [t.divergence for t in traces if t.divergence]
    groups = [group for trace in traces for group in trace.groups]
    return {
        "collection": certificate.collection,
        "level": certificate.level,
        "backend": certificate.backend,
        "traces": len(traces),
        "runs": certificate.flakes.tried,
        "differ": sum(group.differ for group in groups),
        "failed": certificate.flakes.to_dict(),
        "broken": certificate.broken,
        # The trace that has most; 1 is promised.
        "streams": {f: max((t.distinct.get(f, 0) for t in traces), default=0) for f in certificate.forms},
        "steps": sum(group.steps for group in groups),
        "flagged": certificate.flagged.to_dict(),
        "unsettled": sum(group.unsettled for group in groups),
        "ms_per_step": _walls(certificate),
        "differs": [
            {
                "trace": d.trace,
                "step": d.step,
                "forms": list(d.forms),
                "looks_like": d.looks_like,
                "node": d.node,
                "requests": list(d.requests[:2]),
                "pixels": [[*place.box, place.element] for place in d.regions[:2]],
            }
            for d in differences
        ],
    }


def _walls(certificate: Certificate) -> dict[str, list[int]]:
    walls: dict[str, list[int]] = {}
    for trace in certificate.traces:
        for group in trace.groups:
            key = f"{group.jobs}{' loaded' if group.loaded else ''}"
            median, p90 = walls.get(key, [0, 0])
            walls[key] = [max(median, round(1000 * group.median)), max(p90, round(1000 * group.p90))]
    return walls


def markdown(rows: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> str:
    answer = {
        "exact": f"level {args.level}, native replay",
        "plain": "plain Playwright: nothing pinned, waiting for quiet in real time",
        "pywb": f"level {args.level}, through the pywb sidecar",
    }
    lines = []
    for kind, listed in rows.items():
        if not listed:
            continue
        pooled = rate(sum(r["failed"]["failed"] for r in listed), sum(r["runs"] for r in listed))
        forms = list(listed[0]["streams"])
        head = [
            "collection",
            "traces",
            "runs",
            *forms,
            "fail",
            "95% bound",
            "flagged steps",
            "what differs first",
        ]
        lines += ["", f"## {answer[kind]}", "", f"All runs pooled: {pooled}.", ""]
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in listed:
            streams = [str(row["streams"].get(form, "-")) for form in forms]
            cells = [row["collection"], row["traces"], row["runs"], *streams, row["failed"]["failed"]]
            cells += [f"{row['failed']['high']:.2%}", f"{row['flagged']['share']:.1%}", _first(row)]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        keys = list(dict.fromkeys(key for row in listed for key in row["ms_per_step"]))
        lines += ["", "Wall time per step in ms, median (p90), of the slowest trace:", ""]
        lines += [
            "| collection | " + " | ".join(f"{key} sessions" for key in keys) + " |",
            "|---|" + "---|" * len(keys),
        ]
        for row in listed:
            walls = [row["ms_per_step"].get(key) for key in keys]
            cells = [f"{wall[0]} ({wall[1]})" if wall else "-" for wall in walls]
            lines.append(f"| {row['collection']} | " + " | ".join(cells) + " |")
    return "\n".join(lines).strip() + "\n"


def _first(row: dict[str, Any]) -> str:
    answer = []
    for each in row["differs"][:2]:
        where = each["looks_like"] or each["node"] or "; ".join(each["requests"]) or str(each["pixels"])
        answer.append(f"{each['trace']} step {each['step']}: {', '.join(each['forms'])}: {where[:90]}")
    return "; ".join(answer).replace("|", "\\|") or "nothing"


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.fresh:
        for folder in ("certificates", "kept"):
            shutil.rmtree(args.work / folder, ignore_errors=True)
    ca = CertAuthority.load_or_init(args.work / "certs")
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in args.kinds}
    for name in [*SITES, *ARCHIVES]:
        if args.only and name not in args.only:
            continue
        collection = collection_of(name, args)
        if collection is None:
            log(f"{name}: not there")
            continue
        ensure_sealed(collection)
        for kind in args.kinds:
            try:
                certificate = await certified(collection, kind, ca, args)
            except StillwebError as error:
                log(f"{kind} {name}: {error}")
                continue
            if certificate:
                rows[kind].append(row_of(certificate))
                write(rows, args)
    return rows


def write(rows: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    (args.work / "exact.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    (args.work / "exact.md").write_text(markdown(rows, args))


def _list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _list(text)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collections", type=Path, help="recorded sites, by name or name-1")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--work", type=Path, default=Path("out/exact"))
    parser.add_argument("--traces-dir", type=Path, default=Path(__file__).parent / "traces")
    parser.add_argument("--level", default="exact")
    parser.add_argument("--only", type=_list, default=(), metavar="NAME,...")
    parser.add_argument("--kinds", type=_list, default=("exact", "plain", "pywb"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--jobs", type=_numbers, default=(1, 8, 32))
    parser.add_argument("--contrast-runs", type=int, default=5, help="of plain and pywb")
    parser.add_argument("--contrast-jobs", type=_numbers, default=(1, 8))
    parser.add_argument("--traces", type=int, default=3, help="per collection")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--observe", type=_list, default=())
    parser.add_argument("--unloaded", action="store_true", help="leave the loaded half out")
    parser.add_argument("--fresh", action="store_true", help="forget the runs of before")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(json.dumps(asyncio.run(measure(args)), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()

"""Import, seal and serve the archives of WARC-Bench, then reset and score all its public tasks untouched.

    python bench/warc_bench.py --shared ../shared --jobs 8
    python bench/warc_bench.py --shared ../shared --jobs 4 --backend pywb --limit 60

Prints one JSON object. Every task has a browser context and a proxy session of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env.check import TaskCheck, check_tasks
from stillweb.env.tasks.load import load_tasks
from stillweb.env.tasks.task import Task
from stillweb.replay.pywb.backend import PywbOptions, serve_pywb
from stillweb.replay.server.server import ReplayOptions, serve


def prepare(shared: Path, root: Path, names: set[str]) -> list[Collection]:
    """Import and seal the archives that tasks name."""
    collections = []
    for name in sorted(names):
        import_files([shared / "archives" / f"{name}.wacz"], root, name)
        collection = Collection.open(root, name)
        seal(collection)
        collections.append(collection)
    return collections


async def run(arguments: argparse.Namespace, tasks: list[Task], folder: Path) -> dict[str, object]:
    started = time.perf_counter()
    collections = prepare(arguments.shared, folder / "collections", {task.collection for task in tasks})
    prepared = time.perf_counter()
    ca = CertAuthority.load_or_init(folder / "certs")
    with Progress(console=Console(stderr=True)) as bar:
        shown = bar.add_task("tasks", total=len(tasks))

        async def check(url: str) -> list[TaskCheck]:
            return await check_tasks(
                tasks,
                url,
                level=arguments.level,
                jobs=arguments.jobs,
                on_checked=lambda _: bar.advance(shown),
            )

        if arguments.backend == "native":
            ports = range(arguments.ports, arguments.ports + 4 * arguments.jobs)
            async with serve(collections, ca, ReplayOptions(port=0, session_ports=ports)) as server:
                rows = await check(server.url)
        else:
            async with serve_pywb(collections, ca, PywbOptions()) as pywb:
                rows = await check(pywb.url)
    seconds = time.perf_counter() - prepared
    return summary(arguments, rows, seconds) | {"prepare_seconds": round(prepared - started, 2)}


def summary(arguments: argparse.Namespace, rows: list[TaskCheck], seconds: float) -> dict[str, object]:
    missed = Counter(url for row in rows for url in row.missed)
    return {
        "backend": arguments.backend,
        "level": arguments.level,
        "jobs": arguments.jobs,
        "tasks": len(rows),
        "infra_errors": sum(row.outcome == "infra_error" for row in rows),
        "task_errors": sum(row.outcome == "task_error" for row in rows),
        "untouched_rewards": dict(Counter(str(row.reward) for row in rows)),
        "solved_untouched": [row.task for row in rows if row.reward],
        "scripts_that_throw": sum("threw" in row.detail for row in rows),
        "unsettled": [row.task for row in rows if row.outcome == "ok" and not row.settled],
        "misses": sum(row.misses for row in rows),
        "missed": dict(missed.most_common(10)),
        "errors": [(row.task, row.detail) for row in rows if row.outcome != "ok"][:10],
        "seconds": round(seconds, 2),
        "tasks_per_second": round(len(rows) / seconds, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--backend", choices=["native", "pywb"], default="native")
    parser.add_argument("--level", choices=["network", "clock", "exact"], default="clock")
    parser.add_argument("--jobs", type=int, default=4, help="simultaneous environments")
    parser.add_argument("--ports", type=int, default=28100, help="first session port")
    parser.add_argument("--limit", type=int, help="the first so many tasks only")
    arguments = parser.parse_args()
    tasks = load_tasks(arguments.shared / "tasks" / "warc_bench_public.json")[: arguments.limit]
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(arguments, tasks, Path(folder)))
    print(json.dumps(result, indent=2))
    return 1 if result["infra_errors"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Further measurements of bench/env.py: steps of many sessions, and a page with 3 s of timers."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sessions import opened, stepped

from stillweb.browser import Activity, Level, Pinning, Profile, launch, open_context, settle
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.options import EnvOptions
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayClient, ReplayOptions, serve

TIMERS = """<!doctype html><title>Timers</title><p id="out">0</p><script>
let n = 0;
function tick() { out.textContent = ++n; if (n < 30) setTimeout(tick, 100); }
setTimeout(tick, 100);
</script>"""
TIMERS_URL = "https://timers.test/"


async def sessions_at(
    url: str,
    level: str,
    observe: Sequence[str],
    counts: list[int],
    pages: list[tuple[str, str]],
    ahead: int,
) -> list[dict[str, Any]]:
    """Return what a step takes at so many sessions, none waiting for another, on the same pages.

    The sessions think of nothing, so that what is prefetched competes with their first steps.
    """
    if not counts:
        return []
    tasks = [Task(page, "bench", page, name) for page, name in pages]
    chosen = VectorOptions(
        pool=PoolOptions(episodes=10**9), env=EnvOptions(step_seconds=600, max_steps=10**6, prefetch=ahead)
    )
    rows = []
    async with VectorEnv(url, max(counts), level=level, observe=tuple(observe), options=chosen) as vector:
        for count in counts:
            took: list[float] = []
            wall = 0.0
            for first in range(0, len(tasks), count):  # few sessions see the pages in turn
                await opened(vector, 0, count, tasks[first:] + tasks[:first])
                began = time.perf_counter()
                took += await stepped(vector, count, max(2, 16 // count))
                wall += time.perf_counter() - began
            rows.append(
                {
                    "sessions": count,
                    "ahead": ahead,
                    "steps": len(took),
                    "per_second": round(len(took) / wall, 1),
                    "median": round(statistics.median(took), 3),
                    "p95": round(sorted(took)[int(len(took) * 0.95)], 3),
                }
            )
    return rows


async def timers_at(work: Path, ca: CertAuthority, level: str, runs: int = 7) -> dict[str, Any]:
    """Return how long a page takes to settle whose timers change it for 3 s, alone."""
    collection = _timers(work / "timers")
    taken, virtual = [], 0
    async with (
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
        launch(spki=(await client.info()).spki, exact=level == "exact") as browser,
    ):
        for _ in range(runs):
            session = await client.open_session(collection.name)
            pinning = Pinning(Level(level), 7, datetime(2024, 5, 6, tzinfo=UTC))
            context = await open_context(browser, proxy=session.proxy, profile=Profile(), pinning=pinning)
            activity = Activity(context)
            page = await context.new_page()
            await page.goto(TIMERS_URL, wait_until="commit")
            settled = await settle(page, activity, horizon=6000)
            if not settled.settled or not await page.locator("text=30").count():
                raise SystemExit(f"the timers were not waited for: {settled}")
            taken.append(settled.waited)
            virtual = settled.virtual_ms
            activity.close()
            await context.close()
            await client.close_session(session.id)
    return {
        "virtual_ms": virtual,
        "median": round(statistics.median(taken), 3),
        "all": [round(each, 3) for each in taken],
    }


def _timers(root: Path) -> Collection:
    shutil.rmtree(root, ignore_errors=True)
    collection = Collection.create(root, "timers")
    body = TIMERS.encode()
    headers = (("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body))))
    with CollectionWriter(collection) as writer:
        response = Response(200, "OK", headers, body)
        writer.write(Exchange(Request("GET", TIMERS_URL), response, "20240506000000"))
    collection.write_manifest(Manifest(name="timers", recorded_at="20240506000000", seed=7))
    seal(collection)
    return collection

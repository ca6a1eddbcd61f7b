"""The rollout server with many leases: memory, what becomes of killed clients, is its page quick.

    python bench/serve.py COLLECTION... --collections DIR [--leases 128] [--busy 64] [--level clock]
                          [--pictures DIR]

Real pages are replayed by `stillweb replay` and leased by `stillweb serve`, both programs of their own.

*leases*: so many are brought to a page each and kept; then PSS is summed over the server, its drivers and
browsers (/proc/*/smaps_rollup). *orphans*: a client program that holds a quarter of them with a TTL of 5 s is
killed by SIGKILL in the middle of steps; counted are the seconds until the server has all of them back, and
whether any other lease was lost. *monitor*: while so many sessions step without pause, the page is open in a
browser of its own; counted are its long tasks (over 50 ms) and the greatest gap between two frames; pictures
of it go to `--pictures`. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import async_playwright
from processmemory import memory
from serve_chaos import rollout_server
from serving import program

from stillweb.browser.launch import find_browser
from stillweb.collections.layout import Collection
from stillweb.polling import poll

ORPHAN_TTL = 5.0
WATCH = """() => {
  window.tasks = []; window.gap = 0; window.frames = 0; let last = performance.now();
  const long = (list) => { for (const each of list.getEntries()) tasks.push(Math.round(each.duration)); };
  new PerformanceObserver(long).observe({ type: "longtask" });
  const frame = (now) => {
    gap = Math.max(gap, now - last); last = now; frames += 1; requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""


def pages_of(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return collection and URL of the pages, those of several collections in turn."""
    listed = [
        [(name, page.url) for page in Collection.open(options.collections, name).page_list()][: options.pages]
        for name in options.collection
    ]
    return [each[i] for i in range(max(map(len, listed))) for each in listed if i < len(each)]


async def leased(client: httpx.AsyncClient, page: tuple[str, str], **more: Any) -> str:
    """Lease a session and open a page in it; return the lease."""
    name, url = page
    task = {"id": url[-60:], "goal": "", "start_url": url, "collection": name, "max_steps": 1_000_000}
    answer = await client.post("/v1/leases", json={"task": task, "wait": 600, **more})
    answer.raise_for_status()
    lease: str = answer.json()["lease"]
    return lease


async def steps(client: httpx.AsyncClient, lease: str, until: asyncio.Event) -> int:
    """Step until it is stopped; return how often."""
    count = 0
    while not until.is_set():
        dy = 300 if count % 2 == 0 else -300
        answer = await client.post(
            f"/v1/leases/{lease}/step", json={"action": {"action": "scroll", "dy": dy}}
        )
        answer.raise_for_status()
        count += 1
    return count


async def orphan(options: argparse.Namespace) -> None:
    """Be the client that is killed: lease, say so, step until the end."""
    async with httpx.AsyncClient(base_url=options.orphan, timeout=600, trust_env=False) as client:
        pages = pages_of(options)
        opened = 0

        async def one(i: int) -> None:
            nonlocal opened
            lease = await leased(client, pages[i % len(pages)], owner="orphan", ttl=ORPHAN_TTL)
            opened += 1
            if opened == options.busy:
                print("leased", flush=True)
            await steps(client, lease, asyncio.Event())  # from now on, or it would run out

        await asyncio.gather(*(one(i) for i in range(options.busy)))


async def killed_client(url: str, options: argparse.Namespace, held: int) -> dict[str, Any]:
    """Kill a client that holds sessions; return how long the server kept them."""
    command = [sys.executable, __file__, *options.collection, "--collections", str(options.collections)]
    command += ["--orphan", url, "--busy", str(options.leases - held), "--pages", str(options.pages)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"leased\n"
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:

        async def held_now() -> list[dict[str, Any]]:
            return [each for each in (await client.get("/v1/status")).json()["sessions"] if each["lease"]]

        async def in_its_steps() -> bool:
            return any(each["owner"] == "orphan" and each["step"] > 0 for each in await held_now())

        async def back() -> bool:
            return not any(each["owner"] == "orphan" for each in await held_now())

        await poll(in_its_steps, timeout=600, interval=0.1)
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        await poll(back, timeout=600, interval=0.1)
        took = time.monotonic() - began
        stored = len(await held_now())
    await process.wait()
    return {
        "leases_of_the_client": options.leases - held,
        "ttl_s": ORPHAN_TTL,
        "all_back_after_s": round(took, 1),
        "others_lost": held - stored,
    }


async def watched(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Have the page open for a while; return how it went."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser())
        page = await browser.new_page(viewport={"width": 1400, "height": 1000})
        await page.goto(url)
        await page.wait_for_selector(".cell")
        await page.evaluate(WATCH)
        began = time.monotonic()
        await page.wait_for_timeout(options.watch * 1000)
        clicked = time.monotonic()
        await page.click(".cell:nth-child(5)")
        await page.wait_for_selector("#detail:not([hidden])")
        click = time.monotonic() - clicked
        outcome = await page.evaluate("() => ({ tasks, gap, frames })")
        seconds = time.monotonic() - began
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            await page.screenshot(path=options.pictures / "monitor.png")
            await page.emulate_media(color_scheme="dark")
            await page.screenshot(path=options.pictures / "monitor-dark.png")
            await page.set_viewport_size({"width": 390, "height": 844})
            await page.screenshot(path=options.pictures / "monitor-phone.png", full_page=True)
        await browser.close()
    return {
        "seconds": round(seconds, 1),
        "frames_a_second": round(outcome["frames"] / seconds, 1),
        "long_tasks": len(outcome["tasks"]),
        "longest_task_ms": max(outcome["tasks"], default=0),
        "greatest_gap_between_frames_ms": round(outcome["gap"]),
        "click_to_detail_ms": round(1000 * click),
    }


async def measure(options: argparse.Namespace, replay: str) -> dict[str, Any]:
    pages = pages_of(options)
    options.clients, options.at_once = 1, options.leases  # as `rollout_server` requires
    result: dict[str, Any] = {"leases": options.leases, "busy": options.busy, "level": options.level}
    with rollout_server(replay, options, ("--observe", "axtree", "--observe", "screenshot")) as url:
        server = next(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_serve(pid))
        async with httpx.AsyncClient(
            base_url=url, timeout=600, trust_env=False, limits=httpx.Limits()
        ) as client:
            result["idle_pss_mib"] = memory(server)["Pss"]
            opening = (
                leased(client, pages[i % len(pages)], owner="kept", ttl=3600) for i in range(options.leases)
            )
            began = time.monotonic()
            leases = await asyncio.gather(*opening)
            result["opened_after_s"] = round(time.monotonic() - began, 1)
            result["pss_mib"] = memory(server)["Pss"]
            result["pss_mib_a_lease"] = round(
                (result["pss_mib"] - result["idle_pss_mib"]) / options.leases, 1
            )
            gone = leases[: options.leases // 4]
            await asyncio.gather(*(client.delete(f"/v1/leases/{lease}") for lease in gone))
            result["orphans"] = await killed_client(url, options, options.leases - len(gone))
            until = asyncio.Event()
            stepping = [
                asyncio.ensure_future(steps(client, each, until))
                for each in leases[len(gone) :][: options.busy]
            ]
            result["monitor"] = await watched(url, options)
            until.set()
            result["monitor"]["steps_meanwhile"] = sum(await asyncio.gather(*stepping))
    return result


def _is_serve(pid: int) -> bool:
    try:
        return b"stillweb\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection", nargs="+")
    parser.add_argument("--collections", type=Path, default=Path("collections"))
    parser.add_argument("--certs", type=Path, default=Path("certs"))
    parser.add_argument("--leases", type=int, default=128)
    parser.add_argument("--busy", type=int, default=64)
    parser.add_argument("--pages", type=int, default=5, help="of each collection")
    parser.add_argument("--watch", type=float, default=20.0, help="seconds that the page is watched")
    parser.add_argument("--level", default="clock")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--orphan", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.orphan:
        asyncio.run(orphan(options))
        return
    with program(*options.collection, root=options.collections, certs=options.certs, quiet=True) as (_, said):
        print(json.dumps(asyncio.run(measure(options, said["control"])), indent=1))


if __name__ == "__main__":
    main()

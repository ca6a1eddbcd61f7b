"""Navigations per second of eight browser contexts: nginx directly, native replay, pywb; one run, in turns.

Eight pages of the Python manual with all their assets (from the shared archive docs25.wacz), over https. Each
of eight contexts of one headless browser walks through them, a page at a time, until the clock stops; a run
begins with new contexts, so with an empty HTTP cache. The browser connects to nginx directly (by
`--host-resolver-rules`). Native and pywb are the contexts' proxy, native with a session for each context.

    python bench/browser_navigations.py [--shared ../shared] [--seconds 8] [--rounds 5] [--contexts 8]

Prints JSON: medians over rounds, and ratios of neighbours in time. The browser shares the machine with the
servers and takes most of the time; `floors` says which minimum is met. Never gates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

import replay
from stillweb.browser.launch import FLAGS, find_browser, resolver_flag
from stillweb.certs import CertAuthority
from stillweb.errors import ProgramNotFound
from stillweb.replay.pywb.process import find_pywb

PAGES = (
    "/",
    "/bugs.html",
    "/tutorial/index.html",
    "/tutorial/appetite.html",
    "/tutorial/interpreter.html",
    "/tutorial/introduction.html",
    "/tutorial/modules.html",
    "/tutorial/stdlib.html",
)
FLOORS = {"native/nginx": 0.93, "native/pywb": 1.4}


@dataclass(frozen=True)
class Way:
    """A browser, and the proxy that its contexts are given; None for none."""

    browser: Browser
    proxy: Callable[[], str | None]


async def walk(context: BrowserContext, first: int, until: float) -> tuple[int, int]:
    """Go from page to page; return how many were loaded, and how many failed."""
    page = await context.new_page()
    loaded = failed = 0
    while time.perf_counter() < until:
        path = PAGES[(first + loaded + failed) % len(PAGES)]
        try:
            answer = await page.goto(f"https://{replay.HOST}{path}", wait_until="load")
        except PlaywrightError:
            failed += 1
        else:
            good = answer is not None and answer.ok and "3.11.2" in await page.title()
            loaded, failed = loaded + good, failed + (not good)
    return loaded, failed


async def run(way: Way, contexts: int, seconds: float) -> tuple[float, int]:
    """Return navigations per second, and failures, of a run."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(contexts):
            proxy = way.proxy()
            context = await way.browser.new_context(proxy={"server": proxy} if proxy else None)
            stack.push_async_callback(context.close)
            opened.append(context)
        began = time.perf_counter()
        walks = [walk(each, number, began + seconds) for number, each in enumerate(opened)]
        found = await asyncio.gather(*walks)
        took = time.perf_counter() - began
    return sum(loaded for loaded, _ in found) / took, sum(failed for _, failed in found)


async def measured(ways: dict[str, Way], options: argparse.Namespace) -> dict[str, object]:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    failures = dict.fromkeys(ways, 0)
    for turn in range(options.rounds + 1):  # the first one warms up
        for name, way in ways.items():
            seconds = options.seconds if turn else min(3.0, options.seconds)
            rate, failed = await run(way, options.contexts, seconds)
            if turn:
                rates[name].append(rate)
                failures[name] += failed
    result: dict[str, object] = {
        name: {
            "navigations_per_second": round(statistics.median(rates[name]), 2),
            "rounds": [round(rate, 2) for rate in rates[name]],
            "failed": failures[name],
        }
        for name in ways
    }
    floors = {}
    for name, floor in FLOORS.items():
        ours, theirs = name.split("/")
        if ours in rates and theirs in rates:
            ratio = statistics.median(a / (b or 1e9) for a, b in zip(rates[ours], rates[theirs], strict=True))
            floors[name] = {"floor": floor, "ratio": round(ratio, 3), "met": ratio >= floor}
    return result | {"floors": floors}


async def started(playwright: Playwright, ca: CertAuthority, *more: str) -> Browser:
    """Start the browser as stillweb does, with flags of our own behind its: the last one of a name counts."""
    trust = "--ignore-certificate-errors-spki-list=" + ",".join(ca.spki_hashes())
    flags = [*FLAGS, resolver_flag(), trust, *more]
    return await playwright.chromium.launch(
        executable_path=find_browser(), args=flags, chromium_sandbox=False
    )


async def bench(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    replay.lay_out(folder, replay.recorded(options.shared / "archives" / replay.ARCHIVE, folder))
    ca = CertAuthority.init(folder / "certs")
    result: dict[str, object] = {key: getattr(options, key) for key in ("contexts", "seconds", "rounds")}
    ways: dict[str, Way] = {}
    with ExitStack() as servers:
        async with AsyncExitStack() as stack:
            playwright = await stack.enter_async_context(async_playwright())
            if shutil.which("nginx"):
                _, tls, _ = servers.enter_context(replay.nginx(folder, ca))
                rules = f"--host-resolver-rules=MAP {replay.HOST}:443 {tls}, MAP * ~NOTFOUND"
                ways["nginx"] = Way(await started(playwright, ca, rules), lambda: None)
            proxied = await started(playwright, ca)
            control, _, _ = servers.enter_context(replay.replaying(folder, "native"))
            ways["native"] = Way(proxied, lambda: f"http://{replay.open_session(control)}")
            try:
                find_pywb()
                _, pywb, _ = servers.enter_context(replay.replaying(folder, "pywb"))
                ways["pywb"] = Way(proxied, lambda: f"http://{pywb}")
            except ProgramNotFound as error:
                result["pywb"] = {"missing": f"{error} ({error.hint})"}
            result |= await measured(ways, options)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contexts", type=int, default=8)
    options = parser.parse_args()
    if not (options.shared / "archives" / replay.ARCHIVE).is_file():
        print(json.dumps({"skipped": f"no {replay.ARCHIVE} in {options.shared}/archives"}))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(bench(options, Path(folder))), indent=2))


if __name__ == "__main__":
    main()

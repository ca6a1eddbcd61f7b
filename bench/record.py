"""Costs of recording: pages per minute and processor time per page, beside plain Playwright's.

Both sides visit the same pages of docs.test, shop.test or any other sites that are up. Each page has a fresh
context, with the same browser, flags, profile and waits: load event, `settle` (500 ms of the page's own clock
without change), the same behaviors (`--behaviors`: none, all, or some), links. `plain` goes to the site
directly and keeps nothing; `bare` is `stillweb record crawl --no-baseline`: the same through the recording
proxy, written to disk. `portrait` goes to the site directly, and also takes what a baseline holds (picture,
text, trees, digests of bodies, each requested); `recorded` is `stillweb record crawl`: all of that, recorded.

    python bench/record.py [--pages docs=16,shop=12] [--behaviors none] [--rounds 3] [--jobs 1,4]

The sides take turns, each a program of its own, measured from its first page to its last; processor time is
that of all its processes, browser included, and by what they are (`python` is ours, `driver` Playwright's).
Prints JSON: medians over rounds, and ratios of neighbours in time. `browsertrix` quotes the README of the
shared archives, measured on another day. Never gates.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_der_x509_certificate
from playwright.async_api import Browser, BrowserContext, async_playwright
from processroles import roles

from stillweb.browser.activity import Activity
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.context import open_context
from stillweb.browser.launch import FLAGS, find_browser
from stillweb.browser.observe.recorder import PageRecorder
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.browser.settle import settle
from stillweb.certs import CertAuthority
from stillweb.clock import now
from stillweb.collections.layout import Collection
from stillweb.record.behaviors.behaviors import BehaviorTarget, behave
from stillweb.record.behaviors.options import Behavior, BehaviorOptions, parse_behaviors
from stillweb.record.crawl import visit
from stillweb.record.crawl.crawl import crawl
from stillweb.record.crawl.visit import take_baseline
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import parse_all

SITES_CA = Path("~/.cache/stillweb-sites/ca.pem").expanduser()
RESOLVE = ("*.test=127.0.0.1:8443", "*.test:80=127.0.0.1:8480")
SIDES = ("plain", "bare", "portrait", "recorded")
ROLES = ("python", "driver", "browser", "renderer", "utility")
WAITS = (
    "all sides: load event, then 500 ms without change on the page's own clock, which take less than that; "
    "behaviors as given, with the same rest after each deed; one fresh context a page"
)
BROWSERTRIX = {
    "source": "shared/archives/browsertrix/README.md, browsertrix-crawler 1.14.1, 40 pages of the Python "
    "manual, screenshot, text, WACZ, 2 shared cores",
    "its defaults (waitUntil load,networkidle2; behaviors autoplay, autofetch, autoscroll, siteSpecific)": {
        "1": 15.6,
        "2": 30,
    },
    "waitUntil load, netIdleWait 0, no behaviors": {"1": 138, "2": 159},
}


def pages_of(site: str, count: int) -> list[str]:
    """Return the first pages of a site, as a crawl finds them."""
    with tempfile.TemporaryDirectory() as folder:
        options = CrawlOptions(limit=count, behaviors=frozenset(), record=reach())
        collection = Collection.create(Path(folder), "found")
        ca = CertAuthority.load_or_init(Path(folder) / "certs")
        report = asyncio.run(crawl([f"https://{site}.test/"], collection, ca, options))
        return [page.url for page in report.pages]


def reach() -> RecordOptions:
    return RecordOptions(resolve=parse_all(RESOLVE), upstream_ca=SITES_CA)


def spki(host: str) -> str:
    """Return the hash of the key that a site shows, for a browser that is to trust it."""
    context = ssl.create_default_context(cafile=str(SITES_CA))
    with (
        socket.create_connection(("127.0.0.1", 8443)) as plain_socket,
        context.wrap_socket(plain_socket, server_hostname=host) as secure,
    ):
        shown = secure.getpeercert(binary_form=True) or b""
    key = load_der_x509_certificate(shown).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return base64.b64encode(digest).decode()


class Meter:
    """Time, and processor time of this program and all below it, from the first page to the last."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, Counter[str]]] = []

    def page(self, _: object = None) -> None:
        """Note that a page is through."""
        self._marks.append((time.perf_counter(), seconds_by_role()))

    def summary(self) -> dict[str, float]:
        """Return what a page costs; the first is left out, since modules are still read for it."""
        (begun, before), (ended, after), pages = self._marks[0], self._marks[-1], len(self._marks) - 1
        used = {role: 1000 * (after[role] - before[role]) / pages for role in after}
        return {
            "pages_per_minute": 60 * pages / (ended - begun),
            "cpu_ms_per_page": sum(used.values()),
            **{f"{role}_ms_per_page": each for role, each in sorted(used.items()) if role in ROLES},
        }


def seconds_by_role() -> Counter[str]:
    """Return the processor time of this program and all below it; the zygote reports ended renderers."""
    used: Counter[str] = Counter()
    for pid, role in roles(os.getpid()).items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        used[role] += int(fields[11]) + int(fields[12])
        used["renderer" if role == "zygote" else role] += int(fields[13]) + int(fields[14])
    return Counter({role: ticks / os.sysconf("SC_CLK_TCK") for role, ticks in used.items()})


async def plain(
    urls: list[str], jobs: int, conduct: BehaviorOptions, folder: Path, meter: Meter, *, look: bool
) -> None:
    """Visit the pages directly."""
    flags = [*FLAGS]
    flags.append("--host-resolver-rules=MAP *.test:443 127.0.0.1:8443, MAP *.test:80 127.0.0.1:8480")
    keys = {spki(urlsplit(url).hostname or "") for url in urls}
    flags.append("--ignore-certificate-errors-spki-list=" + ",".join(sorted(keys)))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_browser(), args=flags, chromium_sandbox=False
        )
        direct = Direct(browser)
        left = iter(enumerate(urls))

        async def work() -> None:
            for number, url in left:
                await plain_visit(direct, url, conduct, folder / str(number) if look else None)
                meter.page()

        await asyncio.gather(*(work() for _ in range(jobs)))
        await browser.close()


class Direct:
    """A browser whose contexts have no proxy; `open_context` would give them one."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._browser, name)

    async def new_context(self, **options: Any) -> BrowserContext:
        return await self._browser.new_context(**options | {"proxy": None})


async def plain_visit(browser: Direct, url: str, conduct: BehaviorOptions, baseline: Path | None) -> None:
    pinning = Pinning(Level.CLOCK, 0, now())
    context = await open_context(browser, proxy="", profile=Profile(), pinning=pinning)
    try:
        # Bodies are requested, and digests made of them, for a baseline alone.
        observer = PageRecorder(context) if baseline else None
        activity = observer.activity if observer else Activity(context)
        page = await context.new_page()
        await page.goto(url, wait_until="load")
        rest = await settle(page, activity)
        if observer and baseline:
            await take_baseline(page, observer, rest, baseline)
        probe = await PageProbe.of(page)

        async def gather() -> None:
            await visit._links(probe)

        await gather()
        await behave(BehaviorTarget(page, probe, activity, conduct, gather, seconds=60))
        await page.title()
        await activity.idle()
        if observer:
            await observer.close()
    finally:
        await context.close()


async def recorded(
    urls: list[str], jobs: int, wanted: frozenset[Behavior], folder: Path, meter: Meter, *, look: bool
) -> None:
    options = CrawlOptions(scope=ScopeKind.PAGE, jobs=jobs, behaviors=wanted, baseline=look, record=reach())
    collection = Collection.create(folder, "bench")
    ca = CertAuthority.load_or_init(folder / "certs")
    report = await crawl(urls, collection, ca, options, meter.page)
    assert len(report.pages) == len(urls), report.failed_pages


def one(side: str, jobs: int, wanted: frozenset[Behavior], urls: list[str]) -> dict[str, float]:
    """Run one side in this program."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        if side in ("bare", "recorded"):
            asyncio.run(recorded(urls, jobs, wanted, Path(folder), meter, look=side == "recorded"))
        else:
            visits = plain(urls, jobs, BehaviorOptions(wanted), Path(folder), meter, look=side == "portrait")
            asyncio.run(visits)
    return meter.summary()


def compare(urls: list[str], jobs: int, behaviors: str, rounds: int) -> dict[str, object]:
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            command = [sys.executable, __file__, "--side", side, "--jobs", str(jobs)]
            command += ["--behaviors", behaviors, *urls]
            answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=900)
            runs[side].append(json.loads(answer.stdout))
    result: dict[str, object] = {
        side: {name: round(statistics.median(run[name] for run in runs[side]), 1) for name in runs[side][0]}
        for side in SIDES
    }
    for side, other in (*((each, "plain") for each in SIDES[1:]), ("recorded", "portrait")):
        pairs = list(zip(runs[other], runs[side], strict=True))
        result[f"{side}/{other}"] = {
            "time": round(
                statistics.median(p["pages_per_minute"] / s["pages_per_minute"] for p, s in pairs), 2
            ),
            "cpu": round(statistics.median(s["cpu_ms_per_page"] / p["cpu_ms_per_page"] for p, s in pairs), 2),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", default="docs=16,shop=12", help="how many of which sites")
    parser.add_argument("--behaviors", default="none", help="as `record crawl` takes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default="1,4")
    parser.add_argument("--side", choices=SIDES, help="one run of one side")
    parser.add_argument("urls", nargs="*")
    given = parser.parse_args()
    if given.side:
        print(json.dumps(one(given.side, int(given.jobs), parse_behaviors(given.behaviors), given.urls)))
        return
    specs = [each.partition("=") for each in given.pages.split(",")]
    urls = given.urls or [url for site, _, count in specs for url in pages_of(site, int(count))]
    result = {
        f"jobs {jobs}": compare(urls, jobs, given.behaviors, given.rounds)
        for jobs in map(int, given.jobs.split(","))
    }
    print(
        json.dumps(
            {
                "pages": len(urls),
                "waits": WAITS,
                "behaviors": given.behaviors,
                **result,
                "browsertrix": BROWSERTRIX,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

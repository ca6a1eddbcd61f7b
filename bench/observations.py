"""Costs of each form of observation on a large page, of the whole page and of the viewport.

The page is the 30,000-node `library/typing.html` of the Python docs, in a collection made by `stillweb record
crawl https://docs.test/library/typing.html -c docs --scope page` with `--resolve`; and pages of 5,000, 20,000
and 50,000 buttons, made in the browser.

    python bench/observations.py --collection DIR/docs --certs DIR [--level exact] [--runs 15]
        [--buttons 5000 20000 50000]

Prints JSON, per page and form: the median, least and most milliseconds; the median milliseconds of CPU of
renderer and driver, which another program's load does not change much; bytes; distinct digests over all runs
(1 is promised); and how many times cheaper the viewport's form is than the whole page's. Nothing here is a
gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from pathlib import Path
from time import process_time
from typing import Any

from archives import visited
from playwright.async_api import Page

from stillweb.browser import Bids, Level, launch, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.certs import CertAuthority
from stillweb.clock import perf
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env.observations.observation import observe_kinds, take_observation
from stillweb.replay import ReplayClient, ReplayOptions, serve

PAGE = "https://docs.test/library/typing.html"
BOTH = ("axtree", "compact", "elements", "dom", "markdown", "text")
FORMS = (*BOTH, *(f"{form}:viewport" for form in BOTH), "html", "screenshot", "som", "coords")
BUTTONS = (5_000, 20_000, 50_000)


async def cpu_ms(page: Page) -> float:
    """Return the CPU time that the page's renderer and this program have taken."""
    probe = await PageProbe.of(page)
    await probe.send("Performance.enable")
    answer = (await probe.send("Performance.getMetrics"))["metrics"]
    return 1000 * (next(each["value"] for each in answer if each["name"] == "ProcessTime") + process_time())


async def measure_form(page: Page, form: str, runs: int) -> dict[str, Any]:
    """Take one form of a page several times."""
    times, spent, digests, size = [], [], set(), 0
    (kind,) = observe_kinds([form])
    bids = Bids()
    for _ in range(runs):
        before, begun = await cpu_ms(page), perf()
        observation = await take_observation([page], page, bids, [kind])
        times.append((perf() - begun) * 1000)
        spent.append(await cpu_ms(page) - before)
        digests.add(observation.digests[kind.kind.value])
        size = len(observation.body(kind.kind) or b"")
    return {
        "form": form,
        "runs": runs,
        "ms": round(statistics.median(times), 1),
        "least": round(min(times), 1),
        "most": round(max(times), 1),
        "cpu": round(statistics.median(spent)),
        "bytes": size,
        "distinct": len(digests),
    }


async def measure_page(page: Page, forms: tuple[str, ...], runs: int) -> dict[str, Any]:
    """Take all forms of a page, the costly ones less often."""
    rows = []
    for form in forms:
        row = await measure_form(page, form, 1)
        rows.append(await measure_form(page, form, max(3, runs if row["ms"] < 1000 else runs // 4)))
        sys.stderr.write(f"{form}: {rows[-1]['ms']} ms\n")
    took = {row["form"]: row["ms"] for row in rows}
    ratios = {
        form: round(took[form] / took[f"{form}:viewport"], 1) for form in took if f"{form}:viewport" in took
    }
    return {"forms": rows, "times_cheaper_in_viewport": ratios}


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Serve the collection, open the pages, observe."""
    collection = Collection.open(args.collection.parent, args.collection.name)
    seal(collection)
    ca = CertAuthority.load(args.certs)
    answer: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "level": args.level,
        "pages": {},
    }
    async with (
        launch(spki=ca.spki_hashes(), exact=args.level is Level.EXACT) as browser,
        serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
        visited(browser, client, collection.name, level=args.level) as visit,
    ):
        answer["browser"] = browser.version
        page = await visit.context.new_page()
        await page.goto(PAGE, wait_until="commit")
        await settle(page, visit.activity)
        nodes = await page.evaluate("document.getElementsByTagName('*').length")
        answer["pages"]["typing.html"] = {"elements": nodes, **await measure_page(page, FORMS, args.runs)}
        for count in args.buttons:
            buttons = "n => { document.body.innerHTML = '<button>b</button>'.repeat(n); }"
            await page.evaluate(buttons, count)
            await settle(page, visit.activity)
            forms = ("axtree", "axtree:viewport", "compact", "compact:viewport", "som")
            answer["pages"][f"{count} buttons"] = await measure_page(page, forms, min(args.runs, 5))
    return answer


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--certs", type=Path, required=True)
    parser.add_argument("--level", type=Level, default=Level.CLOCK)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--buttons", type=int, nargs="*", default=BUTTONS)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()

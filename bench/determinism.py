"""Whether a page comes out equal: start pages of shared archives, loaded again and again at level CLOCK.

Each page is loaded 8 times by default, from native replay, in sessions and contexts of their own: twice
alone, then six times simultaneously, so that answers race and the machine is loaded. Counted are the distinct
digests of accessibility tree, visible text, HTML, screenshot and set of requests: level CLOCK
promises 1 except for racing answers (docs/decisions/0008-clock-level.md).

    python bench/determinism.py [--shared ../shared] [--only NAME] [--alone 2] [--together 6] [--keep DIR]

Prints JSON: per archive the count of distinct digests, and of each how often it came. `--keep` writes what
differed into a folder. Nothing here is a gate.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from archives import start_pages, visited
from playwright.async_api import Browser

from stillweb.browser import (
    Bids,
    Level,
    axtree,
    launch,
    page_html,
    page_text,
    screenshot,
    settle,
)
from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.replay import ReplayClient, ReplayOptions, serve

ARCHIVES = (
    "wellcare.wacz",
    "triwest.wacz",
    "material_ui.wacz",
    "solidaritenum.warc.gz",
    "flickr-commons.warc.gz",
    "kiwix-with-redirects.warc.gz",
)

Seen = dict[str, bytes]


async def look(browser: Browser, client: ReplayClient, name: str, url: str) -> tuple[Seen, bool]:
    """Load a page in a session and a context of its own; return what it came to, and whether it settled."""
    async with visited(browser, client, name) as visit:
        page = await visit.context.new_page()
        await page.goto(url, wait_until="commit")
        settled = await settle(page, visit.activity, cap=60)
        requests = sorted(f"{r.method} {r.url} {r.status} {r.failure}" for r in visit.activity.requests)
        seen = {
            "axtree": (await axtree(page, Bids())).text.encode(),
            "text": (await page_text(page)).encode(),
            "html": (await page_html(page)).encode(errors="surrogatepass"),
            "screenshot": await screenshot(page),
            "requests": "\n".join(requests).encode(),
        }
        return seen, settled.settled


def summary(name: str, seen: list[Seen], keep: Path | None) -> dict[str, dict[str, object]]:
    """Count the distinct digests of each kind of observation; keep those that differ."""
    counted: dict[str, dict[str, object]] = {}
    for kind in seen[0]:
        times = Counter(hashlib.sha256(each[kind]).hexdigest()[:12] for each in seen)
        counted[kind] = {"distinct": len(times), "times": dict(times.most_common())}
        if keep and len(times) > 1:
            keep.mkdir(parents=True, exist_ok=True)
            for each in seen:
                digest = hashlib.sha256(each[kind]).hexdigest()[:12]
                suffix = ".png" if kind == "screenshot" else ".txt"
                (keep / f"{name}-{kind}-{digest}{suffix}").write_bytes(each[kind])
    return counted


async def measure(args: argparse.Namespace) -> dict[str, object]:
    """Import, seal, serve and load everything."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "collections"
        ca = CertAuthority.init(Path(scratch) / "certs")
        async with launch(spki=ca.spki_hashes()) as browser:
            for file in (file for file in ARCHIVES if args.only in file):
                name = file.partition(".")[0].replace("_", "-")
                import_files([args.shared / "archives" / file], root, name)
                collection = Collection.open(root, name)
                seal(collection)
                (url,) = start_pages(collection, 1)
                options = ReplayOptions(port=0, session_ports=None)
                async with serve([collection], ca, options) as server, ReplayClient(server.url) as client:
                    looks = [await look(browser, client, name, url) for _ in range(args.alone)]
                    together = (look(browser, client, name, url) for _ in range(args.together))
                    looks += await asyncio.gather(*together)
                row = {"archive": file, "url": url, "runs": len(looks), "settled": sum(s for _, s in looks)}
                rows.append(row | summary(name, [seen for seen, _ in looks], args.keep))
                sys.stderr.write(f"{file}: {len(looks)} runs\n")
    return {"level": Level.CLOCK, "alone": args.alone, "together": args.together, "archives": rows}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--only", default="", help="a part of the archive's name")
    parser.add_argument("--alone", type=int, default=2, help="runs one after the other")
    parser.add_argument("--together", type=int, default=6, help="simultaneous runs, after them")
    parser.add_argument("--keep", type=Path, help="write what differed into this folder")
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()

"""Every shared archive imported, sealed and its first pages loaded, from native replay and from pywb.

    python bench/archives.py [--shared ../shared] [--backend native] [--backend pywb] [--pages 2]

Prints JSON (and a Markdown table on stderr): archive, captures, and per back-end and page the status,
the page's requests, and the answers. A request counts as a hit where the back-end answered from the
archive: native says so in its ledger, pywb by a Memento-Datetime header or by a status that the
archive holds for that URL. Nothing here is a gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext

from stillweb.browser import Activity, Level, Pinning, Profile, launch, open_context, settle
from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.errors import ProgramNotFound, StillwebError
from stillweb.model import Tier
from stillweb.replay import ReplayClient, ReplayOptions, serve
from stillweb.replay.pywb.backend import PywbOptions, serve_pywb
from stillweb.urls import from_timestamp

SUFFIXES = (".warc", ".warc.gz", ".arc", ".arc.gz", ".wacz", ".har")


def archives(shared: Path) -> list[Path]:
    """Return the shared archives except those with defects."""
    folder = shared / "archives"
    found = [*folder.iterdir(), *(folder / "browsertrix").iterdir()]
    return sorted(path for path in found if path.name.endswith(SUFFIXES))


def start_pages(collection: Collection, count: int) -> list[str]:
    """Return the first pages of a collection; where it lists none, its first HTML answers."""
    listed = list(dict.fromkeys(page.url for page in collection.page_list() if page.url.startswith("http")))
    if listed:
        return listed[:count]
    html = [
        c.url for c in collection.captures() if c.status == 200 and "html" in c.mime and c.method == "GET"
    ]
    return list(dict.fromkeys(html))[:count]


@dataclass(frozen=True, slots=True)
class Visit:
    """A session and a context of its own, pinned as the collection's manifest says."""

    session: str
    context: BrowserContext
    activity: Activity


@asynccontextmanager
async def visited(
    browser: Browser,
    client: ReplayClient,
    name: str,
    *,
    seed: int = 0,
    later: float = 0.0,
    level: Level = Level.CLOCK,
) -> AsyncIterator[Visit]:
    """Open a session and a pinned context on a collection, and close both on leaving.

    Args:
        browser: from `launch`.
        client: of the back-end.
        name: of the collection.
        seed: added to the recording's.
        later: seconds added to the recording's time.
        level: of the pinning; for EXACT the browser has to be launched for it.
    """
    manifest = (await client.info()).manifests[name]
    session = await client.open_session(name)
    start = from_timestamp(manifest["recorded_at"]) + timedelta(seconds=later)
    pinning = Pinning(level, int(manifest.get("seed", 0)) + seed, start)
    profile = Profile.from_dict(manifest.get("profile", {}))
    context = await open_context(browser, proxy=session.proxy, profile=profile, pinning=pinning)
    activity = Activity(context)
    try:
        yield Visit(session.id, context, activity)
    finally:
        activity.close()
        await context.close()
        await client.close_session(session.id)


async def load(browser: Any, client: ReplayClient, name: str, url: str, pack: Pack) -> dict[str, Any]:
    """Load one page in a session and a context of its own, and count its requests."""
    info = await client.info()
    async with visited(browser, client, name) as visit:
        page = await visit.context.new_page()
        response = await page.goto(url, wait_until="commit")
        settled = await settle(page, visit.activity)
        row: dict[str, Any] = {
            "url": url,
            "status": response.status if response else 0,
            "settled": settled.settled,
            "requests": len(visit.activity.requests),
        }
        if info.features.get("ledger"):
            ledger = await client.ledger(visit.session)
            counts = ledger.counts
            row |= {tier: counts.get(tier, 0) for tier in Tier}
            row["hits"] = sum(counts.get(tier, 0) for tier in (Tier.EXACT, Tier.NORMALISED, Tier.SEQUENCE))
            row["misses"] = counts.get(Tier.MISS, 0)
            row["missed"] = [e.url for e in ledger.misses]
        else:
            missed = [
                request
                for request in visit.activity.requests
                if request.failure or (request.status == 404 and not pack.rows_of(request.url))
            ]
            row["misses"] = len(missed)
            row["hits"] = len(visit.activity.requests) - len(missed)
            row["missed"] = [f"{request.failure or request.status} {request.url}" for request in missed]
        return row


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Import, seal, serve and load everything."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "collections"
        ca = CertAuthority.init(Path(scratch) / "certs")
        async with launch(spki=ca.spki_hashes()) as browser:
            for path in (path for path in archives(args.shared) if args.only in path.name):
                name = path.name.partition(".")[0].replace("_", "-").lower()
                report = import_files([path], root, name)
                collection = Collection.open(root, name)
                info = seal(collection)
                row: dict[str, Any] = {
                    "archive": path.name,
                    "captures": report.captures,
                    "entries": info.entries,
                    "defects": len(report.defects),
                }
                rows.append(row)
                for backend in args.backend:
                    row[backend] = await serve_and_load(backend, browser, ca, collection, args.pages)
                sys.stderr.write(f"{path.name}: {report.captures} captures\n")
        return {"archives": rows}


async def serve_and_load(
    backend: str, browser: Any, ca: CertAuthority, collection: Collection, count: int
) -> list[dict[str, Any]] | str:
    """Load the first pages of a collection from one back-end."""
    served: Any
    if backend == "native":
        served = serve([collection], ca, ReplayOptions(port=0, session_ports=None))
    else:
        served = serve_pywb([collection], ca, PywbOptions())
    try:
        with Pack.open(collection.pack) as pack:
            async with served as server, ReplayClient(server.url) as client:
                return [
                    await load(browser, client, collection.name, url, pack)
                    for url in start_pages(collection, count)
                ]
    except ProgramNotFound as error:
        return f"{error} ({error.hint})"
    except StillwebError as error:
        return str(error)


def markdown(result: dict[str, Any], backends: list[str]) -> str:
    """Return the table of a closing note."""
    lines = [
        "| archive | captures | page | "
        + " | ".join(f"{b}: status, asked, hit, miss" for b in backends)
        + " |"
    ]
    lines.append("|---" * (3 + len(backends)) + "|")
    for row in result["archives"]:
        loads = {b: row[b] if isinstance(row[b], list) else [] for b in backends}
        for i in range(max(1, *(len(each) for each in loads.values()))):
            cells = []
            for b in backends:
                if i < len(loads[b]):
                    one = loads[b][i]
                    cells.append(f"{one['status']}, {one['requests']}, {one['hits']}, {one['misses']}")
                else:
                    cells.append(str(row[b]) if isinstance(row[b], str) else "-")
            url = next((loads[b][i]["url"] for b in backends if i < len(loads[b])), "-")
            lines.append(f"| {row['archive']} | {row['captures']} | {url[:70]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--backend", action="append", choices=["native", "pywb"])
    parser.add_argument("--only", default="", help="a part of the archive's name")
    parser.add_argument("--pages", type=int, default=1)
    args = parser.parse_args()
    args.backend = args.backend or ["native", "pywb"]
    result = asyncio.run(measure(args))
    print(json.dumps(result, indent=1))
    sys.stderr.write(markdown(result, args.backend) + "\n")


if __name__ == "__main__":
    main()

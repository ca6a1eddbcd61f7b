"""Findings of `stillweb diff` for every shared site and archive, replayed by native and by pywb.

    python bench/fidelity.py [--shared ../shared] [--collections DIR] [--only NAME] [--pages 5]

*sites*: the recordings NAME-1 (or NAME) of DIR, as `bench/volatility.py --keep` leaves them, with whatever
baseline they have; where none lies there the site is recorded (the shared sites must be up). Scores are means
over pages. *archives*: imported. They have no baseline, since others made them. Compared are the status of
the first pages' documents and the share of requests that were answered from the archive.

Prints JSON, and Markdown tables on stderr. DIR is not written to: recordings are copied.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from archives import archives, start_pages

from diff import RESOLVE, SITES_CA, stillweb
from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.diff.compare.run import DiffOptions, diff
from stillweb.errors import ProgramNotFound, StillwebError
from stillweb.model import Page
from stillweb.replay import ReplayClient
from stillweb.replay.pywb.backend import serve_by

BACKENDS = ("native", "pywb")
SHOWN = (
    "status", "recall", "resources", "bodies", "text", "dom", "axtree", "interactive", "screenshot", "ssim",
    "hits", "misses", "console",
)  # fmt: skip


def site_collections(args: argparse.Namespace, root: Path) -> Iterator[Collection]:
    """Copy, or make, a recording of each site into a root of our own."""
    listed = subprocess.run(
        [args.shared / "sites" / "sites.py", "urls"], stdout=subprocess.PIPE, check=True
    ).stdout
    for site, answer in json.loads(listed).items():
        if args.only and args.only not in site:
            continue
        name = site.partition(".")[0]
        for candidate in (f"{name}-1", name) if args.collections else ():
            source = args.collections / candidate
            if (source / "manifest.json").exists():
                skipped = shutil.ignore_patterns("pack", "diff", "versions")
                shutil.copytree(source, root / name, ignore=skipped)
                break
        else:
            urls = [*answer["start"], *answer["pages"]]
            record = ["record", "crawl", *urls, "-c", name, "--limit", str(args.pages)]
            stillweb(root.parent, *record, *RESOLVE, "--upstream-ca", str(SITES_CA))
        yield Collection.open(root, name)


def archive_collections(args: argparse.Namespace, root: Path) -> Iterator[Collection]:
    """Import each archive; its first pages are those that it lists, or its first HTML answers."""
    for path in archives(args.shared):
        name = path.name.partition(".")[0].lower().replace("_", "-")
        if args.only and args.only not in name:
            continue
        import_files([path], root, name)
        collection = Collection.open(root, name)
        pages = [page for page in collection.page_list() if page.url.startswith("http")]
        found = {c.url: c for c in collection.captures() if c.status}
        urls = start_pages(collection, args.pages)
        known = {page.url: page for page in pages}
        listed = [known.get(url) or Page(url, found[url].timestamp if url in found else "") for url in urls]
        statuses = [found[page.url].status if page.url in found else 0 for page in listed]
        collection.write_pages(
            [
                replace(page, status=page.status or status)
                for page, status in zip(listed, statuses, strict=True)
            ]
        )
        yield collection


async def scores(collection: Collection, backend: str, ca: CertAuthority, pages: int) -> dict[str, Any]:
    """Return the mean of each score over the first pages, and how many findings there are of what kind."""
    async with serve_by(backend, collection, ca) as url, ReplayClient(url) as client:
        report = await diff(collection, client, DiffOptions(limit=pages, workers=1, fresh=True))
    means = {name: spread[1] for name in SHOWN if (spread := report.spread(name)) is not None}
    kinds: dict[str, int] = {}
    for finding in report.all_findings():
        kinds[finding.kind.value] = kinds.get(finding.kind.value, 0) + 1
    return {
        "pages": len(report.pages),
        "compared": sum(page.compared for page in report.pages),
        "identical": sum(page.compared and page.identical for page in report.pages),
        "asked": sum(page.counts.requested for page in report.pages),
        "missed": sum(page.counts.miss for page in report.pages),
        "not_replayed": sum(bool(page.error) for page in report.pages),
        "scores": {name: round(value, 4) for name, value in means.items()},
        "findings": kinds,
        "seconds": round(report.seconds, 1),
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Compare everything by every back-end."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="stillweb-fidelity-") as folder:
        ca = CertAuthority.load_or_init(Path(folder) / "certs")
        for part, make in (("sites", site_collections), ("archives", archive_collections)):
            if args.part not in (None, part):
                continue
            root = Path(folder) / part / "collections"
            root.mkdir(parents=True)
            rows = result[part] = {}
            for collection in make(args, root):
                seal(collection)
                row = rows[collection.name] = {}
                for backend in args.backend or BACKENDS:
                    try:
                        row[backend] = await scores(collection, backend, ca, args.pages)
                    except ProgramNotFound as error:
                        row[backend] = {"skipped": str(error)}
                    except StillwebError as error:
                        row[backend] = {"error": str(error)}
                    sys.stderr.write(f"{collection.name} {backend}: {json.dumps(row[backend])[:200]}\n")
    return result


def markdown(result: dict[str, Any], backends: list[str]) -> str:
    """Return a table for each part; a cell is native's mean, then pywb's."""
    lines = []
    for part, rows in result.items():
        names = [
            n for n in SHOWN if any(n in row[b].get("scores", {}) for row in rows.values() for b in backends)
        ]
        lines += [f"\n{part}: {' / '.join(backends)}, means over pages\n"]
        lines += [
            "| | pages | identical | asked | missed | " + " | ".join(names) + " |",
            "|---|" + "---|" * (len(names) + 4),
        ]
        for collection, row in rows.items():
            sides = [row[backend] for backend in backends]
            cells = [
                "/".join(str(side.get(name, "-")) for side in sides)
                for name in ("pages", "identical", "asked", "missed")
            ]
            cells += [" / ".join(_shown(side, name) for side in sides) for name in names]
            lines.append(f"| {collection} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(side: dict[str, Any], name: str) -> str:
    value = side.get("scores", {}).get(name)
    if value is None:
        return "-"
    return f"{value:.1f}" if name in ("misses", "console") else f"{100 * value:.1f}"


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--collections", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--part", choices=["sites", "archives"])
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    args = parser.parse_args()
    result = asyncio.run(measure(args))
    sys.stderr.write(markdown(result, args.backend or list(BACKENDS)) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

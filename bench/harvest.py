"""Pages per second of the harvest, beside our browser crawl and wget, on shared sites.

    python bench/harvest.py --root DIR [--sites docs,wiki,data] [--pages 300] [--crawled 20] [--seconds 60]

The shared sites must be up. For each site, a crawl of `--crawled` pages by the browser comes first. Then
`record harvest` fetches `--pages` more, and wget fetches pages recursively over one connection, by http. wget
stores files without redaction, index or WARC. CPU is that of the client and its child processes, start-up
included; the sites share the processors. Prints Markdown and, with --json FILE, JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from diff import RESOLVE, SITES_CA

STARTS = {
    "docs": "https://docs.test/index.html",
    "wiki": "https://wiki.test/doku.php?id=start",
    "data": "https://data.test/vega",
    "shop": "https://shop.test/catalogue/",
}
_PAGES = re.compile(r"(\d+) pages, .*? in ([\d.]+) s")
_SAVED = re.compile(r"^Length: .*\[text/html", re.MULTILINE)


def measured(argv: list[str], root: Path, timeout: float | None = None) -> tuple[str, float, float]:
    """Run a command; return its output, real seconds and CPU seconds."""
    environment = os.environ | {
        "STILLWEB_COLLECTIONS": str(root / "c"),
        "STILLWEB_CERTS": str(root / "certs"),
    }
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(
        argv, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output = process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        output = process.communicate()[0]
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return output, seconds, cpu


def row(how: str, pages: int, seconds: float, cpu: float) -> dict[str, Any]:
    """Return the figures of one program."""
    return {
        "how": how,
        "pages": pages,
        "seconds": round(seconds, 1),
        "pages_per_second": round(pages / seconds, 1) if seconds else 0.0,
        "cpu_ms_per_page": round(1000 * cpu / pages, 1) if pages else 0.0,
        "load": round(os.getloadavg()[0]),
    }


def measure(site: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Record a site by each program."""
    root: Path = args.root
    shutil.rmtree(root / "c" / site, ignore_errors=True)
    run = [sys.executable, "-m", "stillweb", "record"]
    ca = ("--upstream-ca", str(SITES_CA))
    options = ("-c", site, "--limit", str(args.crawled), "--jobs", "4", *RESOLVE, *ca)
    rows = []
    _, seconds, cpu = measured([*run, "crawl", STARTS[site], *options], root)
    rows.append(row("record crawl, 4 pages at a time", args.crawled, seconds, cpu))
    output, _, cpu = measured([*run, "harvest", site, "--pages", str(args.pages)], root)
    found = _PAGES.search(output)
    assert found, output
    rows.append(row("record harvest", int(found[1]), float(found[2]), cpu))
    folder = root / "wget" / site
    shutil.rmtree(folder, ignore_errors=True)
    # wget takes no address for a name, and the sites take no TLS connection without one.
    url = re.sub(r"https://[^/]+", "http://127.0.0.1:8480", STARTS[site])
    wget = ["wget", "-r", "-l", "inf", "-p", "-e", "robots=off", "-P", str(folder)]
    wget += ["--header", f"Host: {site}.test", url]
    output, seconds, cpu = measured(wget, root, timeout=args.seconds)
    rows.append(row("wget -r -p", len(_SAVED.findall(output)), seconds, cpu))
    return [{"site": site} | each for each in rows]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--sites", default="docs,wiki,data")
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--crawled", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="that wget runs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.root.mkdir(parents=True, exist_ok=True)
    rows = [each for site in args.sites.split(",") for each in measure(site, args)]
    print(
        "| site | program | pages | seconds | pages/s | CPU ms/page | load |\n|---|---|--:|--:|--:|--:|--:|"
    )
    for each in rows:
        print("| " + " | ".join(str(value) for value in each.values()) + " |")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

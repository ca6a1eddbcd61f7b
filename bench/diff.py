"""Compare a recording of about 180 pages with its replay: how long it takes, and that nothing is found.

    python bench/diff.py --root DIR [--name docs] [--record] [--runs 10] [--altered 0.2] [--jobs 4]

DIR/collections/NAME is what is compared, with DIR/certs; `--record` makes it first, of docs.test (180 pages;
the shared sites must be up). Times: one comparison of the recording as it is, and one of a copy. In the
copy a share of the documents has another paragraph and another rule for headings, so that equality is no
short cut. Then `--runs` comparisons in a row, of `--run-pages` pages each: a finding in any is a false one.
Prints JSON; the target is 90 s for 180 pages with all scores on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.collections.layout import Collection
from stillweb.collections.pack.store import remove_collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.http.codec import decode
from stillweb.model import Exchange, header

PAGES = 180
RESOLVE = ("--resolve", "*.test=127.0.0.1:8443", "--resolve", "*.test:80=127.0.0.1:8480")
SITES_CA = Path("~/.cache/stillweb-sites/ca.pem").expanduser()
_ADDED = (
    b"<style>h1 { letter-spacing: 1px }</style><p>A paragraph that the recording does not have: 4711.</p>"
)
_DROPPED = ("content-encoding", "content-length", "etag")


def stillweb(root: Path, *arguments: str) -> dict[str, Any]:
    """Run a command on the root's collections; return its JSON, its exit status and its real seconds."""
    places = {"STILLWEB_COLLECTIONS": root / "collections", "STILLWEB_CERTS": root / "certs"}
    environment = os.environ | {key: str(value) for key, value in places.items()}
    command = [sys.executable, "-m", "stillweb", *arguments, "--json"]
    began = clock.perf()
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    outcome: Any = json.loads(ran.stdout) if ran.stdout.strip() else {}
    outcome = outcome if isinstance(outcome, dict) else {"answer": outcome}
    return outcome | {"exit_status": ran.returncode, "real_seconds": round(clock.perf() - began, 1)}


def altered(collection: Collection, share: float) -> Collection:
    """Write a collection anew, the documents of some of its pages altered, spread evenly."""
    copy = Collection(collection.root, f"{collection.name}-altered")
    if copy.path.exists():
        remove_collection(copy.path)
    copy = Collection.create(collection.root, copy.name)
    pages = collection.page_list()
    every = max(1, round(1 / share))
    urls = {page.url for page in pages[::every]}
    with CollectionWriter(copy) as writer:
        for exchange in collection.exchanges():
            writer.write(_with_change(exchange) if exchange.request.url in urls else exchange)
    shutil.copytree(collection.baseline, copy.baseline)
    for name in ("rules.yaml", "diff.yaml"):
        if (collection.path / name).exists():
            shutil.copy2(collection.path / name, copy.path / name)
    copy.write_pages(pages)
    copy.write_manifest(replace(collection.manifest(), name=copy.name))
    return copy


def _with_change(exchange: Exchange) -> Exchange:
    response = exchange.response
    body = decode(response.raw_body, header(response.headers, "content-encoding"))
    if response.status != 200 or response.mime != "text/html" or body is None:
        return exchange
    fields = tuple((n, v) for n, v in response.headers if n.lower() not in _DROPPED)
    changed = body.replace(b"</h1>", b"</h1>" + _ADDED, 1)
    changed = changed if changed != body else body + _ADDED
    return replace(exchange, response=replace(response, raw_body=changed, headers=fields))


def summary(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what of a comparison is worth keeping."""
    pages = outcome.get("pages", [])
    seconds = outcome.get("seconds", 0.0)
    return {
        "pages": len(pages),
        "identical": sum(page["identical"] for page in pages),
        "findings": len(outcome.get("findings", [])),
        "failing": len(outcome.get("failing", {})),
        "seconds": seconds,
        "real_seconds": outcome["real_seconds"],
        "pages_per_second": round(len(pages) / seconds, 2) if seconds else 0.0,
        "exit_status": outcome["exit_status"],
    }


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--name", default="docs")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--run-pages", type=int, default=20)
    parser.add_argument("--altered", type=float, default=0.2)
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--level", default="clock")
    args = parser.parse_args()
    if args.record:
        record = ["record", "crawl", "https://docs.test/index.html", "-c", args.name, "--limit", str(PAGES)]
        stillweb(args.root, *record, *RESOLVE, "--upstream-ca", str(SITES_CA))
    collection = Collection.open(args.root / "collections", args.name)
    stillweb(args.root, "collections", "seal", args.name)
    options = ["--fresh", "--jobs", str(args.jobs), "--level", args.level]
    result: dict[str, Any] = {"cores": os.cpu_count(), "jobs": args.jobs, "level": args.level}
    result["untouched"] = summary(stillweb(args.root, "diff", args.name, *options))
    if args.altered:
        copy = altered(collection, args.altered)
        stillweb(args.root, "collections", "seal", copy.name)
        result["altered"] = summary(stillweb(args.root, "diff", copy.name, *options))
        remove_collection(copy.path)
    some = ["--limit", str(args.run_pages)]
    runs = [summary(stillweb(args.root, "diff", args.name, *options, *some)) for _ in range(args.runs)]
    result["runs"] = {
        "runs": len(runs),
        "pages": args.run_pages,
        "false_findings": sum(run["findings"] for run in runs),
        "not_identical": sum(run["pages"] - run["identical"] for run in runs),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

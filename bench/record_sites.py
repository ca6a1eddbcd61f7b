"""Record every shared site by the browser engine; then, without it, compare replay with recording and load
it in pywb.

    python bench/record_sites.py --root DIR [--only shop] [--pages 30] [--pywb-pages N] [--jobs 2] [--twice]
                                 [--markdown FILE] [--json FILE]

DIR/collections/SITE is recorded from the URLs that `sites.py urls` gives (the shared sites must be up; an
existing collection is not recorded again, and the output of its crawl is read from DIR/record). Everything
after that is done with `--resolve` gone and on loopback alone: `stillweb diff` at its default gates on native
and on pywb, both of which have no way to the sites. *Unexplained* are misses, noise aside, of what the
recording did not see fail. For pywb the report has the pages that it loaded with the recorded status, and the
requests that it answered. `collections check` says whether the archive is whole. A page that breaks a gate is
listed with its findings. Prints JSON; exit status 1 if a site breaks a gate on native or misses something.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from diff import RESOLVE, SITES_CA, stillweb

SHARED = Path(os.environ.get("STILLWEB_SHARED", Path(__file__).resolve().parents[2] / "shared"))
_SHOWN = 3  # findings of a page in the table of failures


def sites(shared: Path) -> dict[str, Any]:
    """Return the output of `sites.py urls`."""
    program = [sys.executable, shared / "sites" / "sites.py", "urls"]
    listed = subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, Any] = json.loads(listed)
    return found


def recorded(args: argparse.Namespace, name: str, outcome: dict[str, Any]) -> dict[str, Any]:
    """Record a site unless its recording exists, and return the crawl's output."""
    said = args.root / "record" / f"{name}.json"
    if (args.root / "collections" / name).exists():
        stored: dict[str, Any] = json.loads(said.read_text()) if said.exists() else {}
        return stored | {"kept": True}
    urls = [*outcome["start"], *outcome["pages"]]
    options = ["-c", name, "--limit", str(args.pages), "--jobs", str(args.jobs)]
    options += ["--twice"] if args.twice else []
    crawl = stillweb(args.root, "record", "crawl", *urls, *options, *RESOLVE, "--upstream-ca", str(SITES_CA))
    reported_of = {
        "seconds": crawl["real_seconds"],
        "pages": len(crawl.get("pages", [])),
        "not_loaded": crawl.get("failed_pages", {}),
        "no_answer": crawl.get("failed_requests", {}),
        "unsettled": [p["url"] for p in crawl.get("pages", []) if "unsettled" in p.get("extra", {})],
        "exchanges": crawl.get("exchanges", 0),
        "body_bytes": crawl.get("body_bytes", 0),
        "exit_status": crawl["exit_status"],
    }
    said.parent.mkdir(parents=True, exist_ok=True)
    said.write_text(json.dumps(reported_of, indent=2))
    return reported_of


def compared(args: argparse.Namespace, name: str, backend: str) -> dict[str, Any]:
    """Compare a recording with its replay by a back-end, at the default gates."""
    work = args.root / "diff" / f"{name}-{backend}"
    options = ["--backend", backend, "--fresh", "--jobs", str(args.jobs), "--work", str(work)]
    if backend == "pywb" and args.pywb_pages:
        options += ["--limit", str(args.pywb_pages)]
    outcome = stillweb(args.root, "diff", name, *options)
    pages = outcome.get("pages", [])
    failing = outcome.get("failing", {})
    tiers: dict[str, int] = {}
    for page in pages:
        for tier, count in page["counts"]["tiers"].items():
            tiers[tier] = tiers.get(tier, 0) + count
    return {
        "pages": len(pages),
        "identical": sum(page["identical"] for page in pages),
        "failing": {
            page["url"]: {
                "scores": failing[page["id"]],
                "findings": [
                    f"{found['kind']}: {found['subject']}: {found['explanation']}"
                    for found in page.get("findings", [])[:_SHOWN]
                ],
            }
            for page in pages
            if page["id"] in failing
        },
        "asked": sum(page["counts"]["asked"] for page in pages),
        "answered": sum(page["counts"]["hit"] for page in pages),
        "tiers": tiers,
        "unexplained": sum(page["scores"].get("misses", 0.0) for page in pages),
        "status_agrees": sum(p["status"]["recorded"] == p["status"]["replayed"] for p in pages),
        "seconds": outcome.get("seconds", 0.0),
        "exit_status": outcome["exit_status"],
    }


def checked(args: argparse.Namespace, name: str) -> list[str]:
    """Return the defects that `collections check` finds."""
    outcome = stillweb(args.root, "collections", "check", name)
    defects = outcome.get("answer", [])
    return [f"{each['severity']} {each['code']}" for each in defects]


def markdown(result: dict[str, Any]) -> str:
    """Return the table, and below it what fails."""
    columns = (
        *("site", "pages", "not loaded", "exchanges", "MB", "s"),
        *(
            "identical",
            "at gates",
            "requests",
            "unexplained misses",
            "pywb: status",
            "pywb: answered",
            "check",
        ),
    )
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name, row in result.items():
        record, native, pywb = row["record"], row["native"], row["pywb"]
        pages = native["pages"]
        cells = [
            name,
            pages,
            len(record.get("not_loaded", ())),
            record.get("exchanges", "-"),
            f"{record.get('body_bytes', 0) / 1e6:.1f}",
            record.get("seconds", "-"),
            f"{native['identical']} of {pages}",
            f"{pages - len(native['failing'])} of {pages}",
            native["asked"],
            f"{native['unexplained']:g}",
            f"{pywb['status_agrees']} of {pywb['pages']}",
            f"{pywb['answered']} of {pywb['asked']}",
            ", ".join(row["check"]) or "no defects",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for name, row in result.items():
        for backend in ("native", "pywb"):
            for url, why in row[backend]["failing"].items():
                lines.append(f"\n{name}, {backend}: {url}: {', '.join(why['scores'])}")
                lines += [f"  - {finding[:300]}" for finding in why["findings"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Record, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--only", action="append", default=[], help="Sites to take; all if none is named.")
    parser.add_argument("--pages", type=int, default=30)
    parser.add_argument("--pywb-pages", type=int, help="Pages to load from pywb; all if not given.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    listed = sites(args.shared)
    for name in args.only or listed:
        outcome = listed[name]
        record = recorded(args, name, outcome)
        result[name] = {
            "record": record,
            "check": checked(args, name),
            "native": compared(args, name, "native"),
            "pywb": compared(args, name, "pywb"),
        }
        sys.stderr.write(markdown({name: result[name]}))
        for path, text in ((args.json, json.dumps(result, indent=2)), (args.markdown, markdown(result))):
            if path:
                path.write_text(text)
    print(json.dumps(result, indent=2))
    native = [row["native"] for row in result.values()]
    sys.exit(any(each["exit_status"] or each["unexplained"] for each in native))


if __name__ == "__main__":
    main()

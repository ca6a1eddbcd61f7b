"""Share of page requests by tier, before and after volatility is learned; every request changed must miss.

    python bench/volatility.py [--shared ../shared] [--keep DIR] [--part sites|archives] [--only NAME]

*sites*: each site of `../shared/sites` (which must be up) is recorded twice by `record crawl`, with another
seed and at another time; then the pages of the first recording are visited from native replay, with a seed
and a time that are neither's. Under four sets of rules: none at all (not even stillweb's defaults), the
defaults, what `learn` makes of the two recordings alone, and both. With both, every request is also sent
with each of its fields changed (`tests/replay/mutations.py`): none may hit.

*archives*: a page of each of `../shared/archives`, without rules of its own, and with those guessed within
the archive, with and without guesses of replay.

Prints JSON, and Markdown tables on stderr. `--keep` keeps the recordings, and takes them up again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from archives import archives, start_pages, visited
from playwright.async_api import Browser
from playwright.async_api import Error as PlaywrightError

from stillweb.browser import launch, settle
from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, learn, learn_within, merge, read_rules, write_rules
from stillweb.collections.pack.seal import seal
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy
from stillweb.model import Tier
from stillweb.replay import ReplayClient, ReplayOptions, serve

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "replay"))
from mutations import wrong_hits

RESOLVE = ("--resolve", "*.test=127.0.0.1:8443", "--resolve", "*.test:80=127.0.0.1:8480")
SITES_CA = Path("~/.cache/stillweb-sites/ca.pem").expanduser()
NONE = "version: 1\ndefaults: false\n"
SEED, LATER = 4711, 90061.789  # of the visits: neither recording's
TIERS = (Tier.EXACT, Tier.NORMALISED, Tier.SEQUENCE, Tier.SYNTHETIC, Tier.NOISE, Tier.MISS)


def record_twice(root: Path, site: str, urls: list[str], pages: int) -> None:
    """Record a site into NAME-1 and NAME-2, unless it lies there."""
    for number in (1, 2):
        name = f"{site}-{number}"
        if (root / "collections" / name / "manifest.json").exists():
            continue
        command = [
            *(sys.executable, "-m", "stillweb", "record", "crawl", *urls, "-c", name),
            *("--limit", str(pages), "--jobs", "1", "--seed", str(101 * number), *RESOLVE),
            *("--upstream-ca", str(SITES_CA), "--json"),
        ]
        places = {"STILLWEB_COLLECTIONS": root / "collections", "STILLWEB_CERTS": root / "certs"}
        environment = os.environ | {key: str(value) for key, value in places.items()}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        sys.stderr.write(f"recorded {name}\n")


async def visit(
    browser: Browser, ca: CertAuthority, collection: Collection, urls: Iterable[str], *, guessed: bool = False
) -> dict[str, Any]:
    """Seal and serve a collection, load pages in sessions of their own, and count what answered."""
    seal(collection)
    counts: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    options = ReplayOptions(port=0, session_ports=None, policy=Policy(default_noise(), guessed=guessed))
    async with serve([collection], ca, options) as server, ReplayClient(server.url) as client:
        for url in urls:
            async with visited(browser, client, collection.name, seed=SEED, later=LATER) as visit:
                page = await visit.context.new_page()
                try:
                    await page.goto(url, wait_until="commit")
                    await settle(page, visit.activity)
                except PlaywrightError as error:
                    counts["failed pages"] += 1
                    sys.stderr.write(f"{url}: {error}\n")
                ledger = await client.ledger(visit.session)
                counts.update(ledger.counts)
                missed.update(f"{entry.method} {entry.url}: {entry.reason}" for entry in ledger.misses)
    return {"requests": sum(counts[tier] for tier in TIERS)} | dict(counts) | {"missed": dict(missed)}


def set_rules(collection: Collection, text: str) -> None:
    """Give a collection these rules and no others; "" for none of its own."""
    path = collection.path / "rules.yaml"
    path.unlink(missing_ok=True)
    if text:
        path.write_text(text)


def summary_of(learned: LearnResult) -> dict[str, Any]:
    """Return what was learned, without the rejected places' long list."""
    return asdict(learned) | {"rejected": [asdict(each) for each in learned.rejected[:20]]}


async def measure_site(browser: Browser, ca: CertAuthority, root: Path, site: str) -> dict[str, Any]:
    """Visit the recorded pages of a site under each set of rules."""
    one, two = (Collection.open(root / "collections", f"{site}-{number}") for number in (1, 2))
    pages = [page.url for page in one.page_list()]
    row: dict[str, Any] = {"site": site, "pages": len(pages)}
    for label, rules in (("none", NONE), ("defaults", "")):
        set_rules(one, rules)
        row[label] = await visit(browser, ca, one, pages)
    set_rules(one, NONE)
    alone = learn(one, two)
    write_rules(one, merge(read_rules(one), alone))
    row["learning alone"] = summary_of(alone)
    row["learned alone"] = await visit(browser, ca, one, pages)
    set_rules(one, "")
    learned = learn(one, two)
    write_rules(one, merge(read_rules(one), learned))
    row["learning"] = summary_of(learned)
    row["learned"] = await visit(browser, ca, one, pages)
    row["changed"] = asdict(wrong_hits(one))
    return row


async def measure_archive(browser: Browser, ca: CertAuthority, root: Path, file: Path) -> dict[str, Any]:
    """Visit a page of an archive without guessed rules, with them, and with them but strictly."""
    name = file.name.partition(".")[0].replace("_", "-").lower()
    import_files([file], root, name)
    collection = Collection.open(root, name)
    pages = start_pages(collection, 1)
    row: dict[str, Any] = {"archive": file.name, "page": pages[0] if pages else ""}
    row["defaults"] = await visit(browser, ca, collection, pages)
    learned = learn_within(collection)
    write_rules(collection, merge(read_rules(collection), learned))
    row["learning"] = summary_of(learned)
    row["guessed, strict"] = await visit(browser, ca, collection, pages)
    row["guessed"] = await visit(browser, ca, collection, pages, guessed=True)
    row["changed"] = asdict(wrong_hits(collection))
    return row


def record(args: argparse.Namespace, folder: Path) -> list[str]:
    """Record the chosen sites, one at a time, and return their names."""
    if args.part == "archives":
        return []
    command = [sys.executable, args.shared / "sites" / "sites.py", "urls"]
    listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    sites = [site for site in listed if args.only in site]
    for site in sites:
        record_twice(folder, site, [*listed[site]["start"], *listed[site]["pages"]], args.pages)
    return sites


async def measure(args: argparse.Namespace, folder: Path, sites: list[str]) -> dict[str, Any]:
    """Visit sites and archives, one at a time."""
    ca = CertAuthority.load_or_init(folder / "certs")
    result: dict[str, Any] = {"sites": [], "archives": []}
    for site in sites:
        async with launch(spki=ca.spki_hashes()) as browser:
            result["sites"].append(await measure_site(browser, ca, folder, site))
        sys.stderr.write(f"{site}\n")
    if args.part != "sites":
        with tempfile.TemporaryDirectory() as scratch:
            for file in (file for file in archives(args.shared) if args.only in file.name):
                async with launch(spki=ca.spki_hashes()) as browser:
                    result["archives"].append(await measure_archive(browser, ca, Path(scratch), file))
                sys.stderr.write(f"{file.name}\n")
    return result


def tables(result: dict[str, Any]) -> str:
    """Return the tables of a closing note."""
    lines = []
    for kind, of, labels in (
        ("sites", "site", ("none", "defaults", "learned alone", "learned")),
        ("archives", "archive", ("defaults", "guessed, strict", "guessed")),
    ):
        if not result[kind]:
            continue
        lines += ["", f"| {of} | rules | requests | {' | '.join(TIERS)} |", "|---" * (3 + len(TIERS)) + "|"]
        totals: dict[str, Counter[str]] = {label: Counter() for label in labels}
        for row in result[kind]:
            for label in labels:
                lines.append(_line(row[of], label, row[label]))
                totals[label].update({t: row[label].get(t, 0) for t in ("requests", *TIERS)})
        lines += [_line("all", label, totals[label]) for label in labels]
        changed = [row["changed"] for row in result[kind]]
        wrong = sum(len(each["wrong"]) for each in changed)
        tried = (
            f"{sum(e['changes'] for e in changed)} changes of {sum(e['requests'] for e in changed)} requests"
        )
        lines.append(f"\n{kind}: {tried}, {wrong} hit")
    return "\n".join(lines)


def _line(name: str, label: str, counts: dict[str, Any]) -> str:
    total = max(1, counts["requests"])
    shares = (f"{counts.get(tier, 0)} ({100 * counts.get(tier, 0) / total:.1f} %)" for tier in TIERS)
    return f"| {name} | {label} | {counts['requests']} | {' | '.join(shares)} |"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--keep", type=Path, help="folder of the recordings, kept and taken up again")
    parser.add_argument("--part", choices=["sites", "archives", "all"], default="all")
    parser.add_argument("--only", default="", help="a part of the site's or archive's name")
    parser.add_argument("--pages", type=int, default=8, help="of each site")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        result = asyncio.run(measure(args, folder, record(args, folder)))
    print(json.dumps(result, indent=1))
    sys.stderr.write(tables(result) + "\n")


if __name__ == "__main__":
    main()

"""`stillweb collections learn`: volatile parts of requests, from one recording or two."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from stillweb.cli.collections.rules import print_rejected, print_rules
from stillweb.cli.console import echo, print_json
from stillweb.cli.options import collections_option, json_option
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, learn_within, merge, read_rules, write_rules
from stillweb.collections.learn.rules import learn as learn_rules
from stillweb.errors import UsageError


@click.command("learn")
@click.argument("name")
@click.option("--with", "other", metavar="OTHER", help="A second recording of the same pages.")
@click.option("--dry-run", is_flag=True, help="Print the rules; write nothing.")
@json_option
@collections_option
def learn(name: str, other: str | None, dry_run: bool, as_json: bool, root: Path) -> None:
    """Learn the volatile parts of a collection's requests, and write them to its rules.yaml.

    With a second recording of the same pages the rules are learned, and apply in strict replay. Without one
    they are guessed, and apply only with `replay --guessed`. Rules written by hand stay.

    \b
    Example:
      stillweb record crawl https://site.example/ -c again --limit 25 --seed 2
      stillweb collections learn site --with again
      stillweb collections learn old-archive --dry-run
    """
    if other == name:
        raise UsageError(
            "--with names the same collection: compare it with another recording",
            hint="record the same pages again: stillweb record crawl URL... -c OTHER --seed 2",
        )
    collection = Collection.open(root, name)
    found = learn_rules(collection, Collection.open(root, other)) if other else learn_within(collection)
    before = read_rules(collection)
    after = merge(before, found)
    written = not dry_run and after.dump() != before.dump()
    if written:
        write_rules(collection, after)
    if as_json:
        print_json({"name": name, "with": other, "written": written, **asdict(found)})
        return
    print_rules(found.rules, _summary(name, other, found))
    _print_notes(found, name, written=written)
    if other and collection.manifest().seed == Collection.open(root, other).manifest().seed:
        echo("both recordings have the same --seed: random values did not differ", err=True)


def _summary(name: str, other: str | None, found: LearnResult) -> str:
    one, two = found.requests
    if other is None:
        return f"{name}: {len(found.rules)} rules guessed from {one} requests, {found.pairs} similar pairs"
    left, right = found.unmatched
    return (
        f"{name} with {other}: {len(found.rules)} rules learned from {found.pairs} pairs; "
        f"{left} of {one} and {right} of {two} requests are not in the other"
    )


def _print_notes(found: LearnResult, name: str, *, written: bool) -> None:
    print_rejected(found)
    if found.response_headers:
        fields = ", ".join(f"{field} {count}" for field, count in found.response_headers)
        echo(f"volatile response fields (no key depends on them): {fields}", err=True)
    if written:
        echo(f"rules written; next: stillweb collections seal {name}", err=True)

"""`stillweb search`: full-text search over the recorded pages of a collection."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from stillweb.cli.console import echo, print_json
from stillweb.cli.options import collections_option, json_option
from stillweb.cli.progress import progress
from stillweb.collections.layout import Collection
from stillweb.collections.search import search as search_pages


@click.command("search")
@click.argument("name")
@click.argument("query", nargs=-1, required=True)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Maximum number of pages."
)
@json_option
@collections_option
def search(name: str, query: tuple[str, ...], limit: int, as_json: bool, root: Path) -> None:
    """Search the text of the recorded pages of a collection.

    A page is found if it holds all words; put phrases in double quotes. The first search builds the index,
    and a later one builds it again if the collection has changed. Exit status 1 if no page is found.

    \b
    Example:
      stillweb search shop lamp brass
      stillweb search shop '"free shipping" lamp' --json
    """
    collection = Collection.open(root, name)
    with progress() as bar:
        task = bar.add_task(f"index {name}", total=None, visible=False)
        hits = search_pages(
            collection,
            " ".join(query),
            limit=limit,
            on_progress=lambda count: bar.update(task, completed=count, visible=True),
        )
    if as_json:
        print_json([asdict(hit) for hit in hits])
    else:
        for hit in hits:
            echo(f"{hit.title}\n  {hit.url}\n  {hit.snippet}\n")
    if not hits:
        echo(f"no page of {name} holds all words", err=True)
        raise click.exceptions.Exit(1)

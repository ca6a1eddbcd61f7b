"""`stillweb collections graph`: states of a collection, and the writes between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stillweb.cli.console import echo, print_json, print_table
from stillweb.cli.options import FILE, collections_option, json_option
from stillweb.collections.graph import StateGraph, graph_of, picture
from stillweb.collections.layout import Collection
from stillweb.files import write_atomically


@click.command("graph")
@click.argument("name")
@click.option("--html", type=FILE, help="Write a picture to this HTML file.")
@json_option
@collections_option
def graph(name: str, html: Path | None, **given: Any) -> None:
    """Show the states of a collection and the writes that lead from one to the next.

    A write is a recorded one, or a form of `stillweb record forms`, with its structural request key. It is
    uncertain if another browser context may have changed the site before it (--reset-command prevents that).

    \b
    Example:
      stillweb collections graph shop
      stillweb collections graph shop --html shop-states.html
    """
    found = graph_of(Collection.open(given["root"], name))
    if html is not None:
        write_atomically(html, picture(found).encode("utf-8"))
        echo(f"wrote {html}")
    if given["as_json"]:
        print_json(found.to_dict())
    elif html is None:
        _print(found)


def _print(found: StateGraph) -> None:
    reads = {state.id: state.reads for state in found.states}
    rows = [
        (
            edge.source,
            edge.kind,
            edge.name or f"{edge.method} {edge.url}",
            edge.key[:12],
            reads[edge.target],
            edge.uncertain,
        )
        for edge in found.edges
    ]
    uncertain = sum(bool(edge.uncertain) for edge in found.edges)
    title = f"{found.name}: {len(found.states)} states, {len(rows)} writes, {uncertain} of them uncertain"
    print_table(("from", "kind", "write", "key", "#reads after", "uncertain because"), rows, title=title)

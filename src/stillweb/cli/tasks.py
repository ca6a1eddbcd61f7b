"""`stillweb tasks`: help with writing tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from stillweb.cli.console import print_json, print_table, stderr
from stillweb.cli.options import collections_option, json_option
from stillweb.collections.layout import Collection
from stillweb.env.tasks.requests import WriteRequest, pattern_of, recorded_write
from stillweb.errors import UsageError
from stillweb.matching.rules import Rules
from stillweb.model import MUTATIONS


@click.group()
def tasks() -> None:
    """Write tasks."""


@tasks.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="N|TEXT",
    help="Write to convert: its number, or a text that its URL includes.",
)
@click.option("--field", "fields", multiple=True, metavar="PATH", help="Judge this field only. Repeatable.")
@click.option("--any", "any_value", multiple=True, metavar="PATH", help="Accept any value here. Repeatable.")
@click.option("--only", is_flag=True, help="The episode must send no other writes.")
@collections_option
@json_option
def request(
    name: str, source: str | None, fields: tuple[str, ...], any_value: tuple[str, ...], **chosen: Any
) -> None:
    """Print a recorded write as an evaluator of the type `request`; without --from, list the writes.

    The evaluator has the method, the URL and all fields that the collection's rules do not call volatile.

    \b
    Example:
      stillweb tasks request shop
      stillweb tasks request shop --from 3 --field product_id --any note
    """  # noqa: D301
    writes = _writes(chosen["root"], name)
    if source is None:
        _print_writes(writes, chosen["as_json"])
        return
    number = _chosen(writes, source, name)
    pattern = pattern_of(writes[number], fields=fields, any_value=any_value)
    evaluator: dict[str, Any] = {"type": "request", "requests": [pattern]}
    if chosen["only"]:
        evaluator["only"] = True
    if chosen["as_json"]:
        print_json(evaluator)
    else:
        click.echo(yaml.safe_dump([evaluator], sort_keys=False, allow_unicode=True, width=100), nl=False)


def _writes(root: Path, name: str) -> list[WriteRequest]:
    collection = Collection.open(root, name)
    text = collection.path / "rules.yaml"
    rules = Rules.parse(text.read_text(encoding="utf-8") if text.exists() else "")
    captures = [capture for capture in collection.captures() if capture.method in MUTATIONS]
    captures.sort(key=lambda capture: (capture.timestamp, capture.source, capture.offset))
    writes = (recorded_write(collection.read_capture(capture).request, rules) for capture in captures)
    return [write for write in writes if write is not None]


def _print_writes(writes: list[WriteRequest], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "number": number,
            "method": write.method,
            "url": write.url,
            "fields": [path for _, path in write.leaves()],
        }
        for number, write in enumerate(writes, 1)
    ]
    if as_json:
        print_json({"writes": rows})
        return
    print_table(
        ("#", "method", "url", "fields"),
        ((str(row["number"]), row["method"], row["url"], " ".join(row["fields"])) for row in rows),
    )
    stderr().print(f"{len(rows)} writes", highlight=False)


def _chosen(writes: list[WriteRequest], source: str, name: str) -> int:
    if source.isdecimal() and 1 <= int(source) <= len(writes):
        return int(source) - 1
    found = [number for number, write in enumerate(writes) if not source.isdecimal() and source in write.url]
    if len(found) != 1:
        hint = f"stillweb tasks request {name} lists them"
        raise UsageError(
            f"--from {source} names {len(found)} of {len(writes)} writes, expected is 1", hint=hint
        )
    return found[0]

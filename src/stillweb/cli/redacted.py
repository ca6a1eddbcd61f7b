"""What `collections show` tells of the secrets that were taken out of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import click

from stillweb.cli.console import print_table

__all__ = ["print_redactions", "redacted_in_words"]

_KINDS = {"given": "values of the login", "jwt": "signatures of JWTs", "unread": "bodies not searched"}


def redacted_in_words(redactions: Iterable[Mapping[str, Any]]) -> str:
    """Return in one line how often what was taken out; "" if nothing was."""
    counts: Counter[str] = Counter()
    for row in redactions:
        if row.get("kind") == "kept":
            return "secrets were kept (--keep-secrets)"
        counts[str(row.get("kind"))] += int(row.get("count", 0))
    told = ", ".join(f"{count} x {_KINDS.get(kind, kind)}" for kind, count in sorted(counts.items()))
    return f"redacted: {told}" if told else ""


def print_redactions(redactions: Iterable[Mapping[str, Any]]) -> None:
    """Print what was taken out where and how often; the placeholders of passwords log in at replay."""
    rows = []
    for row in redactions:
        if row.get("kind") == "kept":
            click.echo("secrets were kept (--keep-secrets): whoever has this collection has them too")
            continue
        stand_ins = ", ".join(row.get("placeholders", ()))
        rows.append([*(row.get(name) for name in ("kind", "where", "name", "host", "count")), stand_ins])
    if rows:
        columns = ["kind", "where", "name", "host", "#count", "placeholder"]
        print_table(columns, rows, title="redacted")

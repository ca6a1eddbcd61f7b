"""Output about the redactions of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from stillweb.cli.console import echo, print_table

_KINDS = {"given": "login values", "jwt": "JWT signatures", "unread": "bodies not searched"}


def redacted_in_words(redactions: Iterable[Mapping[str, Any]]) -> str:
    """Return the counts of redactions by kind in one line; "" without redactions."""
    counts: Counter[str] = Counter()
    for row in redactions:
        if row.get("kind") == "kept":
            return "secrets are stored (--keep-secrets)"
        counts[str(row.get("kind"))] += int(row.get("count", 0))
    listed = ", ".join(f"{count} x {_KINDS.get(kind, kind)}" for kind, count in sorted(counts.items()))
    return f"redacted: {listed}" if listed else ""


def print_redactions(redactions: Iterable[Mapping[str, Any]]) -> None:
    """Print the redactions with their placeholders; those of passwords log in to the replay."""
    rows = []
    for row in redactions:
        if row.get("kind") == "kept":
            echo("secrets are stored (--keep-secrets): anyone with this collection has them")
            continue
        placeholders = ", ".join(row.get("placeholders", ()))
        rows.append([*(row.get(name) for name in ("kind", "where", "name", "host", "count")), placeholders])
    if rows:
        columns = ["kind", "where", "name", "host", "#count", "placeholder"]
        print_table(columns, rows, title="redacted")

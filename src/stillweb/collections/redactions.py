"""`redactions.jsonl` of a collection: removed spans, one line per record and kind, and their sum.

    {"record": "urn:uuid:...", "part": "body", "kind": "cookie", "where": "cookie", "name": "sid",
     "host": "shop.example", "spans": [[310, 32], ...]}

Spans are offset and length in bytes, in the record's HTTP head or in its decoded body. A field whose value is
replaced as a whole (a password of any length) has no spans: location and name identify it. The manifest holds
the sum of the lines, without spans, and the placeholders of passwords, which are the passwords of the
replayed web.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillweb.collections.limits import load_json


@dataclass(frozen=True, slots=True)
class Redaction:
    """Spans of one kind and name that were removed from one part of one record.

    Attributes:
        part: `head`, `body` or `beside`.
        kind, where, name, host: of the secret, and where it was found first.
        spans: offset and length each.
        placeholder: of a password.
    """

    part: str
    kind: str
    where: str
    name: str
    host: str
    spans: tuple[tuple[int, int], ...] = ()
    placeholder: str = ""

    def line(self, record_id: str) -> bytes:
        members: dict[str, Any] = {"record": record_id.strip("<>"), "part": self.part, "kind": self.kind}
        members |= {"where": self.where, "name": self.name, "host": self.host}
        if self.spans:
            members["spans"] = [list(span) for span in self.spans]
        if self.placeholder:
            members["placeholder"] = self.placeholder
        return json.dumps(members, separators=(",", ":")).encode("utf-8") + b"\n"


def append_redactions(path: Path, lines: Iterable[bytes]) -> None:
    """Append lines to the file, which is created if necessary."""
    if text := b"".join(lines):
        with path.open("ab") as file:
            file.write(text)


def sum_of(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the number of removals by secret, in the manifest's format; empty without a file."""
    counts: dict[tuple[str, ...], int] = {}
    placeholders: dict[tuple[str, ...], set[str]] = {}
    for members in _lines(path):
        key = tuple(str(members.get(name, "")) for name in ("kind", "where", "name", "host"))
        counts[key] = counts.get(key, 0) + max(1, len(members.get("spans", ())))
        if members.get("placeholder"):
            placeholders.setdefault(key, set()).add(str(members["placeholder"]))
    rows = []
    for key in sorted(counts):
        row: dict[str, Any] = dict(zip(("kind", "where", "name", "host"), key, strict=True))
        row["count"] = counts[key]
        if key in placeholders:
            row["placeholders"] = sorted(placeholders[key])
        rows.append(row)
    return tuple(rows)


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        try:
            members = load_json(line, path=path)
        except ValueError:
            continue  # a line truncated by a kill
        if isinstance(members, dict):
            yield members

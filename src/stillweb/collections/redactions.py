"""What was taken out of a collection: `redactions.jsonl`, a line for each record and kind, and its sum.

    {"record": "urn:uuid:...", "part": "body", "kind": "cookie", "where": "cookie", "name": "sid",
     "host": "shop.example", "spans": [[310, 32], ...]}

Spans are offset and length in bytes, of the record's HTTP head or of its body without content coding.
A field that is exchanged where it stands (a password of any length) has no spans: place and name say where.
The manifest has the sum of the lines, without spans; placeholders of passwords stand there,
since in the recorded web they are the passwords.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Redaction", "append_redactions", "sum_of"]


@dataclass(frozen=True, slots=True)
class Redaction:
    """What was taken out of one part of one record, of one kind and name.

    Attributes:
        part: `head`, `body` or `beside`.
        kind, where, name, host: of the secret, where it was learned.
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
        """Return it as a line of the file."""
        members: dict[str, Any] = {"record": record_id.strip("<>"), "part": self.part, "kind": self.kind}
        members |= {"where": self.where, "name": self.name, "host": self.host}
        if self.spans:
            members["spans"] = [list(span) for span in self.spans]
        if self.placeholder:
            members["placeholder"] = self.placeholder
        return json.dumps(members, separators=(",", ":")).encode("utf-8") + b"\n"


def append_redactions(path: Path, lines: Iterable[bytes]) -> None:
    """Add lines to the file, which is made if need be."""
    if text := b"".join(lines):
        with path.open("ab") as file:
            file.write(text)


def sum_of(path: Path) -> tuple[dict[str, Any], ...]:
    """Return how often what was taken out where, as the manifest lists it; nothing without a file."""
    counts: dict[tuple[str, ...], int] = {}
    stand_ins: dict[tuple[str, ...], set[str]] = {}
    for told in _lines(path):
        key = tuple(str(told.get(name, "")) for name in ("kind", "where", "name", "host"))
        counts[key] = counts.get(key, 0) + max(1, len(told.get("spans", ())))
        if told.get("placeholder"):
            stand_ins.setdefault(key, set()).add(str(told["placeholder"]))
    rows = []
    for key in sorted(counts):
        row: dict[str, Any] = dict(zip(("kind", "where", "name", "host"), key, strict=True))
        row["count"] = counts[key]
        if key in stand_ins:
            row["placeholders"] = sorted(stand_ins[key])
        rows.append(row)
    return tuple(rows)


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue  # what a kill cut off
        if isinstance(told, dict):
            yield told

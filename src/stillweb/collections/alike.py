"""Which answers say the same, whenever they said it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stillweb.collections.entries import Entry

__all__ = ["first_of_alike", "timeless"]

_WHEN = re.compile(rb"(?<=\r\n)(?:date|age):[^\r\n]*(?:\r\n|$)", re.IGNORECASE)
_MANY = 4  # fewer are read as quickly as they are told apart


def timeless(entry: Entry) -> bytes:
    """Return the head of an answer without the fields that tell its time."""
    return _WHEN.sub(b"", bytes(entry.head))


def first_of_alike(rows: Sequence[int], entry: Callable[[int], Entry]) -> Sequence[int]:
    """Return the rows but for those that say what an earlier one says, to a request that meant the same.

    A style sheet of a hundred recorded pages has a hundred captures, and one is enough to know what it is.

    Args:
        rows: of one request key.
        entry: gives the answer in a row.
    """
    if len(rows) < _MANY:
        return rows
    firsts: dict[tuple[object, ...], int] = {}
    for row in sorted(rows, key=lambda row: entry(row).order):
        each = entry(row)
        says = (each.method, each.url, each.status, each.mime, each.body_sha256, each.varies, timeless(each))
        firsts.setdefault(says, row)
    return tuple(firsts.values())

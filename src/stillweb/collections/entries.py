"""Recorded answers as matching sees them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

__all__ = ["VARY_SIZE", "Entry", "Varies", "vary_digest"]

VARY_SIZE = 8

Varies = tuple[tuple[str, bytes], ...]
"""What an answer depends on: lower-case names of request fields, each with the digest of its value."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer of a pack.

    Attributes:
        key: request key.
        timestamp: 14 digits UTC.
        epoch: number of mutations (POST, PUT, PATCH, DELETE) recorded before this.
        order: position in recorded order; the row.
        head: status line and fields, without Content-Length and the blank line.
        body: as recorded, content encoding kept.
        encoding: content codings, "" if none.
        mime: without parameters.
        body_sha256: 32 bytes.
        varies: lower-case names of the request fields that the answer depends on, each with
            `vary_digest` of the value that the recorded request had.
    """

    key: bytes
    method: str
    url: str
    timestamp: str
    status: int
    epoch: int
    order: int
    head: memoryview
    body: memoryview
    encoding: str
    mime: str
    body_sha256: bytes
    varies: tuple[tuple[str, bytes], ...] = ()


def vary_digest(value: str) -> bytes:
    """Return the digest of a request field's value, as `varies` holds it; of "" for an absent field."""
    return blake2b(value.strip().encode("utf-8", "surrogatepass"), digest_size=VARY_SIZE).digest()

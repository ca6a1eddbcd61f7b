"""Bodies without their content coding, and under it again once secrets are out of them.

A body that held a secret is encoded again with the coding that it had. The encoded bytes are no longer those
of the wire; the decoded bytes differ in the listed spans alone. Encoding is deterministic. An event
stream is stored decoded, since its pieces have timestamps.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from stillweb.collections.warc.frames import Chunk, Chunks
from stillweb.errors import LimitExceeded
from stillweb.http import codec
from stillweb.model import Headers

__all__ = ["decode", "unpacked_chunks", "with_length", "without_coding"]

logger = logging.getLogger(__name__)


def decode(raw: bytes, coding: str) -> bytes | None:
    """Return a body without its content codings, as far as it can be decoded; None if it cannot."""
    try:
        return codec.decode(raw, coding, min_partial=0)
    except LimitExceeded as error:
        logger.warning("a body is not searched for secrets: %s", error)
        return None


def with_length(headers: Headers, length: int) -> Headers:
    """Return header fields with another Content-Length, if they have one."""
    return tuple((k, str(length)) if k.lower() == "content-length" else (k, v) for k, v in headers)


def without_coding(headers: Headers) -> Headers:
    """Return header fields without Content-Encoding."""
    return tuple((k, v) for k, v in headers if k.lower() != "content-encoding")


def unpacked_chunks(raw: bytes, coding: str, chunks: Chunks) -> Chunks:
    """Return the chunks of an event stream with their decoded sizes."""
    unpack = codec.incremental(coding)
    made, at = [], 0
    for chunk in chunks.chunks:
        made.append(Chunk(chunk.ms, len(unpack(raw[at : at + chunk.size]))))
        at += chunk.size
    return replace(chunks, chunks=tuple(made))

"""Bodies without their content coding, and under it again once secrets are out of them.

A body that held a secret is written under the coding that it had, packed anew: the packed bytes are no
longer those of the wire, and what they unpack to differs in the listed spans alone. Packing is
deterministic. An event stream is written unpacked, since its pieces have their times.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import brotli
import zstandard

from stillweb.collections.frames import Chunk, Chunks
from stillweb.model import Headers

__all__ = ["encode_body", "unpacked_chunks", "with_length", "without_coding"]


def encode_body(body: bytes, coding: str) -> bytes:
    """Return a body under a content coding that `decode_body` knows."""
    match coding.strip().lower():
        case "gzip" | "x-gzip":
            pack = zlib.compressobj(6, wbits=16 + zlib.MAX_WBITS)
            return pack.compress(body) + pack.flush()
        case "br":
            return bytes(brotli.compress(body, quality=5))
        case "zstd":
            return zstandard.ZstdCompressor().compress(body)
        case "deflate":
            return zlib.compress(body)
    return body


def with_length(headers: Headers, length: int) -> Headers:
    """Return header fields with another Content-Length, if they have one."""
    return tuple((k, str(length)) if k.lower() == "content-length" else (k, v) for k, v in headers)


def without_coding(headers: Headers) -> Headers:
    """Return header fields without Content-Encoding."""
    return tuple((k, v) for k, v in headers if k.lower() != "content-encoding")


def unpacked_chunks(raw: bytes, coding: str, chunks: Chunks) -> Chunks:
    """Return the sizes of an event stream's pieces as they are without the coding."""
    unpack = _unpacker(coding)
    made, at = [], 0
    for chunk in chunks.chunks:
        made.append(Chunk(chunk.ms, len(unpack(raw[at : at + chunk.size]))))
        at += chunk.size
    return replace(chunks, chunks=tuple(made))


def _unpacker(coding: str) -> Callable[[bytes], bytes]:
    match coding.strip().lower():
        case "gzip" | "x-gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress
        case "br":
            return brotli.Decompressor().process
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress
        case "deflate":
            return zlib.decompressobj().decompress
    return bytes

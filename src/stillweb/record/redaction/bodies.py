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

from stillweb.collections.warc.frames import Chunk, Chunks
from stillweb.model import Headers

__all__ = ["decode", "encode", "unpacked_chunks", "with_length", "without_coding"]


def decode(raw: bytes, coding: str) -> bytes | None:
    """Return a body without its content codings, as far as it goes; None if it cannot be read."""
    for each in reversed(_codings(coding)):
        if each not in _UNPACKERS:
            return None
        if not raw:
            continue
        unpack = _UNPACKERS[each]
        if each == "deflate" and raw[0] & 0x0F != zlib.DEFLATED:  # bare, as some servers send it
            unpack = _bare_deflate
        try:
            raw = _members(raw) if each.endswith("gzip") else unpack()(raw)
        except (zlib.error, brotli.error, zstandard.ZstdError):
            return None
    return raw


def _members(raw: bytes) -> bytes:
    """Return what all members of a gzip file hold (RFC 1952 §2.2)."""
    plain = []
    while raw[:2] == b"\x1f\x8b":
        unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
        plain.append(unpack.decompress(raw))
        raw = unpack.unused_data
    if not plain:
        raise zlib.error("no gzip")
    return b"".join(plain)


def encode(body: bytes, coding: str) -> bytes:
    """Return a body under the content codings that `decode` took off."""
    for each in _codings(coding):
        match each:
            case "gzip" | "x-gzip":
                pack = zlib.compressobj(6, wbits=16 + zlib.MAX_WBITS)
                body = pack.compress(body) + pack.flush()
            case "br":
                body = bytes(brotli.compress(body, quality=5))
            case "zstd":
                body = zstandard.ZstdCompressor().compress(body)
            case "deflate":
                body = zlib.compress(body)
    return body


def _codings(coding: str) -> list[str]:
    named = (each.strip().lower() for each in coding.split(","))
    return [each for each in named if each not in ("", "identity")]


def with_length(headers: Headers, length: int) -> Headers:
    """Return header fields with another Content-Length, if they have one."""
    return tuple((k, str(length)) if k.lower() == "content-length" else (k, v) for k, v in headers)


def without_coding(headers: Headers) -> Headers:
    """Return header fields without Content-Encoding."""
    return tuple((k, v) for k, v in headers if k.lower() != "content-encoding")


def unpacked_chunks(raw: bytes, coding: str, chunks: Chunks) -> Chunks:
    """Return the sizes of an event stream's pieces as they are without the coding."""
    unpack = [_UNPACKERS[each]() for each in reversed(_codings(coding))]
    made, at = [], 0
    for chunk in chunks.chunks:
        piece = raw[at : at + chunk.size]
        for step in unpack:
            piece = step(piece)
        made.append(Chunk(chunk.ms, len(piece)))
        at += chunk.size
    return replace(chunks, chunks=tuple(made))


_Unpack = Callable[[bytes], bytes]


def _gzip() -> _Unpack:
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress


def _bare_deflate() -> _Unpack:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress


_UNPACKERS: dict[str, Callable[[], _Unpack]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "br": lambda: brotli.Decompressor().process,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj().decompress,
    "deflate": lambda: zlib.decompressobj().decompress,
}

"""Content codings: which a client takes, and bodies without them.

A recorded body goes out as recorded where the client's `Accept-Encoding` admits its coding, else
decoded. Pure functions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import brotli
import zstandard

__all__ = ["admits", "decode"]


def admits(accept_encoding: str, encoding: str) -> bool:
    """Return whether a client that sent `accept_encoding` takes all codings of `encoding`.

    Without the header only identity is taken: RFC 9110 §12.5.3 would allow any coding, but those
    who send none (curl, scripts) do not decode.
    """
    weights = _weights(accept_encoding)
    return all(weights.get(coding, weights.get("*", 0.0)) > 0 for coding in _codings(encoding))


def decode(encoding: str, raw_body: bytes | memoryview) -> bytes | None:
    """Return a body without its codings; None if one is unknown or the body is damaged."""
    body = bytes(raw_body)
    for coding in reversed(_codings(encoding)):
        decoder = _DECODERS.get(coding)
        if decoder is None:
            return None
        try:
            body = decoder(body)
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError):
            return None
    return body


def _codings(encoding: str) -> list[str]:
    names = (name.strip().lower() for name in encoding.split(","))
    return [name for name in names if name and name != "identity"]


def _weights(accept_encoding: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in accept_encoding.split(","):
        name, _, parameter = item.partition(";")
        quality = parameter.strip().lower().removeprefix("q=")
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            weight = 0.0
        if name.strip():
            weights[name.strip().lower()] = weight
    # RFC 9110 §8.4.1.3: x-gzip is gzip.
    if "gzip" in weights:
        weights.setdefault("x-gzip", weights["gzip"])
    return weights


def _gunzip(body: bytes) -> bytes:
    """Decode every member of a gzip body (RFC 1952 §2.2); bytes after the last one are dropped."""
    parts: list[bytes] = []
    while body[:2] == b"\x1f\x8b" or not parts:
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        parts.append(decoder.decompress(body) + decoder.flush())
        if not decoder.eof:
            raise EOFError("gzip body breaks off")
        body = decoder.unused_data
    return b"".join(parts)


def _inflate(body: bytes) -> bytes:
    """Decode `deflate`: zlib by RFC 9110 §8.4.1.2, though some servers send it bare."""
    try:
        return zlib.decompress(body)
    except zlib.error:
        return zlib.decompress(body, -zlib.MAX_WBITS)


def _unzstd(body: bytes) -> bytes:
    """Decode every frame of a zstd body (RFC 8878 §3.1)."""
    parts: list[bytes] = []
    while body or not parts:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        parts.append(decoder.decompress(body))
        if not decoder.eof:
            raise EOFError("zstd body breaks off")
        body = decoder.unused_data
    return b"".join(parts)


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "br": brotli.decompress,
    "zstd": _unzstd,
}

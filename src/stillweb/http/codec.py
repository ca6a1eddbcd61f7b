"""Content codings (RFC 9110 §8.4): the only decoder, and which codings a client accepts.

`decode` serves replay, collections and record. It follows Chromium where archives need it: `deflate` may lack
its zlib header, and a body that breaks off yields the bytes decoded so far. It differs in one point: it reads
every member of a gzip body (RFC 1952 §2.2), Chromium only the first.

Output is bounded: `decode` raises `LimitExceeded` for a body that decodes to more than 128 MiB, or to more
than 32 MiB and 64 times its size. `STILLWEB_MAX_DECODED_MIB` replaces both limits. Input is fed in pieces to
the decoders that cannot bound their output.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable

import brotli
import zstandard

from stillweb.errors import LimitExceeded
from stillweb.model import Request, Response, header

CONTENT_ENCODING = re.compile(rb"(?<=\r\n)content-encoding:[^\r\n]*\r\n", re.IGNORECASE)
"""The line of a content coding in the bytes of a head."""

LIMIT_VARIABLE = "STILLWEB_MAX_DECODED_MIB"
_DEFAULT_LIMIT, _ALWAYS = 128 << 20, 32 << 20  # bytes
_RATIO = 64  # gzip reaches 1,032, brotli any; texts of sites stay below 20
_MAX_CODINGS = 4
_PLAUSIBLE = 256  # bytes
_DEFLATES, _DEFLATE_RATIO = frozenset({"gzip", "x-gzip", "deflate"}), 1032
_GZIP_MAGIC = b"\x1f\x8b"
# Input bytes for each call. A brotli meta-block of a few bytes yields 16 MiB, a zstd block of 4 bytes 128 KiB
# (RFC 7932 §9.2, RFC 8878 §3.1.1.2): more than the limit by some 100 MiB at most is in memory.
_BROTLI_STEP, _ZSTD_STEP = 64, 1024

_Unpacked = tuple[bytes, bool]  # the output, and whether the input was complete


def accepts(accept_encoding: str, encoding: str) -> bool:
    """Return True if a client that sent `accept_encoding` accepts all codings of `encoding`.

    Without the header only identity is accepted. RFC 9110 §12.5.3 would allow any coding, but clients that
    send no header (curl, scripts) do not decode.
    """
    weights = _weights(accept_encoding)
    return all(weights.get(coding, weights.get("*", 0.0)) > 0 for coding in _codings(encoding))


def decoded_limit(size: int) -> int:
    """Return the number of bytes to which a body of a size may decode."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    return int(text) << 20 if text.isdecimal() else min(_DEFAULT_LIMIT, max(_ALWAYS, _RATIO * size))


def is_bomb(body: bytes, encoding: str) -> bool:
    """Return True if a body decodes to more than the limit."""
    codings = _codings(encoding)
    if len(codings) == 1 and codings[0] in _DEFLATES and _DEFLATE_RATIO * len(body) < _ALWAYS:
        return False
    try:
        decode(body, encoding)
    except LimitExceeded:
        return True
    return False


def decode(
    body: bytes | memoryview, encoding: str, *, min_partial: int | None = 1, limit: int | None = None
) -> bytes | None:
    """Return a body without its content codings; None if a coding is unknown or the body is damaged.

    Args:
        body: as stored.
        encoding: the value of Content-Encoding; codings in the order in which they were applied.
        min_partial: bytes that a body which breaks off must yield. None rejects all bodies that break off.
        limit: maximum output in bytes, `decoded_limit` of the body by default.

    Raises:
        LimitExceeded: if the output of a coding exceeds the limit.
    """
    limit = decoded_limit(len(body)) if limit is None else limit
    codings = _codings(encoding)
    if len(codings) > _MAX_CODINGS:
        return None
    plain = bytes(body)
    for coding in reversed(codings):
        unpack = _DECODERS.get(coding)
        if unpack is None:
            return None
        try:
            plain, complete = unpack(plain, limit)
        except (zlib.error, brotli.error, zstandard.ZstdError):
            return None
        if not complete and (min_partial is None or len(plain) < min_partial):
            return None
    return plain


def decoded_body(message: Request | Response) -> bytes | None:
    """Return the body of a message as `decode` does."""
    return decode(message.raw_body, header(message.headers, "content-encoding"))


def encode(body: bytes, encoding: str) -> bytes:
    """Return a body under content codings that `decode` can remove. Equal input gives equal bytes."""
    for coding in _codings(encoding):
        match coding:
            case "gzip" | "x-gzip":
                packer = zlib.compressobj(6, wbits=16 + zlib.MAX_WBITS)
                body = packer.compress(body) + packer.flush()
            case "br":
                body = bytes(brotli.compress(body, quality=5))
            case "zstd":
                body = zstandard.ZstdCompressor().compress(body)
            case "deflate":
                body = zlib.compress(body)
    return body


def has_encoding(body: bytes, encoding: str) -> bool:
    """Return True if a body is in the content coding that its header names.

    True for unknown and for several codings. Deflate and brotli have no magic bytes, and short texts (`ok`,
    `[]`) parse as their start: a body that breaks off must yield 256 bytes.
    """
    match encoding.strip().lower():
        case "gzip" | "x-gzip":
            return body[:2] == _GZIP_MAGIC
        case "zstd":
            return body[:4] == zstandard.FRAME_HEADER
        case "br" | "deflate" as coding:
            try:
                return decode(body, coding, min_partial=_PLAUSIBLE) is not None
            except LimitExceeded:
                return True
    return True


def incremental(encoding: str) -> Callable[[bytes], bytes]:
    """Return a function that decodes the pieces of one body in order.

    The function raises the decoder's own error for a damaged piece, and KeyError for an unknown coding.
    """
    steps = [_INCREMENTAL[coding]() for coding in reversed(_codings(encoding))]

    def unpack(piece: bytes) -> bytes:
        for step in steps:
            piece = step(piece)
        return piece

    return unpack


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


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise LimitExceeded(
            f"a body decodes to more than {limit >> 20} MiB",
            limit="decoded size of a body",
            option=LIMIT_VARIABLE,
        )


def _gunzip(body: bytes, limit: int) -> _Unpacked:
    """Decode every member; bytes behind the last one are dropped, as Chromium and gzip do."""
    parts: list[bytes] = []
    size = 0
    while body[:2] == _GZIP_MAGIC or not parts:
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        parts.append(decoder.decompress(body, limit - size + 1))
        size += len(parts[-1])
        _check(size, limit)
        if not decoder.eof:
            return b"".join(parts), False
        body = decoder.unused_data
    return b"".join(parts), True


def _inflate(body: bytes, limit: int) -> _Unpacked:
    """Decode `deflate`: RFC 9110 §8.4.1.2 demands the zlib format, but some servers send bare deflate."""
    try:
        return _inflate_as(body, zlib.MAX_WBITS, limit)
    except zlib.error:
        return _inflate_as(body, -zlib.MAX_WBITS, limit)


def _inflate_as(body: bytes, wbits: int, limit: int) -> _Unpacked:
    decoder = zlib.decompressobj(wbits)
    plain = decoder.decompress(body, limit + 1)
    _check(len(plain), limit)
    return plain, decoder.eof


def _unbrotli(body: bytes, limit: int) -> _Unpacked:
    decoder = brotli.Decompressor()
    parts: list[bytes] = []
    size = 0
    for at in range(0, len(body), _BROTLI_STEP):
        parts.append(decoder.process(body[at : at + _BROTLI_STEP]))
        size += len(parts[-1])
        _check(size, limit)
    return b"".join(parts), decoder.is_finished()


def _unzstd(body: bytes, limit: int) -> _Unpacked:
    """Decode every frame (RFC 8878 §3.1); bytes behind the last one that are not a frame are dropped."""
    parts: list[bytes] = []
    size = at = 0
    while body[at : at + 4] == zstandard.FRAME_HEADER or not parts:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        while not decoder.eof:
            piece = body[at : at + _ZSTD_STEP]
            if not piece:
                return b"".join(parts), False
            at += len(piece)
            parts.append(decoder.decompress(piece))
            size += len(parts[-1])
            _check(size, limit)
        at -= len(decoder.unused_data)
    return b"".join(parts), True


_DECODERS: dict[str, Callable[[bytes, int], _Unpacked]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}


def _incremental_deflate() -> Callable[[bytes], bytes]:
    decoder: zlib._Decompress | None = None

    def step(piece: bytes) -> bytes:
        nonlocal decoder
        if decoder is None:
            if not piece:
                return b""
            is_zlib = piece[0] & 0x0F == zlib.DEFLATED  # RFC 1950 §2.2
            decoder = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        return decoder.decompress(piece)

    return step


def _incremental_gzip() -> Callable[[bytes], bytes]:
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress


_INCREMENTAL: dict[str, Callable[[], Callable[[bytes], bytes]]] = {
    "gzip": _incremental_gzip,
    "x-gzip": _incremental_gzip,
    "deflate": _incremental_deflate,
    "br": lambda: brotli.Decompressor().process,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj().decompress,
}

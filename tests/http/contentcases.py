"""Bodies under content codings and their decoded form: a table for the decoder, its callers and Chromium."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import NamedTuple

import brotli
import zstandard

PLAIN = (b"hello, world. " * 43)[:600]
MORE = b"more"
LONG = bytes(random.Random(1).choices(b"abcdefghijklmnopqrstuvwxyz", k=300_000))
"""Text that hardly compresses, so that a cut leaves much of it."""
GZIP, BR, ZSTD = gzip.compress(PLAIN, mtime=0), brotli.compress(PLAIN), zstandard.compress(PLAIN)


def bare_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


class ContentCase(NamedTuple):
    """A body under codings.

    Attributes:
        plain: the decoded body; None if it cannot be decoded; LONG if it breaks off and yields a part.
        chromium: number of bytes that Chromium 156 decodes, where it differs; -1 if it reports an error.
    """

    encoding: str
    body: bytes
    plain: bytes | None
    chromium: int | None = None


CASES = {
    "gzip": ContentCase("gzip", GZIP, PLAIN),
    "x-gzip": ContentCase("x-gzip", GZIP, PLAIN),
    "upper case": ContentCase("GZIP", GZIP, PLAIN),
    # RFC 1952 §2.2: the members simply follow each other. Chromium ignores all behind the first.
    "gzip of two members": ContentCase("gzip", GZIP + gzip.compress(MORE, mtime=0), PLAIN + MORE, 600),
    "gzip and other bytes": ContentCase("gzip", GZIP + b"junk", PLAIN),
    "gzip without its trailer": ContentCase("gzip", GZIP[:-4], PLAIN),
    "gzip that breaks off": ContentCase("gzip", gzip.compress(LONG)[:-1000], LONG),
    "gzip with a wrong CRC": ContentCase("gzip", GZIP[:-8] + bytes(8), None, 600),
    "no gzip": ContentCase("gzip", PLAIN, None, -1),
    "deflate": ContentCase("deflate", zlib.compress(PLAIN), PLAIN),
    "bare deflate": ContentCase("deflate", bare_deflate(PLAIN), PLAIN),
    "deflate that breaks off": ContentCase("deflate", zlib.compress(LONG)[:-1000], LONG),
    "bare deflate that breaks off": ContentCase("deflate", bare_deflate(LONG)[:-1000], LONG),
    "deflate with a wrong checksum": ContentCase("deflate", zlib.compress(PLAIN)[:-4] + bytes(4), None, -1),
    "br": ContentCase("br", BR, PLAIN),
    "br that breaks off": ContentCase("br", brotli.compress(LONG, quality=4)[:-1000], LONG),
    "no br": ContentCase("br", b"<html>not" * 5, None, -1),
    "zstd": ContentCase("zstd", ZSTD, PLAIN),
    "zstd of two frames": ContentCase("zstd", ZSTD + zstandard.compress(MORE), PLAIN + MORE),
    "zstd that breaks off": ContentCase("zstd", zstandard.compress(LONG)[:-1000], LONG),
    "zstd and other bytes": ContentCase("zstd", ZSTD + b"junk", PLAIN, -1),
    "gzip, then br": ContentCase("gzip, br", brotli.compress(GZIP), PLAIN),
    "br, then gzip": ContentCase("br, gzip", gzip.compress(BR, mtime=0), PLAIN),
    "gzip twice": ContentCase("gzip, gzip", gzip.compress(GZIP, mtime=0), PLAIN),
    "identity": ContentCase("identity", PLAIN, PLAIN),
    "no coding": ContentCase("", PLAIN, PLAIN),
    # Chromium shows the body as it is stored, as a replay that cannot decode it sends it.
    "unknown coding": ContentCase("x-unknown", PLAIN, None, 600),
    "gzip under an unknown coding": ContentCase("gzip, x-unknown", GZIP, None, len(GZIP)),
}
